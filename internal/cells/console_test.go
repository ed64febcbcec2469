package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// writers are machines that write to their consoles.
type writers struct {
	text  string
	err   error
	asked chan string
	hold  chan struct{} // nil, or closed when the answers may come
}

func (w *writers) Console(ctx context.Context, id string) ([]byte, error) {
	w.asked <- id
	if w.hold != nil {
		select {
		case <-w.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return []byte(w.text), w.err
}

// What kept a machine from joining is on its console alone, which goes with it.
func TestACellThatNeverJoinedIsToldWithTheEndOfItsConsole(t *testing.T) {
	for what, tc := range map[string]struct {
		console writers
		end     func(b *bubble)
		want    string
	}{
		"ended by itself": {
			writers{text: strings.Repeat("earlier\n", 200) + "[    2.000100] kip: state: FAILED \x1b[31mno room\r\n" +
				"[    2.000200] audit: of the operator's own image\nsecret=1 [    2.1] kip: no line of an agent\n[   12.000300] kip: power off\n"},
			func(b *bubble) { b.vanish("a") },
			"The console of %s ends with: [    2.000100] kip: state: FAILED ?[31mno room | [   12.000300] kip: power off",
		},
		"too slow": {writers{text: "[    2.000100] kip: no link\n"}, func(b *bubble) { b.later(time.Hour) },
			"The console of %s ends with: [    2.000100] kip: no link"},
		"nothing of the agent's": {writers{text: "reboot: Power down\n"}, func(b *bubble) { b.vanish("a") }, ""},
		"a long line": {writers{text: "[    2.000100] kip: " + strings.Repeat("x", 2*eventBytes) + "\n"}, func(b *bubble) { b.vanish("a") },
			"The console of %s ends with: [    2.000100] kip: " + strings.Repeat("x", eventBytes-len("[    2.000100] kip: "))},
		"an empty console": {writers{}, func(b *bubble) { b.vanish("a") }, ""},
		"none":             {writers{err: cloud.ErrNotFound}, func(b *bubble) { b.vanish("a") }, ""},
		"not now":          {writers{err: errors.New("InternalError")}, func(b *bubble) { b.vanish("a") }, ""},
	} {
		tc.console.asked = make(chan string, 100)
		inBubble(t, func(c *setup) { c.Cloud.(*modelCloud).optional.Console = &tc.console }, nil, func(t *testing.T, b *bubble) {
			b.links.boots = func(string) bool { return false }
			b.request("a", "nano")
			b.later(5 * time.Second)
			cell, _ := b.cells.ForPod(ref("a").UID)
			tc.end(b)
			b.later(2 * time.Minute)
			if len(tc.console.asked) == 0 || <-tc.console.asked != cell.Instance.ID {
				t.Errorf("%s: the console was not asked for first", what)
			}
			said := b.said("CellConsole", cell.Instance.ID)
			if tc.want == "" && len(said) > 0 || tc.want != "" && len(b.said("CellConsole", fmt.Sprintf(tc.want, cell.Instance.ID))) != 1 {
				t.Errorf("%s: said %q, want %q", what, said, tc.want)
			}
		})
	}
}

func TestOfACellThatJoinedOrWasNotWantedAnyMoreNoConsoleIsRead(t *testing.T) {
	console := &writers{text: "x", asked: make(chan string, 100)}
	inBubble(t, func(c *setup) { c.Cloud.(*modelCloud).optional.Console = console }, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		b.request("unwanted", "nano")
		b.later(5 * time.Second)
		b.cells.Release(ref("unwanted").UID, "deleted", false)
		b.later(time.Minute)
		b.links.boots = nil
		b.bound(1)
		for _, c := range b.cells.List() {
			b.cloud.set(func() { delete(b.cloud.instances, c.Instance.ID) })
		}
		b.later(5 * time.Minute)
		if len(console.asked) > 0 {
			t.Errorf("that of %s was read", <-console.asked)
		}
	})
}

// Where many cells end at once, they end without waiting for consoles, and few of these are read: fewer of one namespace.
func TestNoEndWaitsForAConsole(t *testing.T) {
	console := &writers{text: "x", asked: make(chan string, 100)}
	inBubble(t, func(c *setup) { c.Cloud.(*modelCloud).optional.Console = console }, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		console.hold = make(chan struct{}) // in the bubble: who waits for it lets time pass
		first := map[string]bool{}
		var pods []string
		for n := range 10 {
			pods = append(pods, fmt.Sprintf("p%d", n))
			b.request(pods[n], "nano")
		}
		small := nano("small")
		small.Pod.Namespace = "other"
		if _, err := b.cells.Request(t.Context(), small); err != nil {
			t.Fatal(err)
		}
		b.later(5 * time.Second)
		own, _ := b.cells.ForPod(small.Pod.UID)
		for _, c := range b.cells.List() {
			first[c.ID] = true
		}
		b.vanish(pods...)
		b.later(10 * time.Second)
		b.vanish(small.Pod.Name)
		b.later(time.Minute)
		for _, c := range b.cells.List() {
			if first[c.ID] && c.Phase != apiv1.Gone {
				t.Errorf("cell %s is %s", c.ID, c.Phase)
			}
		}
		var asked []string
		for range len(console.asked) {
			asked = append(asked, <-console.asked)
		}
		if len(asked) != consolesOfOne+1 || !slices.Contains(asked, own.Instance.ID) {
			t.Errorf("the consoles of %v were asked for at once, want %d, and that of %s", asked, consolesOfOne, own.Instance.ID)
		}
	})
}
