package cells

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"k8s.io/apimachinery/pkg/types"
)

// Endpoint is the agent of a cell that runs a pod, for those who ask it.
type Endpoint struct {
	Cell string
	Node string // the virtual node that the pod is on
	Pod  apiv1.PodReference
	// Offering is what the cell was launched as, and Since when it was asked for.
	Offering Offering
	Since    time.Time
	// Given is when the pod was given the cell.
	Given time.Time
	// Conn is nil when the tunnel is down.
	Conn agentapi.Conn
}

// queries answers what others ask of cells.
type queries struct {
	table     *table
	nodeNames *nodeNames
}

// endpoints is Controller.Endpoints.
func (s *queries) endpoints() []Endpoint {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	ways := make([]Endpoint, 0, len(s.table.byPod))
	for _, e := range s.table.byID {
		cell := e.cell()
		if cell.Phase != apiv1.Bound {
			continue
		}
		w := Endpoint{Cell: cell.ID, Node: s.nodeNames.of(cell), Pod: cell.Pod}
		if len(cell.Offerings) > 0 && len(cell.Steps) > 0 {
			w.Offering, w.Since = cell.Offerings[0], cell.Steps[0].Time.Time
			if w.Given = cell.StepTime(apiv1.StepGiven); w.Given.IsZero() {
				w.Given = cell.launched() // for the pod
			}
		}
		if session := e.session(); session.connected() {
			w.Conn = session.conn()
		}
		ways = append(ways, w)
	}
	return ways
}

var (
	ErrNoCell       = errors.New("the pod has no cell")
	ErrNotConnected = errors.New("the cell is not connected")
)

// machine is Controller.Machine.
func (s *queries) machine(id string) (agentapi.Conn, error) {
	e := s.table.find(id)
	if e == nil {
		return nil, ErrNoCell
	}
	return e.streams()
}

// streams leads to the agent, for requests that last.
func (e *entry) streams() (agentapi.Conn, error) {
	session := e.session()
	if !session.connected() {
		return nil, fmt.Errorf("cell %s (%s): %w", e.cell().ID, e.cell().Phase, ErrNotConnected)
	}
	return session.streams(), nil
}

// conn is Controller.Conn.
func (s *queries) conn(uid types.UID) (agentapi.Conn, error) {
	e := s.table.ofPod(uid)
	if e == nil {
		return nil, ErrNoCell
	}
	return e.streams()
}

// Link is how the connection to a cell fares.
type Link struct {
	Connected bool
	LastHeard time.Time // zero if never
	LastError error
}

// link is Controller.Link.
func (s *queries) link(id string) (Link, bool) {
	e := s.table.find(id)
	if e == nil {
		return Link{}, false
	}
	session := e.session()
	return Link{Connected: session.connected(), LastHeard: session.lastHeard(), LastError: session.lastError()}, session.opened()
}

// statusTrouble is Controller.StatusTrouble.
func (s *queries) statusTrouble(id string) string {
	e := s.table.find(id)
	if e == nil {
		return ""
	}
	if api := e.api(); api != nil {
		return api.StatusTrouble()
	}
	return ""
}

// connected is Controller.Connected.
func (s *queries) connected() (n int) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range s.table.byID {
		if e.session().connected() {
			n++
		}
	}
	return n
}

// waitsFor is Controller.WaitsFor: it asks the step that a cell is at, and returns what the last step has said if that knows no better now.
func (s *queries) waitsFor(id string, stepOf func(apiv1.Phase) step) string {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[id]
	if !ok {
		return "it is gone"
	}
	if at := stepOf(e.cell().Phase); at != nil {
		return cmp.Or(at.waitsForLocked(e), e.waits)
	}
	return ""
}
