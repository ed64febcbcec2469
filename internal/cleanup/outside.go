package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"k8s.io/utils/clock"
)

// leastWatch is the least time between two looks of an Outside. A Kip that lives renews the lease of its node in it: a
// kubelet does so each 10 seconds, and so does a virtual node.
const leastWatch = 20 * time.Second

// Outside ends what a Kip has left in its cloud, without that Kip, its store and its node. It ends nothing else.
type Outside struct {
	cfg OutsideConfig
	holdings
}

// OutsideConfig is that of an Outside.
type OutsideConfig struct {
	// Controller is the ID of the Kip.
	Controller string
	// Cloud has its calls wait for their budgets.
	Cloud cloud.Cloud
	// Watch sees whether the Kip lives. It is asked before each end.
	Watch Watch
	Clock clock.Clock
}

// Watch sees whether a Kip lives.
type Watch interface {
	// Lives returns a *LivesError if it sees the Kip live, another error if it cannot see it, and nil else.
	Lives(ctx context.Context) error
}

// LivesError says that a Kip lives, whose instances nobody else may end.
type LivesError struct{ Sign string }

func (e *LivesError) Error() string { return "this Kip runs: " + e.Sign }

// NewOutside returns an Outside.
func NewOutside(cfg OutsideConfig) *Outside {
	o := &Outside{cfg: cfg}
	o.holdings = holdings{
		cloud:   cfg.Cloud,
		disks:   cfg.Cloud.Optional().Disks,
		owner:   cfg.Controller,
		ours:    func(i cloud.Instance) bool { return i.Tags[cloud.TagOwner] == cfg.Controller },
		listLag: max(leastWatch, cfg.Cloud.Capabilities().ListLag),
		clock:   cfg.Clock,
		mayEnd:  o.mayEnd,
		shown:   new(bool),
	}
	return o
}

// Names returns what there is of the Kip in its cloud. With an error it is not all.
func (o *Outside) Names(ctx context.Context) (Names, error) {
	var errs []error
	n := o.names(ctx, &errs)
	return n, errors.Join(errs...)
}

// Shown reports whether any list has shown an instance, a part or a disk of the Kip.
func (o *Outside) Shown() bool { return *o.shown }

// mayEnd is the last question before something ends.
func (o *Outside) mayEnd(ctx context.Context) error {
	err := o.cfg.Watch.Lives(ctx)
	if lives, is := errors.AsType[*LivesError](err); is {
		return finalError{lives}
	}
	return err
}

// End terminates the instances that the cloud shows in two complete lists, until two show none, and then removes their parts,
// until two lists show none.
// The error says what is left, or that this is not known.
func (o *Outside) End(ctx context.Context, say func(string)) (Names, error) {
	if err := o.cfg.Watch.Lives(ctx); err != nil {
		return Names{}, fmt.Errorf("nothing was done: %w", err)
	}
	if n, err := o.Names(ctx); err != nil {
		return n, fmt.Errorf("nothing was done: %w", err)
	}
	ends := emptying{holdings: o.holdings, say: say}
	failed := until(ctx, o.clock, say, mayNot(ends.step))
	if failed == nil {
		clears := clearing{holdings: o.holdings}
		failed = until(ctx, o.clock, say, mayNot(clears.step))
	}
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
			return Names{}, cause
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
		defer cancel()
		ctx = last
	}
	n, err := o.Names(ctx)
	if err != nil {
		err = fmt.Errorf("see what is left: %w", err)
	}
	if left := n.Left(); len(left) > 0 {
		err = errors.Join(fmt.Errorf("left: %s", strings.Join(left, "; ")), err)
	}
	return n, errors.Join(failed, err)
}

// mayNot is a step that does not try again what the cloud says that it may not do.
func mayNot(step func(context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		waits, err := step(ctx)
		if errors.Is(err, cloud.ErrUnauthorised) {
			err = finalError{err}
		}
		return waits, err
	}
}

// Controller is what a cloud has of one Kip, for a person who does not know its ID.
type Controller struct {
	ID        string `json:"id"`
	Instances int    `json:"instances"`
	Parts     int    `json:"parts"`
	Disks     int    `json:"disks"`
	// Nametags and Clusters are what the tags of all these say of it.
	Nametags []string `json:"nametags"`
	Clusters []string `json:"clusters"`
	// Namespaces are those of the pods of its instances.
	Namespaces []string `json:"namespaces"`
	// Newest is when the youngest instance was launched; zero without one.
	Newest time.Time `json:"newest,omitzero"`
}

// tagCluster begins the key of the tag that names a cluster: cloud.aws.clusterName.
const tagCluster = "kubernetes.io/cluster/"

// ErrNoOwners says that a cloud does not tell whose instances it has.
var ErrNoOwners = errors.New("it does not tell whose instances it has")

// Controllers lists the Kips that have something in a cloud. The error is ErrNoOwners if the cloud cannot tell.
func Controllers(ctx context.Context, c cloud.Cloud) ([]Controller, error) {
	source := c.Optional().Owners
	if source == nil {
		return nil, fmt.Errorf("cloud %s: %w", c.Name(), ErrNoOwners)
	}
	owners, err := source.ListOwners(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Controller, len(owners))
	for n, o := range owners {
		k := Controller{ID: o.ID, Instances: len(o.Instances), Parts: len(o.Owned), Disks: len(o.Disks)}
		var tags []map[string]string
		for _, i := range o.Instances {
			tags = append(tags, i.Tags)
			if i.Launched.After(k.Newest) {
				k.Newest = i.Launched
			}
		}
		for _, p := range o.Owned {
			tags = append(tags, p.Tags)
		}
		for _, d := range o.Disks {
			tags = append(tags, d.Tags)
		}
		for _, t := range tags {
			k.Nametags = append(k.Nametags, t[cloud.TagNameTag])
			k.Namespaces = append(k.Namespaces, t[cloud.TagNamespace])
			for key := range t {
				if name, is := strings.CutPrefix(key, tagCluster); is {
					k.Clusters = append(k.Clusters, name)
				}
			}
		}
		k.Nametags, k.Clusters, k.Namespaces = each(k.Nametags), each(k.Clusters), each(k.Namespaces)
		all[n] = k
	}
	return all, nil
}

// each returns every name once, in order.
func each(names []string) []string {
	all := []string{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}
