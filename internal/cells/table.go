package cells

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// The locks of this package, in their order: whoever holds one may take those below it, and none above.
//
//  1. StoreGeneration.writing guards the stored generation, from reading it until the outcome of a write is known.
//  2. entry.writing guards the record of a cell in the same way. Of several cells it is taken in the order of their IDs.
//  3. the lock of ledger.Ledger guards what cells that are gone have cost: the sums, and the days.
//  4. table.mu guards which cells there are, the fields of entries, what delays launches, and each perCell that says so.
//  5. terminations.mu guards the terminations that are under way, and launchQueue.mu the cells that wait for a launch.
//  6. boosting.mu and tagging.mu guard how far the boost and the tags of each cell are.
//  7. All others guard what their part alone knows: inventory.mu what the cloud has shown, pools.mu the standby pools,
//     StoreGeneration.mu what is known of the generation, asyncOps.mu the operation of a cell, liveConnection.mu its connection,
//     gather.mu what has come together, and so on. Nobody holds two of them.
//
// The store is called under 1 to 3, and observers are told under these. Nobody calls the store, the cloud, an agent or an observer
// under another lock. Other packages may be asked under any, and lock for themselves. Two of them call back. The guard
// calls Behind with its own lock held, and Heard with none. The work queue asks for a cell's namespace, which takes no lock.
//
// A function that wants a lock held has a name that ends in Locked, and says which lock. What belongs to a cell's worker needs none,
// since one worker has a cell at a time.

// table has the cells that are not Gone, and finds them by what they have.
type table struct {
	mu   sync.Mutex
	byID map[string]*entry
	// entries has the values of byID, for the queue, which asks under its own lock.
	entries sync.Map
	byPod   map[types.UID]string // live or not, until Gone
	// byInstance has the cell that an instance was launched for, until that is Gone.
	byInstance map[string]*entry
	// byDisk has the cell that a disk was last promised to.
	byDisk map[string]*entry
	// named are the pods with a cell, by their names, which are reused.
	named map[cache.ObjectName][]types.UID
	// byNamespace are the cells of pods.
	byNamespace map[string]map[*entry]bool
	// standby are the cells that no pod has.
	standby map[string]*entry
}

func newTable() *table {
	return &table{
		byID:        map[string]*entry{},
		byPod:       map[types.UID]string{},
		byInstance:  map[string]*entry{},
		byDisk:      map[string]*entry{},
		named:       map[cache.ObjectName][]types.UID{},
		byNamespace: map[string]map[*entry]bool{},
		standby:     map[string]*entry{},
	}
}

// all returns the cells, in no order.
func (t *table) all() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// ofPod returns the cell of a pod; nil if it has none.
func (t *table) ofPod(pod types.UID) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[t.byPod[pod]]
}

// find returns the cell with an ID; nil if there is none.
func (t *table) find(id string) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// namespaceOf is that of a cell's pod, by which cells take turns; "" of one that no pod has.
func (t *table) namespaceOf(id string) string {
	if e, ok := t.entries.Load(id); ok {
		return e.(*entry).cell().Pod.Namespace
	}
	return ""
}

// enterLocked has a cell found by its ID. The caller holds mu.
func (t *table) enterLocked(e *entry) {
	t.byID[e.id] = e
	t.entries.Store(e.id, e)
}

// indexLocked has an instance found as that of a cell, instead of the one that it has by now. The caller holds mu.
func (t *table) indexLocked(e *entry, next *cloud.Instance) {
	if was := e.cell().Instance; was != nil && t.byInstance[was.ID] == e {
		delete(t.byInstance, was.ID)
	}
	if next != nil {
		t.byInstance[next.ID] = e
	}
}

// havingInstance returns the cell that has an instance; nil where none has.
func (t *table) havingInstance(id string) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byInstance[id]
}

// claimedLocked returns an error for the first disk that a live cell has. A cell that is
// to end is live until its record says so: a Kip that starts from the records would
// have two live cells for one disk. The caller holds mu.
func (t *table) claimedLocked(disks []Disk) error {
	for _, d := range disks {
		if e := t.byDisk[d.ID]; e != nil && e.cell().Live() {
			return &DiskInUseError{Disk: d, Pod: e.pod}
		}
	}
	return nil
}

// claimLocked notes whose disks those of a reserved cell are. The caller holds mu.
func (t *table) claimLocked(e *entry) {
	for _, d := range e.disks {
		if other := t.byDisk[d.ID]; other == nil || e.cell().Live() { // of two cells, the live one has the disk
			t.byDisk[d.ID] = e
		}
	}
}

// unclaimLocked undoes claimLocked. The caller holds mu.
func (t *table) unclaimLocked(e *entry) {
	for _, d := range e.disks {
		if t.byDisk[d.ID] == e {
			delete(t.byDisk, d.ID)
		}
	}
}

// letsGoOf reports whether an instance is that of a cell which ends, and so lets go of its disks.
func (t *table) letsGoOf(instance string) bool {
	e := t.havingInstance(instance)
	if e == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.ending != "" || !e.cell().Live()
}

// userOf says whose instance has a disk, for people.
func (t *table) userOf(instance string) string {
	if e := t.havingInstance(instance); e != nil && e.cell().Pod.UID != "" {
		return fmt.Sprintf("the cell of pod %s (%s)", e.cell().Pod, e.cell().Phase)
	}
	return "instance " + instance
}

// countLocked counts a cell against the budget of its pod's namespace. The caller holds mu.
func (t *table) countLocked(e *entry) {
	if t.byNamespace[e.pod.Namespace] == nil {
		t.byNamespace[e.pod.Namespace] = map[*entry]bool{}
	}
	t.byNamespace[e.pod.Namespace][e] = true
}

// uncountLocked undoes countLocked. The caller holds mu.
func (t *table) uncountLocked(e *entry) {
	delete(t.byNamespace[e.pod.Namespace], e)
	if len(t.byNamespace[e.pod.Namespace]) == 0 {
		delete(t.byNamespace, e.pod.Namespace)
	}
}

// reserveLocked notes whose a cell is. The caller holds mu.
func (t *table) reserveLocked(e *entry) {
	if e.pod.UID == "" {
		t.standby[e.id] = e
		return
	}
	t.byPod[e.pod.UID] = e.id
	t.countLocked(e)
	t.claimLocked(e)
	name := nameOf(e.pod)
	t.named[name] = append(t.named[name], e.pod.UID)
}

// unreserveLocked undoes reserveLocked. The caller holds mu.
func (t *table) unreserveLocked(e *entry) {
	delete(t.standby, e.id)
	if e.pod.UID == "" {
		return
	}
	t.unclaimLocked(e)
	t.uncountLocked(e)
	if t.byPod[e.pod.UID] != e.id {
		return // another cell has the pod
	}
	delete(t.byPod, e.pod.UID)
	name := nameOf(e.pod)
	t.named[name] = slices.DeleteFunc(t.named[name], func(uid types.UID) bool { return uid == e.pod.UID })
	if len(t.named[name]) == 0 {
		delete(t.named, name)
	}
}

func nameOf(pod apiv1.PodReference) cache.ObjectName {
	return cache.ObjectName{Namespace: pod.Namespace, Name: pod.Name}
}

// podsNamed is Controller.PodsNamed.
func (t *table) podsNamed(name cache.ObjectName) []types.UID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.named[name])
}

// ending returns why the cell must end, and the kind of that; "" if it need not.
func (t *table) ending(e *entry) (why string, cause Cause) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.ending, e.cause
}

// standbyCells returns those that no pod has, and that are not to end.
func (t *table) standbyCells() (list []*Cell) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.standbyCellsLocked()
}

// standbyCellsLocked is standbyCells. The caller holds mu.
func (t *table) standbyCellsLocked() (list []*Cell) {
	for _, e := range t.standby {
		if cell := e.cell(); e.ending == "" && cell.Live() {
			list = append(list, cell)
		}
	}
	return list
}

// forPod is Controller.ForPod.
func (t *table) forPod(uid types.UID) (Cell, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.byID[t.byPod[uid]]
	if !ok {
		return Cell{}, false
	}
	return *e.cell(), true
}

// list is Controller.List.
func (t *table) list() []Cell {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Cell, 0, len(t.byID))
	for _, e := range t.byID {
		list = append(list, *e.cell())
	}
	return list
}
