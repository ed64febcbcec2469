package cells

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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
				if b.phase("a") != "" || len(b.said("Warning AgentNotStarted", answer, "tries another")) != 1 {
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

// A machine that lost its power may come back with the agent of its image.
func TestAStandbyCellIsToldOfItsAgentOnEachConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		answer string
		ends   time.Duration // 0 for never
	}{
		"that still runs":    {status: http.StatusOK},
		"that it gets again": {status: http.StatusServiceUnavailable, answer: "the agent is being fetched"},
		"that it cannot have": {
			status: http.StatusBadRequest,
			answer: "this machine has its configuration",
			ends:   5 * time.Second,
		},
		"that does not come": {
			status: http.StatusServiceUnavailable,
			answer: "the agent is being fetched",
			ends:   goOverTimeout + 5*time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			agents := &goers{status: http.StatusOK}
			standby := func(c *setup) {
				withAgent("v2")(c)
				keep(1)(c)
				c.Tunnels.(*modelLinks).agents = agents.serve
			}
			inBubble(t, standby, nil, func(t *testing.T, b *bubble) {
				b.later(10 * time.Second)
				list := b.cells.List()
				if len(list) != 1 || list[0].Phase != apiv1.Ready {
					t.Fatalf("standby cells: %+v", list)
				}
				id := list[0].ID
				agents.say(tc.status, tc.answer)
				link := b.links.of(id)
				link.set(false, io.EOF)
				b.later(time.Second)
				if cell, there := b.cells.Link(id); !there || cell.Connected {
					t.Fatalf("it is there: %t, %+v", there, cell)
				}
				link.set(true, nil)
				b.later(2 * time.Second)
				if got := strings.Count(agents.all(), "agent "); got != 2 {
					t.Errorf("asked %s", agents.all())
				}
				if _, would := b.cells.WouldTake(nano("a")); would != (tc.status == http.StatusOK) {
					t.Errorf("a pod would be given one: %t", would)
				}
				b.later(max(0, tc.ends-10*time.Second))
				_, there := b.cells.Link(id)
				if early := tc.ends > time.Minute && !there; early {
					t.Error("it ended early")
				}
				if tc.ends == 0 {
					agents.say(http.StatusOK, "")
				}
				b.later(10 * time.Second)
				if _, there := b.cells.Link(id); there != (tc.ends == 0) {
					t.Errorf("it is there: %t", there)
				}
				if cell, would := b.cells.WouldTake(nano("a")); tc.ends == 0 && (!would || cell.ID != id) {
					t.Errorf("a pod would be given %q", cell.ID)
				}
			})
		})
	}
}

func TestAPodIsNotGivenACellThatHasComeBackWithoutItsAgent(t *testing.T) {
	const answer = "this machine has its configuration"
	agents := &goers{status: http.StatusOK}
	standby := func(c *setup) {
		withAgent("v2")(c)
		keep(1)(c)
		c.Tunnels.(*modelLinks).agents = func(r *http.Request) *http.Response {
			if r.URL.Path == agentapi.PathAgent {
				time.Sleep(time.Second)
			}
			return agents.serve(r)
		}
	}
	inBubble(t, standby, nil, func(t *testing.T, b *bubble) {
		b.later(20 * time.Second)
		id := b.cells.List()[0].ID
		link := b.links.of(id)
		link.set(false, io.EOF)
		b.later(time.Second)
		agents.say(http.StatusBadRequest, answer)
		link.set(true, nil)
		b.later(100 * time.Millisecond)
		b.request("a", "nano")
		if cell, _ := b.cells.ForPod(ref("a").UID); cell.ID != id {
			t.Fatalf("the pod has cell %q", cell.ID)
		}
		b.later(2 * time.Second)
		if b.phase("a") == apiv1.Bound || len(b.said("Warning AgentNotStarted", answer)) != 1 || len(b.boundBy(id)) > 0 {
			t.Errorf("phase %s, said %v", b.phase("a"), b.events)
		}
	})
}

// Its machine may have lost its power since the pod was given the cell.
func TestAPodIsNotBoundToACellWhoseAgentIsAway(t *testing.T) {
	agents := &goers{status: http.StatusOK}
	standby := func(c *setup) {
		withAgent("v2")(c)
		keep(1)(c)
		c.Tunnels.(*modelLinks).agents = agents.serve
	}
	var goes atomic.Pointer[modelLink]
	taken := onChange{told: func(cell Cell) {
		if cell.Pod.UID == "" {
			return
		}
		if link := goes.Swap(nil); link != nil { // when the pod has come, and before its cell's worker knows of that
			link.set(false, io.EOF)
		}
	}}
	inBubble(t, standby, nil, func(t *testing.T, b *bubble) {
		b.later(20 * time.Second)
		id := b.cells.List()[0].ID
		agents.say(http.StatusServiceUnavailable, "the agent is being fetched")
		link := b.links.of(id)
		goes.Store(link)
		b.request("a", "nano")
		if cell, _ := b.cells.ForPod(ref("a").UID); cell.ID != id {
			t.Fatalf("the pod has cell %q", cell.ID)
		}
		b.later(10 * time.Second)
		if b.phase("a") != apiv1.Ready || len(b.boundBy(id)) > 0 {
			t.Errorf("while the agent is away: phase %s, shown %v", b.phase("a"), b.boundBy(id))
		}
		if got := b.cells.WaitsFor(id); got != "its agent has not joined: EOF" {
			t.Errorf("it waits for %q", got)
		}
		link.set(true, nil)
		b.later(5 * time.Second)
		if b.phase("a") != apiv1.Ready || len(b.boundBy(id)) > 0 {
			t.Errorf("while the agent is another: phase %s, shown %v", b.phase("a"), b.boundBy(id))
		}
		agents.say(http.StatusOK, "")
		b.later(5 * time.Second)
		if cell, _ := b.cells.ForPod(ref("a").UID); cell.ID != id || cell.Phase != apiv1.Bound {
			t.Errorf("with its agent: cell %s is %s", cell.ID, cell.Phase)
		}
	}, taken)
}

func TestTheNodeIsToldOnceOfAnAgentThatIsNotOfKipsVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		kip   string
		named bool     // by cells.itzo
		runs  []string // versions of the agents of a cell each
		told  []string // those of which the node is told
	}{
		"Kip's own":        {kip: "v1.4.2", runs: []string{"v1.4.2"}},
		"others":           {kip: "v1.4.2", runs: []string{"v1.4.1", "v1.4.1", "v1.4.2", "v1.5.0", "v1.4.1"}, told: []string{"v1.4.1", "v1.5.0"}},
		"that of the file": {kip: "v1.4.2", named: true, runs: []string{"v2"}},
		"one that is old":  {kip: "v1.4.2", runs: []string{""}},
		"to a Kip of none": {runs: []string{"v1.4.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &nodeEvents{}
			setUp := func(c *setup) {
				if tc.named {
					withAgent("v2")(c)
				}
				c.Version, c.NodeEvents = tc.kip, node
			}
			inBubble(t, setUp, nil, func(t *testing.T, b *bubble) {
				var runs string
				b.links.agents = func(r *http.Request) *http.Response {
					answer := "{}"
					if r.URL.Path == agentapi.PathConfig {
						answer = `{"agent": {"version": "` + runs + `"}}`
					}
					return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(answer))}
				}
				for i, version := range tc.runs {
					runs = version
					b.request(fmt.Sprint("pod-", i), "nano")
					b.later(time.Minute)
					if phase := b.phase(fmt.Sprint("pod-", i)); phase != apiv1.Bound {
						t.Errorf("the cell with %q is %s, want it to go on", version, phase)
					}
				}
				said := node.all()
				if len(said) != len(tc.told) {
					t.Fatalf("the node is told %q, want of %q", said, tc.told)
				}
				for i, version := range tc.told {
					if !strings.Contains(said[i], "Warning AgentVersionDiffers: The agent of cell ") ||
						!strings.Contains(said[i], " is "+version+", and Kip is v1.4.2:") {
						t.Errorf("the node is told %q, want of %s", said[i], version)
					}
				}
			})
		})
	}
}
