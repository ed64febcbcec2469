//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Not parallel: it starts Kip with other settings.
func TestACellGoesOverToTheAgentThatKipNames(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	other := namespace.ServeOtherAgent(t, world, netip.MustParsePrefix(cidr))
	restore := reconfigure(t, other.Wanted(other.SHA256))
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	s.Eventually("a command runs in the pod", s.ExecTrue("a"))
	m := s.machine("a")
	if got := m.cell.Status.Agent; got == nil || *got != (apiv1.Agent{Version: other.Version, SHA256: other.SHA256}) {
		t.Errorf("the Cell's agent is %+v, want %s with %s", got, other.Version, other.SHA256)
	}
	if out := s.tells(world.Socket, "why", "a"); !strings.Contains(out, other.Version+", sha256 "+other.SHA256) {
		t.Errorf("kipctl why prints\n%s", out)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", m.pid)); err != nil || path.Base(exe) != other.SHA256 {
		t.Errorf("its first process is %s (%v)", exe, err)
	}
	if got := other.Requests(); !slices.Equal(got, []string{other.File()}) {
		t.Errorf("the server was asked for %v", got)
	}

	restore()
	s.Apply(namespace.Sleeper("b"))
	s.WaitReady("b")
	if got := s.CellOf("b").Status.Agent; got == nil || got.Version == other.Version || got.SHA256 != "" {
		t.Errorf("without the keys the agent is %+v", got)
	}
	if got := s.CellOf("a").Name; got != m.cell.Name {
		t.Errorf("pod a moved to cell %s", got)
	}
}

// agentBadAnswers is how many files with a wrong digest a machine takes, and agentRefusals how many
// machines may have none before no other is launched.
const agentBadAnswers, agentRefusals = 5, 3

// Not parallel: it starts Kip with other settings.
func TestNoCellStartsAnAgentOfAnotherDigest(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	other := namespace.ServeOtherAgent(t, world, netip.MustParsePrefix(cidr))
	before, err := machinesOnDisk()
	if err != nil {
		t.Fatal(err)
	}
	restore := reconfigure(t, other.Wanted(strings.Repeat("0", 64)))
	s.Apply(namespace.Sleeper("a"))
	why := "has the SHA-256 " + other.SHA256
	s.WaitEvent("a", "AgentNotStarted", why)
	paused := fmt.Sprintf("%d machines could not have the agent of cells.itzo, and launches wait until you fix it", agentRefusals)
	s.Eventually("launches pause", func(ctx context.Context) error {
		list, err := nodeEvents(ctx, "AgentNotStarted")
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, paused) && strings.Contains(e.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("the node has %d such events, and the server was asked %d times", len(list.Items), len(other.Requests()))
	})
	if got := len(other.Requests()); got != agentRefusals*agentBadAnswers {
		t.Errorf("the server was asked %d times, want %d by each of %d machines", got, agentBadAnswers, agentRefusals)
	}
	if out := s.tells(world.Socket, "why", "a"); !strings.Contains(out, why) {
		t.Errorf("kipctl why does not say that the file %s:\n%s", why, out)
	}
	s.Eventually("no machine is left", func(context.Context) error {
		left, err := machinesOnDisk()
		if err == nil && !slices.Equal(left, before) {
			err = fmt.Errorf("there were %v, and are %v", before, left)
		}
		return err
	})
	if pod, err := s.Pod(t.Context(), "a"); err != nil || pod.Status.Phase != "Pending" {
		t.Errorf("the pod: %+v, %v", pod, err)
	}

	// Whoever runs Kip mends it.
	restore()
	s.WaitReady("a")
}
