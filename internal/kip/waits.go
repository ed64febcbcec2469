package kip

import (
	"context"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pulse"
)

// waits declares that those who call a cloud wait for it. Notices of interruptions are
// no calls, and those who listen for them take turns of their own.
type waits struct{ cloud.Cloud }

var (
	_ cloud.Cloud   = waits{}
	_ cloud.Stopper = stopperWaits{}
	_ cloud.Disks   = diskWaits{}
	_ cloud.Tagger  = taggerWaits{}
)

func (w waits) Features() cloud.Features {
	f := w.Cloud.Features()
	if f.Stopper != nil {
		f.Stopper = stopperWaits{f.Stopper}
	}
	if f.Disks != nil {
		f.Disks = diskWaits{f.Disks}
	}
	if f.Tagger != nil {
		f.Tagger = taggerWaits{f.Tagger}
	}
	return f
}

func (w waits) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Cloud.Catalogue(ctx)
}

func (w waits) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Cloud.Launch(ctx, r)
}

func (w waits) List(ctx context.Context, owner string) (cloud.Listing, error) {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Cloud.List(ctx, owner)
}

func (w waits) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Cloud.Describe(ctx, ids...)
}

func (w waits) Terminate(ctx context.Context, ids ...string) cloud.Results {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Cloud.Terminate(ctx, ids...)
}

type stopperWaits struct{ cloud.Stopper }

func (w stopperWaits) Stop(ctx context.Context, ids ...string) cloud.Results {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Stopper.Stop(ctx, ids...)
}

func (w stopperWaits) Start(ctx context.Context, ids ...string) cloud.Results {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Stopper.Start(ctx, ids...)
}

type diskWaits struct{ cloud.Disks }

func (w diskWaits) AttachDisk(ctx context.Context, id, instance string) error {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Disks.AttachDisk(ctx, id, instance)
}

func (w diskWaits) DetachDisk(ctx context.Context, id, instance string) error {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Disks.DetachDisk(ctx, id, instance)
}

type taggerWaits struct{ cloud.Tagger }

func (w taggerWaits) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	defer pulse.Wait(ctx, pulse.Cloud)()
	return w.Tagger.Tag(ctx, taggings...)
}
