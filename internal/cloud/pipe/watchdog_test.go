package pipe

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

// hangs is a cloud that answers no call before its time is up.
type hangs struct{ cloud.Cloud }

func hang(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func (h hangs) Optional() cloud.Optional {
	return cloud.Optional{
		Stopper:        h,
		Interrupter:    h,
		Disks:          h,
		DiskChecker:    h,
		Router:         h,
		DiskGrower:     h,
		OwnedResources: h,
		Tagger:         h,
		Admitter:       h,
		Resolver:       h,
		Booster:        h,
		Egress:         h,
		Bounder:        h,
		Console:        h,
		Registries:     h,
		Owners:         h,
	}
}
func (hangs) Capabilities() cloud.Capabilities { return cloud.Capabilities{} }
func (hangs) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	return nil, hang(ctx)
}
func (hangs) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	return cloud.NotLaunched(len(r.Machines), hang(ctx))
}
func (hangs) List(ctx context.Context, _ string) (cloud.Listing, error) {
	return cloud.Listing{}, hang(ctx)
}
func (hangs) Describe(ctx context.Context, _ ...string) ([]cloud.Instance, error) {
	return nil, hang(ctx)
}
func (hangs) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return cloud.Each(hang(ctx), ids...)
}
func (hangs) Stop(ctx context.Context, ids ...string) cloud.Results {
	return cloud.Each(hang(ctx), ids...)
}
func (hangs) Start(ctx context.Context, ids ...string) cloud.Results {
	return cloud.Each(hang(ctx), ids...)
}
func (hangs) Tag(ctx context.Context, _ ...cloud.Tagging) cloud.Results {
	return cloud.Each(hang(ctx), "i-a")
}
func (hangs) EndBoost(ctx context.Context, ids ...string) cloud.Results {
	return cloud.Each(hang(ctx), ids...)
}
func (hangs) Admit(ctx context.Context, _ string) error { return hang(ctx) }
func (hangs) Interruptions(ctx context.Context, l cloud.Listener) error {
	return l.Look(ctx, hang)
}
func (hangs) Resolve(ctx context.Context, _ cloud.LaunchSpec) (cloud.Resolved, error) {
	return cloud.Resolved{}, hang(ctx)
}
func (hangs) CreateDisk(ctx context.Context, _ cloud.DiskRequest) (cloud.Disk, error) {
	return cloud.Disk{}, hang(ctx)
}
func (hangs) ListDisks(ctx context.Context, _ string) ([]cloud.Disk, error) { return nil, hang(ctx) }
func (hangs) DeleteDisk(ctx context.Context, _ string) error                { return hang(ctx) }
func (hangs) AttachDisk(ctx context.Context, _, _ string) error             { return hang(ctx) }
func (hangs) DetachDisk(ctx context.Context, _, _ string) error             { return hang(ctx) }
func (hangs) Route(ctx context.Context, _ string, _ []netip.Prefix) error   { return hang(ctx) }
func (hangs) Unroute(ctx context.Context, _ string, _ []netip.Prefix) error { return hang(ctx) }
func (hangs) CheckDisk(ctx context.Context, _, _ string) error              { return hang(ctx) }
func (hangs) GrowDisk(ctx context.Context, _ string, _ int64) (cloud.Disk, error) {
	return cloud.Disk{}, hang(ctx)
}
func (hangs) Ways(ctx context.Context, _ ...string) (map[string]cloud.Way, error) {
	return nil, hang(ctx)
}
func (hangs) Bounds(ctx context.Context, _ string) (catalog.Bounds, error) {
	return catalog.Bounds{}, hang(ctx)
}
func (hangs) Console(ctx context.Context, _ string) ([]byte, error) { return nil, hang(ctx) }
func (hangs) ListOwners(ctx context.Context) ([]cloud.Owner, error) { return nil, hang(ctx) }
func (hangs) Images() []string                                      { return []string{"*.example.com"} }
func (hangs) PullCredentials(ctx context.Context, _ string, _ ...string) (cloud.PullCredentials, error) {
	return cloud.PullCredentials{}, hang(ctx)
}
func (hangs) ListOwned(ctx context.Context, _ string) ([]cloud.OwnedResource, error) {
	return nil, hang(ctx)
}
func (hangs) DeleteOwned(ctx context.Context, ids ...string) cloud.Results {
	return cloud.Each(hang(ctx), ids...)
}

// everyCall is one of each kind.
func everyCall(c *Pipe) map[cloud.Call]func(context.Context) error {
	f := c.Optional()
	return map[cloud.Call]func(context.Context) error{
		cloud.CallCatalogue: func(ctx context.Context) error { _, err := c.Catalogue(ctx); return err },
		cloud.CallLaunch: func(ctx context.Context) error {
			return c.Launch(ctx, cloud.LaunchRequest{Machines: make([]cloud.Machine, 1)}).Err()
		},
		cloud.CallList:        func(ctx context.Context) error { _, err := c.List(ctx, "me"); return err },
		cloud.CallDescribe:    func(ctx context.Context) error { _, err := c.Describe(ctx, "i-a"); return err },
		cloud.CallTerminate:   func(ctx context.Context) error { return c.Terminate(ctx, "i-a").Err() },
		cloud.CallStop:        func(ctx context.Context) error { return f.Stopper.Stop(ctx, "i-a").Err() },
		cloud.CallStart:       func(ctx context.Context) error { return f.Stopper.Start(ctx, "i-a").Err() },
		cloud.CallTag:         func(ctx context.Context) error { return f.Tagger.Tag(ctx, cloud.Tagging{ID: "i-a"}).Err() },
		cloud.CallCreateDisk:  func(ctx context.Context) error { _, err := f.Disks.CreateDisk(ctx, cloud.DiskRequest{}); return err },
		cloud.CallDeleteDisk:  func(ctx context.Context) error { return f.Disks.DeleteDisk(ctx, "d") },
		cloud.CallListDisks:   func(ctx context.Context) error { _, err := f.Disks.ListDisks(ctx, "me"); return err },
		cloud.CallAttachDisk:  func(ctx context.Context) error { return f.Disks.AttachDisk(ctx, "d", "i-a") },
		cloud.CallDetachDisk:  func(ctx context.Context) error { return f.Disks.DetachDisk(ctx, "d", "i-a") },
		cloud.CallCheckDisk:   func(ctx context.Context) error { return f.DiskChecker.CheckDisk(ctx, "d", "a") },
		cloud.CallRoute:       func(ctx context.Context) error { return f.Router.Route(ctx, "i-a", nil) },
		cloud.CallUnroute:     func(ctx context.Context) error { return f.Router.Unroute(ctx, "i-a", nil) },
		cloud.CallGrowDisk:    func(ctx context.Context) error { _, err := f.DiskGrower.GrowDisk(ctx, "d", 1); return err },
		cloud.CallListOwned:   func(ctx context.Context) error { _, err := f.OwnedResources.ListOwned(ctx, "me"); return err },
		cloud.CallDeleteOwned: func(ctx context.Context) error { return f.OwnedResources.DeleteOwned(ctx, "p").Err() },
		cloud.CallInterruptions: func(ctx context.Context) error {
			return f.Interrupter.Interruptions(ctx, cloud.Listener{Notify: func(cloud.Interruption) {}})
		},
		cloud.CallEndBoost: func(ctx context.Context) error { return f.Booster.EndBoost(ctx, "i-a").Err() },
		cloud.CallEgress:   func(ctx context.Context) error { _, err := f.Egress.Ways(ctx); return err },
		cloud.CallBounds:   func(ctx context.Context) error { _, err := f.Bounder.Bounds(ctx, "me"); return err },
		cloud.CallAdmit:    func(ctx context.Context) error { return f.Admitter.Admit(ctx, "me") },
		cloud.CallConsole:  func(ctx context.Context) error { _, err := f.Console.Console(ctx, "i-a"); return err },
		cloud.CallPullCredentials: func(ctx context.Context) error {
			_, err := f.Registries.PullCredentials(ctx, "r.example.com", "a")
			return err
		},
		cloud.CallResolve: func(ctx context.Context) error { _, err := f.Resolver.Resolve(ctx, cloud.LaunchSpec{}); return err },
	}
}

// watched has a call made in a turn, and returns what the watchdog says three limits later.
// Then the call is given up, and freed is called.
func watched(t *testing.T, meter Meter, kind cloud.Call, free func()) (still error) {
	t.Helper()
	p := watchdog.New(clock.RealClock{}, slog.New(slog.DiscardHandler))
	c := New(Config{Cloud: hangs{}, Random: one, Meter: meter, Watchdog: p, Clock: clock.RealClock{}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		p.Track(ctx, "a loop", func(ctx context.Context) {
			for ctx.Err() == nil { // a call has its time
				if err := everyCall(c)[kind](ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", kind, err)
				}
			}
		})
	})
	time.Sleep(3 * watchdog.Limit) // virtual
	still = p.Err()
	free()
	cancel()
	running.Wait()
	return still
}

func TestALoopThatWaitsForTheCloudIsHealthy(t *testing.T) {
	for kind := range everyCall(New(Config{Cloud: hangs{}, Clock: clock.RealClock{}})) {
		synctest.Test(t, func(t *testing.T) {
			if err := watched(t, nil, kind, func() {}); err != nil {
				t.Errorf("while it waits for %s: %v", kind, err)
			}
		})
	}
}

// stuck is a meter that breaks its promise not to block.
type stuck chan struct{}

func (s stuck) CallWaits(cloud.Call)                                       { <-s }
func (stuck) CallWaited(cloud.Call, time.Duration)                         {}
func (stuck) InstanceInterrupted()                                         {}
func (stuck) Intercept(ctx context.Context, call Call, next Send) []Answer { return next(ctx, call) }

func TestASchedulerThatStandsStillIsSeen(t *testing.T) {
	for kind, loop := range map[cloud.Call]string{
		cloud.CallTerminate: "calls of kind terminate", cloud.CallList: "a loop", cloud.CallTag: "a loop",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := make(stuck)
			if err := watched(t, s, kind, func() { close(s) }); err == nil || !strings.Contains(err.Error(), loop) {
				t.Errorf("while nothing is sent of kind %s: %v, want %q to stand still", kind, err, loop)
			}
		})
	}
}
