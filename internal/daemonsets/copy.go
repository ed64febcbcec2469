package daemonsets

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
)

// MostCopies bounds the copies on one cell: a kubelet takes 110 pods, of which one is the cell's own. The others may be
// node plugins, or pods that are being torn down.
const MostCopies = 90

// Copy is what is known of a set's pod on one cell. Only the cell's word stands behind Reported and what follows.
type Copy struct {
	Cell string
	// Pod is the one that the cell is of.
	Pod apiv1.PodReference
	// Set is the pod of the DaemonSet.
	Set types.NamespacedName
	UID types.UID
	// Shown is when this process first showed it to the cell.
	Shown time.Time
	// Newer says that the pod of the cell began to run when the set's pod was there already.
	Newer bool
	// LeftOut says that the cell does not run it, for the reason in Why.
	LeftOut bool

	Reported bool // its kubelet has told this process of it
	Ready    bool
	WasReady bool // in this process
	Restarts int32
	// Why says why it is not ready, in a few printable words; "" where nobody knows.
	Why string
}

// CopyObserver is told of changes of copies. Its methods do not block.
type CopyObserver interface {
	// CopyChanged is told that Copy of a set's pod on a cell says something else, also of one that is gone.
	CopyChanged(cell string, set types.NamespacedName)
}

// startsWithin is how long a copy on a new cell may take to become ready for the first time, and how long a kubelet may take
// to tell a new process of Kip of a copy.
const startsWithin = 2 * time.Minute

// State is how the copies of a set's pod fare together.
type State struct {
	Cells    int    // that run a copy, or are to
	NotReady []Copy // of those that count
	// Pending is whether some are not known well enough to be called ready; the set stays as it was then, and Again
	// is after how long that ends if nothing is heard.
	Pending bool
	Again   time.Duration
}

// Sum returns the state of copies at a time. A copy on a new cell counts once it was ready, or has taken long: cells
// come and go all the time, and would keep a set from ever being ready.
func Sum(copies []Copy, now time.Time) (s State) {
	for _, c := range copies {
		if c.LeftOut {
			continue
		}
		s.Cells++
		if c.Ready {
			continue
		}
		late := now.Sub(c.Shown) >= startsWithin
		wait := func() {
			if left := c.Shown.Add(startsWithin).Sub(now); s.Again == 0 || left < s.Again {
				s.Again = left
			}
		}
		switch {
		case late, c.WasReady, c.Reported && !c.Newer:
			s.NotReady = append(s.NotReady, c)
		case c.Newer:
			wait()
		default:
			s.Pending = true
			wait()
		}
	}
	return s
}
