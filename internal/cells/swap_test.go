package cells

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// swapAgents are the agents of cells' machines, which make the swap that they are asked for.
type swapAgents struct {
	mu      sync.Mutex
	refuses string // why a machine cannot have it
	older   bool   // than swap
	asked   []int64
}

func (a *swapAgents) answer(r *http.Request) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	var told agentapi.Configured
	if r.URL.Path == agentapi.PathConfig {
		var c agentapi.Config
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			panic(err)
		}
		a.asked = append(a.asked, c.SwapBytes)
		switch {
		case a.older || c.SwapBytes == 0:
		case a.refuses != "":
			told.NoSwap = a.refuses
		default:
			told.SwapBytes = c.SwapBytes
		}
	}
	b, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(b))}
}

// configured is what the agents were asked for, each thing once.
func (a *swapAgents) configured() []int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Compact(slices.Clone(a.asked))
}

func withSwapAgents(t *testing.T, a *swapAgents, more func(*setup), f func(t *testing.T, b *bubble), observers ...Observer) {
	inBubble(t, func(c *setup) {
		c.APIs.(*modelLinks).agents = a.answer
		if more != nil {
			more(c)
		}
	}, nil, f, observers...)
}

func (b *bubble) requestSwap(pod string) {
	b.Helper()
	r := nano(pod)
	r.SwapBytes = 1 << 30
	if _, err := b.cells.Request(b.Context(), r); err != nil {
		b.Fatal(err)
	}
}

func TestAMachineHasTheSwapOfItsPodBeforeThePodIsShown(t *testing.T) {
	for name, tc := range map[string]struct {
		standby int
		asked   []int64
	}{
		"a cell of its own": {0, []int64{1 << 30}},
		"a standby cell":    {1, []int64{0, 1 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			agents := &swapAgents{}
			var more func(*setup)
			if tc.standby > 0 {
				more = keep(tc.standby)
			}
			withSwapAgents(t, agents, more, func(t *testing.T, b *bubble) {
				b.later(10 * time.Second)
				if tc.standby > 0 {
					b.links.boots = func(string) bool { return false } // none that refills the pool
				}
				b.requestSwap("a")
				b.later(10 * time.Second)
				cell, _ := b.cells.ForPod(ref("a").UID)
				got := agents.configured()
				if cell.Phase != apiv1.Bound || b.shown("a") == 0 || (cell.Standby != "") != (tc.standby > 0) || !slices.Equal(got, tc.asked) {
					t.Errorf("cell %+v, whose agent was asked for %v; its pod was shown %d times", cell, got, b.shown("a"))
				}
			})
		})
	}
}

func TestACellEndsWhoseMachineCannotHaveTheSwapOfItsPod(t *testing.T) {
	for name, tc := range map[string]struct {
		agents *swapAgents
		said   string
	}{
		"its machine refuses it": {&swapAgents{refuses: "make swap of 1024 MiB: the disk has 900 MiB free"}, "the disk has 900 MiB free"},
		"its agent is older":     {&swapAgents{older: true}, "its agent is older than this Kip and makes no swap"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &seenEnds{}
			withSwapAgents(t, tc.agents, nil, func(t *testing.T, b *bubble) {
				b.requestSwap("a")
				b.later(time.Minute)
				if b.phase("a") != "" || len(b.said("Warning SwapRefused", tc.said)) != 1 || len(b.cloud.running()) > 0 {
					t.Errorf("the cell is %q, said %q", b.phase("a"), b.said("Warning"))
				}
				if n, all := seen.of(CauseKernelRefused); n != 1 || all != 1 {
					t.Errorf("it ended for %q", seen.all)
				}
			}, seen)
		})
	}
}

func TestAnAgentIsNotJudgedByAConfigurationWithoutTheSwap(t *testing.T) {
	b := newBench(t)
	n := b.connecting()
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready, Offerings: nano("a").Offerings, Wants: Wants{SwapBytes: 1 << 30}})
	s := &swaps{table: b.table, ends: b.ends, configuring: n.configuring, reports: n.reports}
	if got, err := s.prepare(t.Context(), e); err != nil || got != await(notConnected) {
		t.Errorf("before its agent is configured, the cell is %+v (%v)", got, err)
	}
	s.table.mu.Lock()
	e.change(func(c *connection) { c.configured = true }) // before the pod took the cell
	s.reports.noteConfiguredLocked(e, agentapi.Configured{})
	s.table.mu.Unlock()
	if got, err := s.prepare(t.Context(), e); err != nil || got != anew || e.ending != "" {
		t.Errorf("before it was asked for swap, the cell is %+v (%v), ending %q", got, err, e.ending)
	}
}
