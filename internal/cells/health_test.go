package cells

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/lateness"
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
		_, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Offers: []Offer{{InstanceType: "nano"}}})
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
				Pod:            ref(name),
				Seen:           time.Now(),
				HealthyTimeout: own,
				Offers:         []Offer{{InstanceType: "nano", Zone: "z", BootTimeout: time.Minute}},
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
		for n := range 4 {
			b.request(fmt.Sprint(n), "nano")
		}
		b.later(time.Minute)
		list := b.cells.List()
		for _, cell := range list {
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(10 * time.Minute)
		if n := len(b.cloud.running()); n != 4 {
			t.Fatalf("%d of 4 instances are left; said %v", n, b.said("CellLost"))
		}
		for _, cell := range list[1:] {
			b.links.of(cell.ID).set(true, nil)
		}
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 3 {
			t.Fatalf("%d instances when one of 4 is silent, want 3", n)
		}
	})
}

func TestTheCloudsWordAloneDecidesWithCloudAPI(t *testing.T) {
	inBubble(t, func(c *Config) {
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
		cell, _ = b.cells.ForPod(ref("b").UID)
		b.cloud.mu.Lock()
		delete(b.cloud.instances, cell.Instance.ID)
		b.cloud.mu.Unlock()
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

// goOn ends the lateness of a Kip whose meter has not run yet.
func (b *bubble) goOn() { go func() { _ = b.cfg.Late.Run(b.Context()) }() }

func withMeter(c *Config) { c.Late = lateness.New(c.Clock) }

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
