//go:build e2e

package aws

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/elotl/kip/test/namespace"
)

// The agent that takes over asks the metadata service behind a firewall that the one before has closed.
func TestAnInstanceGoesOverToTheAgentThatKipNames(t *testing.T) {
	s := newSpace(t)
	before := s.state(t.Context())
	other := namespace.ServeOtherAgent(t, world, netip.MustParsePrefix(cidr))
	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		maps.Copy(provider["cells"].(map[string]any), other.Wanted(other.SHA256))
	})
	s.Apply(pod("a", "{}"))
	p := s.WaitReady("a")
	cells, err := s.Cells(t.Context())
	if err != nil || len(cells) != 1 {
		t.Fatalf("%d cells, %v", len(cells), err)
	}
	if got := cells[0].Status.Agent; got == nil || got.Version != other.Version || got.SHA256 != other.SHA256 {
		t.Errorf("the Cell's agent is %+v, want %s with %s", got, other.Version, other.SHA256)
	}
	if i := s.only(before); i.ID != s.of(p).ID {
		t.Errorf("the pod is on %+v, and %+v is all that was launched", s.of(p), i)
	}
	restore()
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.waitOver("a", before)
}
