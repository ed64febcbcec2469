package cells

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// operators is a cloud-init file whose content is its digest.
type operators struct {
	mu  sync.Mutex
	now string
}

func (o *operators) set(now string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = now
}

func (o *operators) Digest() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now
}

func (o *operators) NeedsLogin() bool { return o.Digest() == "users" }

func (o *operators) Document(_ context.Context, digest string) ([]byte, error) {
	return []byte("the file " + digest), nil
}

// setUps are agents that answer a cloud-init file with a status and a text, and note what
// they are asked.
type setUps struct {
	mu     sync.Mutex
	status int
	answer string
	asked  []string
}

func (s *setUps) say(status int, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.answer = status, answer
}

func (s *setUps) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, ", ")
}

func (s *setUps) serve(r *http.Request) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, answer := http.StatusOK, ""
	switch r.URL.Path {
	case agentapi.PathCloudInit:
		var c agentapi.CloudInit
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			c.Document = []byte(err.Error())
		}
		if n := len(s.asked); n == 0 || s.asked[n-1] != string(c.Document) {
			s.asked = append(s.asked, string(c.Document))
		}
		status, answer = s.status, s.answer
	case agentapi.PathConfig:
		s.asked = append(s.asked, "configured")
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer))}
}

// withFile gives a Kip a cloud-init file.
func withFile(o *operators) func(*setup) {
	return func(c *setup) { c.CloudInit = o }
}

func TestACellCarriesOutItsCloudInitFileBeforeItIsConfigured(t *testing.T) {
	file, agents := &operators{now: "one"}, &setUps{}
	inBubble(t, withFile(file), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		agents.say(http.StatusServiceUnavailable, "it is being carried out")
		offer := Offer{InstanceType: "nano", Zone: "z", BootTimeout: time.Minute}
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Seen: time.Now(), Offers: []Offer{offer}}); err != nil {
			t.Fatal(err)
		}
		b.later(5 * time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if got := agents.all(); got != "the file one" || b.phase("a") != apiv1.Booting {
			t.Fatalf("while it goes on: asked %s, phase %s, said %v", got, b.phase("a"), b.events)
		}
		if got := b.cells.WaitsFor(cell.ID); got != "its cloud-init file is being carried out" {
			t.Errorf("it waits for %q", got)
		}
		// Neither a Kip that begins anew nor another file changes what the cell has.
		file.set("two")
		b.stop()
		b.run()
		b.later(3 * time.Minute)
		if b.phase("a") != apiv1.Booting {
			t.Fatalf("another Kip: phase %q, said %v", b.phase("a"), b.events)
		}
		agents.say(http.StatusOK, `{"failures":["user ann: no\u001b such program"]}`)
		b.later(10 * time.Second)
		if got := agents.all(); got != "the file one, configured" || b.phase("a") != apiv1.Bound {
			t.Errorf("asked %s, phase %s", got, b.phase("a"))
		}
		if said := b.said("Warning CloudInitFailed", "user ann: no? such program"); len(said) != 1 {
			t.Errorf("said %v", b.events)
		}
		b.request("b", "nano")
		b.later(10 * time.Second)
		if got := agents.all(); got != "the file one, configured, the file two, configured" || b.phase("b") != apiv1.Bound {
			t.Errorf("the next cell: asked %s, phase %s", got, b.phase("b"))
		}
		b.stop()
		b.run()
		b.later(10 * time.Second)
		if got := strings.Count(agents.all(), "the file"); got != 2 {
			t.Errorf("cells that have joined are asked again: %s", agents.all())
		}
	})
}

func TestACellThatCannotCarryOutItsCloudInitFileEndsAndSaysWhy(t *testing.T) {
	for status, answer := range map[int]string{
		http.StatusBadRequest: "nobody can log in on Kip's own image",
		http.StatusNotFound:   "404 page not found",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			agents := &setUps{status: status, answer: answer}
			inBubble(t, withFile(&operators{now: "one"}), nil, func(t *testing.T, b *bubble) {
				b.links.agents = agents.serve
				b.request("a", "nano")
				b.later(10 * time.Second)
				if b.phase("a") != "" || len(b.said("Warning CloudInitFailed", answer, "another is tried")) != 1 {
					t.Errorf("phase %q, said %v", b.phase("a"), b.events)
				}
				if got := agents.all(); got != "the file one" {
					t.Errorf("asked %s", got)
				}
			})
		})
	}
}

func TestACellHasTenMinutesForItsCloudInitFile(t *testing.T) {
	agents := &setUps{status: http.StatusServiceUnavailable}
	inBubble(t, withFile(&operators{now: "one"}), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		b.request("a", "nano")
		b.later(cloudInitTimeout - 10*time.Second)
		if b.phase("a") != apiv1.Booting {
			t.Fatalf("it is %q before its time; said %v", b.phase("a"), b.events)
		}
		b.later(30 * time.Second)
		if b.phase("a") != "" || len(b.said("CellNotReady", "not done with its cloud-init file in time")) != 1 {
			t.Errorf("it is %q; said %v", b.phase("a"), b.events)
		}
	})
}

func TestStandbyCellsOfAnotherCloudInitFileAreReplaced(t *testing.T) {
	file, agents := &operators{}, &setUps{status: http.StatusOK, answer: "{}"}
	inBubble(t, func(c *setup) { keep(1)(c); c.CloudInit = file }, nil, func(t *testing.T, b *bubble) {
		b.stop() // it asks the pool's cells already
		b.links.agents = agents.serve
		b.run()
		b.later(10 * time.Second)
		old := b.cells.List()
		if len(old) != 1 || old[0].CloudInit() != "" || agents.all() != "configured" {
			t.Fatalf("cells %+v, asked %s", old, agents.all())
		}
		file.set("one")
		b.later(time.Minute)
		now := b.cells.List()
		if len(now) != 1 || now[0].ID == old[0].ID || now[0].CloudInit() != "one" || now[0].Phase != apiv1.Ready {
			t.Errorf("cells %+v", now)
		}
		b.later(time.Hour)
		if last := b.cells.List(); len(last) != 1 || last[0].ID != now[0].ID {
			t.Errorf("they go on being replaced: %+v", last)
		}
	})
}
