package cells

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/elotl/kip/internal/offering"
)

// launchQueue are the cells that wait to be launched, in their order. Namespaces take turns at
// being launched first, so that none waits for all that another asks for.
type launchQueue struct {
	wake chan struct{}

	mu    sync.Mutex
	items []queuedCell
	turns []string // the namespaces of items, that which was launched least lately first
}

// queuedCell is a cell in the queue.
type queuedCell struct {
	e         *entry
	namespace string // of its pod; "" of a standby cell
	labels    string // of its pod, those that costs are kept by
	callKey
}

// callKey is what cells have in common that may be launched in one call.
type callKey struct {
	offering.Key
	diskBytes int64
	options   string
	devices   bool
	noLabels  bool
}

func newLaunchQueue() *launchQueue { return &launchQueue{wake: make(chan struct{}, 1)} }

// queuedCellOf returns a cell as it is queued, with what its record says now.
func queuedCellOf(e *entry) (queuedCell, error) {
	cell := e.cell()
	options, err := json.Marshal(cell.Options)
	if err != nil {
		return queuedCell{}, fmt.Errorf("compare the options of cell %s: %w", e.id, err)
	}
	return queuedCell{e, cell.Pod.Namespace, cell.Account.labels(), callKey{
		Key:       cell.Offering().Key(),
		diskBytes: cell.Offering().DiskBytes,
		options:   string(options),
		devices:   cell.needsDevices(),
		noLabels:  cell.NoLabels,
	}}, nil
}

// add adds a cell as the last of its namespace.
func (q *launchQueue) add(i queuedCell) {
	q.mu.Lock()
	q.items = append(q.items, i)
	if ns := i.namespace; !slices.Contains(q.turns, ns) {
		q.turns = append(q.turns, ns)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// remove takes a cell out of the queue. It returns false if the cell is not there: then it is being launched already.
func (q *launchQueue) remove(e *entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := slices.IndexFunc(q.items, func(i queuedCell) bool { return i.e == e })
	if n < 0 {
		return false
	}
	ns := q.items[n].namespace
	q.items = slices.Delete(q.items, n, n+1)
	if !slices.ContainsFunc(q.items, func(i queuedCell) bool { return i.namespace == ns }) {
		q.turns = slices.DeleteFunc(q.turns, func(of string) bool { return of == ns })
	}
	return true
}

// wait returns when something waits; false when ctx has ended.
func (q *launchQueue) wait(ctx context.Context) bool {
	for ctx.Err() == nil {
		q.mu.Lock()
		some := len(q.items) > 0
		q.mu.Unlock()
		if some {
			return true
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
	return false
}

// full reports whether the next call has as many machines as one can have, at most so many of
// an offering.
func (q *launchQueue) full(most func(offering.Key) int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) > 0 && q.alikeLocked(q.headLocked()) >= most(q.headLocked().Key)
}

// next takes the cell whose turn it is and those that go with it: at most so many of an offering, and
// as many as allow says. If not all fit, those whose pods have the same labels come first, since a call may have
// these as tags, and then those that have waited longest. So labels cost no call, and no cell waits for ever:
// its turn comes.
func (q *launchQueue) next(most func(offering.Key) int, allow func(n int) int) (group []*entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	head := q.headLocked()
	n := allow(min(q.alikeLocked(head), most(head.Key)))
	taken := []queuedCell{head}
	take := func(alike bool) {
		q.items = slices.DeleteFunc(q.items, func(i queuedCell) bool {
			if i.callKey != head.callKey || len(taken) == n || alike && i.labels != head.labels {
				return false
			}
			taken = append(taken, i)
			return true
		})
	}
	q.items = slices.DeleteFunc(q.items, func(i queuedCell) bool { return i.e == head.e })
	take(true)
	take(false)
	q.rotateLocked(taken)
	for _, i := range taken {
		group = append(group, i.e)
	}
	return group
}

// headLocked returns the cell that is launched next: of the namespace whose turn it is, that which has
// waited longest. The caller holds mu, and something waits.
func (q *launchQueue) headLocked() queuedCell {
	return q.items[slices.IndexFunc(q.items, func(i queuedCell) bool { return i.namespace == q.turns[0] })]
}

// alikeLocked returns how many cells go with one, itself among them. The caller holds mu.
func (q *launchQueue) alikeLocked(one queuedCell) (n int) {
	for _, i := range q.items {
		if i.callKey == one.callKey {
			n++
		}
	}
	return n
}

// rotateLocked puts the namespaces of a group at the end, and forgets those of which nothing
// waits. The caller holds mu.
func (q *launchQueue) rotateLocked(group []queuedCell) {
	waiting, served := map[string]bool{}, map[string]bool{}
	for _, i := range q.items {
		waiting[i.namespace] = true
	}
	for _, i := range group {
		served[i.namespace] = true
	}
	var first, last []string
	for _, ns := range q.turns {
		switch {
		case waiting[ns] && served[ns]:
			last = append(last, ns)
		case waiting[ns]:
			first = append(first, ns)
		}
	}
	q.turns = append(first, last...)
}
