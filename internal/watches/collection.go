package watches

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

// Key names an object within its collection.
func Key(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// Event is one change of a collection.
type Event struct {
	Kind watch.EventType
	// Object is what a watcher is shown; for a deletion the last state.
	Object *Object
	// Previous is what the object was before, nil when it is new.
	Previous *Object
	// position orders events: a watch from resource version v is shown those
	// with position > v. It is the object's resource version, but for objects
	// that were found missing (see Become).
	position uint64
}

// Collection holds the objects of one kind, or a part of them, with their recent
// history. Any number of watchers read that history at their own pace; nothing is
// kept for a watcher. One that falls behind the history is told that it expired.
type Collection struct {
	Kind  *Kind
	limit int // events of history that are kept

	mu      sync.Mutex
	objects map[string]*Object
	sorted  []*Object // objects in order of their keys; nil when it must be made anew
	rv      uint64    // of the whole collection
	oldest  uint64    // a watch from before this has missed something
	events  []Event
	first   uint64        // sequence number of events[0]
	changed chan struct{} // closed at the next change
	synced  chan struct{} // closed once the objects are known
	isReady bool
}

// The reflector of client-go feeds a collection directly.
var (
	_ cache.ReflectorStore         = (*Collection)(nil)
	_ cache.ResourceVersionUpdater = (*Collection)(nil)
)

// NewCollection returns a collection that knows nothing yet.
func NewCollection(k *Kind, limit int) *Collection {
	return &Collection{
		Kind:    k,
		limit:   limit,
		objects: map[string]*Object{},
		changed: make(chan struct{}),
		synced:  make(chan struct{}),
	}
}

// Keep has the history have at least limit events from now on.
func (c *Collection) Keep(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = max(c.limit, limit)
}

// signal wakes all who wait for a change. c.mu is held.
func (c *Collection) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// know declares that the objects are known, as of rv. c.mu is held.
func (c *Collection) know(rv uint64) {
	c.rv, c.oldest = rv, rv
	if !c.isReady {
		c.isReady = true
		close(c.synced)
	}
}

// StartEmpty makes the collection known to be empty as of rv. Watches from before
// rv have expired.
func (c *Collection) StartEmpty(rv uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	c.objects, c.sorted = map[string]*Object{}, nil
	c.know(rv)
	c.signal()
}

// forget drops the history: every watcher has expired. c.mu is held.
func (c *Collection) forget() {
	c.first += uint64(len(c.events)) + 1
	c.events = nil
	c.oldest = c.rv
}

// record appends an event and drops the oldest beyond the limit. c.mu is held.
func (c *Collection) record(e Event) {
	c.events = append(c.events, e)
	// Cut in halves, so that the cost of moving is shared by many events.
	if len(c.events) >= 2*c.limit {
		drop := len(c.events) - c.limit
		c.oldest = c.events[drop-1].position
		kept := make([]Event, c.limit, 2*c.limit)
		copy(kept, c.events[drop:])
		c.events, c.first = kept, c.first+uint64(drop)
	}
}

// Put stores o as the newest version of its object.
func (c *Collection) Put(o *Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := Key(o.GetNamespace(), o.GetName())
	old := c.objects[k]
	if old != nil && old.RV == o.RV {
		return
	}
	c.objects[k], c.sorted = o, nil
	if o.RV <= c.rv {
		// The source went back in time (a restored backup): there is no order
		// in which to tell it.
		c.rv = o.RV
		c.forget()
		c.signal()
		return
	}
	c.rv = o.RV
	t := watch.Added
	if old != nil {
		t = watch.Modified
	}
	c.record(Event{
		Kind:     t,
		Object:   o,
		Previous: old,
		position: o.RV,
	})
	c.signal()
}

// Remove deletes an object. last is its last state, with the resource version of
// the deletion; one that is not newer than the collection leaves the collection's
// version as it is, and watchers see the deletion at that version.
func (c *Collection) Remove(last *Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := Key(last.GetNamespace(), last.GetName())
	old := c.objects[k]
	if old == nil {
		return
	}
	delete(c.objects, k)
	c.sorted = nil
	before := c.rv
	if last.RV > c.rv {
		c.rv = last.RV
	} else {
		last = last.At(before)
		c.rv = before + 1
	}
	c.record(Event{
		Kind:     watch.Deleted,
		Object:   last,
		Previous: old,
		position: c.rv,
	})
	c.signal()
}

// Become makes objects, as of rv, the content of the collection and tells
// watchers what is different.
func (c *Collection) Become(objects []*Object, rv uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.signal()

	next := make(map[string]*Object, len(objects))
	var changed []*Object
	forward := rv >= c.rv
	for _, o := range objects {
		k := Key(o.GetNamespace(), o.GetName())
		if old := c.objects[k]; old != nil && old.RV == o.RV {
			next[k] = old // its encodings are made already
			continue
		}
		next[k] = o
		changed = append(changed, o)
		forward = forward && o.RV > c.rv
	}
	var missing []*Object
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
	sort.Slice(changed, func(i, j int) bool { return changed[i].RV < changed[j].RV })
	sort.Slice(missing, func(i, j int) bool {
		return Key(missing[i].GetNamespace(), missing[i].GetName()) < Key(missing[j].GetNamespace(), missing[j].GetName())
	})
	// When a missing object was deleted is not known. Their deletions come first
	// and carry the version from before: a watch that breaks off among them and
	// resumes from that version is shown all of them again, none is lost.
	position := rv
	if len(changed) > 0 {
		position = changed[0].RV
	}
	for _, o := range missing {
		c.record(Event{
			Kind:     watch.Deleted,
			Object:   o.At(c.rv),
			Previous: o,
			position: position,
		})
	}
	for _, o := range changed {
		e := Event{Kind: watch.Added, Object: o, position: o.RV}
		if old := previous[Key(o.GetNamespace(), o.GetName())]; old != nil {
			e.Kind, e.Previous = watch.Modified, old
		}
		c.record(e)
	}
	c.rv = rv
}

// Restart makes objects, as of rv, the content of the collection without telling
// what is different: every watch before has expired.
func (c *Collection) Restart(objects []*Object, rv uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.sorted = make(map[string]*Object, len(objects)), nil
	for _, o := range objects {
		c.objects[Key(o.GetNamespace(), o.GetName())] = o
	}
	c.know(rv)
	c.forget()
	c.signal()
}

// Version is that of the whole collection; 0 when it knows nothing yet.
func (c *Collection) Version() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rv
}

// Get returns an object, nil when there is none.
func (c *Collection) Get(k string) *Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects[k]
}

// Snapshot returns all objects in the order of their keys, the collection's
// version, and where to go on reading the history. The slice must not be changed.
func (c *Collection) Snapshot() (objects []*Object, rv, next uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sorted == nil {
		keys := make([]string, 0, len(c.objects))
		for k := range c.objects {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		c.sorted = make([]*Object, len(keys))
		for i, k := range keys {
			c.sorted[i] = c.objects[k]
		}
	}
	return c.sorted, c.rv, c.first + uint64(len(c.events))
}

// Seek returns where to go on reading the history for a watch that has seen all
// up to rv; false when that is no longer, or not yet, known.
func (c *Collection) Seek(rv uint64) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rv < c.oldest || rv > c.rv {
		return 0, false
	}
	i := sort.Search(len(c.events), func(i int) bool { return c.events[i].position > rv })
	return c.first + uint64(i), true
}

// Since returns the events from next on and the collection's version after them.
// Without events, changed is closed at the next change. It is false when some of
// the events are gone. The slice must not be changed.
func (c *Collection) Since(next uint64) (events []Event, rv uint64, changed <-chan struct{}, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next < c.first {
		return nil, c.rv, nil, false
	}
	i := next - c.first
	return c.events[i:len(c.events):len(c.events)], c.rv, c.changed, true
}

// Ready waits until the objects are known.
func (c *Collection) Ready(ctx context.Context, clk clock.Clock, patience time.Duration) bool {
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

// Fresh waits until the collection is at least at rv and returns where it is.
func (c *Collection) Fresh(ctx context.Context, clk clock.Clock, rv uint64, patience time.Duration) (uint64, bool) {
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
func (c *Collection) adopt(o any) (*Object, error) {
	a, ok := o.(APIObject)
	if !ok {
		return nil, fmt.Errorf("collect %s: got a %T", c.Kind.Name, o)
	}
	a.SetManagedFields(nil)
	if c.Kind.Slim != nil {
		c.Kind.Slim(a)
	}
	return NewObject(c.Kind, a)
}

// Add implements [cache.ReflectorStore].
func (c *Collection) Add(o any) error {
	a, err := c.adopt(o)
	if err != nil {
		return err
	}
	c.Put(a)
	return nil
}

// Update implements [cache.ReflectorStore].
func (c *Collection) Update(o any) error { return c.Add(o) }

// Delete implements [cache.ReflectorStore].
func (c *Collection) Delete(o any) error {
	a, err := c.adopt(o)
	if err != nil {
		return err
	}
	c.Remove(a)
	return nil
}

// Replace implements [cache.ReflectorStore].
func (c *Collection) Replace(list []any, resourceVersion string) error {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("collect %s: resourceVersion %q of the list is not a number", c.Kind.Name, resourceVersion)
	}
	objects := make([]*Object, len(list))
	for i, o := range list {
		if objects[i], err = c.adopt(o); err != nil {
			return err
		}
	}
	c.Become(objects, rv)
	return nil
}

// Resync implements [cache.ReflectorStore].
func (c *Collection) Resync() error { return nil }

// UpdateResourceVersion implements [cache.ResourceVersionUpdater]: a bookmark from
// upstream moves the collection on.
func (c *Collection) UpdateResourceVersion(resourceVersion string) {
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
