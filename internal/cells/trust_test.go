package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/tunnel"
)

// knownCAs are Kip's CAs and what machines trust, as user data and Kip have told them.
type knownCAs struct {
	b *bubble

	mu      sync.Mutex
	trusts  map[string][]string // by cell
	told    map[string]int
	refused []string // dials by a CA that the cell does not trust
	// answer is that of an agent that is told; nil for one that does what it is told.
	answer func(cell string) error
}

// rotates has the cells of a bubble know of CAs. The Kip that runs has first's.
func rotates(b *bubble, first string) *knownCAs {
	a := &knownCAs{b: b, trusts: map[string][]string{}, told: map[string]int{}}
	b.links.mu.Lock()
	defer b.links.mu.Unlock()
	b.links.dials = func(cell, ca string) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.trusts[cell] == nil { // it was launched by now
			a.trusts[cell] = []string{first}
			if sent := a.sentTo(cell); sent != "" {
				a.trusts[cell] = []string{sent}
			}
		}
		if !slices.Contains(a.trusts[cell], ca) {
			a.refused = append(a.refused, fmt.Sprintf("%s by %q, it trusts %v", cell, ca, a.trusts[cell]))
			return errors.New("remote error: tls: bad certificate")
		}
		return nil
	}
	b.links.trusts = func(ctx context.Context, l *modelLink) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.told[l.id]++
		if a.answer != nil {
			if err := a.answer(l.id); err != nil {
				return err
			}
		}
		a.trusts[l.id] = []string{b.cfg.CAHash}
		if b.cfg.OldCAHash != "" {
			a.trusts[l.id] = append(a.trusts[l.id], b.cfg.OldCAHash)
		}
		l.dialledBy(b.cfg.CAHash)
		return nil
	}
	return a
}

// sentTo is the CA of a cell's user data.
func (a *knownCAs) sentTo(cell string) string {
	a.b.cloud.mu.Lock()
	defer a.b.cloud.mu.Unlock()
	for _, text := range a.b.cloud.requests {
		var request cloud.LaunchRequest
		if err := json.Unmarshal([]byte(text), &request); err != nil {
			a.b.Error(err)
		}
		for _, machine := range request.Machines {
			if strings.Contains(string(machine.UserData), cell) {
				return regexp.MustCompile(`ca-\d|$`).FindString(string(machine.UserData))
			}
		}
	}
	return ""
}

// kip begins a Kip with other CAs than the one before.
func (a *knownCAs) kip(ca, old string) {
	a.b.Helper()
	a.b.stop()
	a.b.cfg.CAHash, a.b.cfg.OldCAHash = ca, old
	a.b.run()
}

// by is how many cells have records that say these CAs.
func (a *knownCAs) by() map[string]int {
	all := map[string]int{}
	for _, cell := range a.b.cells.List() {
		all[cell.CA+"+"+cell.OldCA]++
	}
	return all
}

func (a *knownCAs) wantBy(when string, want map[string]int) {
	a.b.Helper()
	if got := a.by(); !maps.Equal(got, want) {
		a.b.Errorf("%s: cells by their CAs are %v, want %v", when, got, want)
	}
}

func (a *knownCAs) check() {
	a.b.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.refused) > 0 {
		a.b.Errorf("dialled by a CA that the cell does not trust: %v", a.refused)
	}
	if said := a.b.said("CellLost"); len(said) > 0 {
		a.b.Errorf("lost: %v", said)
	}
}

func TestCellsAreMovedToTheCAThatSignsAndTheOldOneIsForgotten(t *testing.T) {
	inBubble(t, func(c *setup) { c.CAHash = "ca-1" }, nil, func(t *testing.T, b *bubble) {
		a := rotates(b, "ca-1")
		pods := b.bound(3)
		away, _ := b.cells.ForPod(ref(pods[0]).UID)
		if len(b.cells.Unmoved()) != 0 || b.cells.Untold() != 0 {
			t.Error("cells are to be moved while there is one CA")
		}

		b.links.boots = func(cell string) bool { return cell != away.ID }
		a.kip("ca-2", "ca-1")
		b.later(20 * time.Second)
		a.wantBy("in the rotation", map[string]int{"ca-2+ca-1": 2, "ca-1+": 1})
		left := b.cells.Unmoved()
		if len(left) != 1 || left[0].Cell.ID != away.ID || left[0].Why != "it is not connected" {
			t.Errorf("the one that cannot be reached: %+v", left)
		}
		told := maps.Clone(a.told)
		b.request("new", "nano")
		b.later(time.Minute)
		a.wantBy("with a new one", map[string]int{"ca-2+ca-1": 2, "ca-1+": 1, "ca-2+": 1})
		if !maps.Equal(told, a.told) {
			t.Errorf("cells are told again: %v, then %v", told, a.told)
		}

		// It comes back, and nothing was lost.
		b.links.boots = nil
		a.kip("ca-2", "ca-1")
		b.later(20 * time.Second)
		a.wantBy("when it is back", map[string]int{"ca-2+ca-1": 3, "ca-2+": 1})
		if left := b.cells.Unmoved(); len(left) != 0 {
			t.Errorf("not moved: %+v", left)
		}

		// The old CA is dropped: all that may trust it are told, once.
		a.kip("ca-2", "")
		if n := b.cells.Untold(); n != 3 {
			t.Errorf("%d may trust the old CA, want 3", n)
		}
		told = maps.Clone(a.told)
		b.later(time.Minute)
		a.wantBy("in the end", map[string]int{"ca-2+": 4})
		n := 0
		for cell, trusted := range a.trusts {
			n += a.told[cell] - told[cell]
			if !slices.Equal(trusted, []string{"ca-2"}) {
				t.Errorf("%s trusts %v", cell, trusted)
			}
		}
		if n != 3 || b.cells.Untold() != 0 {
			t.Errorf("%d were told, and %d may trust the old CA yet", n, b.cells.Untold())
		}
		if lost := b.unbound(append(pods, "new")); len(lost) > 0 {
			t.Errorf("not bound any more: %v", lost)
		}
		a.check()
	})
}

func TestACellThatIsNotMovedStaysWithTheOldCAAndIsAskedSeldom(t *testing.T) {
	inBubble(t, func(c *setup) { c.CAHash = "ca-1" }, nil, func(t *testing.T, b *bubble) {
		a := rotates(b, "ca-1")
		pods := b.bound(2)
		cells := map[string]error{}
		for n, err := range []error{errors.New("its disk is full"), errors.New("it lies")} {
			cell, _ := b.cells.ForPod(ref(pods[n]).UID)
			cells[cell.ID] = err
		}
		a.mu.Lock()
		a.answer = func(cell string) error { return cells[cell] }
		a.mu.Unlock()
		a.kip("ca-2", "ca-1")
		b.later(24 * time.Hour)
		a.wantBy("a day later", map[string]int{"ca-1+": 2})
		for cell, err := range cells {
			if n := a.told[cell]; n < 24 || n > 60 {
				t.Errorf("%v: it was told %d times in a day", err, n)
			}
		}
		left := b.cells.Unmoved()
		if len(left) != 2 {
			t.Fatalf("%d are not moved: %v", len(left), left)
		}
		whys := left[0].Why + "; " + left[1].Why
		if !strings.Contains(whys, "it lies") || !strings.Contains(whys, "its disk is full") {
			t.Errorf("they wait for: %s", whys)
		}

		// A person decides, on what was shown.
		if _, err := b.cells.EndUnmoved(ShownUnmoved(left[:1])); !errors.Is(err, ErrOtherUnmoved) {
			t.Errorf("a decision on others: %v", err)
		}
		if lost := b.unbound(pods); len(lost) > 0 {
			t.Errorf("ended although others were shown: %v", lost)
		}
		b.request("new", "nano")
		b.later(time.Minute)
		a.check()
		ended, err := b.cells.EndUnmoved(ShownUnmoved(left))
		if err != nil || len(ended) != 2 {
			t.Errorf("%d end, %v", len(ended), err)
		}
		b.later(time.Minute)
		if left := b.cells.Unmoved(); len(left) > 0 || b.phase("new") != apiv1.Bound || len(b.unbound(pods)) != 2 {
			t.Errorf("then: %v, new is %s", left, b.phase("new"))
		}
	})
}

// hears is a log that is told of each message.
type hears func(message string)

func (h hears) Enabled(context.Context, slog.Level) bool { return true }
func (h hears) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h hears) WithGroup(string) slog.Handler            { return h }

func (h hears) Handle(_ context.Context, r slog.Record) error {
	h(r.Message)
	return nil
}

// A pod that comes while cells are ended was not shown to anybody.
func TestNoPodGetsACellThatAPersonEndsMeanwhile(t *testing.T) {
	var once atomic.Pointer[func()] // what the next cell that is lost does; every goroutine logs
	inBubble(t, func(c *setup) {
		keep(2)(c)
		c.CAHash = "ca-1"
		c.Log = slog.New(hears(func(message string) {
			if !strings.Contains(message, "is lost") {
				return
			}
			if request := once.Swap(nil); request != nil {
				(*request)()
			}
		}))
	}, nil, func(t *testing.T, b *bubble) {
		a := rotates(b, "ca-1")
		b.later(time.Minute)
		a.mu.Lock()
		a.answer = func(string) error { return errors.New("not yet") }
		a.mu.Unlock()
		b.cfg.Pools[0].Offerings = func() ([]Offering, error) { return nil, cloud.ErrCapacity }
		a.kip("ca-2", "ca-1")
		b.later(time.Minute)
		shown := b.cells.Unmoved()
		if len(shown) != 2 || shown[0].Cell.Phase != apiv1.Ready || shown[1].Cell.Phase != apiv1.Ready {
			t.Fatalf("not moved: %+v", shown)
		}
		var got Cell
		request := func() { got = b.request("a", "nano") }
		once.Store(&request)
		if ended, err := b.cells.EndUnmoved(ShownUnmoved(shown)); err != nil || len(ended) != 2 || got.ID == "" {
			t.Fatalf("%d end, %v, and the pod has %+v", len(ended), err, got)
		}
		if slices.ContainsFunc(shown, func(u Unmoved) bool { return u.Cell.ID == got.ID }) {
			t.Error("the pod has a cell that ends as nobody decided of that pod")
		}
		b.later(time.Minute)
		if now, _ := b.cells.ForPod(ref("a").UID); now.ID != got.ID || now.Phase != apiv1.Bound {
			t.Errorf("then the pod has cell %s, which is %s; it had %s", now.ID, now.Phase, got.ID)
		}
	})
}

// What a cell does counts, not what its record says: one that was moved, and has lost what it
// was told, is told again, and is not shut out before that.
func TestACellThatHasForgottenTheNewCAIsMovedAgain(t *testing.T) {
	inBubble(t, func(c *setup) { c.CAHash = "ca-1" }, nil, func(t *testing.T, b *bubble) {
		a := rotates(b, "ca-1")
		pods := b.bound(2)
		a.kip("ca-2", "ca-1")
		b.later(20 * time.Second)
		a.wantBy("when they are moved", map[string]int{"ca-2+ca-1": 2})
		cell, _ := b.cells.ForPod(ref(pods[0]).UID)
		a.mu.Lock()
		told := a.told[cell.ID]
		a.answer = func(string) error { return errors.New("not yet") }
		a.mu.Unlock()
		link := b.links.of(cell.ID)
		link.set(false, errors.New("remote error: tls: bad certificate"))
		link.dialledBy("ca-1")
		link.set(true, nil)
		b.later(20 * time.Second)
		if left := b.cells.Unmoved(); len(left) != 1 || left[0].Cell.ID != cell.ID || left[0].Why != "not yet" {
			t.Errorf("connected by the old CA again: %+v", left)
		}
		a.mu.Lock()
		a.answer = nil
		a.mu.Unlock()
		b.later(5 * time.Minute)
		if left := b.cells.Unmoved(); len(left) != 0 || a.told[cell.ID] <= told+1 {
			t.Errorf("told %d times more, not moved: %+v", a.told[cell.ID]-told, left)
		}
		a.check()

		// One that does so as it likes is told more seldom, and does not change what a person is shown.
		told = a.told[cell.ID]
		for n := range 24 * 60 {
			link.dialledBy([]string{"ca-1", "ca-2"}[n%2])
			b.later(time.Minute)
		}
		if n := a.told[cell.ID] - told; n < 10 || n > 60 {
			t.Errorf("one that forgets each minute was told %d times in a day", n)
		}
		link.dialledBy("ca-1")
		shown := ShownUnmoved(b.cells.Unmoved())
		link.dialledBy("ca-2")
		if _, err := b.cells.EndUnmoved(shown); err != nil {
			t.Errorf("a decision on what was shown: %v", err)
		}
	})
}

// A launch that is under way has the CA of when it was stored.
func TestALaunchThatIsUnderWayKeepsTheOldCA(t *testing.T) {
	inBubble(t, func(c *setup) { c.CAHash = "ca-1" }, nil, func(t *testing.T, b *bubble) {
		a := rotates(b, "ca-1")
		lost := true
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
			if lost {
				return errors.New("connection reset by peer"), true
			}
			return nil, false
		}
		b.later(time.Second)
		b.request("a", "nano")
		b.later(5 * time.Second)
		b.stop()
		b.cfg.CAHash, b.cfg.OldCAHash = "ca-2", "ca-1"
		b.run()
		b.later(time.Second)
		left := b.cells.Unmoved()
		if len(left) != 1 || left[0].Why != "it is being launched" {
			t.Errorf("while it is being launched: %+v", left)
		}
		b.cloud.set(func() { lost = false })
		b.later(time.Minute)
		a.wantBy("when it has joined", map[string]int{"ca-2+ca-1": 1})
		if b.phase("a") != apiv1.Bound || len(b.cells.Unmoved()) != 0 {
			t.Errorf("it is %s, not moved: %v", b.phase("a"), b.cells.Unmoved())
		}
		a.check()
	})
}

// Stopped standby cells are not told: their pool has others in their place first, or they
// are told when a pod has taken them.
func TestStoppedStandbyCellsAreReplacedOrMovedInARotation(t *testing.T) {
	for _, taken := range []bool{false, true} {
		inBubble(t, func(c *setup) {
			keep(1)(c)
			c.Pools[0].Stopped, c.CAHash, c.Template = true, "ca-1", "of ca-1"
			model := c.Cloud.(*modelCloud)
			model.optional.Stopper = stopper{modelCloud: model}
		}, nil, func(t *testing.T, b *bubble) {
			a := rotates(b, "ca-1")
			b.later(time.Minute)
			b.stop()
			first := b.cells.List()
			if len(first) != 1 || !first[0].Stopped {
				t.Fatalf("the pool has %+v", first)
			}
			b.cfg.Template = "of ca-2"
			b.cfg.Pools[0].Offerings = func() ([]Offering, error) { return nil, cloud.ErrCapacity }
			b.cfg.CAHash, b.cfg.OldCAHash = "ca-2", "ca-1"
			b.run()
			if taken {
				b.later(time.Millisecond)
				b.request("a", "nano")
				b.later(time.Minute)
				cell, _ := b.cells.ForPod(ref("a").UID)
				if cell.ID != first[0].ID || cell.Phase != apiv1.Bound || cell.CA != "ca-2" {
					t.Errorf("the pod that took it has %+v", cell)
				}
			} else { // while there is no other it stays
				b.later(time.Hour)
				left := b.cells.Unmoved()
				if len(left) != 1 || left[0].Cell.ID != first[0].ID || !strings.Contains(left[0].Why, "it is stopped") {
					t.Errorf("not moved: %+v", left)
				}
				b.stop()
				b.cfg.Pools[0].Offerings = func() ([]Offering, error) { return nano("x").Offerings, nil }
				b.run()
				b.later(5 * time.Minute)
			}
			for _, cell := range b.cells.List() {
				if cell.Pod.UID == "" && cell.ID == first[0].ID || cell.CA != "ca-2" {
					t.Errorf("taken %t: there is %+v", taken, cell)
				}
			}
			if n := len(b.cells.Standby()); n != 1 || len(b.cells.Unmoved()) != 0 {
				t.Errorf("taken %t: %d pools, not moved: %v", taken, n, b.cells.Unmoved())
			}
			a.check()
		})
	}
}

// A Kip that is killed at any write of a rotation, whether the write was done or not, goes
// on where it was: no cell is dialled by a CA that it does not trust, and all are moved.
func TestAKipThatIsKilledInARotationGoesOn(t *testing.T) {
	for _, done := range []bool{false, true} {
		for kill := 1; ; kill++ {
			var mu sync.Mutex
			writes, dead, counting, died := 0, false, false, false
			hook := func(op, key string) error {
				mu.Lock()
				defer mu.Unlock()
				if !counting || !strings.Contains(key, "cells/") {
					return nil
				}
				if (op == "applied") != done {
					if dead {
						return errors.New("killed")
					}
					return nil
				}
				if writes++; writes == kill {
					dead = true
				}
				if dead {
					return errors.New("killed")
				}
				return nil
			}
			inBubble(t, func(c *setup) { c.CAHash = "ca-1" }, hook, func(t *testing.T, b *bubble) {
				a := rotates(b, "ca-1")
				pods := b.bound(3)
				count := func(on bool) (killed bool) {
					mu.Lock()
					defer mu.Unlock()
					counting, killed, dead = on, dead, false
					return killed
				}
				for _, step := range []struct{ ca, old string }{{"ca-2", "ca-1"}, {"ca-2", ""}, {"ca-3", "ca-2"}, {"ca-3", ""}} {
					a.kip(step.ca, step.old)
					count(true)
					b.later(30 * time.Second)
					if count(false) {
						died = true
						a.kip(step.ca, step.old)
						b.later(30 * time.Second)
					}
					if left, untold := b.cells.Unmoved(), b.cells.Untold(); len(left) > 0 || untold > 0 {
						t.Errorf("killed at write %d, done %t: with %s and %q %v are not moved, %d not told", kill, done, step.ca, step.old, left, untold)
					}
				}
				if lost := b.unbound(pods); len(lost) > 0 {
					t.Errorf("killed at write %d, done %t: %v", kill, done, lost)
				}
				a.wantBy("in the end", map[string]int{"ca-3+": 3})
				a.check()
			})
			if t.Failed() {
				return
			}
			if !died {
				if kill < 12 {
					t.Fatalf("only %d writes were seen", kill-1)
				}
				break
			}
		}
	}
}

func TestACellThatTrustsANewerCAIsNotLost(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(4)
		refuse := func(why error) {
			for _, pod := range pods[:3] {
				cell, _ := b.cells.ForPod(ref(pod).UID)
				b.links.of(cell.ID).set(why == nil, why)
			}
		}
		refuse(fmt.Errorf("connect: %w", &tunnel.RotatedError{}))
		b.later(time.Hour)
		if lost := b.unbound(pods); len(lost) > 0 || len(b.said("silent")) > 0 {
			t.Errorf("%v are lost, said %v", lost, b.events)
		}
		if why := b.cells.Refused(); !strings.Contains(why, "3 cells of 4") || !strings.Contains(why, "older than the rotation") {
			t.Errorf("while three refuse it: %q", why)
		}
		refuse(nil)
		b.later(time.Minute)
		if why := b.cells.Refused(); why != "" {
			t.Errorf("then: %q", why)
		}
	})
}

func TestACellThatBootsAndTrustsANewerCAIsNotEnded(t *testing.T) {
	silent := func(c *setup) { c.APIs.(*modelLinks).boots = func(string) bool { return false } }
	inBubble(t, silent, nil, func(t *testing.T, b *bubble) {
		cell := b.request("a", "nano")
		b.later(10 * time.Second)
		b.links.of(cell.ID).set(false, &tunnel.RotatedError{})
		b.later(time.Hour)
		if got, has := b.cells.ForPod(ref("a").UID); !has || got.ID != cell.ID || got.Phase != apiv1.Booting {
			t.Errorf("after an hour the pod has %v; said %v", got, b.events)
		}
	})
}
