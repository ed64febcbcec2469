package cells

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Boot is the start of a machine, as its agent tells of it.
type Boot struct {
	agentapi.Boot
	// Told is when Kip was told, and Ready when the kubelet was ready then, by Kip's clock.
	Told  time.Time `json:"told"`
	Ready time.Time `json:"ready,omitzero"`
}

// AgentReport is what the cell's agent has said of the machine and of itself. connectionReports writes it.
type AgentReport struct {
	// Boot is the machine's last start, as its agent tells of it: for people.
	Boot Boot `json:"boot,omitzero"`
	// AgentRuns is the agent, as it said itself before the cell had its pod.
	AgentRuns agentapi.RunningAgent `json:"agentRuns,omitzero"`
}

// shown returns what people are shown of it; nil for nothing.
func (b Boot) shown() *apiv1.Boot {
	if b.Told.IsZero() {
		return nil
	}
	since := func(d time.Duration) *metav1.Duration {
		if d <= 0 {
			return nil
		}
		return &metav1.Duration{Duration: d.Round(time.Millisecond)}
	}
	s := &apiv1.Boot{
		Kernel:    since(b.Kernel),
		UserSpace: since(b.UserSpace),
		Network:   since(b.Network),
		Joined:    since(b.Joined),
	}
	if !b.Ready.IsZero() {
		s.Ready = since(b.Joined + b.Ready.Sub(b.Told))
	}
	return s
}

// bootIsNews reports whether what an agent tells of its machine's start is news, once a start: it
// may tell something else with each connection.
func (c *Cell) bootIsNews(reported agentapi.Boot) bool {
	return reported != (agentapi.Boot{}) && (c.Boot.Told.IsZero() || c.Boot.Told.Before(c.launched()))
}

// agentIsNews reports whether what an agent tells of itself is news. Once a pod is here nothing of that
// counts, since whoever has the machine may tell something else with each connection.
func (c *Cell) agentIsNews(reported agentapi.RunningAgent) bool {
	return reported != (agentapi.RunningAgent{}) && reported != c.AgentRuns && (c.Phase == apiv1.Booting || c.Phase == apiv1.Ready)
}

// shownAgent returns what people are shown of the agent, by a Kip of this version; nil for nothing.
func (c *Cell) shownAgent(kip string) *apiv1.Agent {
	if c.AgentRuns == (agentapi.RunningAgent{}) {
		return nil
	}
	a := &apiv1.Agent{Version: c.AgentRuns.Version, SHA256: c.AgentRuns.SHA256}
	if c.agentOfOther(kip) {
		a.Kip = kip
	}
	return a
}
