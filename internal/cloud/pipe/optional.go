package pipe

import (
	"context"
	"net/netip"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// mostConsole is how much of a console the pipe returns, its end: as much as EC2 keeps.
const mostConsole = 64 << 10

// optional has the methods of all optional interfaces of clouds. Each makes its call through the pipe.
type optional struct {
	pipe  *Pipe
	cloud cloud.Optional
}

// through returns the optional interfaces of a pipe to a cloud that has some. An interface that is not listed here is
// not offered, so that no call goes around the pipe.
func through(p *Pipe, of cloud.Optional) cloud.Optional {
	f := &optional{pipe: p, cloud: of}
	return cloud.Optional{
		Stopper:        ifAny[cloud.Stopper](of.Stopper, f),
		Interrupter:    ifAny[cloud.Interrupter](of.Interrupter, f),
		Disks:          ifAny[cloud.Disks](of.Disks, f),
		DiskChecker:    ifAny[cloud.DiskChecker](of.DiskChecker, f),
		Router:         ifAny[cloud.Router](of.Router, f),
		DiskGrower:     ifAny[cloud.DiskGrower](of.DiskGrower, f),
		Console:        ifAny[cloud.Console](of.Console, f),
		OwnedResources: ifAny[cloud.OwnedResources](of.OwnedResources, f),
		Tagger:         ifAny[cloud.Tagger](of.Tagger, f),
		Admitter:       ifAny[cloud.Admitter](of.Admitter, f),
		Resolver:       ifAny[cloud.Resolver](of.Resolver, f),
		Registries:     ifAny[cloud.Registries](of.Registries, f),
		Booster:        ifAny[cloud.Booster](of.Booster, f),
		Egress:         ifAny[cloud.Egress](of.Egress, f),
		Bounder:        ifAny[cloud.Bounder](of.Bounder, f),
		Owners:         ifAny[cloud.Owners](of.Owners, f),
	}
}

// ifAny returns f if the cloud has the interface, and nil if it has not.
func ifAny[T comparable](has, f T) T {
	var none T
	if has == none {
		return none
	}
	return f
}

func (f *optional) Stop(ctx context.Context, ids ...string) cloud.Results {
	return f.pipe.each(ctx, cloud.CallStop, ids, f.cloud.Stopper.Stop)
}

func (f *optional) Start(ctx context.Context, ids ...string) cloud.Results {
	return f.pipe.each(ctx, cloud.CallStart, ids, f.cloud.Stopper.Start)
}

// Interruptions sends each question of the cloud through the pipe, and counts its notices.
func (f *optional) Interruptions(ctx context.Context, l cloud.Listener) error {
	through := l
	through.Notify = func(i cloud.Interruption) {
		if f.pipe.meter != nil {
			f.pipe.meter.InstanceInterrupted()
		}
		l.Notify(i)
	}
	through.Send = func(ctx context.Context, call func(context.Context) error) error {
		_, err := ask(ctx, f.pipe, Call{Kind: cloud.CallInterruptions}, func(ctx context.Context) (any, error) { return nil, l.Look(ctx, call) })
		return err
	}
	return f.cloud.Interrupter.Interruptions(ctx, through)
}

func (f *optional) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallCreateDisk}, func(ctx context.Context) (cloud.Disk, error) {
		return f.cloud.Disks.CreateDisk(ctx, r)
	})
}

func (f *optional) DeleteDisk(ctx context.Context, id string) error {
	return f.pipe.tell(ctx, cloud.CallDeleteDisk, id, func(ctx context.Context) error { return f.cloud.Disks.DeleteDisk(ctx, id) })
}

func (f *optional) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallListDisks}, func(ctx context.Context) ([]cloud.Disk, error) {
		return f.cloud.Disks.ListDisks(ctx, owner)
	})
}

func (f *optional) AttachDisk(ctx context.Context, id, instance string) error {
	return f.pipe.tell(ctx, cloud.CallAttachDisk, id, func(ctx context.Context) error {
		return f.cloud.Disks.AttachDisk(ctx, id, instance)
	})
}

func (f *optional) DetachDisk(ctx context.Context, id, instance string) error {
	return f.pipe.tell(ctx, cloud.CallDetachDisk, id, func(ctx context.Context) error {
		return f.cloud.Disks.DetachDisk(ctx, id, instance)
	})
}

func (f *optional) CheckDisk(ctx context.Context, id, zone string) error {
	return f.pipe.tell(ctx, cloud.CallCheckDisk, id, func(ctx context.Context) error { return f.cloud.DiskChecker.CheckDisk(ctx, id, zone) })
}

func (f *optional) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	call := Call{Kind: cloud.CallGrowDisk, IDs: []string{id}}
	return ask(ctx, f.pipe, call, func(ctx context.Context) (cloud.Disk, error) { return f.cloud.DiskGrower.GrowDisk(ctx, id, bytes) })
}

func (f *optional) Route(ctx context.Context, instance string, to []netip.Prefix) error {
	return f.pipe.tell(ctx, cloud.CallRoute, instance, func(ctx context.Context) error { return f.cloud.Router.Route(ctx, instance, to) })
}

func (f *optional) Unroute(ctx context.Context, instance string, to []netip.Prefix) error {
	return f.pipe.tell(ctx, cloud.CallUnroute, instance, func(ctx context.Context) error {
		return f.cloud.Router.Unroute(ctx, instance, to)
	})
}

func (f *optional) Console(ctx context.Context, id string) ([]byte, error) {
	call := Call{Kind: cloud.CallConsole, IDs: []string{id}}
	text, err := ask(ctx, f.pipe, call, func(ctx context.Context) ([]byte, error) { return f.cloud.Console.Console(ctx, id) })
	return text[max(0, len(text)-mostConsole):], err
}

func (f *optional) ListOwned(ctx context.Context, owner string) ([]cloud.OwnedResource, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallListOwned}, func(ctx context.Context) ([]cloud.OwnedResource, error) {
		return f.cloud.OwnedResources.ListOwned(ctx, owner)
	})
}

func (f *optional) DeleteOwned(ctx context.Context, ids ...string) cloud.Results {
	return f.pipe.each(ctx, cloud.CallDeleteOwned, ids, f.cloud.OwnedResources.DeleteOwned)
}

// Tag implements cloud.Tagger. No two taggings are of one instance.
func (f *optional) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	ids, of := make([]string, len(taggings)), make(map[string]cloud.Tagging, len(taggings))
	for n, t := range taggings {
		ids[n], of[t.ID] = t.ID, t
	}
	return f.pipe.each(ctx, cloud.CallTag, ids, func(ctx context.Context, ids ...string) cloud.Results {
		some := make([]cloud.Tagging, len(ids))
		for n, id := range ids {
			some[n] = of[id]
		}
		return f.cloud.Tagger.Tag(ctx, some...)
	})
}

func (f *optional) Admit(ctx context.Context, owner string) error {
	return f.pipe.tell(ctx, cloud.CallAdmit, owner, func(ctx context.Context) error { return f.cloud.Admitter.Admit(ctx, owner) })
}

func (f *optional) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallResolve}, func(ctx context.Context) (cloud.Resolved, error) {
		return f.cloud.Resolver.Resolve(ctx, s)
	})
}

// Images implements cloud.Registries. It needs no call.
func (f *optional) Images() []string { return f.cloud.Registries.Images() }

func (f *optional) PullCredentials(ctx context.Context, registry string, repositories ...string) (cloud.PullCredentials, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallPullCredentials}, func(ctx context.Context) (cloud.PullCredentials, error) {
		return f.cloud.Registries.PullCredentials(ctx, registry, repositories...)
	})
}

func (f *optional) EndBoost(ctx context.Context, ids ...string) cloud.Results {
	return f.pipe.each(ctx, cloud.CallEndBoost, ids, f.cloud.Booster.EndBoost)
}

func (f *optional) Ways(ctx context.Context, subnets ...string) (map[string]cloud.Way, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallEgress}, func(ctx context.Context) (map[string]cloud.Way, error) {
		return f.cloud.Egress.Ways(ctx, subnets...)
	})
}

func (f *optional) Bounds(ctx context.Context, owner string) (catalog.Bounds, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallBounds}, func(ctx context.Context) (catalog.Bounds, error) {
		return f.cloud.Bounder.Bounds(ctx, owner)
	})
}

func (f *optional) ListOwners(ctx context.Context) ([]cloud.Owner, error) {
	return ask(ctx, f.pipe, Call{Kind: cloud.CallList}, f.cloud.Owners.ListOwners)
}
