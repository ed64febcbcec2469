package cells

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

// stuck is how many cells do not get on: more than there are workers.
const stuck = workers + 36

func name(n int) string { return fmt.Sprint("stuck-", n) }

// well checks that a pod whose cell has nothing to do with those that are stuck lives
// as usual.
func (b *bubble) well(what string) {
	b.Helper()
	b.request("well", "small")
	b.later(5 * time.Second)
	if got := b.phase("well"); got != apiv1.Bound {
		b.Errorf("%s: after 5 s the cell of another pod is %q; it waits for %s", what, got, b.waits("well"))
	}
	b.cells.Release(ref("well").UID, "done", true)
	b.later(5 * time.Second)
	if got := b.phase("well"); got != "" {
		b.Errorf("%s: 5 s after its end the cell of another pod is %s", what, got)
	}
}

func (b *bubble) waits(pod string) string {
	cell, _ := b.cells.ForPod(ref(pod).UID)
	return b.cells.WaitsFor(cell.ID)
}

// all checks that the cells that are stuck are in a phase.
func (b *bubble) all(what string, want apiv1.Phase) {
	b.Helper()
	for n := range stuck {
		if got := b.phase(name(n)); got != want {
			b.Fatalf("%s: %s is %q, want all to be %q", what, name(n), got, want)
		}
	}
}

func (b *bubble) requestStuck(offering string) {
	var burst sync.WaitGroup
	for n := range stuck {
		burst.Go(func() { b.request(name(n), offering) })
	}
	burst.Wait()
	b.later(20 * time.Second)
}

// isStuck says that a cell is one of those.
func (b *bubble) isStuck(cell string) bool {
	for _, c := range b.cells.List() {
		if c.ID == cell {
			return strings.HasPrefix(c.Pod.Name, "stuck-")
		}
	}
	return false
}

func TestCellsWhoseDisksAreNotAttachedHoldUpNoOther(t *testing.T) {
	withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
		d.hangs = func(disk string) bool { return strings.HasPrefix(disk, "stuck-") }
		for n := range stuck {
			if err := b.requestDisk(name(n), name(n)); err != nil {
				t.Fatal(err)
			}
		}
		b.later(20 * time.Second)
		b.all("their disks hang", apiv1.Ready)
		b.well("their disks hang")
		// Nobody waits for the disk of a pod that is gone.
		b.cells.ReleaseUnbound(ref(name(1)).UID, "deleted")
		b.later(3 * time.Second)
		if got := b.phase(name(1)); got != "" {
			t.Errorf("3 s after its pod was deleted a cell whose disk hangs is %s", got)
		}
		if waits := b.waits(name(stuck - 1)); strings.Contains(waits, "budget") {
			t.Errorf("it waits for %s", waits)
		}
	})
}

func TestWhatHangsAsideStandsStillForNobody(t *testing.T) {
	withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
		b.stop()
		p := watchdog.New(clock.RealClock{}, slog.New(slog.DiscardHandler))
		b.cfg.Watchdog = p
		b.cfg.Cloud = throttling{b.cloud}
		d.hangs = func(disk string) bool { return strings.HasPrefix(disk, "stuck-") }
		b.run()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		b.later(time.Second)
		for n := range stuck {
			if err := b.requestDisk(name(n), name(n)); err != nil {
				t.Fatal(err)
			}
		}
		b.bound(1)
		b.cells.Release(ref("p000").UID, "done", false)
		b.later(5 * watchdog.Limit)
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		b.all("their disks hang", apiv1.Ready)
		if b.phase("p000") != apiv1.Terminating || !strings.Contains(b.waits("p000"), "throttled") {
			t.Errorf("a cell whose end is throttled is %s and waits for %q", b.phase("p000"), b.waits("p000"))
		}
		cancel()
		running.Wait()
	})
}

// throttling is a cloud that takes no end of an instance.
type throttling struct{ *modelCloud }

func (throttling) Terminate(_ context.Context, ids ...string) cloud.Results {
	return cloud.Each(&cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: time.Minute, NothingDone: true}, ids...)
}

func TestAgentsThatDoNotAnswerHoldUpNoOtherCell(t *testing.T) {
	var b *bubble
	var hang atomic.Bool
	hangs := func(c *setup) {
		c.APIs.(*modelLinks).hangs = func(cell string) bool { return hang.Load() && b.isStuck(cell) }
	}
	inBubble(t, hangs, nil, func(t *testing.T, in *bubble) {
		b = in
		hang.Store(true)
		b.requestStuck("nano")
		b.all("agents take no configuration", apiv1.Booting)
		b.well("agents take no configuration")
		hang.Store(false)
		b.later(time.Minute)
		b.all("agents answer again", apiv1.Bound)
	})
	withDisks(t, func(t *testing.T, in *bubble, d *modelDisks) {
		b = in
		hang.Store(false)
		hangs(&b.cfg)
		for n := range stuck {
			if err := b.requestDisk(name(n), name(n)); err != nil {
				t.Fatal(err)
			}
		}
		b.later(20 * time.Second)
		b.all("before their end", apiv1.Bound)
		hang.Store(true)
		for n := range stuck {
			b.cells.Release(ref(name(n)).UID, "done", true)
		}
		b.later(2 * time.Second)
		b.all("agents do not unmount", apiv1.Draining)
		b.well("agents do not unmount")
		b.later(2 * time.Minute)
		b.all("a drain has its time", "")
	})
}

// A kubelet that an earlier process has configured may be ready before this one has asked
// its agent.
func TestACellIsNotReadyBeforeItsAgentHasItsConfiguration(t *testing.T) {
	silent := func(c *setup) { c.APIs.(*modelLinks).boots = func(string) bool { return false } }
	inBubble(t, silent, nil, func(t *testing.T, b *bubble) {
		cell := b.request("a", "nano")
		b.later(5 * time.Second)
		link := b.links.of(cell.ID)
		close(link.nodeReady)
		b.later(time.Second)
		if got := b.phase("a"); got != apiv1.Booting {
			t.Errorf("its kubelet is ready, nothing is connected, and the cell is %s", got)
		}
		link.set(true, nil)
		b.later(time.Second)
		if got := b.phase("a"); got != apiv1.Bound {
			t.Errorf("its agent has its configuration, and the cell is %s", got)
		}
	})
}

func TestLogsThatAreNotReadHoldUpNoOtherCell(t *testing.T) {
	inBubble(t, func(c *setup) {
		c.Logs = saves(func(ctx context.Context, cell Cell, _ agentapi.Conn) error {
			if !strings.HasPrefix(cell.Pod.Name, "stuck-") {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}, nil, func(t *testing.T, b *bubble) {
		b.requestStuck("nano")
		b.all("before their end", apiv1.Bound)
		for n := range stuck {
			b.cells.Release(ref(name(n)).UID, "done", true)
		}
		b.later(time.Second)
		b.all("their logs hang", apiv1.Draining)
		b.well("their logs hang")
	})
}

func TestInstancesThatDoNotStartHoldUpNoOtherCell(t *testing.T) {
	var throttled atomic.Int32
	inBubble(t, func(c *setup) {
		keep(stuck)(c)
		c.Pools[0].Stopped = true
		// A cell that takes the place of one that is taken boots in no time: it would be
		// taken in the same burst, and before it is stopped.
		c.RefillDelay = time.Hour
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = stopper{modelCloud: model, fails: func(ctx context.Context) error {
			if throttled.Add(1) == 1 { // which ends no cell
				return &cloud.Error{Cause: cloud.ErrThrottled}
			}
			<-ctx.Done()
			return ctx.Err()
		}}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		b.requestStuck("nano")
		b.all("instances do not start", apiv1.Ready)
		b.well("instances do not start")
		if said := b.said("CellLost", "throttled"); len(said) != 0 {
			t.Errorf("said %q", said)
		}
	})
}

func TestAPodThatWaitsForTheCloudsBudgetSaysSoAndIsLetGoAtOnce(t *testing.T) {
	inBubble(t, func(c *setup) {
		c.Cloud.(*modelCloud).capabilities.Budgets = map[cloud.Call]cloud.Budget{
			cloud.CallLaunch: {Requests: cloud.Bucket{Capacity: 1, Refill: 0.01}},
		}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		for _, pod := range []string{"a", "b", "c", "d"} {
			b.request(pod, "nano")
			b.later(time.Second)
		}
		if b.phase("a") != apiv1.Bound || b.phase("b") != apiv1.Requested || !strings.Contains(b.waits("b"), "budget") {
			t.Errorf("a is %s, b is %s and waits for %q", b.phase("a"), b.phase("b"), b.waits("b"))
		}
		if stored := b.launchesStored(); len(stored) != 0 {
			t.Errorf("%v are stored, and cannot be sent yet", stored)
		}
		b.cells.Release(ref("b").UID, "deleted", false)
		b.later(time.Second)
		if got := b.phase("b"); got != "" {
			t.Errorf("its pod is deleted, and it is %s", got)
		}
		b.later(2 * time.Minute)
		if b.phase("c") != apiv1.Bound || b.phase("d") != apiv1.Bound || len(b.cloud.launches) != 2 {
			t.Errorf("c is %s, d is %s, after %d calls: want them to go together", b.phase("c"), b.phase("d"), len(b.cloud.launches))
		}
	})
}

// Besides what it checks it says how long the burst takes, in the time of the
// simulated cloud.
func TestABurstOfAThousandPodsTakesAsFewCallsAsTheBucketsOfEC2Allow(t *testing.T) {
	const pods = 1000
	var machines *sim.Cloud
	inBubble(t, func(c *setup) {
		knobs := sim.EC2()
		knobs.BootTimes = nil
		var err error
		machines, err = sim.New(sim.Config{
			Catalogue: []catalog.InstanceType{{Name: "nano", Offerings: []catalog.PurchaseOption{{Zone: "z"}}}},
			Knobs:     knobs,
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Cloud, c.ListLag = machines, machines.Capabilities().ListLag
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		began := time.Now()
		var burst sync.WaitGroup
		for n := range pods {
			burst.Go(func() { b.request(fmt.Sprint(n), "nano") })
		}
		burst.Wait()
		var half time.Duration
		for n := 0; n < pods && time.Since(began) < time.Minute; b.later(100 * time.Millisecond) {
			if n = len(machines.Truth()); n >= pods/2 && half == 0 {
				half = time.Since(began)
			}
		}
		took, calls := time.Since(began), map[sim.Outcome]int{}
		b.later(time.Minute)
		for key, n := range machines.Calls() {
			if key.Kind == sim.KindLaunch {
				calls[key.Outcome] += n
			}
		}
		t.Logf("%d pods: %v calls, half of the instances after %v, all after %v", pods, calls, half, took)
		if calls[sim.OK] > pods/cloud.MaxLaunch+5 || calls[sim.Throttled] > 0 {
			t.Errorf("launched in calls that ended %v: want at most %d, and none throttled", calls, pods/cloud.MaxLaunch+5)
		}
		if took > 15*time.Second {
			t.Errorf("it took %v: EC2 takes %d calls in 10 s", took, pods/cloud.MaxLaunch+5)
		}
		for n := range pods {
			if got := b.phase(fmt.Sprint(n)); got != apiv1.Bound {
				t.Fatalf("pod %d has a cell that is %s", n, got)
			}
		}
		b.stop()
		if err := machines.Close(); err != nil {
			t.Fatal(err)
		}
		b.stop = func() {}
	})
}

func TestWhatIsDoneAsideIsDoneOnceAndItsOutcomeIsToldOnce(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		e := newEntry(Cell{ID: "none"}, 0)
		failed, did := errors.New("failed"), 0
		do := func(context.Context) error { did++; return failed }
		run := func(what string) (progress, error) { return b.cells.core.loop.async(t.Context(), e, what, do) }
		if got, err := run("a"); err != nil || got.state != isUnderWay {
			t.Errorf("it begins with %v", err)
		}
		b.later(time.Second)
		if got, err := run("a"); !got.isDone() || !errors.Is(err, failed) || did != 1 {
			t.Errorf("it was done %d times, and ended with %v", did, err)
		}
		for range 2 { // what was done for another purpose is no answer
			if got, err := run("b"); err != nil || got.state != isUnderWay {
				t.Errorf("another begins with %v", err)
			}
		}
		b.later(time.Second)
		if got, err := run("a"); err != nil || got.state != isUnderWay {
			t.Errorf("the first, again, begins with %v", err)
		}
		b.later(time.Second)
		e.async.drop("a")
		if got, err := run("a"); !got.isDone() || !errors.Is(err, failed) || did != 3 {
			t.Errorf("it was done %d times, and ended with %v", did, err)
		}
		hung := make(chan error, 1)
		_, _ = b.cells.core.loop.async(t.Context(), e, "c", func(ctx context.Context) error { <-ctx.Done(); hung <- ctx.Err(); return ctx.Err() })
		b.later(time.Second)
		e.async.drop("a")
		if err := <-hung; !errors.Is(err, context.Canceled) {
			t.Errorf("what nobody waits for ends with %v", err)
		}
	})
}

// So many cells write what is on their disks at the same time that each takes long, as when a
// job of hundreds of pods ends: none is torn from its disk before it has written.
func TestAllCellsWriteWhatIsOnTheirDisksBeforeTheyEnd(t *testing.T) {
	const many = 600
	withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
		for n := range many {
			if err := b.requestDisk(name(n), name(n)); err != nil {
				t.Fatal(err)
			}
		}
		b.later(time.Minute)
		at := func(phase apiv1.Phase) (n int) {
			for i := range many {
				if b.phase(name(i)) == phase {
					n++
				}
			}
			return n
		}
		if n := at(apiv1.Bound); n != many {
			t.Fatalf("%d of %d are bound", n, many)
		}
		b.links.slow = func(r *http.Request) time.Duration {
			if r.URL.Path == agentapi.PathDisks {
				return 8 * time.Second
			}
			return 0
		}
		for n := range many {
			b.cells.Release(ref(name(n)).UID, "done", true)
		}
		b.later(10 * time.Minute)
		detached := 0
		for _, did := range d.done() {
			if strings.HasPrefix(did, "detach ") {
				detached++
			}
		}
		if n := at(""); n != many || detached != many {
			t.Errorf("%d of %d cells have ended, and %d disks were detached before", n, many, detached)
		}
	})
}
