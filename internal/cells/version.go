package cells

import (
	"sync"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
	"k8s.io/apimachinery/pkg/util/version"
)

// maxVersions bounds the versions of agents that are remembered; then all are told again.
const maxVersions = 100

// agentOfOther reports whether the cell's agent is of another version than Kip's, and none that the
// operator has named for it (cells.itzo). A Kip without a version, "", compares none.
func (c *Cell) agentOfOther(kip string) bool {
	return kip != "" && c.AgentRuns.Version != "" && c.AgentRuns.Version != kip && c.Agent() == nil
}

// hasOlderAgent reports whether the cell's agent is older than Kip. An agent with an invalid version is not older.
func (c *Cell) hasOlderAgent(kip string) bool {
	if !c.agentOfOther(kip) {
		return false
	}
	is, err := version.ParseSemantic(c.AgentRuns.Version)
	if err != nil {
		return false
	}
	own, err := version.ParseSemantic(kip)
	return err == nil && is.LessThan(own)
}

// versions tells nodes of agents that are not of Kip's version.
type versions struct {
	node nodeReporter
	own  string // Kip's

	mu       sync.Mutex
	reported map[launchKind]bool // that the node was told of
}

// report tells the node of an agent of another version than Kip's, once of each image. The cell
// goes on: what the two say to each other is understood by neighbouring releases, and what is not
// known to one of them is refused by name.
func (s *versions) report(e *entry) {
	cell := e.cell()
	if !s.node.listens() || !cell.agentOfOther(s.own) {
		return
	}
	of := agentKind(&agentapi.Agent{Version: cell.AgentRuns.Version}, cell)
	s.mu.Lock()
	reported := s.reported[of]
	if !reported && len(s.reported) >= maxVersions {
		clear(s.reported)
	}
	s.reported[of] = true
	s.mu.Unlock()
	if reported {
		return
	}
	s.node.report(events.NewAgentVersionDiffers(e.id, cell.AgentRuns.Version, s.own))
}
