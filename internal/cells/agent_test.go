package cells

import (
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

// goers are agents that answer which agent is to run with a status and a text, and note what
// they are asked.
type goers struct {
	mu     sync.Mutex
	status int
	answer string
	asked  []string
}

func (g *goers) say(status int, answer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status, g.answer = status, answer
}

// all are the different things that were asked, in order.
func (g *goers) all() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.asked, ", ")
}

func (g *goers) serve(r *http.Request) *http.Response {
	g.mu.Lock()
	defer g.mu.Unlock()
	status, answer, what := http.StatusOK, "", ""
	switch r.URL.Path {
	case agentapi.PathAgent:
		var a agentapi.Agent
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			a.Version = err.Error()
		}
		what, status, answer = "agent "+a.Source("amd64")+" "+a.SHA256["amd64"], g.status, g.answer
	case agentapi.PathCloudInit:
		what, answer = "cloud-init", "{}"
	case agentapi.PathConfig:
		what = "configured"
	}
	if n := len(g.asked); what != "" && (n == 0 || g.asked[n-1] != what) {
		g.asked = append(g.asked, what)
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer))}
}

// withAgent gives a Kip another agent than that of images.
func withAgent(version string) func(*setup) {
	return func(c *setup) {
		c.Agent = &agentapi.Agent{Version: version, URL: "https://a/b/", SHA256: map[string]string{"amd64": "d" + version}}
		c.CloudInit = &operators{now: "one"}
	}
}

func TestACellGoesOverToItsAgentBeforeAnythingElse(t *testing.T) {
	agents := &goers{}
	inBubble(t, withAgent("v2"), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		agents.say(http.StatusServiceUnavailable, "the agent is being fetched")
		b.request("a", "nano")
		b.later(30 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		const first = "agent https://a/b/itzo-v2-amd64 dv2"
		if got := agents.all(); got != first || b.phase("a") != apiv1.Booting {
			t.Fatalf("while it is fetched: asked %s, phase %s, said %v", got, b.phase("a"), b.events)
		}
		if got := b.cells.WaitsFor(cell.ID); got != "its agent is being fetched" {
			t.Errorf("it waits for %q", got)
		}
		if !cell.StepTime(apiv1.StepCloudInit).IsZero() {
			t.Error("its cloud-init file counts as begun")
		}
		// The other agent starts.
		link := b.links.of(cell.ID)
		link.set(false, io.EOF)
		b.later(time.Second)
		if got := b.cells.WaitsFor(cell.ID); got != "the agent of cells.itzo has not joined: EOF" {
			t.Errorf("meanwhile it waits for %q", got)
		}
		agents.say(http.StatusOK, "")
		link.set(true, nil)
		b.later(10 * time.Second)
		if got := agents.all(); got != first+", cloud-init, configured" || b.phase("a") != apiv1.Bound {
			t.Errorf("asked %s, phase %s", got, b.phase("a"))
		}
		// One that has joined is not asked again.
		link.set(false, io.EOF)
		link.set(true, nil)
		b.stop()
		b.run()
		b.later(10 * time.Second)
		if got := agents.all(); strings.Count(got, "agent") != 1 {
			t.Errorf("asked %s", got)
		}
	})
}

func TestACellThatCannotHaveItsAgentEndsAndSaysWhy(t *testing.T) {
	for status, answer := range map[int]string{
		http.StatusBadRequest: "itzo-v2-amd64 has the SHA-256 x, and y is wanted",
		http.StatusNotFound:   "404 page not found",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			agents := &goers{status: status, answer: answer}
			inBubble(t, withAgent("v2"), nil, func(t *testing.T, b *bubble) {
				b.links.agents = agents.serve
				b.request("a", "nano")
				b.later(10 * time.Second)
				if b.phase("a") != "" || len(b.said("Warning AgentNotStarted", answer, "another is tried")) != 1 {
					t.Errorf("phase %q, said %v", b.phase("a"), b.events)
				}
				if got := agents.all(); strings.Contains(got, "configured") || strings.Contains(got, "cloud-init") {
					t.Errorf("asked %s", got)
				}
			})
		})
	}
}

func TestACellKeepsTheAgentOfItsLaunch(t *testing.T) {
	agents := &goers{status: http.StatusServiceUnavailable}
	inBubble(t, withAgent("v2"), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		b.request("a", "nano")
		b.later(10 * time.Second)
		b.stop()
		withAgent("v3")(&b.cfg)
		b.run()
		b.later(10 * time.Second)
		if got := agents.all(); got != "agent https://a/b/itzo-v2-amd64 dv2" {
			t.Errorf("asked %s", got)
		}
	})
}
