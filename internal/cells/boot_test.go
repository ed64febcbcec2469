package cells

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// booted are agents that tell this of their machine's start.
func booted(says *atomic.Value) func(*http.Request) *http.Response {
	return func(r *http.Request) *http.Response {
		answer := ""
		if r.URL.Path == agentapi.PathConfig {
			answer = says.Load().(string)
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(answer))}
	}
}

// text is what people are shown of a start.
func text(b *apiv1.Boot) string {
	shown, err := json.Marshal(b)
	if err != nil {
		return err.Error()
	}
	return string(shown)
}

// first is what an agent tells, and shownFirst what is shown of it.
const (
	first      = `{"boot":{"kernel":1000000000,"userSpace":2000000000,"network":3000000000,"joined":4000400000}}`
	shownFirst = `{"kernel":"1s","userSpace":"2s","network":"3s","joined":"4s","ready":"4s"}`
)

func TestACellShowsWhichAgentItHadWhenItsPodCame(t *testing.T) {
	mirror := &Mirror{node: "kip-0", waitsFor: func(string) string { return "" }}
	digest := strings.Repeat("0af", 21) + "9"
	var says atomic.Value
	says.Store("{}")
	standby := func(c *setup) {
		keep(1)(c)
		c.RefillDelay = time.Hour // one cell is enough
		c.Tunnels.(*modelLinks).agents = booted(&says)
	}
	inBubble(t, standby, nil, func(t *testing.T, b *bubble) {
		tell := func(version, digest string) {
			says.Store(`{"agent":{"version":"` + version + `","sha256":"` + digest + `"}}`)
			for _, cell := range b.cells.List() {
				link := b.links.of(cell.ID)
				link.set(false, io.EOF)
				b.later(time.Second)
				link.set(true, nil)
			}
			b.later(10 * time.Second)
		}
		b.later(10 * time.Second)
		shown := func() *apiv1.Agent { return mirror.Status(b.cells.List()[0]).Agent }
		if got := shown(); got != nil {
			t.Errorf("of one that says nothing it shows %+v", got)
		}
		for _, want := range []apiv1.Agent{{Version: "v1"}, {Version: "v2", SHA256: digest}} {
			tell(want.Version, want.SHA256)
			if got := shown(); got == nil || *got != want {
				t.Errorf("it shows %+v, want %+v", got, want)
			}
		}
		b.request("a", "nano")
		b.later(10 * time.Second)
		tell("v3", "")
		cell, _ := b.cells.ForPod(ref("a").UID)
		if got := mirror.Status(cell).Agent; cell.Phase != apiv1.Bound || got == nil || got.Version != "v2" {
			t.Errorf("it is %s and shows %+v", cell.Phase, got)
		}
	})
}

func TestACellShowsHowItsMachineStarted(t *testing.T) {
	mirror := &Mirror{node: "kip-0", waitsFor: func(string) string { return "" }}
	var writes atomic.Int32
	count := func(string, string) error { writes.Add(1); return nil }
	inBubble(t, nil, count, func(t *testing.T, b *bubble) {
		var says atomic.Value
		says.Store(first)
		b.links.agents = booted(&says)
		b.request("a", "nano")
		b.later(10 * time.Second)
		shown := func() string {
			cell, _ := b.cells.ForPod(ref("a").UID)
			return text(mirror.Status(cell).Boot)
		}
		if got := shown(); got != shownFirst {
			t.Errorf("it shows %s", got)
		}
		cell, _ := b.cells.ForPod(ref("a").UID)
		late := cell
		late.Boot.Ready = late.Boot.Told.Add(1500 * time.Millisecond)
		if got := text(mirror.Status(late).Boot); got != strings.Replace(shownFirst, `"ready":"4s"`, `"ready":"5.5s"`, 1) {
			t.Errorf("ready after a second and a half, it shows %s", got)
		}
		// With its pod nothing that the agent says of it is news.
		says.Store(`{"boot":{"kernel":1,"joined":2}}`)
		before := writes.Load()
		link := b.links.of(cell.ID)
		for range 3 {
			link.set(false, io.EOF)
			link.set(true, nil)
			b.later(10 * time.Second)
		}
		if got := shown(); got != shownFirst || writes.Load() != before {
			t.Errorf("told otherwise, it shows %s, and was stored %d times more", got, writes.Load()-before)
		}
		// Another process knows it from the record.
		b.stop()
		b.run()
		b.later(10 * time.Second)
		if got := shown(); got != shownFirst {
			t.Errorf("after a restart of Kip it shows %s", got)
		}
	})
}

func TestAMachineWithoutAKernelOfItsOwnShowsNoStart(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		var says atomic.Value
		says.Store("{}")
		b.links.agents = booted(&says)
		b.request("a", "nano")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Phase != apiv1.Bound || cell.Boot.shown() != nil {
			t.Errorf("it is %s and shows %s", cell.Phase, text(cell.Boot.shown()))
		}
	})
}

func TestAStoppedMachineShowsItsLastStart(t *testing.T) {
	var says atomic.Value
	says.Store(first)
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.Tunnels.(*modelLinks).agents = booted(&says) // before the first cell boots
		c.Pools[0].Stopped = true
		model := c.Cloud.(*modelCloud)
		model.optional.Stopper = stopper{modelCloud: model}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		stopped := b.cells.List()[0]
		says.Store(`{"boot":{"kernel":5000000,"joined":6000000}}`)
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if got := text(stopped.Boot.shown()); got != shownFirst || cell.ID != stopped.ID {
			t.Errorf("cell %s showed %s before it was stopped, the pod's is %s", stopped.ID, got, cell.ID)
		}
		if got := text(cell.Boot.shown()); got != `{"kernel":"5ms","joined":"6ms","ready":"6ms"}` {
			t.Errorf("after its second start it shows %s", got)
		}
	})
}
