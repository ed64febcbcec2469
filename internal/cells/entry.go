package cells

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// entry is a cell and what this process holds for it. Fields that others than
// the worker of the cell use are under Controller.mu, unless they say otherwise.
type entry struct {
	id       string
	current  atomic.Pointer[Cell] // never modified, only replaced
	writing  sync.Mutex           // held from reading current to replacing it
	revision int64                // of the stored record; under writing
	unsure   *Cell                // what was written if the lost answer was a yes; under writing

	// ending, once set, is why the cell must end; podEnded as in Cell.
	ending   string
	cause    Cause
	podEnded bool
	// binding is set when the worker has decided to show the pod.
	binding bool
	// launching is set while the cell is its group's, and terminating while a
	// call that ends its instance is being made.
	launching, terminating bool
	// launch is the one that is being stored or sent; under mu.
	launch     string
	toldPaused bool // that launches are paused; under mu
	// pod is whose cell it is: for a moment before the record says so.
	pod apiv1.PodReference
	// disks are those of pod; under mu.
	disks []Disk

	api        API
	session    Session
	connecting time.Time          // when this process began to connect
	stopWait   context.CancelFunc // of the goroutine that waits for the kubelet
	shown      bool               // api shows the pod
	configured bool               // the agent has its configuration, on this connection
	untold     bool               // observers do not know of that
	dns        []netip.Addr       // of that configuration
	breaks     int                // how often the session has not been connected
	attached   bool               // the cloud has attached the disks, for this process
	disksShown bool               // the agent has the disks from this process
	diskPolls  int                // in a row
	diskTold   told               // what was last reported of the disks and plugins; written under mu
	terminated time.Time          // when the cloud accepted the termination
	stopped    time.Time          // when the cloud accepted to stop it
	unseen     time.Time          // since when complete looks show no instance of a launch that was given up
	told       bool               // observers know that it is interrupted

	aside   *aside        // under mu
	drained bool          // what must outlive it is saved, as far as that could be done
	pace    agentapi.Pace // of its agent

	pluginsSent time.Time // when the agent had the plugins from this process
	plugged     bool      // the kubelet knows their drivers
}

// told is what a pod's owner was told.
type told struct{ reason, message string }

// cell is the record as it is now.
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

// endingOf returns why the cell must end, or "".
func (c *Controller) endingOf(e *entry) (why string, podEnded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.ending, e.podEnded
}

// causeOf returns why the cell must end, in kind.
func (c *Controller) causeOf(e *entry) Cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(e.cause, CauseOther)
}
