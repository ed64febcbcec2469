package daemonsets

import (
	"slices"
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

// PortObserver is told of changes of ports. Its methods do not block.
type PortObserver interface {
	// HostPortsChanged is told that the ports at which copies on a cell listen may have changed.
	HostPortsChanged(cell string)
}

// CopyObserver is told of changes of copies. Its methods do not block.
type CopyObserver interface {
	// CopyChanged is told that Copy of a set's pod on a cell says something else, also of one that is gone.
	CopyChanged(cell string, set types.NamespacedName)
}

// StartsWithin is how long a copy may take to become ready for the first time, and how long a kubelet may take to tell a new
// process of Kip of a copy.
const StartsWithin = 2 * time.Minute

// State is how the copies of a set's pod fare together.
type State struct {
	Cells    int    // that run a copy, or are to
	NotReady []Copy // of those that count
	// Failing reports whether these are so many that the set is not ready.
	Failing bool
	// Pending is whether it is to be seen yet if so many are; the set stays as it was then. Again is after how long a copy counts
	// as not ready if nothing is heard.
	Pending bool
	Again   time.Duration
}

// Sum returns the state of copies at a time. A copy on a new cell counts once it was ready, or has taken long: cells
// come and go all the time, and would keep a set from ever being ready.
func Sum(copies []Copy, now time.Time) (s State) {
	var counted, unsure []Copy
	for _, c := range copies {
		if c.LeftOut {
			continue
		}
		s.Cells++
		switch left := c.Shown.Add(StartsWithin).Sub(now); {
		case c.Ready:
		case left <= 0, c.WasReady:
			s.NotReady = append(s.NotReady, c)
		default:
			if s.Again == 0 || left < s.Again {
				s.Again = left
			}
			if c.Newer {
				continue
			}
			unsure = append(unsure, c)
		}
		counted = append(counted, c)
	}
	s.Failing = failing(s.NotReady, counted)
	s.Pending = !s.Failing && failing(append(unsure, s.NotReady...), counted)
	return s
}

// fewPercent is how many of a set's copies may be not ready while the set is.
const fewPercent = 10

// failing reports whether so many of the copies are not ready that the set is not: all, or more than a few, and of more than one
// namespace where there is more than one. One cell says what it likes, and so may all cells of a tenant.
func failing(notReady, all []Copy) bool {
	switch n := len(notReady); {
	case n == 0:
		return false
	case n == len(all):
		return true
	case n == 1, n*100 <= len(all)*fewPercent:
		return false
	}
	return ofSeveral(notReady) || !ofSeveral(all)
}

// ofSeveral reports whether copies run beside pods of more than one namespace.
func ofSeveral(copies []Copy) bool {
	return slices.ContainsFunc(copies, func(c Copy) bool { return c.Pod.Namespace != copies[0].Pod.Namespace })
}
