package cells

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
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
	table        *table
	calls        *pipe.Pipe
	generation   *StoreGeneration
	exclusion    *exclusion
	terminations *terminations
	nodeNames    *nodeNames
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
		if e.session.connected() {
			w.Conn = e.session.conn()
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
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[id]
	if !ok {
		return nil, ErrNoCell
	}
	return e.streamsLocked()
}

// streamsLocked leads to the agent. The caller holds table.mu.
func (e *entry) streamsLocked() (agentapi.Conn, error) {
	if !e.session.connected() {
		return nil, fmt.Errorf("cell %s (%s): %w", e.cell().ID, e.cell().Phase, ErrNotConnected)
	}
	return e.session.streams(), nil
}

// conn is Controller.Conn.
func (s *queries) conn(uid types.UID) (agentapi.Conn, error) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	if !ok {
		return nil, ErrNoCell
	}
	return e.streamsLocked()
}

// Link is how the connection to a cell fares.
type Link struct {
	Connected bool
	LastHeard time.Time // zero if never
	LastError error
}

// link is Controller.Link.
func (s *queries) link(id string) (Link, bool) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[id]
	if !ok || !e.session.opened() {
		return Link{}, false
	}
	return Link{Connected: e.session.connected(), LastHeard: e.session.lastHeard(), LastError: e.session.lastError()}, true
}

// statusTrouble is Controller.StatusTrouble.
func (s *queries) statusTrouble(id string) string {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[id]
	if !ok || e.api == nil {
		return ""
	}
	return e.api.StatusTrouble()
}

// connected is Controller.Connected.
func (s *queries) connected() (n int) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range s.table.byID {
		if e.session.connected() {
			n++
		}
	}
	return n
}

// waitsFor is Controller.WaitsFor.
func (s *queries) waitsFor(id string) string {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[id]
	if !ok {
		return "it is gone"
	}
	if phase := e.cell().Phase; phase == apiv1.Requested || phase == apiv1.Launching {
		why, _ := s.generation.whyBehind()
		if phase == apiv1.Requested {
			why = s.exclusion.whyUnsureLocked(e)
		}
		// A launch that an earlier Kip may have sent is held until the instances are listed.
		if why != "" && (!e.launching || s.generation.isBehind()) {
			return why
		}
	}
	if phase := e.cell().Phase; (phase == apiv1.Booting || phase == apiv1.Ready) && s.generation.mayRunMore(e) {
		why, _ := s.generation.whyBehind() // Kip tells a kubelet nothing before
		return why
	}
	if kind := s.callForLocked(e); kind != "" {
		if waits := s.calls.Waits(kind); waits != "" {
			return waits
		}
	}
	return e.waitsFor()
}

// callForLocked is the kind of call that the cell may be waiting to have sent; "" for none.
// The caller holds table.mu.
func (s *queries) callForLocked(e *entry) cloud.Call {
	cell := e.cell()
	waiting := e.async.waitsFor()
	switch {
	case cell.Phase == apiv1.Requested && e.launching:
		return cloud.CallLaunch
	case cell.Phase == apiv1.Terminating && cell.Instance != nil && s.terminations.sending(cell.Instance.ID):
		return cloud.CallTerminate
	case waiting == startsInstance:
		return cloud.CallStart
	case waiting == attachesDisks:
		return cloud.CallAttachDisk
	case waiting == makesRoutes:
		return cloud.CallRoute
	case waiting == removesRoutes:
		return cloud.CallUnroute
	}
	return ""
}

// waitsFor says what the cell waits for. The caller is the cell's worker, or holds table.mu.
func (e *entry) waitsFor() string {
	switch e.cell().Phase {
	case apiv1.Requested:
		return cmp.Or(e.blocked.why, notAnswered)
	case apiv1.Launching:
		return notAnswered
	case apiv1.Booting:
		return e.bootsUntil()
	case apiv1.Ready:
		if away := e.session.cutOff(); e.cell().Agent() != nil && (away || !e.goesOver.IsZero()) {
			return e.bootsUntil()
		}
		return e.wait.told.message
	case apiv1.Bound:
		if e.hold.why != "" {
			return heldBack + e.hold.why
		}
	case apiv1.Draining:
		if !e.cell().StepTime(apiv1.StepKept).IsZero() {
			return keptUntil(e.cell())
		}
		return "its pod's logs and volumes are not saved yet"
	case apiv1.Terminating:
		return "the cloud has not ended it yet"
	}
	return ""
}

// notAnswered is the wait of a cell whose launch is to be sent, or was.
const notAnswered = "the cloud has not answered yet"

// heldBack is what begins the wait of a cell that the guard does not let end.
const heldBack = "its end is held back: "

// bootsUntil says what a booting cell has not done yet.
func (e *entry) bootsUntil() string {
	switch {
	case !e.session.opened():
		return cmp.Or(e.lacks, noAddress)
	case !e.session.connected():
		who := "its agent"
		if !e.goesOver.IsZero() {
			who = "the agent of cells.itzo"
		}
		if err := e.session.lastError(); err != nil {
			return who + " has not joined: " + err.Error()
		}
		return who + " has not joined"
	case !e.goesOver.IsZero():
		return errAgentFetched.Error()
	case e.cell().StepTime(apiv1.StepJoined).IsZero() && !e.cell().StepTime(apiv1.StepCloudInit).IsZero():
		return "its cloud-init file is being carried out"
	default:
		return "its kubelet is not ready"
	}
}
