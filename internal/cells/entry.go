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
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/lanes"
)

// entry is a cell and what this process holds for it. Fields that others than
// the worker of the cell use are under Controller.mu, unless they say otherwise.
type entry struct {
	id       string
	current  atomic.Pointer[Cell] // never modified, only replaced
	writing  sync.Mutex           // held from reading current to replacing it
	revision int64                // of the stored record; under writing
	unsure   *Cell                // what was written if the lost answer was a yes; under writing
	loaded   bool                 // its record is of an earlier process; never changed once it is shown
	arrived  bool                 // its pod arrived, as in Request; under mu

	// ending, once set, is why the cell must end; podEnded as in Cell.
	ending   string
	cause    Cause
	podEnded bool
	// binding is set when the worker has decided to show the pod.
	binding bool
	// launching is set while the cell is its group's.
	launching bool
	// launch is the one that is being stored or sent; under mu.
	launch     string
	toldPaused bool // that launches are paused; under mu
	looks      bool // it was let through to see whether Kip has its rights; under mu
	// tagging is set while the instance's tags are being written; tagTries is how often that was tried, without outages, since
	// a look last showed them or a pod got the cell, tagAfter when it may be again, and tagWait how long Kip last waited.
	tagging  bool
	tagTries int
	tagWait  time.Duration
	tagAfter time.Time
	parts    []string // what of the instance gets its tags, too
	// podRuns is set once its pod was seen to run, unboosting while the cloud is asked to end its boost, which it is not
	// asked again before unboostAfter.
	podRuns, unboosting bool
	unboostAfter        time.Time
	// pod is whose cell it is: for a moment before the record says so.
	pod apiv1.PodReference
	// reserved is what counts of it against its namespace's budget, in dollars an hour;
	// paidFrom is that of its record. Both are under mu.
	reserved float64
	paidFrom time.Time
	// disks are those of pod; under mu.
	disks []Disk

	api        API
	node       string    // the virtual node that api is of
	renamed    time.Time // since when the kubelet is to be of another node, and is not ready; of its worker
	session    Session
	lacks      string              // the address that the instance has not got, as a look showed it; under mu
	connecting time.Time           // when this process began to connect
	away       string              // why its agent does not answer, as observers know; of its worker
	awayTold   time.Time           // when they were told so; of its worker
	stopWait   context.CancelFunc  // of the goroutine that waits for the kubelet
	shown      bool                // api shows the pod
	configured bool                // the agent has its configuration, on this connection
	untold     bool                // observers do not know of that
	dns        []netip.Addr        // of that configuration
	said       agentapi.Configured // by the agent, with it
	goesOver   time.Time           // since when it was told of another agent, which has not answered yet; under mu
	setUp      []string            // what of the cloud-init file could not be done, to be told; under mu
	setUpSent  bool                // the agent has the cloud-init file; under mu
	setUpPolls int                 // how often it was asked whether that is done; of its worker
	breaks     int                 // how often the session has not been connected
	attached   bool                // the cloud has attached the disks, for this process
	disksShown bool                // the agent has the disks from this process
	diskPolls  int                 // in a row
	refused    time.Time           // since when the cloud has surely not given it a disk, or its routes; of its worker
	diskTold   told                // what was last reported of the disks, routes, plugins and GPUs; written under mu
	routed     bool                // the cloud leads its pod's networks to it, for this process
	unrouted   bool                // they were taken back when the cloud had accepted its end
	routesGone bool                // they were again when it had ended
	unseen     time.Time           // since when complete looks show no instance of a launch that was given up
	told       time.Time           // the Interrupted that observers know of; of its worker
	notified   time.Time           // when its agent last gave notice; under mu
	atRisk     bool                // its agent says that it is; under mu
	// anew is since when it has its time anew: once, not heard since heard; under mu
	anew struct{ heard, since time.Time }
	// warned and counted are the Interrupted that the pod's owner was told of, and that CellTakenBack
	// was told of; under mu. Those of an earlier process count as told.
	warned, counted time.Time
	resolving       attempts // to resolve its launch; of whoever holds the cell
	starting        attempts // to start a stopped instance
	stopping        attempts // to stop one
	unknown         news     // of what may run its pod besides
	unfit           string   // why the operator is to mend something before it is launched; under mu
	unfitTold       news     // of that; under mu

	trusting trusting // under mu

	refusing    time.Time // since when it refuses this process, and was not heard; under mu
	refusalTold news      // of that; under mu

	// held is why its end is held back, heldTold what was told of that; under mu.
	held     string
	heldTold news

	aside   *aside     // under mu
	drained bool       // what must outlive it is saved, as far as that could be done
	pace    lanes.Pace // of its agent

	pluginsSent time.Time // when the agent had the plugins from this process
	plugged     bool      // the kubelet knows their drivers
	equipping   time.Time // since when this process has waited for the GPUs
	equipped    bool      // the kubelet has them
}

// attempts are those at one call about a cell. They are of its worker alone, or, while it is
// being launched, of its group.
type attempts struct {
	failed int
	began  time.Time // when the first failed
	next   time.Time // none is made before
}

// wait is how long none is made.
func (a *attempts) wait(now time.Time) time.Duration { return a.next.Sub(now) }

// fail notes that one has failed.
func (a *attempts) fail(now time.Time, err error, random backoff.Random) {
	if a.failed++; a.failed == 1 {
		a.began = now
	}
	a.next = now.Add(max(retryAfter(err), random.After(a.failed, firstRetry, longestRetry)))
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
		reserved: cell.Offer().CostPerHour(),
		paidFrom: cell.paidFrom(),
	}
	e.warned = cell.Interrupted
	if !cell.Unconfirmed {
		e.counted = cell.Interrupted
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
