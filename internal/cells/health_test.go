package cells

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/stall"
	"github.com/elotl/kip/internal/tunnel"
	"k8s.io/utils/clock"
)

func TestACutOffCellIsLostInTimeAndItsPodWaitsForTheEndOfIt(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.cloud.linger = true
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
		b.later(35 * time.Second)
		if got := b.said("silent a"); len(got) != 0 {
			t.Fatalf("silent too soon: %v", got)
		}
		b.later(20 * time.Second)
		if len(b.said("silent a")) == 0 || b.phase("a") != apiv1.Bound {
			t.Fatalf("it is %s, said %v", b.phase("a"), b.events)
		}
		b.later(time.Minute)
		if b.phase("a") != apiv1.Terminating || len(b.said("CellLost", "it is cut off, while its instance runs: no route to host")) != 1 {
			t.Fatalf("it is %s, said %v", b.phase("a"), b.events)
		}
		_, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Offerings: []Offering{{InstanceType: "nano"}}})
		if !errors.Is(err, ErrHasCell) {
			t.Fatalf("another cell before the end of the first: %v", err)
		}
		b.cloud.mu.Lock()
		clear(b.cloud.instances)
		b.cloud.mu.Unlock()
		b.later(10 * time.Second)
		if b.phase("a") != "" {
			t.Fatalf("it is %s", b.phase("a"))
		}
	})
}

func TestACellThatIsHeardAgainInTimeGoesOn(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
		b.later(80 * time.Second)
		b.links.of(cell.ID).set(true, nil)
		b.later(10 * time.Minute)
		if b.phase("a") != apiv1.Bound {
			t.Fatalf("it is %s, said %v", b.phase("a"), b.events)
		}
	})
}

func TestAPodsOwnTimeoutOverridesTheConfiguredOne(t *testing.T) {
	never, long := time.Duration(0), 5*time.Minute
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		for name, own := range map[string]*time.Duration{"never": &never, "long": &long} {
			if _, err := b.cells.Request(t.Context(), Request{
				Pod:       ref(name),
				Seen:      time.Now(),
				Wants:     Wants{HealthyTimeout: own},
				Offerings: []Offering{{InstanceType: "nano", Zone: "z", BootTimeout: time.Minute}},
			}); err != nil {
				t.Fatal(err)
			}
		}
		b.later(time.Minute)
		for _, cell := range b.cells.List() {
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(4 * time.Minute)
		if b.phase("long") != apiv1.Bound || b.phase("never") != apiv1.Bound {
			t.Fatalf("long %s, never %s", b.phase("long"), b.phase("never"))
		}
		b.later(2 * time.Minute)
		if b.phase("long") == apiv1.Bound {
			t.Fatal("a cell outlived its pod's timeout")
		}
		b.later(time.Hour)
		if b.phase("never") != apiv1.Bound {
			t.Fatalf("a cell without a timeout is %q", b.phase("never"))
		}
	})
}

func TestWhenMostCellsAreSilentNoneIsEnded(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(4)
		list := b.cells.List()
		for _, cell := range list {
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(10 * time.Minute)
		if n := len(b.cloud.running()); n != 4 {
			t.Fatalf("%d of 4 instances are left; said %v", n, b.said("CellLost"))
		}
		held := b.said("EndHeldBack")
		if len(held) < 4 || !strings.Contains(fmt.Sprint(held), "most cells are silent at once") {
			t.Errorf("nobody is told why they do not end: %v", held)
		}
		for _, cell := range list[1:] {
			b.links.of(cell.ID).set(true, nil)
		}
		b.later(80 * time.Second)
		if n := len(b.cloud.running()); n != 4 {
			t.Fatalf("%d instances are left: the last has not had its whole time again", n)
		}
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 3 {
			t.Fatalf("%d instances when one of 4 is silent, want 3", n)
		}
	})
}

// A tenant with most of the cells may have them fall silent as it likes.
func TestCellsThatFallSilentInTurnsKeepNoOtherFromItsEnd(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(7)
		list := b.cells.List()
		cut := errors.New("cut")
		b.links.of(list[0].ID).set(false, cut)
		for range 10 {
			for _, cell := range list[1:5] {
				b.links.of(cell.ID).set(false, cut)
			}
			b.later(50 * time.Second)
			for _, cell := range list[1:5] {
				b.links.of(cell.ID).set(true, nil)
			}
			b.later(10 * time.Second)
		}
		if n := len(b.cloud.running()); n != 6 || len(b.said("CellLost")) != 1 {
			t.Errorf("%d instances run, and lost are %v: want the one that was silent for ten minutes", n, b.said("CellLost"))
		}
	})
}

// To them it costs nothing.
func TestCellsThatMayBeSilentForEverSayNothingOfKipsNetwork(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.request("b", "nano")
		for n := range 3 {
			r := nano(fmt.Sprint(n))
			r.HealthyTimeout = new(time.Duration)
			if _, err := b.cells.Request(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		b.later(time.Minute)
		for _, cell := range b.cells.List() {
			if cell.Pod.Name != "b" {
				b.links.of(cell.ID).set(false, errors.New("cut"))
			}
		}
		b.later(5 * time.Minute)
		if lost := b.said("CellLost"); len(lost) != 1 {
			t.Errorf("lost are %v, want that of pod a", lost)
		}
	})
}

func TestAPersonEndsWhatIsSilentWhenMostAre(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		for n := range 4 {
			b.request(fmt.Sprint(n), "nano")
		}
		b.later(time.Minute)
		for _, cell := range b.cells.List()[1:] {
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(10 * time.Minute)
		if n := len(b.cfg.Guard.Allow(time.Now())); n != 3 {
			t.Fatalf("%d ends are held back, want those of 3", n)
		}
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 1 {
			t.Errorf("%d instances are left, want the one that is heard", n)
		}
	})
}

func TestTheCloudsWordAloneDecidesWithCloudAPI(t *testing.T) {
	inBubble(t, func(c *setup) {
		c.Health = Health{
			CloudAPI:       true,
			HealthyTimeout: 3 * time.Minute,
			Interval:       time.Minute,
			Check:          5 * time.Second,
		}
	}, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.request("b", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.links.of(cell.ID).set(false, errors.New("cut"))
		b.vanish("b")
		b.later(2 * time.Minute)
		if b.phase("b") != apiv1.Bound {
			t.Fatalf("b is %q too soon", b.phase("b"))
		}
		b.later(time.Hour)
		if b.phase("a") != apiv1.Bound || b.phase("b") != "" {
			t.Fatalf("a is %q, b is %q; want a to run and b to be gone", b.phase("a"), b.phase("b"))
		}
	})
}

// goOn ends the stall of a Kip whose meter has not run yet.
func (b *bubble) goOn() { go func() { _ = b.cfg.Late.Run(b.Context()) }() }

func withMeter(c *setup) { c.Late = stall.New(c.Clock) }

func TestALateKipBlamesNoCellForItsSilence(t *testing.T) {
	inBubble(t, withMeter, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.links.of(cell.ID).set(false, errors.New("cut"))
		b.later(time.Hour)
		if b.phase("a") != apiv1.Bound || len(b.said("silent a")) != 0 {
			t.Fatalf("while Kip was late: %s, said %v", b.phase("a"), b.events)
		}
		b.goOn()
		b.later(35 * time.Second)
		if got := b.said("silent a"); len(got) != 0 {
			t.Fatalf("silent before it had its time: %v", got)
		}
		b.later(15 * time.Second)
		if len(b.said("silent a")) == 0 || b.phase("a") != apiv1.Bound {
			t.Fatalf("with Kip on time again: %s, said %v", b.phase("a"), b.events)
		}
		b.later(time.Minute)
		if len(b.said("CellLost")) != 1 {
			t.Fatalf("said %v, want the cell lost", b.events)
		}
	})
}

// The cloud lies to a Kip that has not heard its cells yet.
func TestAKipThatHasJustBegunEndsNoCellThatItCouldNotHear(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pod := b.bound(1)[0]
		cell, _ := b.cells.ForPod(ref(pod).UID)
		b.stop()
		b.cloud.set(func() { delete(b.cloud.instances, cell.Instance.ID) })
		b.links.joinsAfter = 30 * time.Second
		b.run()
		b.later(10 * time.Minute)
		if b.phase(pod) != apiv1.Bound || b.cloud.terminated[cell.Instance.ID] != 0 {
			t.Errorf("a cell that is heard 30 s after Kip's start is %q; said %v", b.phase(pod), b.events)
		}
	})
}

func TestACellThatKipKeepsWaitingIsNotSilent(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		link := b.links.of(cell.ID)
		link.set(false, errors.New("cut"))
		for range 100 {
			link.mu.Lock()
			link.held = time.Now()
			link.mu.Unlock()
			b.later(30 * time.Second)
		}
		if b.phase("a") != apiv1.Bound || len(b.said("silent a")) != 0 {
			t.Fatalf("it is %s, said %v", b.phase("a"), b.events)
		}
		b.later(2 * time.Minute)
		if len(b.said("CellLost")) != 1 {
			t.Fatalf("said %v, want the cell lost", b.events)
		}
	})
}

func TestACellThatKipKeepsWaitingEndsWhenTheCloudIsSure(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(2)
		b.vanish(pods[0])
		cut, _ := b.cells.ForPod(ref(pods[1]).UID)
		b.links.of(cut.ID).set(false, errors.New("cut"))
		b.cloud.set(func() { b.cloud.hidden[cut.Instance.ID] = true })
		for range 100 {
			for _, pod := range pods {
				if cell, has := b.cells.ForPod(ref(pod).UID); has {
					link := b.links.of(cell.ID)
					link.mu.Lock()
					link.held = time.Now()
					link.mu.Unlock()
				}
			}
			b.later(time.Second)
		}
		if b.phase(pods[0]) != "" || b.phase(pods[1]) != apiv1.Bound {
			t.Errorf("the one that is gone is %q, the other %q", b.phase(pods[0]), b.phase(pods[1]))
		}
	})
}

func TestOnlyAShareOfTheCellsEndsAtATime(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(40)
		for _, pod := range pods[:20] { // half of them: Kip is not cut off, as far as it can know
			cell, _ := b.cells.ForPod(ref(pod).UID)
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(3 * time.Minute)
		if n := len(b.unbound(pods)); n != 10 {
			t.Fatalf("%d of 20 silent cells have ended, want the 10 that may", n)
		}
		if held := b.guard.Held(); len(held) != 10 || len(b.said("EndHeldBack", "kipctl allow")) != 10 {
			t.Fatalf("held back %d, said %v", len(held), b.said("EndHeldBack"))
		}
		held, _ := b.cells.ForPod(b.guard.Held()[0].Pod.UID)
		if got := b.cells.WaitsFor(held.ID); !strings.HasPrefix(got, heldBack) {
			t.Errorf("its cell waits for %q", got)
		}
		// One comes back, and is held back no more.
		b.links.of(held.ID).set(true, nil)
		b.later(2 * time.Minute)
		if got := b.cells.WaitsFor(held.ID); got != "" || len(b.guard.Held()) != 9 {
			t.Errorf("a cell that is heard again waits for %q; %d are held back", got, len(b.guard.Held()))
		}
		b.guard.Allow(time.Now())
		b.later(time.Minute)
		if n := len(b.unbound(pods)); n != 19 || b.phase(held.Pod.Name) != apiv1.Bound {
			t.Errorf("%d have ended once a person has allowed it, want 19; the one that was heard is %q", n, b.phase(held.Pod.Name))
		}
		if n := len(b.said("EndHeldBack")); n > 20 {
			t.Errorf("%d Events of 10 cells in 5 minutes", n)
		}
	})
}

func TestWhatAnEarlierProcessHasEndedCounts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.limit = guard.Limit{Least: 2, Window: time.Hour}
		b.stop()
		b.run()
		pods := b.bound(9)
		b.cloud.set(func() { b.cloud.linger = true })
		for _, pod := range pods[:4] {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(3 * time.Minute)
		if n := len(b.unbound(pods)); n != 2 {
			t.Fatalf("%d have ended, want 2", n)
		}
		b.links.mu.Lock()
		b.links.boots = func(cell string) bool {
			c, _ := b.cells.ForPod(ref(pods[2]).UID)
			d, _ := b.cells.ForPod(ref(pods[3]).UID)
			return cell != c.ID && cell != d.ID
		}
		b.links.mu.Unlock()
		b.stop()
		b.run()
		b.later(5 * time.Minute)
		if n := len(b.unbound(pods)); n != 2 {
			t.Errorf("%d have ended after a restart, want 2", n)
		}
	})
}

func TestAPodThatEndsOrIsDeletedIsNotHeldBack(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(50)
		for n, pod := range pods {
			b.cells.Release(ref(pod).UID, "done", n%2 == 0)
		}
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 0 {
			t.Errorf("%d of 50 instances are left; held back %v", n, b.guard.Held())
		}
	})
}

func TestAStoppedInstanceIsALostCellInEveryMode(t *testing.T) {
	for _, mode := range []Health{
		{HealthyTimeout: 90 * time.Second, Check: 5 * time.Second},
		{CloudAPI: true, HealthyTimeout: 3 * time.Minute, Interval: time.Minute, Check: 5 * time.Second},
		{Check: 5 * time.Second}, // no cell is lost by its silence
		{CloudAPI: true, Interval: time.Minute, Check: 5 * time.Second}, // nor by the list's
	} {
		inBubble(t, func(c *setup) { c.Health = mode }, nil, func(t *testing.T, b *bubble) {
			pod := b.bound(1)[0]
			cell, _ := b.cells.ForPod(ref(pod).UID)
			b.cloud.set(func() {
				i := b.cloud.instances[cell.Instance.ID]
				i.State = cloud.Stopped
				b.cloud.instances[i.ID] = i
			})
			b.later(5 * time.Minute)
			if b.phase(pod) != apiv1.Bound {
				t.Errorf("%+v: a cell that is heard is %q", mode, b.phase(pod))
			}
			b.links.of(cell.ID).set(false, errors.New("no route to host"))
			b.later(70 * time.Second)
			if b.phase(pod) == apiv1.Bound || len(b.said("CellLost", "was stopped, and not by Kip")) != 1 {
				t.Errorf("%+v: it is %q, said %v", mode, b.phase(pod), b.events)
			}
		})
	}
}

// Cells that refuse a Kip are well: it has no sign of life of their kubelets, and must not end
// them for that.
func TestACellThatRefusesThisKipIsNotLost(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(4)
		refuse := func(n int, why error) {
			for _, pod := range pods[:n] {
				cell, _ := b.cells.ForPod(ref(pod).UID)
				b.links.of(cell.ID).set(why == nil, why)
			}
		}
		if why := b.cells.Refused(); why != "" {
			t.Errorf("before: %q", why)
		}
		term := uint64(time.Now().UnixMilli())
		refuse(3, fmt.Errorf("join: %w", &tunnel.FollowedError{Term: term}))
		b.later(time.Hour)
		if lost := b.unbound(pods); len(lost) > 0 || len(b.said("silent")) > 0 {
			t.Errorf("%v are lost, said %v", lost, b.events)
		}
		if why := b.cells.Refused(); !strings.Contains(why, "3 cells of 4") || !strings.Contains(why, fmt.Sprint("term ", term, " ")) {
			t.Errorf("while three refuse it: %q", why)
		}
		refuse(3, nil)
		b.later(time.Minute)
		if why := b.cells.Refused(); why != "" {
			t.Errorf("then: %q", why)
		}
		refuse(1, errors.New("no route to host"))
		b.later(5 * time.Minute)
		if lost := b.unbound(pods); len(lost) != 1 {
			t.Errorf("%v are lost, of which one is silent", lost)
		}
	})
}

// What a cell says of a higher term, or of another CA, its root can say as well: Kip is not
// unready for one, nor for some of many.
func TestAFewCellsThatClaimToRefuseThisKipSayNothingOfIt(t *testing.T) {
	for why, says := range map[error]string{
		&tunnel.FollowedError{Term: math.MaxInt64}: "term 9223372036854775807 ",
		&tunnel.RotatedError{}:                     "not in its store",
	} {
		for n, want := range map[int]int{1: 2, 2: 2, 3: 2, 4: 3, 5: 3} { // so many of n
			inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
				pods := b.bound(n)
				for refuse := range n + 1 {
					if refuse > 0 {
						cell, _ := b.cells.ForPod(ref(pods[refuse-1]).UID)
						b.links.of(cell.ID).set(false, why)
					}
					b.later(10 * time.Second)
					if got := b.cells.Refused(); (got != "") != (refuse >= want) || got != "" && !strings.Contains(got, says) {
						t.Errorf("%v: %d of %d say so: %q", why, refuse, n, got)
					}
				}
			})
		}
	}
}

// One that lies gets around its loss, which is its own pod's alone, but not unseen.
func TestTheOwnerOfAPodIsToldWhoseCellRefusesKip(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(3)
		cell, _ := b.cells.ForPod(ref(pods[0]).UID)
		b.links.of(cell.ID).set(false, &tunnel.FollowedError{Term: math.MaxInt64})
		b.later(refusalReportAfter - 10*time.Second)
		if said := b.said("CellRefuses"); len(said) > 0 {
			t.Errorf("it is told before its time: %q", said)
		}
		b.later(30 * time.Second)
		if said := b.said("CellRefuses", "Delete the pod"); len(said) != 1 || !strings.Contains(said[0], cell.ID) {
			t.Errorf("said %q, want that of cell %s once", said, cell.ID)
		}
		if got, has := b.cells.ForPod(ref(pods[0]).UID); !has || got.Phase != apiv1.Bound {
			t.Errorf("the cell is %v: want it to run on", got)
		}
	})
}

// A cell that another Kip has joined may run a pod for it.
func TestACellThatBootsAndRefusesThisKipIsNotEnded(t *testing.T) {
	silent := func(c *setup) { c.APIs.(*modelLinks).boots = func(string) bool { return false } }
	inBubble(t, silent, nil, func(t *testing.T, b *bubble) {
		cell := b.request("a", "nano")
		b.later(10 * time.Second)
		later := uint64(time.Now().UnixMilli())
		b.links.of(cell.ID).set(false, &tunnel.FollowedError{Term: later})
		b.later(time.Hour)
		if got, has := b.cells.ForPod(ref("a").UID); !has || got.ID != cell.ID || got.Phase != apiv1.Booting {
			t.Errorf("after an hour the pod has %v; said %v", got, b.events)
		}
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
		b.later(time.Minute)
		if got, has := b.cells.ForPod(ref("a").UID); has && got.ID == cell.ID && got.Phase == apiv1.Booting {
			t.Error("it refuses nobody any more, its time is over, and it is not ended")
		}
	})
}

// setLater is a clock that is an hour behind until it is set; how long something takes it
// always tells.
type setLater struct {
	clock.RealClock
	began time.Time
	set   *atomic.Bool
}

func (c setLater) behind() time.Duration {
	if c.set.Load() {
		return 0
	}
	return time.Hour
}

func (c setLater) Now() time.Time { return c.RealClock.Now().Add(-c.behind()) }

func (c setLater) Since(t time.Time) time.Duration {
	if t.Before(c.began) { // by the clock as it was
		t = t.Add(time.Hour)
	}
	return c.RealClock.Since(t)
}

func TestAKipWhoseClockWasBehindWhenItBeganBeginsAnew(t *testing.T) {
	for _, tc := range []struct {
		name   string
		silent time.Duration // the health's time limit; 0 is for ever
		took   time.Duration // from the term's beginning to that of the cells
		term   time.Duration // of the Kip that the cells know, after the beginning of this one
		refuse int           // of three cells
		set    bool
		anew   bool
	}{
		{"its clock is set", 90 * time.Second, 0, -time.Minute, 2, true, true},
		{"its clock is not set", 90 * time.Second, 0, -time.Minute, 2, false, false},
		{"the other began later", 90 * time.Second, 0, time.Second, 2, true, false},
		{"one of three says so", 90 * time.Second, 0, -time.Minute, 1, true, false},
		{"one of three that may be silent for ever says so", 0, 0, -time.Minute, 1, true, false},
		{"two of three that may be silent for ever say so", 0, 0, -time.Minute, 2, true, true},
		{"they name a term that is just above its own", 90 * time.Second, 10 * time.Second, time.Millisecond - time.Hour, 3, false, false},
	} {
		var set atomic.Bool
		var began time.Time
		inBubble(t, func(c *setup) {
			began = time.Now()
			c.Clock, c.Health.HealthyTimeout = setLater{began: began, set: &set}, tc.silent
			c.TermBegan = c.Clock.Now()
			time.Sleep(tc.took)
		}, nil, func(t *testing.T, b *bubble) {
			pods := b.bound(3)
			set.Store(tc.set)
			for _, pod := range pods[:tc.refuse] {
				cell, _ := b.cells.ForPod(ref(pod).UID)
				b.links.of(cell.ID).set(false, &tunnel.FollowedError{Term: uint64(began.Add(tc.term).UnixMilli())})
			}
			b.later(20 * time.Second)
			select {
			case err := <-b.ended:
				if !tc.anew || !errors.Is(err, ErrBehindTime) {
					t.Errorf("%s: it ended with %v", tc.name, err)
				}
				b.stop = func() {}
			default:
				if tc.anew {
					t.Errorf("%s: it goes on", tc.name)
				}
			}
		})
	}
}
