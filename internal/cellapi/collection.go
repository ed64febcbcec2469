package cellapi

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// key names an object within its collection.
func key(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// event is one change of a collection.
type event struct {
	kind watch.EventType
	// object is what a watcher is shown; for a deletion the last state.
	object *object
	// previous is what the object was before, nil when it is new.
	previous *object
	// position orders events: a watch from resource version v is shown those
	// with position > v. It is the object's resource version, but for objects
	// that were found missing (see replace).
	position uint64
}

// collection holds the objects of one kind, or a part of them, with their recent
// history. Any number of watchers read that history at their own pace; nothing is
// kept for a watcher. One that falls behind the history is told that it expired.
type collection struct {
	kind  *kind
	limit int // events of history that are kept

	mu      sync.Mutex
	objects map[string]*object
	sorted  []*object // objects in order of their keys; nil when it must be made anew
	rv      uint64    // of the whole collection
	oldest  uint64    // a watch from before this has missed something
	events  []event
	first   uint64        // sequence number of events[0]
	changed chan struct{} // closed at the next change
	synced  chan struct{} // closed once the objects are known
	isReady bool
}

// The reflector of client-go feeds a collection directly.
var (
	_ cache.ReflectorStore         = (*collection)(nil)
	_ cache.ResourceVersionUpdater = (*collection)(nil)
)

// newCollection returns a collection that knows nothing yet.
func newCollection(k *kind, limit int) *collection {
	return &collection{
		kind: k, limit: limit,
		objects: map[string]*object{},
		changed: make(chan struct{}),
		synced:  make(chan struct{}),
	}
}

// signal wakes all who wait for a change. c.mu is held.
func (c *collection) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// know declares that the objects are known, as of rv. c.mu is held.
func (c *collection) know(rv uint64) {
	c.rv, c.oldest = rv, rv
	if !c.isReady {
		c.isReady = true
		close(c.synced)
	}
}

// startEmpty makes the collection known to be empty as of rv. Watches from before
// rv have expired.
func (c *collection) startEmpty(rv uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	c.objects, c.sorted = map[string]*object{}, nil
	c.know(rv)
	c.signal()
}

// forget drops the history: every watcher has expired. c.mu is held.
func (c *collection) forget() {
	c.first += uint64(len(c.events)) + 1
	c.events = nil
	c.oldest = c.rv
}

// record appends an event and drops the oldest beyond the limit. c.mu is held.
func (c *collection) record(e event) {
	c.events = append(c.events, e)
	// Cut in halves, so that the cost of moving is shared by many events.
	if len(c.events) >= 2*c.limit {
		drop := len(c.events) - c.limit
		c.oldest = c.events[drop-1].position
		kept := make([]event, c.limit, 2*c.limit)
		copy(kept, c.events[drop:])
		c.events, c.first = kept, c.first+uint64(drop)
	}
}

// put stores o as the newest version of its object.
func (c *collection) put(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key(o.GetNamespace(), o.GetName())
	old := c.objects[k]
	if old != nil && old.rv == o.rv {
		return
	}
	c.objects[k], c.sorted = o, nil
	if o.rv <= c.rv {
		// The source went back in time (a restored backup): there is no order
		// in which to tell it.
		c.rv = o.rv
		c.forget()
		c.signal()
		return
	}
	c.rv = o.rv
	t := watch.Added
	if old != nil {
		t = watch.Modified
	}
	c.record(event{kind: t, object: o, previous: old, position: o.rv})
	c.signal()
}

// remove deletes an object. last is its last state, with the resource version of
// the deletion; one that is not newer than the collection leaves the collection's
// version as it is, and watchers see the deletion at that version.
func (c *collection) remove(last *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key(last.GetNamespace(), last.GetName())
	old := c.objects[k]
	if old == nil {
		return
	}
	delete(c.objects, k)
	c.sorted = nil
	before := c.rv
	if last.rv > c.rv {
		c.rv = last.rv
	} else {
		last = last.at(before)
		c.rv = before + 1
	}
	c.record(event{kind: watch.Deleted, object: last, previous: old, position: c.rv})
	c.signal()
}

// replace makes objects, as of rv, the content of the collection and tells
// watchers what is different.
func (c *collection) replace(objects []*object, rv uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.signal()

	next := make(map[string]*object, len(objects))
	var changed []*object
	forward := rv >= c.rv
	for _, o := range objects {
		k := key(o.GetNamespace(), o.GetName())
		if old := c.objects[k]; old != nil && old.rv == o.rv {
			next[k] = old // its encodings are made already
			continue
		}
		next[k] = o
		changed = append(changed, o)
		forward = forward && o.rv > c.rv
	}
	var missing []*object
	for k, o := range c.objects {
		if next[k] == nil {
			missing = append(missing, o)
		}
	}
	previous := c.objects
	c.objects, c.sorted = next, nil
	if !c.isReady {
		c.know(rv)
		return
	}
	if !forward {
		c.rv = rv
		c.forget()
		return
	}
	sort.Slice(changed, func(i, j int) bool { return changed[i].rv < changed[j].rv })
	sort.Slice(missing, func(i, j int) bool {
		return key(missing[i].GetNamespace(), missing[i].GetName()) < key(missing[j].GetNamespace(), missing[j].GetName())
	})
	// When a missing object was deleted is not known. Their deletions come first
	// and carry the version from before: a watch that breaks off among them and
	// resumes from that version is shown all of them again, none is lost.
	position := rv
	if len(changed) > 0 {
		position = changed[0].rv
	}
	for _, o := range missing {
		c.record(event{kind: watch.Deleted, object: o.at(c.rv), previous: o, position: position})
	}
	for _, o := range changed {
		e := event{kind: watch.Added, object: o, position: o.rv}
		if old := previous[key(o.GetNamespace(), o.GetName())]; old != nil {
			e.kind, e.previous = watch.Modified, old
		}
		c.record(e)
	}
	c.rv = rv
}

// restart makes objects, as of rv, the content of the collection without telling
// what is different: every watch before has expired.
func (c *collection) restart(objects []*object, rv uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.sorted = make(map[string]*object, len(objects)), nil
	for _, o := range objects {
		c.objects[key(o.GetNamespace(), o.GetName())] = o
	}
	c.know(rv)
	c.forget()
	c.signal()
}

// version is that of the whole collection; 0 when it knows nothing yet.
func (c *collection) version() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rv
}

// get returns an object, nil when there is none.
func (c *collection) get(k string) *object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects[k]
}

// snapshot returns all objects in the order of their keys, the collection's
// version, and where to go on reading the history. The slice must not be changed.
func (c *collection) snapshot() (objects []*object, rv, next uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sorted == nil {
		keys := make([]string, 0, len(c.objects))
		for k := range c.objects {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		c.sorted = make([]*object, len(keys))
		for i, k := range keys {
			c.sorted[i] = c.objects[k]
		}
	}
	return c.sorted, c.rv, c.first + uint64(len(c.events))
}

// seek returns where to go on reading the history for a watch that has seen all
// up to rv; false when that is no longer, or not yet, known.
func (c *collection) seek(rv uint64) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rv < c.oldest || rv > c.rv {
		return 0, false
	}
	i := sort.Search(len(c.events), func(i int) bool { return c.events[i].position > rv })
	return c.first + uint64(i), true
}

// since returns the events from next on and the collection's version after them.
// Without events, changed is closed at the next change. It is false when some of
// the events are gone. The slice must not be changed.
func (c *collection) since(next uint64) (events []event, rv uint64, changed <-chan struct{}, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next < c.first {
		return nil, c.rv, nil, false
	}
	i := next - c.first
	return c.events[i:len(c.events):len(c.events)], c.rv, c.changed, true
}

// ready waits until the objects are known.
func (c *collection) ready(ctx context.Context, clk clock.Clock, patience time.Duration) bool {
	select {
	case <-c.synced:
		return true
	default:
	}
	timer := clk.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.synced:
		return true
	case <-ctx.Done():
	case <-timer.C():
	}
	return false
}

// fresh waits until the collection is at least at rv and returns where it is.
func (c *collection) fresh(ctx context.Context, clk clock.Clock, rv uint64, patience time.Duration) (uint64, bool) {
	var timeout <-chan time.Time
	for {
		c.mu.Lock()
		current, changed := c.rv, c.changed
		c.mu.Unlock()
		if current >= rv {
			return current, true
		}
		if timeout == nil {
			timer := clk.NewTimer(patience)
			defer timer.Stop()
			timeout = timer.C()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return current, false
		case <-timeout:
			return current, false
		}
	}
}

// What follows is how a reflector feeds a collection.

// adopt takes over an object that a reflector decoded. Who manages which field is
// of no use to a kubelet and often a third of the object.
func (c *collection) adopt(o any) (*object, error) {
	a, ok := o.(apiObject)
	if !ok {
		return nil, fmt.Errorf("collect %s: got a %T", c.kind.name, o)
	}
	a.SetManagedFields(nil)
	if c.kind.slim != nil {
		c.kind.slim(a)
	}
	return newObject(c.kind, a)
}

// Add implements [cache.ReflectorStore].
func (c *collection) Add(o any) error {
	a, err := c.adopt(o)
	if err != nil {
		return err
	}
	c.put(a)
	return nil
}

// Update implements [cache.ReflectorStore].
func (c *collection) Update(o any) error { return c.Add(o) }

// Delete implements [cache.ReflectorStore].
func (c *collection) Delete(o any) error {
	a, err := c.adopt(o)
	if err != nil {
		return err
	}
	c.remove(a)
	return nil
}

// Replace implements [cache.ReflectorStore].
func (c *collection) Replace(list []any, resourceVersion string) error {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("collect %s: resourceVersion %q of the list is not a number", c.kind.name, resourceVersion)
	}
	objects := make([]*object, len(list))
	for i, o := range list {
		if objects[i], err = c.adopt(o); err != nil {
			return err
		}
	}
	c.replace(objects, rv)
	return nil
}

// Resync implements [cache.ReflectorStore].
func (c *collection) Resync() error { return nil }

// UpdateResourceVersion implements [cache.ResourceVersionUpdater]: a bookmark from
// upstream moves the collection on.
func (c *collection) UpdateResourceVersion(resourceVersion string) {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isReady && rv > c.rv {
		c.rv = rv
		c.signal()
	}
}
