package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// interrupt has the cloud say that it takes an instance back, or otherwise.
func (b *bubble) interrupt(i cloud.Interruption) {
	b.cells.links.announcements.interrupt(b.Context(), i)
}

func TestAnInterruptedCellIsToldOnceAndEndsWithTheNotice(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.request("a", "small")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		for range 2 {
			at := time.Now().Add(2 * time.Minute)
			b.interrupt(cloud.Interruption{InstanceID: cell.Instance.ID, At: at, Reason: "spot"})
		}
		b.later(time.Minute)
		if b.phase("a") != apiv1.Bound || len(b.said("interrupted a")) != 1 || len(b.said("Warning Interrupted")) != 1 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
		b.vanish("a")
		b.later(2 * time.Minute)
		if b.phase("a") != "" {
			t.Fatalf("it is %q after its end", b.phase("a"))
		}
		// A standby cell is replaced at once.
		standby := b.cloud.running()[0]
		b.interrupt(cloud.Interruption{InstanceID: standby, At: time.Now().Add(2 * time.Minute), Reason: "spot"})
		b.later(10 * time.Second)
		if now := b.cloud.running(); len(now) != 1 || now[0] == standby {
			t.Fatalf("instances %v, want another than %s", now, standby)
		}
	})
}

func TestTheSoonerOfTwoNoticesCounts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.spot("a")
		cell, _ := b.cells.ForPod(ref("a").UID)
		began := time.Now()
		notice := func(left time.Duration) {
			b.interrupt(cloud.Interruption{InstanceID: cell.Instance.ID, At: began.Add(left), Reason: "words"})
			b.later(time.Second)
		}
		for i, tc := range []struct{ said, want time.Duration }{
			{time.Hour, time.Hour},                                  // maintenance
			{2 * time.Hour, time.Hour},                              // put off: what is known is sooner
			{time.Hour - noticeOver/2, time.Hour},                   // the same, by another clock
			{-time.Hour, time.Hour},                                 // replayed
			{2 * time.Minute, 2 * time.Minute},                      // spot
			{time.Hour, 2 * time.Minute},                            // the maintenance is told again
			{2*time.Minute + 500*time.Millisecond, 2 * time.Minute}, // so is spot
		} {
			notice(tc.said)
			if cell, _ := b.cells.ForPod(ref("a").UID); !cell.Interrupted.Equal(began.Add(tc.want)) {
				t.Errorf("notice %d: it is taken in %s, want %s", i, cell.Interrupted.Sub(began), tc.want)
			}
		}
		if told := b.said("interrupted a"); len(told) != 2 {
			t.Errorf("its pod was told %q, want once of each", told)
		}
	})
}

func TestMaintenanceThatIsPutOffIsForThatTime(t *testing.T) {
	var told takenBack
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.spot("a")
		cell, _ := b.cells.ForPod(ref("a").UID)
		began := time.Now()
		for i, tc := range []struct {
			said, want time.Duration
			planned    bool
			taken      int // counted against what it was bought as
		}{
			{said: time.Hour, want: time.Hour, planned: true},
			{said: time.Hour + time.Minute, want: time.Hour + time.Minute, planned: true},
			{said: 30 * time.Minute, want: 30 * time.Minute, planned: true},
			{said: 2 * time.Minute, want: 2 * time.Minute, taken: 1},
			{said: time.Hour, want: 2 * time.Minute, planned: true, taken: 1},
			{said: 3 * time.Minute, want: 2 * time.Minute, taken: 1},
		} {
			b.interrupt(cloud.Interruption{
				InstanceID: cell.Instance.ID,
				At:         began.Add(tc.said),
				Reason:     "words",
				Planned:    tc.planned,
			})
			b.later(time.Second)
			if cell, _ := b.cells.ForPod(ref("a").UID); !cell.Interrupted.Equal(began.Add(tc.want)) || len(told.all()) != tc.taken {
				t.Errorf("notice %d: it is taken in %s, want %s; %q count", i, cell.Interrupted.Sub(began), tc.want, told.all())
			}
		}
		if told := b.said("Warning Interrupted"); len(told) != 4 {
			t.Errorf("its pod was told %q, want each time", told)
		}
	}, &told)
}

func TestMaintenanceThatIsCalledOffMovesNoPodAnyMore(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.spot("a")
		cell, _ := b.cells.ForPod(ref("a").UID)
		for _, planned := range []bool{true, false} {
			at := time.Now().Add(time.Hour)
			b.interrupt(cloud.Interruption{InstanceID: cell.Instance.ID, At: at, Reason: "words", Planned: planned})
			b.later(time.Second)
			b.interrupt(cloud.Interruption{InstanceID: cell.Instance.ID, Planned: true, CalledOff: true})
			b.later(time.Second)
			if cell, _ := b.cells.ForPod(ref("a").UID); cell.Interrupted.IsZero() != planned {
				t.Errorf("what was planned (%t) is to be at %s when all that was planned is called off", planned, cell.Interrupted)
			}
		}
		if told := b.said("interrupted a"); len(told) != 3 {
			t.Errorf("its pod was told %q, want of both, and that the first is over", told)
		}
	})
}

// EC2 ends all instances of a Capacity Block, and takes its time.
func TestAllCellsWhoseEndWasAgreedOnAreMovedAndNoneIsTakenForAMistake(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(40)
		for _, pod := range pods {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			b.interrupt(cloud.Interruption{
				InstanceID: cell.Instance.ID,
				At:         time.Now().Add(10 * time.Minute),
				Reason:     "it ends",
				Certain:    true,
			})
		}
		b.later(time.Minute)
		if n := len(b.said("interrupted p")); n != 40 {
			t.Errorf("%d of 40 pods are moved away", n)
		}
		b.later(20 * time.Minute)
		cell, _ := b.cells.ForPod(ref(pods[0]).UID)
		if cell.Interrupted.IsZero() {
			t.Error("ten minutes after its time the notice is forgotten")
		}
	})
}

func TestACellThatIsHeardAfterItsNoticeGoesOn(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(2)
		for _, pod := range pods {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			b.interrupt(cloud.Interruption{
				InstanceID: cell.Instance.ID,
				At:         time.Now().Add(time.Minute),
				Reason:     "spot",
			})
		}
		b.later(90 * time.Second)
		if len(b.unbound(pods)) != 0 || len(b.said("EndHeldBack")) != 2 || len(b.guard.Held()) != 2 {
			t.Fatalf("%v have ended, said %v", b.unbound(pods), b.events)
		}
		cut, _ := b.cells.ForPod(ref(pods[0]).UID)
		b.links.of(cut.ID).set(false, errors.New("no route to host"))
		b.later(45 * time.Second)
		if b.phase(pods[0]) == apiv1.Bound {
			t.Error("one is bound still when nothing was heard of it for 40 s")
		}
		b.later(3 * time.Minute)
		cell, _ := b.cells.ForPod(ref(pods[1]).UID)
		if held := b.guard.Allow(time.Now()); len(held) != 0 || !cell.Interrupted.IsZero() {
			t.Errorf("long after its time the notice is still there: %v; held back %v", cell.Interrupted, held)
		}
		b.interrupt(cloud.Interruption{
			InstanceID: cell.Instance.ID,
			At:         time.Now().Add(-noticeOver),
			Reason:     "replayed",
		})
		b.later(time.Minute)
		if cell, _ := b.cells.ForPod(ref(pods[1]).UID); cell.Phase != apiv1.Bound || !cell.Interrupted.IsZero() {
			t.Errorf("it is %q, to be taken at %v", cell.Phase, cell.Interrupted)
		}
	})
}

// announce has the cloud announce that it takes the instances of pods back in a minute.
func (b *bubble) announce(pods []string) {
	b.Helper()
	for _, pod := range pods {
		cell, _ := b.cells.ForPod(ref(pod).UID)
		b.interrupt(cloud.Interruption{
			InstanceID: cell.Instance.ID,
			At:         time.Now().Add(time.Minute),
			Reason:     "announced",
		})
	}
	b.later(time.Second)
}

func TestNoticesThatAreNotTrueMoveAndEndNoMoreThanAShare(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(40)
		b.announce(pods)
		if n := len(b.said("interrupted p")); n != 10 {
			t.Errorf("%d pods are moved away, want the 10 that may be", n)
		}
		b.later(time.Minute)
		for _, pod := range pods { // Kip's own network is down
			cell, _ := b.cells.ForPod(ref(pod).UID)
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(2 * time.Minute)
		if n := len(b.unbound(pods)); n != 10 {
			t.Errorf("%d of 40 have ended, want the 10 that may", n)
		}
	})
}

func TestAsManyCellsAreReplacedAsTheCloudTakesBackInFact(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(40)
		for _, pod := range pods {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			b.cells.core.table.mu.Lock()
			e := b.cells.core.table.byID[cell.ID]
			b.cells.core.table.mu.Unlock()
			if err := b.cells.core.records.save(t.Context(), e, func(cell *Cell) error { cell.Offerings[0].Spot = true; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		b.announce(pods)
		if n := len(b.said("interrupted p")); n != 40 {
			t.Errorf("%d pods of spot cells are moved away, want all", n)
		}
		b.later(time.Minute)
		b.vanish(pods...)
		b.later(2 * time.Minute)
		if n := len(b.unbound(pods)); n != 40 {
			t.Errorf("%d of 40 have ended whose instances are gone", n)
		}
	})
}

func TestANoticeIsCountedByKipsClockWhateverTheCloudsSays(t *testing.T) {
	for _, ahead := range []time.Duration{-3 * time.Minute, 3 * time.Minute} {
		inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
			b.request("a", "small")
			b.later(time.Minute)
			cell, _ := b.cells.ForPod(ref("a").UID)
			b.interrupt(cloud.Interruption{
				InstanceID: cell.Instance.ID,
				At:         time.Now().Add(2*time.Minute + ahead),
				Left:       2 * time.Minute,
				Reason:     "spot",
			})
			b.later(time.Minute)
			if b.phase("a") != apiv1.Bound {
				t.Errorf("a cloud that is %s ahead: within the notice it is %q", ahead, b.phase("a"))
			}
			b.links.of(cell.ID).set(false, errors.New("no route to host")) // one that is heard goes on
			b.later(75 * time.Second)
			if b.phase("a") == apiv1.Bound {
				t.Errorf("a cloud that is %s ahead: after the notice it is %q", ahead, b.phase("a"))
			}
		})
	}
}

func TestTheAgeOfAnInstanceIsByKipsClock(t *testing.T) {
	placed := time.Unix(1000, 0)
	now := placed.Add(30 * time.Second)
	for ahead, want := range map[time.Duration]time.Duration{-2 * time.Minute: 0, 0: 10 * time.Second, 2 * time.Minute: 30 * time.Second} {
		var cell Cell
		cell.step(apiv1.StepPlaced, placed)
		cell.step(apiv1.StepLaunched, now)
		cell.setInstance(cloud.Instance{ID: "i-a", Launched: placed.Add(10*time.Second + ahead)}, now)
		if got := cell.launched().Sub(placed); got != want {
			t.Errorf("a cloud that is %s ahead: launched %s after it was asked for, want %s", ahead, got, want)
		}
	}
	var cell Cell
	cell.step(apiv1.StepPlaced, placed)
	cell.step(apiv1.StepLaunched, now)
	cell.setInstance(cloud.Instance{ID: "i-a"}, now) // of a cloud that does not say it
	if !cell.launched().Equal(now) {
		t.Errorf("launched %s, want when its launch was known", cell.launched())
	}
}

// takenBack collects what spot cells were launched as that the cloud takes back.
type takenBack struct {
	Unobserved
	mu        sync.Mutex
	offerings []string
}

func (o *takenBack) CellTakenBack(c Cell) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.offerings = append(o.offerings, c.Offering().String())
}

func (o *takenBack) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.offerings)
}

func TestOnlySpotThatIsTakenBackIsToldAndOnce(t *testing.T) {
	var told takenBack
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		for _, spot := range []bool{true, false} {
			r := nano(fmt.Sprint(spot))
			r.Offerings[0].Spot = spot
			if _, err := b.cells.Request(b.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		b.later(10 * time.Second)
		for range 2 {
			for _, pod := range []string{"true", "false"} {
				cell, _ := b.cells.ForPod(ref(pod).UID)
				b.interrupt(cloud.Interruption{InstanceID: cell.Instance.ID, At: time.Now().Add(2 * time.Minute)})
			}
		}
		if fmt.Sprint(told.all()) != "[nano (spot) in z]" {
			t.Errorf("told of %v", told.all())
		}
	}, &told)
}

func TestWhoListensAnewIsToldWhatWasPlanned(t *testing.T) {
	telling(t, func(t *testing.T, b *bubble, says teller) {
		b.spot("a")
		cell, _ := b.cells.ForPod(ref("a").UID)
		at := time.Now().Add(time.Hour)
		for _, planned := range []bool{true, false} {
			b.interrupt(cloud.Interruption{
				InstanceID: cell.Instance.ID,
				At:         at,
				Reason:     "words",
				Planned:    planned,
			})
			at = at.Add(-30 * time.Minute) // the sooner counts
			b.later(time.Second)
			got := make(chan []string, 1)
			says <- func(l cloud.Listener) { got <- l.Planned() }
			if told := <-got; slices.Equal(told, []string{cell.Instance.ID}) != planned || !planned && len(told) > 0 {
				t.Errorf("planned (%t) are %q", planned, told)
			}
		}
	})
}

// teller is a cloud that tells its listener what is sent to it.
type teller chan func(cloud.Listener)

func (t teller) Interruptions(ctx context.Context, l cloud.Listener) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case tell := <-t:
			tell(l)
		}
	}
}

// telling runs a bubble with a cloud that tells its listener what the test has it tell.
func telling(t *testing.T, f func(t *testing.T, b *bubble, says teller)) {
	t.Helper()
	var says teller
	inBubble(t, func(s *setup) {
		says = make(teller)
		s.Cloud.(*modelCloud).optional.Interrupter = says
	}, nil, func(t *testing.T, b *bubble) { f(t, b, says) })
}

func TestACloudThatSpeaksOfInstancesThatAreNotKipsMovesNothing(t *testing.T) {
	telling(t, func(t *testing.T, b *bubble, says teller) {
		b.spot("a")
		onDemand := b.bound(1)[0]
		instance := func(pod string) string {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			return cell.Instance.ID
		}
		says <- func(l cloud.Listener) {
			if !l.Mine(instance("a")) || !l.Mine(instance(onDemand)) || l.Mine("i-another") || l.Mine("") {
				t.Error("Kip does not know which instances are its own")
			}
			for _, id := range []string{"i-another", ""} {
				l.Notify(cloud.Interruption{InstanceID: id, At: time.Now().Add(time.Minute), Reason: "words"})
			}
		}
		b.later(time.Minute)
		for _, pod := range []string{"a", onDemand} {
			if cell, _ := b.cells.ForPod(ref(pod).UID); cell.Phase != apiv1.Bound || !cell.Interrupted.IsZero() {
				t.Errorf("the cell of %s is %q, to be taken at %v", pod, cell.Phase, cell.Interrupted)
			}
		}
		if len(b.said("Interrupted")) > 0 || len(b.said("interrupted")) > 0 {
			t.Errorf("said %v", b.events)
		}
	})
}

func TestWhoWasToldOfANoticeByAnEarlierKipIsNotToldAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		stored, unconfirmed bool
		said, taken         int
	}{
		"the cloud had said so":      {true, false, 0, 0},
		"only the cell had said so":  {true, true, 0, 1},
		"nobody had said so by then": {false, false, 1, 1},
	} {
		b := newBench(t)
		at := b.clock.Now().Add(time.Minute)
		cell := Cell{
			ID: "c", Pod: ref("a"), Phase: apiv1.Bound, Offerings: []Offering{{Spot: true}}, Instance: &cloud.Instance{ID: "i"},
			Notice: Notice{Unconfirmed: tc.unconfirmed},
		}
		if tc.stored {
			cell.Interrupted = at
		}
		e, s := b.stored(cell), b.interrupting()
		if err := (&storedNotices{table: b.table, interruptions: s}).load(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.recordNotice(t.Context(), e, cloud.Interruption{InstanceID: "i", At: at}, false); err != nil {
				t.Fatal(err)
			}
		}
		if len(b.said) != tc.said || len(b.taken) != tc.taken {
			t.Errorf("%s: said %v, %d are taken back", name, b.said, len(b.taken))
		}
	}
}
