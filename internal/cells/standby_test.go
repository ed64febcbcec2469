package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

func keep(count int) func(*setup) {
	return func(c *setup) {
		c.Pools = []Pool{{Name: "nano", Count: count, Offerings: func() ([]Offering, error) {
			return []Offering{{
				InstanceType: "nano",
				Zone:         "z",
				PricePerHour: 1,
				BootTimeout:  time.Minute,
			}}, nil
		}}}
	}
}

func TestEachPodOfABurstGetsAStandbyCellOrOneOfItsOwn(t *testing.T) {
	inBubble(t, keep(3), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		if s := b.cells.Standby(); len(s) != 1 || s[0].Ready != 3 || s[0].Booting != 0 {
			t.Fatalf("pools %+v, want one with 3 ready", s)
		}
		// No cell boots before the burst is over: else those that refill the
		// pool are ready in no time, and are taken too.
		over := make(chan struct{})
		b.links.boots = func(string) bool {
			<-over
			return true
		}
		var burst sync.WaitGroup
		for n := range 5 {
			burst.Go(func() { b.request(fmt.Sprint(n), "nano") })
		}
		burst.Wait()
		close(over)
		b.later(10 * time.Second)
		cells := map[string]bool{}
		standby := 0
		for n := range 5 {
			cell, ok := b.cells.ForPod(ref(fmt.Sprint(n)).UID)
			if !ok || cell.Phase != apiv1.Bound {
				t.Fatalf("pod %d has a cell: %t, %s", n, ok, cell.Phase)
			}
			if got := b.links.of(cell.ID).bound; !slices.Equal(got, slices.Clip(got[:1])) || got[0] != ref(fmt.Sprint(n)).UID {
				t.Fatalf("the cell of pod %d shows %v", n, got)
			}
			cells[cell.ID] = true
			if cell.Standby != "" {
				standby++
			}
		}
		if len(cells) != 5 || standby != 3 {
			t.Fatalf("%d cells for 5 pods, %d of them standby; want 5 and 3", len(cells), standby)
		}
		if n := len(b.cloud.running()); n != 8 {
			t.Fatalf("%d instances, want 5 for pods and 3 on standby", n)
		}
	})
}

func TestAPoolIsRefilledOnceThePodHasHadItsTimeToStart(t *testing.T) {
	slowly := func(c *setup) {
		keep(2)(c)
		c.RefillDelay = 2 * time.Second
	}
	inBubble(t, slowly, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		for i, step := range []struct {
			take  string
			after time.Duration
			want  int
		}{
			{"a", 1900 * time.Millisecond, 2},
			{"b", 1900 * time.Millisecond, 2}, // one that is taken meanwhile has its time, too
			{"", 200 * time.Millisecond, 4},
			{"c", 1900 * time.Millisecond, 4},
			{"", 200 * time.Millisecond, 5},
		} {
			if step.take != "" {
				b.request(step.take, "nano")
			}
			b.later(step.after)
			if n := len(b.cloud.running()); n != step.want {
				t.Errorf("step %d: %d instances, want %d", i, n, step.want)
			}
		}
	})
}

func TestAStandbyCellIsTakenOnlyForWhatItIs(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		b.request("a", "small", "nano") // small is cheaper for it
		special := Request{
			Pod:       ref("b"),
			Attempt:   1,
			Seen:      time.Now(),
			Special:   true,
			Offerings: []Offering{{InstanceType: "nano", Zone: "z", BootTimeout: time.Minute}},
		}
		if cell, would := b.cells.WouldTake(special); would {
			t.Errorf("one that only a launch can serve would take %s", cell.ID)
		}
		plain := special
		plain.Special = false
		if cell, would := b.cells.WouldTake(plain); !would || cell.Standby == "" {
			t.Errorf("one that fits would take %q, a standby cell %t", cell.ID, would)
		}
		if _, err := b.cells.Request(t.Context(), special); err != nil {
			t.Fatal(err)
		}
		elsewhere := Request{
			Pod:       ref("c"),
			Attempt:   1,
			Seen:      time.Now(),
			Offerings: []Offering{{InstanceType: "nano", Zone: "y", BootTimeout: time.Minute}},
		}
		if _, err := b.cells.Request(t.Context(), elsewhere); err != nil {
			t.Fatal(err)
		}
		b.later(10 * time.Second)
		for _, pod := range []string{"a", "b", "c"} {
			if cell, _ := b.cells.ForPod(ref(pod).UID); cell.Standby != "" || cell.Phase != apiv1.Bound {
				t.Errorf("pod %s: %s, standby %q", pod, cell.Phase, cell.Standby)
			}
		}
		if s := b.cells.Standby(); s[0].Ready != 1 {
			t.Errorf("pools %+v", s)
		}
	})
}

func TestAPoolIsRolledOnlyAsTheNewBecomeReady(t *testing.T) {
	inBubble(t, keep(2), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		old := b.cloud.running()
		b.stop()
		b.cfg.Template = "new"
		boot := make(chan struct{})
		b.links.boots = func(cell string) bool {
			select {
			case <-boot:
				return true
			default:
				return outdated(b, cell)
			}
		}
		b.run()
		b.later(30 * time.Second)
		for _, id := range old {
			if !slices.Contains(b.cloud.running(), id) {
				t.Fatalf("%s was ended before a new one was ready", id)
			}
		}
		close(boot)
		b.later(10 * time.Minute) // the new ones that did not boot are replaced
		for _, id := range old {
			if slices.Contains(b.cloud.running(), id) {
				t.Fatalf("%s is still there", id)
			}
		}
		if s := b.cells.Standby(); s[0].Ready != 2 || len(b.cloud.running()) != 2 {
			t.Fatalf("pools %+v, instances %v", s, b.cloud.running())
		}
	})
}

// outdated says that a cell was made from the template before this one.
func outdated(b *bubble, id string) bool {
	for _, cell := range b.cells.List() {
		if cell.ID == id {
			return cell.Template == ""
		}
	}
	return false
}

// stopper is a model cloud that can stop instances.
type stopper struct {
	*modelCloud
	starts func() // called in each Start; nil for nothing
	// refuse and fails are the answer to a Start, if it is an error.
	refuse func() error
	fails  func(ctx context.Context) error
}

func (s stopper) set(state cloud.State, ids []string) cloud.Results {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if i, ok := s.instances[id]; ok {
			i.State = state
			s.instances[id] = i
		}
	}
	return cloud.Each(nil, ids...)
}

func (s stopper) Stop(_ context.Context, ids ...string) cloud.Results {
	return s.set(cloud.Stopped, ids)
}

func (s stopper) Start(ctx context.Context, ids ...string) cloud.Results {
	if s.fails != nil {
		if err := s.fails(ctx); err != nil {
			return cloud.Each(err, ids...)
		}
	}
	if s.starts != nil {
		s.starts()
	}
	if s.refuse != nil {
		if err := s.refuse(); err != nil {
			return cloud.Each(err, ids...)
		}
	}
	return s.set(cloud.Running, ids)
}

// A cell's instance runs since it was first started: the answer of the write that
// said so is lost, and while the step is run again an interruption's notice finds out
// that it was written.
func TestAStandbyCellIsStartedOnce(t *testing.T) {
	var b *bubble
	var id string
	lost, starts, noticed := false, 0, error(nil)
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.Pools[0].Stopped = true
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = stopper{modelCloud: model, starts: func() {
			if starts++; starts == 2 {
				b.cells.core.table.mu.Lock()
				e := b.cells.core.table.byID[id]
				b.cells.core.table.mu.Unlock()
				noticed = b.cells.core.records.save(context.Background(), e, func(*Cell) error { return nil })
				time.Sleep(time.Second)
			}
		}}
	}, func(op, key string) error {
		if id != "" && op == "applied" && key == keyPrefix+id && starts == 1 && !lost {
			lost = true
			return errors.New("the answer is lost")
		}
		return nil
	}, func(t *testing.T, in *bubble) {
		b = in
		b.later(time.Minute)
		id = b.cells.List()[0].ID
		began := time.Now()
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if !lost || starts != 2 || !errors.Is(noticed, errMoved) || cell.ID != id || cell.Phase != apiv1.Bound {
			t.Fatalf("lost %t, %d starts, %v found of the write, cell %+v", lost, starts, noticed, cell)
		}
		if got := cell.Instance.Launched; !got.Equal(began) {
			t.Fatalf("it was started at %s, and runs since %s by its record", began, got)
		}
	})
}

func TestAStoppedStandbyCellCostsNothingAndBootsForItsPod(t *testing.T) {
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.Pools[0].Stopped = true
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = stopper{modelCloud: model}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		cells := b.cells.List()
		if len(cells) != 1 || !cells[0].Stopped || cells[0].Phase != apiv1.Ready || b.cloud.instances["i-0"].State != cloud.Stopped {
			t.Fatalf("%+v, instances %v", cells, b.cloud.instances)
		}
		before := b.cells.Costs()[0].Seconds
		b.later(time.Hour)
		if after := b.cells.Costs()[0].Seconds; after != before || after > 60 {
			t.Fatalf("it has cost %v seconds, %v an hour later", before, after)
		}
		b.stop() // a restart leaves it stopped
		b.run()
		b.later(time.Minute)
		if b.cloud.instances["i-0"].State != cloud.Stopped {
			t.Fatal("a restart of Kip has started it")
		}
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Phase != apiv1.Bound || cell.Instance.ID != "i-0" || cell.Stopped || b.cloud.instances["i-0"].State != cloud.Running {
			t.Fatalf("%+v", cell)
		}
		if got := b.links.of(cell.ID).bound; !slices.Equal(got, []types.UID{ref("a").UID}) {
			t.Fatalf("it shows %v", got)
		}
		if n := len(b.cloud.running()); n != 2 {
			t.Fatalf("%d instances, want one for the pod and one on standby", n)
		}
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Minute)
		if b.phase("a") != "" || len(b.cloud.running()) != 1 {
			t.Fatalf("it is %q, instances %v", b.phase("a"), b.cloud.running())
		}
	})
}

// startRefused runs f with one stopped standby cell whose start is refused by a rule.
func startRefused(t *testing.T, refuse func() error, f func(t *testing.T, b *bubble)) {
	t.Helper()
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.Pools[0].Stopped = true
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = stopper{modelCloud: model, refuse: refuse}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		b.request("a", "nano")
		f(t, b)
	})
}

func TestACellThatIsStoppingYetIsNotTaken(t *testing.T) {
	stops := 0
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.Pools[0].Stopped = true
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = slowStop{stopper: stopper{modelCloud: model}, stops: &stops}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(30 * time.Second)
		standby := b.cells.List()[0]
		if !standby.Stopped || stops == 0 || standby.Instance.State == cloud.Stopped {
			t.Fatalf("the standby cell is %+v", standby)
		}
		if cell := b.request("a", "nano"); cell.ID == standby.ID {
			t.Error("it is taken while it cannot be started")
		}
	})
}

func TestAStartWithoutRightsPausesAsALaunchDoes(t *testing.T) {
	var tries atomic.Int32
	var allowed atomic.Bool
	startRefused(t, func() error {
		tries.Add(1)
		if allowed.Load() {
			return nil
		}
		return cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("AuthFailure"))
	}, func(t *testing.T, b *bubble) {
		b.later(10 * time.Minute)
		if cell, has := b.cells.ForPod(ref("a").UID); !has || cell.Phase != apiv1.Ready || tries.Load() > 20 {
			t.Fatalf("the pod has its cell %t (%s), after %d tries in ten minutes", has, cell.Phase, tries.Load())
		}
		if len(b.said("LaunchesPaused")) != 1 {
			t.Errorf("said %v", b.events)
		}
		allowed.Store(true)
		b.later(2 * time.Minute)
		if b.phase("a") != apiv1.Bound {
			t.Errorf("with rights again its cell is %q", b.phase("a"))
		}
	})
}

// Such as an instance that has lost its tags.
func TestACellThatKipMayNotStartIsGivenUpAndPausesNoLaunch(t *testing.T) {
	startRefused(t, func() error {
		return cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, errors.New("UnauthorizedOperation"))
	}, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		b.request("other", "other")
		b.later(20 * time.Second)
		if b.phase("other") != apiv1.Bound || len(b.said("LaunchesPaused")) != 0 {
			t.Fatalf("another's cell is %q, said %v", b.phase("other"), b.events)
		}
		b.later(2 * time.Minute)
		if b.cells.Refused() != "" || b.phase("a") != "" || len(b.said("CellLost", "could not be started")) != 1 {
			t.Errorf("its cell is %q, said %v", b.phase("a"), b.events)
		}
	})
}

// EC2 does so where it finds out later that it has no room.
func TestAnInstanceThatTheCloudStopsForWantOfCapacityIsAShortage(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.links.of(cell.ID).set(false, errors.New("cut"))
		b.cloud.set(func() {
			i := b.cloud.instances[cell.Instance.ID]
			i.State, i.Fault = cloud.Stopped, cloud.No(cloud.ErrCapacity, cloud.Scope{}, errors.New("Server.InsufficientInstanceCapacity"))
			b.cloud.instances[cell.Instance.ID] = i
		})
		b.later(2 * time.Minute)
		if len(b.said("CellLost", "has stopped instance")) != 1 || !slices.Equal(b.cooled, []string{"nano"}) {
			t.Errorf("said %v, short are %v", b.events, b.cooled)
		}
	})
}

// slowStop accepts each stop, and stops nothing.
type slowStop struct {
	stopper
	stops *int
}

func (s slowStop) Stop(_ context.Context, ids ...string) cloud.Results {
	*s.stops++
	return cloud.Each(nil, ids...)
}

// TestAPodWaitsForStandbyCellsToWhichAKipThatBeginsConnects: else an upgrade of Kip costs the
// pods of that moment a boot each, beside cells that are ready.
func TestAPodWaitsForStandbyCellsToWhichAKipThatBeginsConnects(t *testing.T) {
	for name, connects := range map[string]bool{"it is connected": true, "it never is": false} {
		inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
			b.later(time.Minute)
			b.stop()
			reached := make(chan struct{})
			b.links.boots = func(string) bool {
				<-reached
				return connects
			}
			b.run()
			r := nano("a")
			if cell, err := b.cells.Request(b.Context(), r); !errors.Is(err, ErrConnecting) {
				t.Errorf("%s: before that the pod is given cell %s, %v", name, cell.ID, err)
			}
			close(reached)
			b.later(firstConnect)
			cell, err := b.cells.Request(b.Context(), r)
			if err != nil || (cell.Standby != "") != connects {
				t.Errorf("%s: then the pod is given cell %s of pool %q, %v", name, cell.ID, cell.Standby, err)
			}
		})
	}
}

// A cell that has stopped after all, for which another stop waits, is started at once.
func TestAPodWaitsForNoStopThatIsThrottled(t *testing.T) {
	var stops atomic.Int32
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.Pools[0].Stopped = true
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = throttledStop{stopper{modelCloud: model}, &stops}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(3 * time.Minute) // the first stop is accepted, the next throttled
		if stops.Load() < 2 {
			t.Fatalf("%d stops", stops.Load())
		}
		b.cloud.set(func() {
			for id, i := range b.cloud.instances {
				i.State = cloud.Stopped
				b.cloud.instances[id] = i
			}
		})
		b.later(time.Minute)
		cell := b.request("a", "nano")
		b.later(30 * time.Second)
		if cell.Standby == "" || b.phase("a") != apiv1.Bound {
			t.Errorf("the pod has cell %s of pool %q, which is %s", cell.ID, cell.Standby, b.phase("a"))
		}
	})
}

// So is one whose stop is under way when a pod takes it, and is throttled then.
func TestAPodWaitsForNoStopThatIsThrottledWhileItIsUnderWay(t *testing.T) {
	var stops atomic.Int32
	var hangs atomic.Bool
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.Pools[0].Stopped = true
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = hangingStop{throttledStop{stopper{modelCloud: model}, &stops}, &hangs}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(30 * time.Second)
		hangs.Store(true)
		for deadline := 0; stops.Load() < 2 && deadline < 300; deadline++ {
			b.later(time.Second)
		}
		if stops.Load() != 2 {
			t.Fatalf("%d stops", stops.Load())
		}
		b.cloud.set(func() {
			for id, i := range b.cloud.instances {
				i.State = cloud.Stopped
				b.cloud.instances[id] = i
			}
		})
		b.later(10 * time.Second) // it is seen, while the stop is under way
		cell := b.request("a", "nano")
		b.later(10 * time.Second)
		hangs.Store(false)
		b.later(30 * time.Second)
		if cell.Standby == "" || b.phase("a") != apiv1.Bound {
			t.Errorf("the pod has cell %s of pool %q, which is %s and waits for %s", cell.ID, cell.Standby, b.phase("a"), b.waits("a"))
		}
	})
}

// hangingStop answers when it is told to.
type hangingStop struct {
	throttledStop
	hangs *atomic.Bool
}

func (s hangingStop) Stop(ctx context.Context, ids ...string) cloud.Results {
	answer := s.throttledStop.Stop(ctx, ids...)
	for s.hangs.Load() && ctx.Err() == nil {
		time.Sleep(time.Second)
	}
	return answer
}

// throttledStop accepts the first stop, stops nothing, and throttles the others.
type throttledStop struct {
	stopper
	stops *atomic.Int32
}

func (s throttledStop) Stop(_ context.Context, ids ...string) cloud.Results {
	if s.stops.Add(1) == 1 {
		return cloud.Each(nil, ids...)
	}
	return cloud.Each(&cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: time.Hour, Err: errors.New("later")}, ids...)
}
