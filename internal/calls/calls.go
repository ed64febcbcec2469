package calls

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pulse"
	"k8s.io/utils/clock"
)

const (
	// Timeout bounds one call, from when it is sent. A call that runs into it has an
	// unknown outcome.
	Timeout = time.Minute
	// most is how many calls of a kind are under way at the same time: it bounds what
	// a cloud that does not answer costs, and is not there to pace one that does.
	most = 128
	// gatherFor is how long a call waits for others to go along, where calls are scarce.
	gatherFor = 50 * time.Millisecond
	// mostNamed is how many instances one call names; EC2 takes 1,000.
	mostNamed = 500
	// leastNamed is how many one names at least that is made in smaller ones since the cloud has
	// throttled it: each costs a request.
	leastNamed = 5
	// After a call that the cloud has throttled no other of its kind is sent for
	// firstPause, and for twice as long each time that this was too short.
	firstPause, longestPause = time.Second, 30 * time.Second
	// longestRetryAfter bounds what a cloud may ask for.
	longestRetryAfter = time.Minute
	// mostConsole is how much of a console is handed on, its end: as much as EC2 keeps.
	mostConsole = 64 << 10
)

// Config of Calls. All fields are required unless they say otherwise.
type Config struct {
	Cloud cloud.Cloud
	// Random is for jitter. Optional.
	Random backoff.Random
	// Meter is told of what waits. Optional.
	Meter Meter
	// Pulse is told of the turns of those who send what others have asked for. Optional.
	Pulse *pulse.Pulse
	Clock clock.Clock
}

// Meter is told of calls that wait for their turn. Its methods must not block.
type Meter interface {
	CallWaits(kind cloud.Call)
	// CallWaited is told of the end of a wait: of the call, or of its caller.
	CallWaited(kind cloud.Call, d time.Duration)
}

// Calls is a cloud whose calls wait for their budget, and for the end of a back-off
// after one that was throttled. Of all calls but Launch a throttled one is sent again
// until its caller's ctx ends. Each call under way has Timeout; Catalogue, which is
// many calls on some clouds, has what its ctx gives.
type Calls struct {
	cfg       Config
	terminate *merged
	stop      *merged
	start     *merged
	describe  *merged

	mu    sync.Mutex
	lines map[cloud.Call]*line
}

var (
	_ cloud.Cloud       = (*Calls)(nil)
	_ cloud.Stopper     = stopper{}
	_ cloud.Interrupter = interrupter{}
	_ cloud.Disks       = disks{}
	_ cloud.DiskChecker = diskChecker{}
	_ cloud.Router      = router{}
	_ cloud.DiskGrower  = diskGrower{}
	_ cloud.Checkup     = checkup{}
	_ cloud.Booster     = booster{}
	_ cloud.Egress      = egress{}
	_ cloud.Bounder     = bounder{}
	_ cloud.Owners      = owners{}
	_ cloud.Parts       = parts{}
	_ cloud.Tagger      = tagger{}
	_ cloud.Console     = console{}
	_ cloud.Registries  = registries{}
)

// New returns the calls to a cloud. They run in their callers' time: nothing is to be
// started or stopped.
func New(cfg Config) *Calls {
	c := &Calls{cfg: cfg, lines: map[cloud.Call]*line{}}
	c.terminate = newMerged(c, cloud.CallTerminate, func(ctx context.Context, ids ...string) []answer {
		return answers(cloud.CallTerminate, cfg.Cloud.Terminate(ctx, ids...), ids)
	})
	c.stop = newMerged(c, cloud.CallStop, func(ctx context.Context, ids ...string) []answer {
		return answers(cloud.CallStop, cfg.Cloud.Features().Stopper.Stop(ctx, ids...), ids)
	})
	c.start = newMerged(c, cloud.CallStart, func(ctx context.Context, ids ...string) []answer {
		return answers(cloud.CallStart, cfg.Cloud.Features().Stopper.Start(ctx, ids...), ids)
	})
	c.describe = newMerged(c, cloud.CallDescribe, func(ctx context.Context, ids ...string) []answer {
		instances, err := cfg.Cloud.Describe(ctx, ids...)
		if err == nil && len(instances) != len(ids) {
			err = fmt.Errorf("the cloud was asked for %d instances and told of %d", len(ids), len(instances))
		}
		all := make([]answer, len(ids))
		for n := range all {
			switch all[n].err = err; {
			case err != nil:
			case instances[n].State == "":
				all[n].err = errUnseen
			default:
				all[n].instance = instances[n]
			}
		}
		return all
	})
	return c
}

// errUnseen is that of an instance at which the cloud could not look.
var errUnseen = errors.New("the cloud does not answer for where it is")

// answers are those to a call that names instances.
func answers(kind cloud.Call, results cloud.Results, ids []string) []answer {
	if len(results) != len(ids) {
		results = cloud.Each(fmt.Errorf("the cloud answered a %s of %d with %d results", kind, len(ids), len(results)), ids...)
	}
	all := make([]answer, len(ids))
	for n := range all {
		all[n].err = results[n].Err
	}
	return all
}

// Name implements cloud.Cloud.
func (c *Calls) Name() string { return c.cfg.Cloud.Name() }

// Traits implements cloud.Cloud.
func (c *Calls) Traits() cloud.Traits { return c.cfg.Cloud.Traits() }

// Features implements cloud.Cloud.
func (c *Calls) Features() cloud.Features {
	f := c.cfg.Cloud.Features()
	if f.Stopper != nil {
		f.Stopper = stopper{c}
	}
	if f.Disks != nil {
		f.Disks = disks{c, f.Disks}
	}
	if f.DiskChecker != nil {
		f.DiskChecker = diskChecker{c, f.DiskChecker}
	}
	if f.Router != nil {
		f.Router = router{c, f.Router}
	}
	if f.DiskGrower != nil {
		f.DiskGrower = diskGrower{c, f.DiskGrower}
	}
	if f.Checkup != nil {
		f.Checkup = checkup{c, f.Checkup}
	}
	if f.Booster != nil {
		f.Booster = booster{c, f.Booster}
	}
	if f.Egress != nil {
		f.Egress = egress{c, f.Egress}
	}
	if f.Bounder != nil {
		f.Bounder = bounder{c, f.Bounder}
	}
	if f.Owners != nil {
		f.Owners = owners{c, f.Owners}
	}
	if f.Console != nil {
		f.Console = console{c, f.Console}
	}
	if f.Parts != nil {
		f.Parts = parts{c, f.Parts}
	}
	if f.Interrupter != nil {
		f.Interrupter = interrupter{c, f.Interrupter}
	}
	if f.Tagger != nil {
		f.Tagger = tagger{c, f.Tagger}
	}
	if f.Admitter != nil {
		f.Admitter = admitter{c, f.Admitter}
	}
	if f.Resolver != nil {
		f.Resolver = resolver{c, f.Resolver}
	}
	if f.Registries != nil {
		f.Registries = registries{f.Registries, c}
	}
	return f
}

// Catalogue implements cloud.Cloud.
func (c *Calls) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	return answered(ctx, c, cloud.CallCatalogue, 0, func(ctx context.Context) ([]catalog.InstanceType, error) {
		return c.cfg.Cloud.Catalogue(ctx)
	})
}

// Launch implements cloud.Cloud. It waits for the budget of the whole request, and
// tells its caller when it was throttled: whether it started machines all the same,
// only the answers say.
func (c *Calls) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	turn, err := c.Turn(ctx, cloud.CallLaunch, len(r.Machines))
	if err != nil {
		return cloud.NotLaunched(len(r.Machines), err)
	}
	turn.Resources(len(r.Machines))
	return turn.Launch(ctx, r)
}

// List implements cloud.Cloud.
func (c *Calls) List(ctx context.Context, owner string) (cloud.Listing, error) {
	return answered(ctx, c, cloud.CallList, Timeout, func(ctx context.Context) (cloud.Listing, error) {
		return c.cfg.Cloud.List(ctx, owner)
	})
}

// Description is what the cloud says of one instance, or why it does not.
type Description struct {
	Instance cloud.Instance
	Err      error
}

// DescribeEach is Describe with an answer for each ID, in their order: one instance for
// which the cloud refuses to answer hides no other.
func (c *Calls) DescribeEach(ctx context.Context, ids ...string) []Description {
	all := make([]Description, len(ids))
	for n, a := range c.describe.do(ctx, ids) {
		all[n] = Description{Instance: a.instance, Err: a.err}
	}
	return all
}

// Describe implements cloud.Cloud.
func (c *Calls) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	instances := make([]cloud.Instance, len(ids))
	for n, d := range c.DescribeEach(ctx, ids...) {
		if d.Err != nil {
			return nil, d.Err
		}
		instances[n] = d.Instance
	}
	return instances, nil
}

// Terminate implements cloud.Cloud.
func (c *Calls) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return results(c.terminate.do(ctx, ids), ids)
}

func results(all []answer, ids []string) cloud.Results {
	list := make(cloud.Results, len(ids))
	for n := range list {
		list[n] = cloud.Result{ID: ids[n], Err: all[n].err}
	}
	return list
}

type stopper struct{ c *Calls }

func (s stopper) Stop(ctx context.Context, ids ...string) cloud.Results {
	return results(s.c.stop.do(ctx, ids), ids)
}

// TakeBackStop has an instance stopped no more, where the call was not sent: it waits for its
// turn, or was throttled. Who has asked for that gets an error.
func (c *Calls) TakeBackStop(id string) { c.stop.takeBack(id) }

func (s stopper) Start(ctx context.Context, ids ...string) cloud.Results {
	return results(s.c.start.do(ctx, ids), ids)
}

type tagger struct {
	c *Calls
	t cloud.Tagger
}

func (t tagger) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	ids := make([]string, len(taggings))
	for n, tagging := range taggings {
		ids[n] = tagging.ID
	}
	return t.c.each(ctx, cloud.CallTag, ids, func(ctx context.Context, places []int) cloud.Results {
		some := make([]cloud.Tagging, len(places))
		for n, place := range places {
			some[n] = taggings[place]
		}
		return t.t.Tag(ctx, some...)
	})
}

type booster struct {
	c *Calls
	b cloud.Booster
}

func (b booster) EndBoost(ctx context.Context, ids ...string) cloud.Results {
	return b.c.each(ctx, cloud.CallEndBoost, ids, func(ctx context.Context, places []int) cloud.Results {
		some := make([]string, len(places))
		for n, place := range places {
			some[n] = ids[place]
		}
		return b.b.EndBoost(ctx, some...)
	})
}

type interrupter struct {
	c *Calls
	i cloud.Interrupter
}

// Interruptions has each look of the cloud wait for its turn.
func (i interrupter) Interruptions(ctx context.Context, l cloud.Listener) error {
	inTurn := l
	inTurn.Send = func(ctx context.Context, call func(context.Context) error) error {
		return i.c.one(ctx, cloud.CallInterruptions, Timeout, func(ctx context.Context) error { return l.Look(ctx, call) })
	}
	return i.i.Interruptions(ctx, inTurn)
}

type admitter struct {
	c *Calls
	a cloud.Admitter
}

func (a admitter) Admit(ctx context.Context, owner string) error {
	return a.c.one(ctx, cloud.CallAdmit, Timeout, func(ctx context.Context) error { return a.a.Admit(ctx, owner) })
}

type resolver struct {
	c *Calls
	r cloud.Resolver
}

func (r resolver) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	return answered(ctx, r.c, cloud.CallResolve, Timeout, func(ctx context.Context) (cloud.Resolved, error) {
		return r.r.Resolve(ctx, s)
	})
}

type registries struct {
	cloud.Registries // its patterns are known without a call
	c                *Calls
}

func (r registries) PullCredentials(ctx context.Context, registry string, repositories ...string) (cloud.PullCredentials, error) {
	return answered(ctx, r.c, cloud.CallPullCredentials, Timeout, func(ctx context.Context) (cloud.PullCredentials, error) {
		return r.Registries.PullCredentials(ctx, registry, repositories...)
	})
}

type console struct {
	c    *Calls
	from cloud.Console
}

func (k console) Console(ctx context.Context, id string) ([]byte, error) {
	text, err := answered(ctx, k.c, cloud.CallConsole, Timeout, func(ctx context.Context) ([]byte, error) {
		return k.from.Console(ctx, id)
	})
	return text[max(0, len(text)-mostConsole):], err
}

type parts struct {
	c *Calls
	p cloud.Parts
}

func (p parts) ListParts(ctx context.Context, owner string) ([]cloud.Part, error) {
	return answered(ctx, p.c, cloud.CallListParts, Timeout, func(ctx context.Context) ([]cloud.Part, error) {
		return p.p.ListParts(ctx, owner)
	})
}

func (p parts) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	return p.c.each(ctx, cloud.CallDeleteParts, ids, func(ctx context.Context, places []int) cloud.Results {
		some := make([]string, len(places))
		for n, place := range places {
			some[n] = ids[place]
		}
		return p.p.DeleteParts(ctx, some...)
	})
}

type disks struct {
	c *Calls
	d cloud.Disks
}

func (d disks) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	return answered(ctx, d.c, cloud.CallCreateDisk, Timeout, func(ctx context.Context) (cloud.Disk, error) {
		return d.d.CreateDisk(ctx, r)
	})
}

func (d disks) DeleteDisk(ctx context.Context, id string) error {
	return d.c.one(ctx, cloud.CallDeleteDisk, Timeout, func(ctx context.Context) error { return d.d.DeleteDisk(ctx, id) })
}

func (d disks) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	return answered(ctx, d.c, cloud.CallListDisks, Timeout, func(ctx context.Context) ([]cloud.Disk, error) {
		return d.d.ListDisks(ctx, owner)
	})
}

func (d disks) AttachDisk(ctx context.Context, id, instance string) error {
	return d.c.one(ctx, cloud.CallAttachDisk, Timeout, func(ctx context.Context) error { return d.d.AttachDisk(ctx, id, instance) })
}

func (d disks) DetachDisk(ctx context.Context, id, instance string) error {
	return d.c.one(ctx, cloud.CallDetachDisk, Timeout, func(ctx context.Context) error { return d.d.DetachDisk(ctx, id, instance) })
}

type diskChecker struct {
	c *Calls
	d cloud.DiskChecker
}

func (d diskChecker) CheckDisk(ctx context.Context, id, zone string) error {
	return d.c.one(ctx, cloud.CallCheckDisk, Timeout, func(ctx context.Context) error { return d.d.CheckDisk(ctx, id, zone) })
}

type router struct {
	c *Calls
	r cloud.Router
}

func (r router) Route(ctx context.Context, instance string, to []netip.Prefix) error {
	return r.c.one(ctx, cloud.CallRoute, Timeout, func(ctx context.Context) error { return r.r.Route(ctx, instance, to) })
}

func (r router) Unroute(ctx context.Context, instance string, to []netip.Prefix) error {
	return r.c.one(ctx, cloud.CallUnroute, Timeout, func(ctx context.Context) error { return r.r.Unroute(ctx, instance, to) })
}

type diskGrower struct {
	c *Calls
	d cloud.DiskGrower
}

func (d diskGrower) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	return answered(ctx, d.c, cloud.CallGrowDisk, Timeout, func(ctx context.Context) (cloud.Disk, error) {
		return d.d.GrowDisk(ctx, id, bytes)
	})
}

type checkup struct {
	c *Calls
	u cloud.Checkup
}

func (u checkup) Impaired(ctx context.Context) (all []string, err error) {
	err = u.c.one(ctx, cloud.CallImpaired, Timeout, func(ctx context.Context) (err error) {
		all, err = u.u.Impaired(ctx)
		return err
	})
	return all, err
}

type egress struct {
	c *Calls
	e cloud.Egress
}

func (e egress) Ways(ctx context.Context, subnets ...string) (map[string]cloud.Way, error) {
	return answered(ctx, e.c, cloud.CallEgress, Timeout, func(ctx context.Context) (map[string]cloud.Way, error) {
		return e.e.Ways(ctx, subnets...)
	})
}

type bounder struct {
	c *Calls
	b cloud.Bounder
}

func (b bounder) Bounds(ctx context.Context, owner string) (catalog.Bounds, error) {
	return answered(ctx, b.c, cloud.CallBounds, Timeout, func(ctx context.Context) (catalog.Bounds, error) {
		return b.b.Bounds(ctx, owner)
	})
}

type owners struct {
	c *Calls
	o cloud.Owners
}

func (o owners) ListOwners(ctx context.Context) ([]cloud.Owner, error) {
	return answered(ctx, o.c, cloud.CallList, Timeout, o.o.ListOwners)
}

// one makes a call that is merged with no other, within a timeout if that is not 0,
// and again as long as it is throttled.
func (c *Calls) one(ctx context.Context, kind cloud.Call, timeout time.Duration, do func(context.Context) error) error {
	var throttled error
	for {
		turn, err := c.Turn(ctx, kind, 1)
		if err != nil {
			return errors.Join(err, throttled)
		}
		turn.Resources(1)
		err = turn.send(ctx, timeout, do)
		if throttled = err; !errors.Is(err, cloud.ErrThrottled) {
			return err
		}
	}
}

// answered makes a call as one does, and returns what the cloud answered.
func answered[T any](
	ctx context.Context, c *Calls, kind cloud.Call, timeout time.Duration, ask func(context.Context) (T, error),
) (answer T, err error) {
	err = c.one(ctx, kind, timeout, func(ctx context.Context) (err error) {
		answer, err = ask(ctx)
		return err
	})
	return answer, err
}

// each makes calls about things that only one caller knows, as many in one as there are
// resources for, and again for those that are throttled. do is given their places.
func (c *Calls) each(
	ctx context.Context, kind cloud.Call, ids []string, do func(ctx context.Context, places []int) cloud.Results,
) cloud.Results {
	results := cloud.Each(nil, ids...)
	left := make([]int, len(ids))
	for n := range left {
		left[n] = n
	}
	for len(left) > 0 {
		turn, err := c.Turn(ctx, kind, 1)
		if err != nil {
			for _, place := range left {
				results[place].Err = errors.Join(err, results[place].Err)
			}
			return results
		}
		n := max(1, turn.Resources(min(len(left), mostNamed)))
		places := left[:n:n]
		named := make([]string, n)
		for i, place := range places {
			named[i] = ids[place]
		}
		left = left[n:]
		said := turn.ask(ctx, func(ctx context.Context) []answer { return answers(kind, do(ctx, places), named) })
		for i, a := range said {
			results[places[i]].Err = a.err
			if errors.Is(a.err, cloud.ErrThrottled) {
				left = append(left, places[i])
			}
		}
	}
	return results
}
