package cells

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// pagesAgents are the agents of cells' machines, each with a kernel that finds so many huge pages of each size.
type pagesAgents struct {
	mu      sync.Mutex
	finds   int64
	refuses string // why a machine can have none
	older   bool   // than huge pages
	asked   [][]HugePages
}

func (a *pagesAgents) answer(r *http.Request) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	var told agentapi.Configured
	if r.URL.Path == agentapi.PathConfig {
		var c agentapi.Config
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			panic(err)
		}
		a.asked = append(a.asked, c.HugePages)
		for _, p := range c.HugePages {
			p.Pages = min(p.Pages, a.finds)
			told.HugePages = append(told.HugePages, p)
		}
		if len(c.HugePages) > 0 {
			told.NoHugePages = a.refuses
		}
		if a.older {
			told.HugePages = nil
		}
	}
	b, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(b))}
}

// configured is what the agents were asked for, each thing once.
func (a *pagesAgents) configured() (all [][]HugePages) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.CompactFunc(slices.Clone(a.asked), slices.Equal)
}

func withPagesAgents(t *testing.T, a *pagesAgents, more func(*setup), f func(t *testing.T, b *bubble), observers ...Observer) {
	inBubble(t, func(c *setup) {
		c.APIs.(*modelLinks).agents = a.answer
		if more != nil {
			more(c)
		}
	}, nil, f, observers...)
}

// counts is a node whose kubelet counts so many pages of 2 MiB.
func counts(pages int64) *corev1.Node {
	all := corev1.ResourceList{"hugepages-2Mi": *resource.NewQuantity(pages*2<<20, resource.BinarySI)}
	return &corev1.Node{Status: corev1.NodeStatus{Allocatable: all}}
}

var fourPages = []HugePages{{PageBytes: 2 << 20, Pages: 4}}

func (b *bubble) requestPages(pod string) {
	b.Helper()
	r := nano(pod)
	r.HugePages = fourPages
	if _, err := b.cells.Request(b.Context(), r); err != nil {
		b.Fatal(err)
	}
}

func TestThePodIsShownWhenTheKubeletCountsItsHugePages(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "with a restart in between": true} {
		t.Run(name, func(t *testing.T) {
			agents := &pagesAgents{finds: 4}
			withPagesAgents(t, agents, nil, func(t *testing.T, b *bubble) {
				b.requestPages("a")
				for _, pages := range []int64{0, 3} {
					b.links.node.Store(counts(pages))
					b.later(20 * time.Second)
					if got := b.phase("a"); got != apiv1.Ready || b.shown("a") != 0 {
						t.Fatalf("with %d pages the cell is %s, and its pod was shown %d times: want Ready, never", pages, got, b.shown("a"))
					}
				}
				if said := b.said("HugePagesNotReady"); len(said) != 1 || len(b.said("Warning HugePagesNotReady", "hugepages-2Mi")) != 1 {
					t.Errorf("that its kubelet does not count them was said as %q", said)
				}
				waits := func() string {
					cell, _ := b.cells.ForPod(ref("a").UID)
					return b.cells.WaitsFor(cell.ID)
				}
				if got := waits(); !strings.Contains(got, "counts its hugepages-2Mi") {
					t.Errorf("it waits for %q", got)
				}
				if restart {
					b.restartsReady("a")
				}
				b.links.node.Store(counts(4))
				b.later(time.Second)
				if got := waits(); got != "" {
					t.Errorf("with all pages it waits for %q", got)
				}
				if got := b.phase("a"); got != apiv1.Bound || b.shown("a") == 0 {
					t.Errorf("with all pages the cell is %s, and its pod was shown %d times; it was said %q", got, b.shown("a"), b.said())
				}
				if got := agents.configured(); len(got) != 1 || !slices.Equal(got[0], fourPages) {
					t.Errorf("its agent was asked for %v", got)
				}
			})
		})
	}
}

func TestAStandbyCellReservesTheHugePagesOfItsPod(t *testing.T) {
	agents := &pagesAgents{finds: 4}
	withPagesAgents(t, agents, keep(1), func(t *testing.T, b *bubble) {
		b.links.node.Store(counts(0))
		b.later(10 * time.Second)
		b.links.boots = func(string) bool { return false } // none that refills the pool
		b.requestPages("a")
		b.later(10 * time.Second)
		if got := b.phase("a"); got != apiv1.Ready || b.shown("a") != 0 {
			t.Fatalf("before its kubelet counts them the cell is %s, and its pod was shown %d times", got, b.shown("a"))
		}
		b.links.node.Store(counts(4))
		b.later(time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		got := agents.configured()
		if cell.Standby == "" || cell.Phase != apiv1.Bound || len(got) != 2 || got[0] != nil || !slices.Equal(got[1], fourPages) {
			t.Errorf("cell %+v, whose agent was asked for %v", cell, got)
		}
	})
}

// paging returns what waits for huge pages, and a ready cell without any whose pod asks for four.
func (b *bench) paging() (*hugePages, *entry, *modelLink) {
	b.Helper()
	n := b.connecting()
	e := b.stored(Cell{
		ID: "c", Pod: ref("a"), Phase: apiv1.Ready, Instance: &cloud.Instance{ID: "i"}, Offerings: nano("a").Offerings,
		Wants: Wants{HugePages: fourPages},
	})
	link := b.linked(e)
	link.all.node.Store(counts(0))
	return &hugePages{table: b.table, ends: b.ends, waits: b.waiting(), configuring: n.configuring, reports: n.reports}, e, link
}

// configuredWith notes that the agent of a cell has a configuration with some pages, and has said how many it has.
func (s *hugePages) configuredWith(e *entry, asked, has []HugePages) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e.change(func(c *connection) { c.configured = true })
	*s.configuring.pages.of(e) = asked
	s.reports.noteConfiguredLocked(e, agentapi.Configured{HugePages: has})
}

func TestAnAgentIsJudgedByWhatItSaidOfTheHugePagesOfItsPod(t *testing.T) {
	b := newBench(t)
	s, e, _ := b.paging()
	s.configuredWith(e, nil, nil) // before the pod took the cell
	if got, err := s.prepare(t.Context(), e); err != nil || got != anew || e.ending != "" {
		t.Errorf("before it was asked for them, the cell is %+v (%v), ending %q", got, err, e.ending)
	}
	s.configuredWith(e, fourPages, nil)
	if got, err := s.prepare(t.Context(), e); err != nil || got != leave || !strings.Contains(e.ending, "older than this Kip") {
		t.Errorf("of an agent that does not know them, the cell is %+v (%v), ending %q", got, err, e.ending)
	}
}

func TestAMachineWithoutTheMemoryForHugePagesIsSaidToBeTooSmall(t *testing.T) {
	for room, want := range map[int64]string{
		8 << 20: "has cpu 1, memory 8Mi, and the pod needs 8Mi of huge pages (+1Mi for the cell)",
		9 << 20: "its kernel found memory in one piece for 0 of 4 pages of hugepages-2Mi",
		0:       "its kernel found memory in one piece for 0 of 4 pages of hugepages-2Mi", // its kubelet did not say
	} {
		b := newBench(t)
		s, e, _ := b.paging()
		s.reserved = 1 << 20
		cell := e.cell().clone()
		if room > 0 {
			cell.Measured = catalog.Resources{MilliCPU: 1000, MemoryBytes: room}
		}
		e.current.Store(&cell)
		s.configuredWith(e, fourPages, []HugePages{{PageBytes: 2 << 20}})
		if got, err := s.prepare(t.Context(), e); err != nil || got != leave || !strings.Contains(e.ending, want) {
			t.Errorf("with memory %d the cell is %+v (%v), ending %q", room, got, err, e.ending)
		}
	}
}

func TestACellThatIsAwayHasTimeForItsHugePagesWhenItIsBack(t *testing.T) {
	b := newBench(t)
	s, e, _ := b.paging()
	for _, step := range []struct {
		away  bool
		lasts time.Duration
		ended bool
	}{
		{false, pagesTimeout - time.Second, false},
		{true, time.Hour, false},
		{false, pagesTimeout - time.Second, false},
		{false, time.Second, true},
	} {
		s.configuredWith(e, fourPages, fourPages)
		e.noteConnected(!step.away)
		if got, err := s.prepare(t.Context(), e); err != nil || got == leave {
			t.Fatalf("before %+v it is %+v (%v)", step, got, err)
		}
		b.clock.Step(step.lasts)
		if _, err := s.prepare(t.Context(), e); err != nil || (e.ending != "") != step.ended {
			t.Errorf("after %+v it ends for %q (%v)", step, e.ending, err)
		}
	}
}

func TestACellEndsWhoseMachineHasTooFewHugePages(t *testing.T) {
	for name, tc := range map[string]struct {
		agents *pagesAgents
		counts int64
		cause  Cause
		said   []string
		needs  int64 // memory; 0 for what there is
	}{
		"its kernel does not find them": {
			agents: &pagesAgents{finds: 3}, counts: 3, cause: CauseTooSmall, needs: 8 << 20,
			said: []string{"Warning CellTooSmall", "found memory in one piece for 3 of 4 pages of hugepages-2Mi", "the pod gets a larger one"},
		},
		"its kernel does not find them on a type that the pod names, or that is larger already": {
			agents: &pagesAgents{finds: 3}, counts: 3, cause: CauseNotReady,
			said: []string{"Warning CellNotReady", "found memory in one piece for 3 of 4 pages of hugepages-2Mi"},
		},
		"it shares its kernel": {
			agents: &pagesAgents{refuses: "this machine shares its kernel"}, cause: CauseKernelRefused,
			said: []string{"Warning HugePagesRefused", "this machine shares its kernel"},
		},
		"its agent is older": {
			agents: &pagesAgents{finds: 4, older: true}, counts: 4, cause: CauseKernelRefused,
			said: []string{"Warning HugePagesRefused", "its agent is older than this Kip"},
		},
		"its kubelet does not count them": {
			agents: &pagesAgents{finds: 4}, cause: CauseNotReady,
			said: []string{"Warning CellNotReady", "its kubelet did not count its hugepages-2Mi in 2m0s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &seenEnds{}
			withPagesAgents(t, tc.agents, nil, func(t *testing.T, b *bubble) {
				b.links.node.Store(counts(tc.counts))
				r := nano("a")
				r.HugePages, r.Needs.MemoryBytes = fourPages, tc.needs
				if _, err := b.cells.Request(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				b.later(pagesTimeout + time.Minute)
				if b.phase("a") != "" || len(b.said(tc.said...)) != 1 || len(b.cloud.running()) > 0 {
					t.Errorf("the cell is %q, said %q", b.phase("a"), b.said("Warning"))
				}
				if n, all := seen.of(tc.cause); n != 1 || all != 1 {
					t.Errorf("it ended for %q", seen.all)
				}
			}, seen)
		})
	}
}
