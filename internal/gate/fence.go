package gate

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/elotl/kip/internal/cloud"
)

// Fence is a cloud of which each call that destroys, or that takes what another Kip may have
// given elsewhere since, is made only if this process surely leads: leads returns an error
// unless it does. That is asked last, after every wait of the call, and for each time that it is
// sent again; what has happened since nobody can know. So whoever has calls wait has the fence
// behind.
func Fence(c cloud.Cloud, leads func(context.Context) error) cloud.Cloud {
	return fenced{Cloud: c, fence: fence(leads)}
}

type fence func(context.Context) error

// pass is what stands before the call.
func (f fence) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leadsTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		return fmt.Errorf("it is not certain that this Kip leads still, so nothing ends, and no disk or route moves: %w", err)
	}
	return nil
}

// each makes a call that names things.
func (f fence) each(ctx context.Context, do func(context.Context, ...string) cloud.Results, ids []string) cloud.Results {
	if err := f.pass(ctx); err != nil {
		return cloud.Each(err, ids...)
	}
	return do(ctx, ids...)
}

type fenced struct {
	cloud.Cloud
	fence
}

var (
	_ cloud.Cloud   = fenced{}
	_ cloud.Stopper = fencedStopper{}
	_ cloud.Disks   = fencedDisks{}
	_ cloud.Router  = fencedRouter{}
	_ cloud.Parts   = fencedParts{}

	_ cloud.Admitter = fencedAdmitter{}
)

func (f fenced) Features() cloud.Features {
	all := f.Cloud.Features()
	if all.Stopper != nil {
		all.Stopper = fencedStopper{all.Stopper, f.fence}
	}
	if all.Disks != nil {
		all.Disks = fencedDisks{all.Disks, f.fence}
	}
	if all.Router != nil {
		all.Router = fencedRouter{all.Router, f.fence}
	}
	if all.Parts != nil {
		all.Parts = fencedParts{all.Parts, f.fence}
	}
	if all.Admitter != nil {
		all.Admitter = fencedAdmitter{all.Admitter, f.fence}
	}
	return all
}

func (f fenced) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return f.each(ctx, f.Cloud.Terminate, ids)
}

type fencedStopper struct {
	cloud.Stopper
	fence
}

func (f fencedStopper) Stop(ctx context.Context, ids ...string) cloud.Results {
	return f.each(ctx, f.Stopper.Stop, ids)
}

type fencedDisks struct {
	cloud.Disks
	fence
}

// AttachDisk implements cloud.Disks. The disk may be another pod's by now.
func (f fencedDisks) AttachDisk(ctx context.Context, id, instance string) error {
	if err := f.pass(ctx); err != nil {
		return err
	}
	return f.Disks.AttachDisk(ctx, id, instance)
}

func (f fencedDisks) DetachDisk(ctx context.Context, id, instance string) error {
	if err := f.pass(ctx); err != nil {
		return err
	}
	return f.Disks.DetachDisk(ctx, id, instance)
}

func (f fencedDisks) DeleteDisk(ctx context.Context, id string) error {
	if err := f.pass(ctx); err != nil {
		return err
	}
	return f.Disks.DeleteDisk(ctx, id)
}

type fencedRouter struct {
	cloud.Router
	fence
}

// Route implements cloud.Router. The prefixes may be another cell's by now.
func (f fencedRouter) Route(ctx context.Context, instance string, to []netip.Prefix) error {
	if err := f.pass(ctx); err != nil {
		return err
	}
	return f.Router.Route(ctx, instance, to)
}

func (f fencedRouter) Unroute(ctx context.Context, instance string, to []netip.Prefix) error {
	if err := f.pass(ctx); err != nil {
		return err
	}
	return f.Router.Unroute(ctx, instance, to)
}

// fencedAdmitter takes back the way to the agents from whoever had it before.
type fencedAdmitter struct {
	cloud.Admitter
	fence
}

func (f fencedAdmitter) Admit(ctx context.Context, owner string) error {
	if err := f.pass(ctx); err != nil {
		return err
	}
	return f.Admitter.Admit(ctx, owner)
}

type fencedParts struct {
	cloud.Parts
	fence
}

func (f fencedParts) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	return f.each(ctx, f.Parts.DeleteParts, ids)
}
