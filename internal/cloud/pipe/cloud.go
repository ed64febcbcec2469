package pipe

import (
	"context"
	"errors"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

var _ cloud.Cloud = (*Pipe)(nil)

// Name implements cloud.Cloud.
func (p *Pipe) Name() string { return p.cloud.Name() }

// Capabilities implements cloud.Cloud.
func (p *Pipe) Capabilities() cloud.Capabilities { return p.cloud.Capabilities() }

// Optional implements cloud.Cloud. The pipe can do exactly what its cloud can.
func (p *Pipe) Optional() cloud.Optional { return through(p, p.cloud.Optional()) }

// Catalogue implements cloud.Cloud.
func (p *Pipe) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	return ask(ctx, p, Call{Kind: cloud.CallCatalogue}, p.cloud.Catalogue)
}

// Launch implements cloud.Cloud. It waits for the budget of the whole request. It is not repeated if it was throttled: only the
// answers tell whether it started machines all the same.
func (p *Pipe) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	turn, err := p.Turn(ctx, cloud.CallLaunch, len(r.Machines))
	if err != nil {
		return cloud.NotLaunched(len(r.Machines), err)
	}
	turn.Resources(len(r.Machines))
	return turn.Launch(ctx, r)
}

// launch sends a launch in a turn, which ends.
func (p *Pipe) launch(ctx context.Context, r cloud.LaunchRequest, turn *Turn) cloud.LaunchResults {
	defer func() {
		if !turn.sent { // it was held back
			turn.Cancel()
		}
	}()
	call := Call{Kind: cloud.CallLaunch, Launch: &r, turn: turn}
	answers := p.Do(ctx, call, func(ctx context.Context, _ Call) []Answer {
		results := p.cloud.Launch(ctx, r)
		answers := make([]Answer, len(results))
		for n := range results {
			answers[n] = Answer{Value: results[n].Instance, Err: results[n].Err}
		}
		return answers
	})
	results := make(cloud.LaunchResults, len(answers))
	for n, a := range answers {
		results[n].Instance, _ = a.Value.(cloud.Instance)
		results[n].Err = a.Err
	}
	return results
}

// List implements cloud.Cloud.
func (p *Pipe) List(ctx context.Context, owner string) (cloud.Listing, error) {
	return ask(ctx, p, Call{Kind: cloud.CallList}, func(ctx context.Context) (cloud.Listing, error) { return p.cloud.List(ctx, owner) })
}

// Description is what the cloud says of one instance, or why it does not.
type Description struct {
	Instance cloud.Instance
	Err      error
}

// errUnseen is the error of an instance in a zone where the cloud could not look.
var errUnseen = errors.New("the cloud does not answer for where it is")

// DescribeEach is Describe with an answer for each ID, in their order. If the cloud does not answer for one instance, it still
// does for the others.
func (p *Pipe) DescribeEach(ctx context.Context, ids ...string) []Description {
	all := make([]Description, len(ids))
	if len(ids) == 0 {
		return all
	}
	for n, a := range p.Do(ctx, Call{Kind: cloud.CallDescribe, IDs: ids}, p.describe) {
		all[n].Instance, _ = a.Value.(cloud.Instance)
		if all[n].Err = a.Err; a.Err == nil && all[n].Instance.State == "" {
			all[n].Err = errUnseen
		}
	}
	return all
}

func (p *Pipe) describe(ctx context.Context, call Call) []Answer {
	instances, err := p.cloud.Describe(ctx, call.IDs...)
	if err != nil {
		return call.Fail(err)
	}
	all := make([]Answer, len(instances))
	for n := range all {
		all[n].Value = instances[n]
	}
	return all
}

// Describe implements cloud.Cloud.
func (p *Pipe) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	instances := make([]cloud.Instance, len(ids))
	for n, d := range p.DescribeEach(ctx, ids...) {
		if d.Err != nil {
			return nil, d.Err
		}
		instances[n] = d.Instance
	}
	return instances, nil
}

// Terminate implements cloud.Cloud.
func (p *Pipe) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return p.each(ctx, cloud.CallTerminate, ids, p.cloud.Terminate)
}

// TakeBackStop takes back the stop of an instance if its call was not sent: it waits for its turn, or was throttled. The caller of
// Stop gets an error.
func (p *Pipe) TakeBackStop(id string) { p.batchers[cloud.CallStop].takeBack(id) }

// Turn waits until a call of a kind may be sent that takes at least so many resources,
// of those that the bucket can hold. Those are not taken yet. The error is an *UnsentError.
func (p *Pipe) Turn(ctx context.Context, kind cloud.Call, least int) (*Turn, error) {
	turn, err := p.limiter.turn(ctx, kind, least)
	if err != nil {
		return nil, err
	}
	turn.pipe = p
	return turn, nil
}

// Launch sends a launch in its turn, which ends.
func (t *Turn) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	return t.pipe.launch(ctx, r, t)
}

// Waits says what the calls of a kind wait for; "" while none does.
func (p *Pipe) Waits(kind cloud.Call) string { return p.limiter.waits(kind) }
