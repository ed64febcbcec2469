package cells

import (
	"sync"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// entry is a cell and what this process holds for it, as far as several parts use it. What one part alone holds it declares as
// a perCell. It is under table.mu, unless it says otherwise.
type entry struct {
	id       string
	current  atomic.Pointer[Cell] // never modified, only replaced
	writing  sync.Mutex           // held from reading current to replacing it
	revision int64                // of the stored record; under writing
	unsure   *Cell                // what was written if the lost answer was a yes; under writing
	loaded   bool                 // its record is of an earlier process; never changed once it is shown
	arrived  bool                 // its pod arrived, as in Request

	// ending, once set, is why the cell must end, and cause the kind of that; only cellEnds sets them.
	ending string
	cause  Cause
	// keepUntil is until when the cell of a failed pod stays. keepOver is set when nobody wants that any more.
	keepUntil time.Time
	keepOver  bool
	// binding is set when the worker has decided to show the pod.
	binding bool
	// launching is set while the cell is its launch's: from when enqueuing adds it to the queue of launches, or resuming
	// goes on with its launch, until launching gives it back. launch.go alone changes it.
	launching bool
	// launchID is of the launch that the cell is being stored with, until the outcome is stored. If the answer of that write is lost, it
	// is kept: resuming waits for such a cell.
	launchID string
	// pod is whose cell it is: for a moment before the record says so.
	pod apiv1.PodReference
	// reserved is what counts of it against its namespace's budget, in dollars an hour;
	// paidFrom is that of its record.
	reserved float64
	paidFrom time.Time
	// disks are those of pod.
	disks []Disk

	connection
	held      sync.Map // what single parts hold of it, by their perCells
	async     asyncOps
	resolving attempts // to resolve its launch; of whoever holds the cell
	blocked   blocked
	wait      waitState
	hold      holdState
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
	}
	e.current.Store(&cell)
	return e
}
