package cells

import (
	"sync"
	"sync/atomic"

	apiv1 "github.com/elotl/kip/api/v1"
)

// entry is a cell and what this process knows of it, as far as several parts use it. What one part alone knows it declares as a
// perCell. An entry is under table.mu, unless it says otherwise. Each field names the one that changes it.
type entry struct {
	id string
	// current is the record. It is never modified: adoptions replaces it.
	current atomic.Pointer[Cell]
	// writing guards revision and unsure, and is held from reading current to replacing it. revision is the stored record's. unsure is a
	// write whose answer was lost; nil if there is none. records changes them, and additions before there is a record.
	writing  sync.Mutex
	revision int64
	unsure   *Cell
	// loaded reports whether its record is of an earlier process. storedCells sets it before the cell is shown.
	loaded bool
	// pod is whose cell it is, for a moment before the record says so, disks are those of that pod, and noEarlierCell is as in Request. They
	// are set when the cell is made, and standbys gives a standby cell those of the pod that takes it.
	pod           apiv1.PodReference
	disks         []Disk
	noEarlierCell bool
	// ending, once set, is why the cell must end, and cause the kind of that. cellEnds sets them.
	ending string
	cause  Cause
	// launching is set while the cell is its launch's: from when enqueuing adds it to the queue of launches, or resuming
	// goes on with its launch, until launching gives it back. launch.go alone changes it.
	launching bool
	// launchID is the launch whose call is being stored; it is cleared once the outcome is stored. If the answer of that write is lost, it
	// is kept: resuming waits for such a cell. intents sets it, and launching forgets it.
	launchID string

	// waits is what the cell waits for, as its last step said; "" for nothing. loop sets it.
	waits string

	liveConnection          // locks for itself, for everybody
	async          asyncOps // of loop
	held           sync.Map // what single parts know of it, by their perCells
}

// cell returns the record as it is now.
func (e *entry) cell() *Cell { return e.current.Load() }

func newEntry(cell Cell, revision int64) *entry {
	e := &entry{
		id:       cell.ID,
		pod:      cell.Pod,
		disks:    cell.Disks,
		revision: revision,
	}
	e.current.Store(&cell)
	return e
}
