package networkpolicy

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/daemonsets"
)

// besideOf notes what is told of agents.
type besideOf struct {
	mu   sync.Mutex
	told map[string][]bool
	none map[string]bool // whether nothing runs beside
	put  map[string]bool // whether the rules of the cell were there
	w    *world

	ports    []agentapi.Ports
	observer daemonsets.PortObserver
}

func (b *besideOf) RunsBeside(cell string, can bool) {
	b.w.mu.Lock()
	agent := b.w.agents[cell[len("cell-"):]]
	b.w.mu.Unlock()
	fw, _ := agent.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told[cell] = append(b.told[cell], can)
	b.put[cell] = fw != nil && fw.Beside != nil
}

func (b *besideOf) RunsNone(cell string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.none[cell] = true
}

func (b *besideOf) ObservePorts(o daemonsets.PortObserver) { b.observer = o }

func (b *besideOf) HostPorts(cell string) []agentapi.Ports {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ports
}

func TestPodsRunBesideThePodOfAnAgentThatKnowsItFromThem(t *testing.T) {
	inWorld(t, func(w *world) {
		b := &besideOf{told: map[string][]bool{}, none: map[string]bool{}, put: map[string]bool{}, w: w}
		w.stop()
		w.beside = b
		w.run()
		w.namespaces()
		w.policies()
		able := w.cell("able", func(a *agentOf) { a.beside = true })
		old := w.cell("old")
		w.later(time.Second)
		if fw, _ := able.now(); fw == nil || fw.Beside == nil || fw.Beside.PodUID != "uid of able" {
			t.Errorf("the agent has %+v", fw)
		}
		if fw, _ := old.now(); fw == nil || fw.Beside != nil {
			t.Errorf("the agent from before has %+v", fw)
		}
		b.mu.Lock()
		b.ports = []agentapi.Ports{{Protocol: "TCP", First: 9100, Last: 9100}}
		b.mu.Unlock()
		b.observer.HostPortsChanged("cell-able")
		b.observer.HostPortsChanged("cell-none")
		w.later(time.Second)
		if fw, _ := able.now(); !slices.Equal(fw.Beside.HostPorts, b.ports) {
			t.Errorf("the agent has the ports %v", fw.Beside.HostPorts)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		// Not before: the first would get the pod's own network.
		if slices.Contains(b.told["cell-able"], false) || !b.put["cell-able"] || len(b.told["cell-old"]) == 0 ||
			slices.Contains(b.told["cell-old"], true) {
			t.Errorf("it is told of %v", b.told)
		}
	})
}

// A new process of Kip that may not list policies learns of the agents what runs.
func TestWhatRunsBesideIsKnownBeforeThePoliciesAre(t *testing.T) {
	inWorld(t, func(w *world) {
		b := &besideOf{told: map[string][]bool{}, none: map[string]bool{}, put: map[string]bool{}, w: w}
		w.stop()
		w.beside = b
		w.run()
		w.cell("runs", func(a *agentOf) { a.beside, a.force = true, []byte(`{"beside":{"podUID":"uid of runs"}}`) })
		w.cell("alone", func(a *agentOf) { a.beside, a.force = true, []byte(`{}`) })
		w.cell("fresh", func(a *agentOf) { a.beside = true })
		w.later(time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		if !slices.Equal(b.told["cell-runs"], []bool{true}) || b.none["cell-runs"] {
			t.Errorf("of the cell that runs some it is told %v", b.told)
		}
		for _, cell := range []string{"cell-alone", "cell-fresh"} {
			if len(b.told[cell]) > 0 || !b.none[cell] {
				t.Errorf("of %s it is told %v, %v", cell, b.told[cell], b.none)
			}
		}
	})
}
