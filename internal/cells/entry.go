package cells

import (
	"sync"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentlimit"
)

// entry is a cell and what this process holds for it. A step declares its part of that, and
// says what lock it is under; here is what several steps use. It is under table.mu, unless it says otherwise.
type entry struct {
	id       string
	current  atomic.Pointer[Cell] // never modified, only replaced
	writing  sync.Mutex           // held from reading current to replacing it
	revision int64                // of the stored record; under writing
	unsure   *Cell                // what was written if the lost answer was a yes; under writing
	loaded   bool                 // its record is of an earlier process; never changed once it is shown
	arrived  bool                 // its pod arrived, as in Request

	// ending, once set, is why the cell must end, and cause the kind of that; only beginEnd sets them.
	ending string
	cause  Cause
	// binding is set when the worker has decided to show the pod.
	binding bool
	// launching is set while the cell is its group's, by giveToGroup and giveBack.
	launching bool
	// launch is the one that is being stored or sent.
	launch string
	// pod is whose cell it is: for a moment before the record says so.
	pod apiv1.PodReference
	// reserved is what counts of it against its namespace's budget, in dollars an hour;
	// paidFrom is that of its record.
	reserved float64
	paidFrom time.Time
	// disks are those of pod.
	disks []Disk

	connection
	async      asyncOps
	pace       agentlimit.Pace // of its agent
	resolving  attempts        // to resolve its launch; of whoever holds the cell
	rereading  attempts        // to read its stored launch; of its worker
	unknown    dedup           // of what may run its pod besides
	rights     rightsState
	blocked    blocked
	setup      setupState
	renamed    time.Time // since when the kubelet is to be of another node, and is not ready; of its worker
	wait       waitState
	disksGiven disksGiven
	routes     routesState
	plugins    pluginsState
	devices    devicesState
	starts     attempts // to start its instance; of its worker
	stops      attempts // to stop it; of its worker
	tags       tagState
	boost      boost
	notice     notice
	evacuation evacuation
	own        ownNotice
	restarted  restarted
	refuses    refusalState
	hold       holdState
	trusting   trusting
	drained    bool      // what must outlive it is saved, as far as that could be done; of its worker
	unseen     time.Time // since when complete snapshots show no instance of a launch that was given up; of its worker
}

// cell is the record as it is now.
func (e *entry) cell() *Cell { return e.current.Load() }

func newEntry(cell Cell, revision int64) *entry {
	e := &entry{
		id:       cell.ID,
		pod:      cell.Pod,
		disks:    cell.Disks,
		revision: revision,
		reserved: cell.Offering().CostPerHour(),
		paidFrom: cell.paidFrom(),
		notice:   noticeOf(&cell),
	}
	e.current.Store(&cell)
	return e
}
