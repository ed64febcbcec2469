package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// nodeEvents notes the events of virtual nodes.
type nodeEvents struct {
	mu   sync.Mutex
	said []string
}

func (n *nodeEvents) Event(node string, e events.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, node+" "+e.Type+" "+e.Reason+": "+e.Message)
}

func (n *nodeEvents) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.said...)
}

func TestLaunchesWaitWhileMachinesCannotHaveTheirAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		answer string
		boots  time.Duration // and then ends each try
	}{
		"since it is refused":       {http.StatusBadRequest, "the server answered 404 Not Found", time.Second},
		"since it comes never":      {http.StatusServiceUnavailable, "the agent is being fetched", time.Minute},
		"since the image is of old": {http.StatusNotFound, "404 page not found", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			agents, node, seen := &goers{status: tc.status, answer: tc.answer}, &nodeEvents{}, &seenEnds{}
			setUp := func(c *setup) {
				withAgent("v2")(c)
				c.NodeEvents = node
			}
			inBubble(t, setUp, nil, func(t *testing.T, b *bubble) {
				b.links.agents = agents.serve
				pods := []string{"a", "b"}
				request := func(pods ...string) {
					for _, pod := range pods {
						if b.phase(pod) != "" {
							continue
						}
						if _, err := b.cells.Request(t.Context(), nano(pod)); err != nil {
							t.Error(err)
						}
					}
				}
				// The first one tries as often as it likes. The other one finds what it has found.
				for range refusedAgents {
					request("a")
					b.later(tc.boots + 10*time.Second)
				}
				if n := b.launched(); n != refusedAgents {
					t.Fatalf("%d launches before any has to wait, want %d; said %v", n, refusedAgents, b.events)
				}
				request(pods...)
				b.later(10 * time.Second)
				cell, _ := b.cells.ForPod(ref("b").UID)
				if n := b.launched(); n != refusedAgents || b.phase("a") != apiv1.Requested || b.phase("b") != apiv1.Requested ||
					len(b.cooled) > 0 || !strings.Contains(b.cells.WaitsFor(cell.ID), "agent") {
					t.Errorf("%d launches; a is %q, cooled %v; b waits for %q", n, b.phase("a"), b.cooled, b.cells.WaitsFor(cell.ID))
				}
				if said := b.said("Warning AgentNotStarted", "The pod waits"); len(said) != 2 {
					t.Errorf("said %v", b.events)
				}
				if said := node.all(); len(said) != 1 || !strings.Contains(said[0], "Warning AgentNotStarted: 3 machines could not have the agent") {
					t.Errorf("said of the node %q", said)
				}
				// Those of an image of its own are launched all the same.
				own := nano("own")
				own.Options = Options{Image: map[string]string{"imageid": "mine"}}
				if _, err := b.cells.Request(t.Context(), own); err != nil {
					t.Fatal(err)
				}
				b.later(10 * time.Second)
				if n := b.launched(); n != refusedAgents+1 || b.phase("own") == apiv1.Requested {
					t.Errorf("%d launches with one of another image, which is %q", n, b.phase("own"))
				}
				b.cells.core.table.mu.Lock()
				kept := len(b.cells.shared.blockers.byKind)
				b.cells.core.table.mu.Unlock()
				if want := map[bool]int{true: 2, false: 1}[tc.boots < time.Minute]; kept != want {
					t.Errorf("what is known of %d images is kept, want of %d", kept, want)
				}
				// One goes in each of the pauses, of 1, 2, 4, 8, 16 and 30 minutes.
				for range 68 {
					b.later(time.Minute)
					request(pods...)
				}
				if n := b.launched(); n < refusedAgents+5 || n > refusedAgents+7 {
					t.Errorf("%d launches in an hour, want one for each pause", n)
				}
				// Nobody has asked for the other image since.
				b.cells.core.table.mu.Lock()
				kept = len(b.cells.shared.blockers.byKind)
				b.cells.core.table.mu.Unlock()
				if kept != 1 {
					t.Errorf("after an hour what is known of %d images is kept, want of 1", kept)
				}
				agents.say(http.StatusOK, "")
				for range 35 {
					b.later(time.Minute)
					request(pods...)
				}
				for _, pod := range pods {
					if b.phase(pod) != apiv1.Bound {
						t.Errorf("when it is mended %s is %q; said %v", pod, b.phase(pod), b.events)
					}
				}
			}, seen)
			// None of them is its pod's fault.
			if n, all := seen.of(CauseUnfit); n < refusedAgents || n != all {
				t.Errorf("%d of %d cells ended as unfit: %q", n, all, seen.all)
			}
		})
	}
}

// loseRights has the cloud say that Kip may launch nothing.
func (b *bubble) loseRights() {
	b.cloud.set(func() {
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
			return cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("AuthFailure")), false
		}
	})
}

// regainRights lets launches be paused, and then has Kip its rights again: a minute later a pod is to
// have its launch.
func (b *bubble) regainRights(t *testing.T, pod string) {
	t.Helper()
	b.later(10 * time.Minute)
	if len(b.said("LaunchesPaused")) == 0 {
		t.Fatalf("no launch is paused; said %v", b.events)
	}
	b.cloud.set(func() { b.cloud.fail = nil })
	b.later(longestPause + 30*time.Second)
	if b.phase(pod) == apiv1.Requested || b.launched() == 0 {
		t.Errorf("a minute after Kip had its rights again the one is %q", b.phase(pod))
	}
}

// One launch a minute looks whether Kip has its rights again: one that is sent.
func TestACellThatIsKeptBackDoesNotLookForRights(t *testing.T) {
	inBubble(t, withAgent("v2"), nil, func(t *testing.T, b *bubble) {
		b.links.agents = (&goers{}).serve
		b.later(time.Second)
		var kept []Cell
		b.cells.core.table.mu.Lock()
		u := b.cells.shared.blockers.ofKindLocked(agentKind(b.cfg.Agent, &Cell{Offerings: nano("kept").Offerings}))
		u.why, u.until = "the agent is not there", time.Now().Add(24*time.Hour)
		b.cells.core.table.mu.Unlock()
		b.loseRights()
		for n := range 20 {
			cell, err := b.cells.Request(t.Context(), nano(fmt.Sprint("kept", n)))
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, cell)
		}
		own := nano("own")
		own.Options = Options{Image: map[string]string{"imageid": "mine"}}
		if _, err := b.cells.Request(t.Context(), own); err != nil {
			t.Fatal(err)
		}
		b.regainRights(t, "own")
		for _, cell := range kept {
			if b.phase(cell.Pod.Name) != apiv1.Requested {
				t.Errorf("%s is %q", cell.Pod.Name, b.phase(cell.Pod.Name))
			}
		}
	})
}

func TestACellOfWhichNothingIsSentGivesItsTurnToLookForRightsBack(t *testing.T) {
	file := &operators{now: "users"}
	names := &modelNames{answer: func(_ context.Context, _ int, s cloud.LaunchSpec) error {
		if s.Login && len(s.Image) == 0 {
			return cloud.No(cloud.ErrUnfit, cloud.Scope{}, errors.New("nobody can log in"))
		}
		return nil
	}}
	unfitting(t, file, names, func(t *testing.T, b *bubble) {
		b.loseRights()
		for n := range 20 {
			b.request(fmt.Sprint("unfit", n), "nano")
		}
		b.ask("own", Options{Image: map[string]string{"imageid": "mine"}}, "nano")
		b.regainRights(t, "own")
	})
}

// keyless has the cloud accept launches and end their instances, but of the image mine, until fixed is called.
func (b *bubble) keyless() (fixed func()) {
	m, mine := b.cloud, false
	fault := &cloud.Error{Cause: cloud.ErrUnfit, Err: errors.New("EC2 cannot use the KMS key")}
	m.set(func() {
		m.faults = map[string]error{}
		m.fail = func(r cloud.LaunchRequest) (error, bool) {
			mine = r.Image["imageid"] == "mine"
			return nil, false
		}
		m.answer = func(i cloud.Instance) cloud.Instance {
			if !mine {
				delete(m.instances, i.ID)
				m.faults[i.ID] = fault
			}
			return i
		}
	})
	b.links.boots = func(id string) (boots bool) {
		all := b.cells.List()
		cell := all[slices.IndexFunc(all, func(c Cell) bool { return c.ID == id })]
		m.set(func() { boots = m.faults[cell.Instance.ID] == nil })
		if link := b.links.of(id); !boots {
			link.mu.Lock()
			defer link.mu.Unlock()
			link.heard = time.Now().Add(-time.Hour) // never
		}
		return boots
	}
	return func() { m.set(func() { m.answer = nil }) }
}

// instances is how many were launched.
func (b *bubble) instances() (n int) {
	b.cloud.set(func() { n = len(b.cloud.byToken) })
	return n
}

// A cloud that accepts a launch before it looks at the key of the root disk ends an instance for each try.
func TestOneInstanceAtATimeShowsWhetherTheKeyOfRootDisksCanBeUsed(t *testing.T) {
	const pods = 100
	inBubble(t, func(c *setup) { c.Template = "a key" }, nil, func(t *testing.T, b *bubble) {
		fixed := b.keyless()
		request := func() {
			for n := range pods {
				pod := fmt.Sprint("p", n)
				if b.phase(pod) != "" {
					continue
				}
				r := nano(pod)
				r.Offerings[0].Arch, r.Offerings[0].BootTimeout = []string{"amd64", "arm64"}[n%2], 5*time.Minute
				if _, err := b.cells.Request(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 60 {
			request()
			b.later(time.Minute)
		}
		// One of each architecture, whose images differ, goes in each of the pauses, of 1, 2, 4, 8, 16 and 30 minutes.
		if n := b.instances(); n < pods+8 || n > pods+12 {
			t.Errorf("%d instances in an hour for %d pods, want two more for each pause", n, pods)
		}
		cell, _ := b.cells.ForPod(ref("p1").UID)
		if why := b.cells.WaitsFor(cell.ID); !strings.Contains(why, "EC2 cannot use the KMS key") {
			t.Errorf("a pod waits for %q", why)
		}
		own := nano("own")
		own.Options = Options{Image: map[string]string{"imageid": "mine"}}
		if _, err := b.cells.Request(t.Context(), own); err != nil {
			t.Fatal(err)
		}
		b.later(30 * time.Second)
		if b.phase("own") != apiv1.Bound {
			t.Errorf("one of another image is %q", b.phase("own"))
		}
		fixed()
		for range 35 {
			request()
			b.later(time.Minute)
		}
		for n := range pods {
			if pod := fmt.Sprint("p", n); b.phase(pod) != apiv1.Bound {
				t.Fatalf("%s is %q once the key can be used; said %v", pod, b.phase(pod), b.said(pod))
			}
		}
	})
}

// One that the cloud refuses, as for want of capacity, shows nothing: the next may go at once.
func TestACellThatIsNotLaunchedLetsAnotherShowWhetherTheKeyCanBeUsed(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		fixed := b.keyless()
		request := func(pod string) {
			r := nano(pod)
			r.Offerings[0].BootTimeout = 5 * time.Minute
			if _, err := b.cells.Request(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		request("a")
		for n := 0; n < 300 && b.phase("a") != ""; n++ {
			b.later(time.Second)
		}
		fixed()
		b.cloud.set(func() {
			b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
				return cloud.No(cloud.ErrCapacity, cloud.Scope{}, errors.New("no capacity")), false
			}
		})
		request("b")
		b.later(5 * time.Second)
		if b.instances() != 1 || b.phase("b") != apiv1.Requested {
			t.Fatalf("%d instances: want the second cell to wait, and it is %q: said %v", b.instances(), b.phase("b"), b.events)
		}
		b.later(90 * time.Second)
		if b.instances() != 1 || b.phase("b") != "" {
			t.Fatalf("%d instances, and the cell that is to show whether it is fixed is %q: said %v", b.instances(), b.phase("b"), b.events)
		}
		b.cloud.set(func() { b.cloud.fail = nil })
		request("c")
		b.later(10 * time.Second)
		if b.phase("c") != apiv1.Bound {
			t.Errorf("after a cell that was not launched the next is %q: said %v", b.phase("c"), b.events)
		}
	})
}

func TestAKeyThatIsConfiguredNoMoreHoldsUpNoLaunch(t *testing.T) {
	seen := &seenEnds{}
	inBubble(t, func(c *setup) { c.Template = "a key" }, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		b.ask("a", Options{}, "nano")
		b.later(5 * time.Second)
		b.stop()
		b.cfg.Template = "another key"
		b.run()
		b.later(time.Second)
		a, _ := b.cells.ForPod(ref("a").UID)
		b.cloud.set(func() {
			b.cloud.faults = map[string]error{a.Instance.ID: &cloud.Error{Cause: cloud.ErrUnfit, Err: errors.New("the KMS key")}}
		})
		b.vanish("a")
		for n := 0; n < 120 && b.phase("a") == apiv1.Booting; n++ {
			b.later(time.Second)
		}
		if n, _ := seen.of(CauseUnfit); n != 1 {
			t.Fatalf("a has not ended for its key: said %v", b.events)
		}
		b.links.boots = nil
		b.request("b", "nano")
		b.later(5 * time.Second)
		if b.phase("b") != apiv1.Bound {
			t.Errorf("once a cell has ended for the key of before, one with another key is %q", b.phase("b"))
		}
	}, seen)
}

func TestALaunchOfWhatTheCloudHasEndedHoldsUpOthersLikeIt(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.answer = func(i cloud.Instance) cloud.Instance {
			i.State, i.Fault = cloud.Gone, &cloud.Error{Cause: cloud.ErrUnfit, Err: errors.New("the KMS key")}
			return i
		}
		b.request("a", "nano")
		b.later(5 * time.Second)
		b.request("b", "nano")
		b.later(5 * time.Second)
		if b.instances() != 1 || b.phase("b") != apiv1.Requested {
			t.Errorf("%d instances, and the next is %q", b.instances(), b.phase("b"))
		}
	})
}

// Whatever becomes of the cell that is to show whether the key can be used, the next one shows it in its place.
func TestTheEndOfTheCellThatIsToShowWhetherTheKeyCanBeUsedLetsAnotherShowIt(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		fixed := b.keyless()
		b.request("a", "nano")
		for n := 0; n < 300 && b.phase("a") != ""; n++ {
			b.later(time.Second)
		}
		fixed()
		b.links.boots = func(string) bool { return false }
		b.later(2 * firstBlock)
		b.request("b", "nano")
		b.later(10 * time.Second)
		b.request("c", "nano")
		b.later(2 * blockedPoll)
		if b.phase("b") != apiv1.Booting || b.phase("c") != apiv1.Requested {
			t.Fatalf("the cell that is to show it is %q, and the next one %q: said %v", b.phase("b"), b.phase("c"), b.events)
		}
		b.links.boots = nil
		b.cells.Release(ref("b").UID, "the pod was deleted", false)
		b.later(2*blockedPoll + 10*time.Second)
		if b.phase("c") != apiv1.Bound {
			t.Errorf("after the cell that was to show it has ended the next is %q: said %v", b.phase("c"), b.events)
		}
	})
}

// comesUp has a machine on which no agent came up have one.
func (b *bubble) comesUp(pod string) {
	cell, _ := b.cells.ForPod(ref(pod).UID)
	link := b.links.of(cell.ID)
	close(link.ready)
	link.set(true, nil)
	close(link.nodeReady)
	b.later(20 * time.Second)
}

// keyFails has the cloud end a pod's instance, since it could not use the key of its root disk.
func (b *bubble) keyFails(pod string) {
	cell, _ := b.cells.ForPod(ref(pod).UID)
	b.cloud.set(func() {
		b.cloud.faults = map[string]error{cell.Instance.ID: &cloud.Error{Cause: cloud.ErrUnfit, Err: errors.New("the KMS key")}}
	})
	link := b.links.of(cell.ID)
	link.mu.Lock()
	link.heard = time.Now().Add(-time.Hour) // never: it is not held back
	link.mu.Unlock()
	b.vanish(pod)
	for n := 0; n < 300 && b.phase(pod) == apiv1.Booting; n++ {
		b.later(time.Second)
	}
}

// What becomes of cells that were launched earlier says nothing of whether the key can be used now.
func TestOnlyTheCellThatIsToShowWhetherTheKeyCanBeUsedDoes(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		for _, pod := range []string{"a", "late", "good"} {
			b.request(pod, "nano")
		}
		b.later(10 * time.Second)
		b.keyFails("a")
		b.request("b", "nano")
		b.comesUp("good")
		if b.phase("good") != apiv1.Bound || b.phase("b") != apiv1.Requested {
			t.Fatalf("when a cell has started that was launched before the fault, the next is %q: said %v", b.phase("b"), b.events)
		}
		b.later(firstBlock)
		if b.phase("b") != apiv1.Booting {
			t.Fatalf("the cell that is to show it is %q: said %v", b.phase("b"), b.events)
		}
		b.keyFails("late")
		b.links.boots = nil
		b.comesUp("b")
		b.request("c", "nano")
		b.later(20 * time.Second)
		if b.phase("b") != apiv1.Bound || b.phase("c") != apiv1.Bound {
			t.Errorf("the cell that is to show it is %q, and the next one %q: said %v", b.phase("b"), b.phase("c"), b.events)
		}
	})
}

// A cell that gets no spot instance goes on without, and shows no more whether spot instances can use the key.
func TestACellThatGoesOnWithAnotherOfferHoldsUpNoneOfTheFirst(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		request := func(pod string, offerings ...bool) {
			r := nano(pod)
			first := r.Offerings[0]
			r.Offerings = nil
			for _, spot := range offerings {
				first.Spot = spot
				r.Offerings = append(r.Offerings, first)
			}
			if _, err := b.cells.Request(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			b.later(10 * time.Second)
		}
		fixed := b.keyless()
		request("a", true)
		for n := 0; n < 300 && b.phase("a") != ""; n++ {
			b.later(time.Second)
		}
		fixed()
		b.links.boots = func(string) bool { return false }
		b.later(2 * firstBlock)
		b.cloud.set(func() {
			b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
				if r.CapacityType == cloud.Spot {
					return cloud.No(cloud.ErrCapacity, cloud.Scope{}, errors.New("no spot capacity")), false
				}
				return nil, false
			}
		})
		request("b", true, false)
		if b.phase("b") != apiv1.Booting {
			t.Fatalf("the cell that has gone on is %q: said %v", b.phase("b"), b.events)
		}
		b.cloud.set(func() { b.cloud.fail = nil })
		b.links.boots = nil
		request("c", true)
		if b.phase("c") != apiv1.Bound {
			t.Errorf("the next one of spot is %q: said %v", b.phase("c"), b.events)
		}
	})
}

func TestAFaultOfMachinesWithGPUsHoldsUpNoOthers(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		request := func(pod string, gpus bool) {
			r := nano(pod)
			r.Offerings[0].HasGPUs = gpus
			if _, err := b.cells.Request(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			b.later(10 * time.Second)
		}
		ends := func(pod string) {
			for n := 0; n < 300 && b.phase(pod) != ""; n++ {
				b.later(time.Second)
			}
		}
		fixed := b.keyless()
		request("a", true)
		ends("a")
		fixed()
		request("plain", false)
		request("b", true)
		if b.phase("plain") != apiv1.Bound || b.phase("b") != apiv1.Requested {
			t.Fatalf("one without GPUs is %q, and one with GPUs %q: said %v", b.phase("plain"), b.phase("b"), b.events)
		}
		fixed = b.keyless()
		request("plain too", false)
		ends("plain too")
		b.later(firstBlock)
		ends("b") // from now on those with GPUs wait for two minutes
		fixed()
		request("plain again", false)
		request("b again", true)
		if b.phase("plain again") != apiv1.Bound || b.phase("b again") != apiv1.Bound {
			t.Errorf("when one without GPUs has shown that the key can be used it is %q, and one with GPUs %q: said %v",
				b.phase("plain again"), b.phase("b again"), b.events)
		}
	})
}
