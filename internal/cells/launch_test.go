package cells

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

func TestACellIsLaunchedOnceAndTerminatedWhenItsPodLetsGo(t *testing.T) {
	w := newWorld(t)
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); len(got) != 1 {
		t.Fatalf("instances %v, want one", got)
	}
	_, err := w.cells.Request(t.Context(), Request{Pod: ref("a"), Attempt: 2, Offerings: []Offering{{InstanceType: "nano"}}})
	if !errors.Is(err, ErrHasCell) {
		t.Fatalf("a second cell for the pod: %v, want ErrHasCell", err)
	}
	w.cells.Release(ref("a").UID, "done", false)
	w.until("gone", w.reached("a", apiv1.Gone))
	want := []apiv1.Phase{apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Terminating, apiv1.Gone}
	if !slices.Equal(w.phases["a"], want) {
		t.Fatalf("phases %v, want %v", w.phases["a"], want)
	}
	if got := w.cloud.running(); len(got) != 0 {
		t.Fatalf("instances %v are left", got)
	}
	if list := w.cells.List(); len(list) != 0 {
		t.Fatalf("cells %v are left", list)
	}
}

func TestWithoutCapacityTheNextOfferIsTriedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
		if r.InstanceType != "large" {
			return cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: r.InstanceType, Zone: r.Zone}, errors.New("sold out")), false
		}
		return nil, false
	}
	w.request("a", "nano", "small", "large")
	w.until("booting, and said so", func() bool { return w.reached("a", apiv1.Booting)() && len(w.events) == 3 })
	cell, _ := w.cells.ForPod(ref("a").UID)
	if cell.Offering().InstanceType != "large" || !slices.Equal(w.cooled, []string{"nano", "small"}) {
		t.Fatalf("launched %s; remembered %v", cell.Offering(), w.cooled)
	}
	if want := []string{"Warning NoCapacity", "Warning NoCapacity", "Normal CellLaunched"}; !slices.Equal(w.events, want) {
		t.Fatalf("events %v, want %v", w.events, want)
	}
}

func TestACellThatNoOfferCanServeIsGoneAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return cloud.ErrQuota, false }
	w.request("a", "nano", "small")
	w.until("gone, and said so", func() bool { return w.reached("a", apiv1.Gone)() && len(w.events) == 2 })
	if len(w.cloud.launches) != 2 || len(w.cells.List()) != 0 {
		t.Fatalf("%d launches, cells %v", len(w.cloud.launches), w.cells.List())
	}
	if want := []string{"Warning CellNotLaunched", "Warning CellNotLaunched"}; !slices.Equal(w.events, want) {
		t.Fatalf("events %v, want %v", w.events, want)
	}
}

// What a pod asks for is no reason to keep others from what it was to be launched as.
func TestAPodsOwnFaultIsNoShortageAndEndsItsCellSoon(t *testing.T) {
	var mu sync.Mutex
	last := map[string]Cell{}
	told := onChange{told: func(c Cell) {
		mu.Lock()
		defer mu.Unlock()
		last[c.Pod.Name] = c
	}}
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			switch {
			case r.Image["name"] == "gone":
				return cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("InvalidAMIID.NotFound: it is gone")), false
			case r.Image["name"] == "unsupported":
				return cloud.No(cloud.ErrRefused, cloud.Scope{InstanceType: r.InstanceType}, errors.New("Unsupported")), false
			case r.Image["name"] == "new":
				scope := cloud.Scope{InstanceType: r.InstanceType, Zone: r.Zone}
				return cloud.No(cloud.ErrUnexplained, scope, errors.New("SomethingNew")), false
			case r.Image["name"] == "large":
				return cloud.No(cloud.ErrQuota, cloud.Scope{Disks: true}, errors.New("VolumeLimitExceeded")), false
			case r.Image["name"] == "mixed" && r.InstanceType != "b":
				return cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("InvalidParameterCombination")), false
			case r.Image["name"] == "mixed":
				return cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: r.InstanceType}, errors.New("sold out")), false
			}
			return nil, false
		}
		for _, tc := range []struct {
			image    string
			anybodys bool   // the pod asks for nothing of its own
			launched string // as
			cooled   string
			refusals int
		}{
			{"gone", false, "[a b]", "[]", 2},
			{"unsupported", false, "[a b c d]", "[a b c d]", 0},
			{"mixed", false, "[a b c d]", "[b]", 2},
			{"gone", true, "[a b c d]", "[a b c d]", 0},
			{"new", false, "[a b]", "[a b]", 2}, // whose fault it is nobody knows
			{"new", true, "[a b c d]", "[a b c d]", 0},
			{"large", false, "[a]", "[]", 0}, // no type has more room for disks, and others need less
			{"large", true, "[a]", "[]", 0},
		} {
			b.later(time.Second)
			b.cloud.launches, b.cooled = nil, nil
			pod := fmt.Sprint(tc.image, tc.anybodys)
			b.special = !tc.anybodys
			b.ask(pod, Options{Image: map[string]string{"name": tc.image}}, "a", "b", "c", "d")
			b.later(time.Minute)
			if got := fmt.Sprint(b.cloud.launches); got != tc.launched || fmt.Sprint(b.cooled) != tc.cooled {
				t.Errorf("%s: launched %s, want %s; remembered %v, want %s", pod, got, tc.launched, b.cooled, tc.cooled)
			}
			mu.Lock()
			cell := last[pod]
			mu.Unlock()
			if cell.Phase != apiv1.Gone || cell.Cause != CauseNotLaunched || cell.Refusals != tc.refusals {
				t.Errorf("%s: its cell is %s for %q after %d refusals, want %d", pod, cell.Phase, cell.Cause, cell.Refusals, tc.refusals)
			}
		}
		if len(b.said("InvalidAMIID.NotFound: it is gone", "are not tried")) != 1 {
			t.Errorf("said %v", b.events)
		}
	}, told)
}

func TestWhereThereIsNoRoomForSeveralCellsAreLaunchedOneByOne(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		several, pieces := 0, true
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			if len(r.Machines) == 1 {
				return nil, false
			}
			if several++; !pieces {
				return nil, false
			}
			return cloud.No(cloud.ErrTogether, cloud.Scope{Zone: r.Zone}, errors.New("InsufficientCidrBlocks")), false
		}
		if pods := b.bound(20); len(b.unbound(pods)) > 0 || len(b.cooled) > 0 {
			t.Errorf("%v have no cell; remembered %v", b.unbound(pods), b.cooled)
		}
		// Those were under way before the first was answered.
		if several < 1 || several > 10 {
			t.Errorf("%d calls for several of 20", several)
		}
		b.later(apartFor)
		b.cloud.set(func() { pieces = false })
		for n := range 20 {
			b.request(fmt.Sprint("later", n), "nano")
		}
		b.later(time.Minute)
		if several < 2 {
			t.Error("no call is for several any more")
		}
	})
}

// An account may have tokens for few machines only, and never for as many as one call launches.
func TestALaunchThatIsThrottledForItsSizeIsMadeInSmallerOnes(t *testing.T) {
	inBubble(t, func(c *setup) {
		c.Cloud.(*modelCloud).capabilities.Budgets = map[cloud.Call]cloud.Budget{
			cloud.CallLaunch: {Requests: cloud.Bucket{Capacity: 100, Refill: 10}, Resources: cloud.Bucket{Capacity: 1000, Refill: 100}},
		}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		most, sizes := 3, map[int]int{}
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			if sizes[len(r.Machines)]++; len(r.Machines) <= most {
				return nil, false
			}
			return cloud.No(cloud.ErrThrottled, cloud.Scope{Account: true}, errors.New("RequestLimitExceeded")), false
		}
		for n := range 20 {
			b.request(fmt.Sprint("first", n), "nano")
		}
		b.later(5 * time.Minute)
		for _, cell := range b.cells.List() {
			if cell.Phase != apiv1.Bound {
				t.Errorf("the cell of %s is %s; calls by their size: %v", cell.Pod.Name, cell.Phase, sizes)
			}
		}
		if len(b.cloud.running()) != 20 || len(b.cooled) > 0 {
			t.Errorf("%d instances run, remembered %v", len(b.cloud.running()), b.cooled)
		}
		b.later(apartFor)
		b.cloud.set(func() { most, sizes = 10, map[int]int{} })
		for n := range 9 {
			b.request(fmt.Sprint("later", n), "nano")
		}
		b.later(time.Minute)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(sizes)), func(n int) bool { return n > 3 }) {
			t.Errorf("calls by their size: %v, want larger ones again", sizes)
		}
	})
}

// A disk is the pod's own: who asks for another size is launched by another call.
func TestCellsWithDisksOfOtherSizesAreLaunchedApart(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		for n, pod := range []string{"a", "b", "c"} {
			offering := Offering{InstanceType: "nano", Zone: "z", DiskBytes: int64(1 + n/2), BootTimeout: time.Hour}
			r := Request{Pod: ref(pod), Attempt: 1, Seen: time.Now(), Offerings: []Offering{offering}}
			if _, err := b.cells.Request(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		b.later(time.Minute)
		disks := map[int64]int{}
		for _, text := range b.cloud.requests {
			var r cloud.LaunchRequest
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				t.Fatal(err)
			}
			disks[r.RootDiskBytes] += len(r.Machines)
		}
		if want := map[int64]int{1: 2, 2: 1}; !maps.Equal(disks, want) {
			t.Errorf("machines by the size of their disks: %v, want %v", disks, want)
		}
	})
}

// The cell's worker may read back the write of an outcome, whose answer was lost, before it
// is tried again: the launch is over then.
func TestALaunchIsOverWhenItsOutcomeIsFoundStored(t *testing.T) {
	var b *bubble
	var writes atomic.Int32
	inBubble(t, nil, func(op, key string) error {
		if op != "applied" || !strings.Contains(key, launchesPrefix) || writes.Add(1) != 2 { // the first stores the launch
			return nil
		}
		b.cells.core.table.mu.Lock()
		defer b.cells.core.table.mu.Unlock()
		for id := range b.cells.core.table.byID {
			b.cells.core.loop.queue.Add(id)
		}
		return errors.New("the answer is lost")
	}, func(t *testing.T, of *bubble) {
		b = of
		b.later(time.Second)
		b.request("a", "nano")
		b.later(time.Minute)
		b.cells.core.table.mu.Lock()
		defer b.cells.core.table.mu.Unlock()
		for _, e := range b.cells.core.table.byID {
			if e.cell().Phase != apiv1.Bound || e.launching || writes.Load() != 2 {
				t.Errorf("the cell is %s, being launched %t, after %d writes of its launch", e.cell().Phase, e.launching, writes.Load())
			}
		}
		if len(b.cells.core.table.byID) != 1 {
			t.Errorf("there are %d cells", len(b.cells.core.table.byID))
		}
	})
}

func TestAnAnswerThatIsLostAfterItsEffectStartsNoSecondInstance(t *testing.T) {
	w := newWorld(t)
	lost := 3
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
		if lost--; lost >= 0 {
			return errors.New("connection reset by peer"), true
		}
		return nil, false
	}
	w.request("a", "nano", "small")
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); len(got) != 1 || slices.Contains(w.cloud.launches, "small") || len(w.cloud.launches) != 4 {
		t.Fatalf("instances %v after launches %v", got, w.cloud.launches)
	}
}

func TestALaunchThatNobodyCanExplainIsGivenUpWithoutALeak(t *testing.T) {
	inBubble(t, func(c *setup) { c.ListLag = 20 * time.Second }, nil, func(t *testing.T, b *bubble) {
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) { return errors.New("InternalError"), true }
		b.request("a", "nano")
		b.later(30 * time.Second)
		if b.phase("a") != apiv1.Launching || len(b.said("LaunchDelayed")) != 1 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
		b.later(5 * time.Minute)
		if b.phase("a") != "" || len(b.cloud.running()) != 0 || !slices.Contains(b.cooled, "nano") {
			t.Fatalf("it is %q, instances %v, cooled %v", b.phase("a"), b.cloud.running(), b.cooled)
		}
	})
}

// The cloud fails with a code that Kip does not know. The call may have had an effect, so that it is
// sent again as it was, but nothing else is launched there meanwhile.
func TestAFailureThatNobodyCanExplainCoolsTheOfferAtOnce(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		fails := true
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			if !fails || r.InstanceType != "nano" {
				return nil, false
			}
			scope := cloud.Scope{InstanceType: r.InstanceType, Zone: r.Zone, Subnet: r.Subnet}
			return &cloud.Error{Cause: cloud.ErrUnexplained, Scope: scope, Err: errors.New("SomethingNew")}, true
		}
		b.later(time.Second)
		b.request("a", "nano", "small")
		b.later(10 * time.Second)
		if got := fmt.Sprint(b.cooled); got != "[nano]" || b.phase("a") != apiv1.Launching || len(b.said("LaunchDelayed")) != 1 ||
			len(b.cloud.launches) < 2 {
			t.Errorf("remembered %s, a is %q, after launches %v; said %v", got, b.phase("a"), b.cloud.launches, b.events)
		}
		b.cloud.set(func() { fails = false })
		b.later(time.Minute)
		if b.phase("a") != apiv1.Bound || len(b.cloud.running()) != 1 || fmt.Sprint(b.cooled) != "[nano]" {
			t.Errorf("a is %q, %d run, remembered %v", b.phase("a"), len(b.cloud.running()), b.cooled)
		}
		// One that goes on is given up, and leaves nothing.
		b.cloud.set(func() { fails = true })
		b.request("b", "nano")
		b.later(5 * time.Minute)
		if b.phase("b") != "" || len(b.cloud.running()) != 1 || len(b.cooled) != 3 {
			t.Errorf("b is %q, %d run, remembered %v", b.phase("b"), len(b.cloud.running()), b.cooled)
		}
	})
}

func TestARefusalAfterAnUnknownOutcomeIsNotBelieved(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		calls := 0
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
			if calls++; calls == 1 {
				return errors.New("connection reset"), true // it did start
			}
			return cloud.ErrUnauthorised, false
		}
		b.request("a", "nano", "small")
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 0 || slices.Contains(b.cloud.launches, "small") {
			t.Fatalf("%d instances, launches %v", n, b.cloud.launches)
		}
		if b.phase("a") != "" {
			t.Fatalf("it is %q", b.phase("a"))
		}
	})
}

func TestALaunchThatIsTooBigForTheStoreIsSentInParts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		// The options stand in each record: 40 of them are more than a transaction takes.
		big := Options{Image: map[string]string{"name": strings.Repeat("x", store.MaxBytes/30)}}
		var pods []string
		for n := range 40 {
			pods = append(pods, fmt.Sprint("p", n))
			b.ask(pods[n], big, "nano")
		}
		b.later(time.Minute)
		for _, pod := range pods {
			if b.phase(pod) != apiv1.Bound {
				t.Fatalf("the cell of %s is %s", pod, b.phase(pod))
			}
		}
		if n := len(b.cloud.running()); n != len(pods) {
			t.Errorf("%d instances", n)
		}
	})
}
