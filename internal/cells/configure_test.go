package cells

import (
	"net/netip"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// dnsAt is a cluster's DNS.
type dnsAt []netip.Addr

func (d dnsAt) Addresses() []netip.Addr { return d }

func TestAnAgentIsConfiguredOnEachConnectionAndAnewUntilItIsBound(t *testing.T) {
	b := newBench(t)
	dns := dnsAt{netip.MustParseAddr("10.96.0.10")}
	s := &configuring{
		table: b.table, agents: b.agents, upgrades: &upgrades{}, cloudInits: &cloudInits{}, blockers: &blockers{table: b.table},
		reports: &connectionReports{},
		configs: &agentConfigs{all: agentapi.Config{ClusterDomain: "cluster.local"}, dns: dns, calls: b.calls},
	}
	for name, tc := range map[string]struct {
		connected, configured bool
		bound                 bool
		dns                   dnsAt
		due                   bool
		wants                 Wants // of the pod
	}{
		"it is not connected":              {false, true, false, nil, false, Wants{}},
		"it is connected":                  {true, false, false, nil, true, Wants{}},
		"it is configured":                 {true, true, false, dns, false, Wants{}},
		"the cluster's DNS is another":     {true, true, false, nil, true, Wants{}},
		"another DNS, and the pod is here": {true, true, true, nil, false, Wants{}},
		"its pod sets unsafe sysctls":      {true, true, true, dns, true, Wants{UnsafeSysctls: []string{"kernel.msgmax"}}},
		"its pod asks for huge pages":      {true, true, false, dns, true, Wants{HugePages: []HugePages{{PageBytes: 2 << 20, Pages: 1}}}},
		"its pod asks for swap":            {true, true, false, dns, true, Wants{SwapBytes: 1 << 30}},
	} {
		cell := Cell{ID: "c", Phase: apiv1.Booting, Instance: &cloud.Instance{}}
		cell.step(apiv1.StepJoined, b.clock.Now())
		if tc.bound {
			cell.Pod, cell.Phase = ref("a"), apiv1.Bound
		}
		cell.Wants = tc.wants
		e := newEntry(cell, 0)
		link := &modelLink{all: &modelLinks{}, connected: tc.connected}
		e.change(func(c *connection) { c.session, c.configured = agentSession{link}, tc.configured })
		*s.dns.of(e) = tc.dns
		configured := func() bool { return e.connection().configured }
		configure := s.due(e)
		if (configure != nil) != tc.due || configured() != (tc.configured && tc.connected) {
			t.Errorf("%s: due %t, configured %t", name, configure != nil, configured())
		}
		if configure == nil {
			continue
		}
		e.noteBreak() // while it is asked
		if err := configure(t.Context()); err != nil || configured() {
			t.Errorf("%s: after a break it counts as configured (%v)", name, err)
		}
		if err := s.due(e)(t.Context()); err != nil || !configured() || len(*s.dns.of(e)) != 1 || s.due(e) != nil {
			t.Errorf("%s: configured %t, with DNS %v (%v)", name, configured(), *s.dns.of(e), err)
		}
	}
}
