package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// apiServer is the part of a Kubernetes API server that concerns the pods of one
// node: resource versions, preconditions, graceful deletion, watches that lag.
type apiServer struct {
	w *world

	mu      sync.Mutex
	version int64
	pods    map[cache.ObjectName]*corev1.Pod // never modified, only replaced
	log     []watch.Event                    // all changes, in order
	at      []time.Time                      // when each was made
	more    chan struct{}                    // closed and replaced when log grows
	cut     chan struct{}                    // closed and replaced to end all watches
	lag     time.Duration                    // of watches
	away    bool                             // it answers nothing
	ended   map[types.UID]time.Time          // when a pod became terminal or went
	tooOld  bool                             // the next watch is answered 410
	lacks   types.UID                        // the pod that lists do not show
	cutBy   string                           // the kind of event that ended all watches last
	// failLists and blocked are how many lists fail, and how many evictions are
	// forbidden.
	failLists, blocked int
	writes             int // and the requests of Kip that changed nothing
	// forbidden are the evictions that were refused last, until they are tried
	// again.
	forbidden map[types.UID]time.Time
	// fail is asked before and after the effect of each write.
	fail func(after bool) error
}

func newAPIServer(w *world) *apiServer {
	return &apiServer{
		w: w, pods: map[cache.ObjectName]*corev1.Pod{}, more: make(chan struct{}), cut: make(chan struct{}), ended: map[types.UID]time.Time{},
		forbidden: map[types.UID]time.Time{},
		fail:      func(bool) error { return nil },
	}
}

const namespace = "ns"

func nameOf(p *corev1.Pod) cache.ObjectName {
	return cache.ObjectName{Namespace: p.Namespace, Name: p.Name}
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// list returns the pods, in order of name.
func (s *apiServer) list() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*corev1.Pod, 0, len(s.pods))
	for _, p := range s.pods {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (s *apiServer) get(name cache.ObjectName) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name]
}

var podResource = corev1.Resource("pods")

// change replaces a pod by what edit makes of it, nil for nothing; with s.mu held
// it is the only way in which pods change.
func (s *apiServer) change(kind watch.EventType, before, after *corev1.Pod) {
	s.version++
	s.writes++
	after.ResourceVersion = strconv.FormatInt(s.version, 10)
	if kind == watch.Deleted {
		delete(s.pods, nameOf(after))
	} else {
		s.pods[nameOf(after)] = after
	}
	if before == nil || kind == watch.Deleted || before.Status.Phase != after.Status.Phase {
		s.w.log.Debug("a pod is written", "pod", after.Name, "event", kind, "phase", after.Status.Phase, "version", s.version)
	}
	if before != nil && terminal(before) && before.Status.Phase != after.Status.Phase {
		s.w.violate("invariant 3: pod %s went from %s to %s", after.Name, before.Status.Phase, after.Status.Phase)
	}
	if _, known := s.ended[after.UID]; !known && (kind == watch.Deleted || terminal(after)) {
		s.ended[after.UID] = time.Now()
	}
	s.log, s.at = append(s.log, watch.Event{Type: kind, Object: after}), append(s.at, time.Now())
	close(s.more)
	s.more = make(chan struct{})
}

// edit changes one pod of a UID, if it is there, with preconditions.
func (s *apiServer) edit(name cache.ObjectName, pre *metav1.Preconditions, edit func(p *corev1.Pod) watch.EventType) error {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if err := s.isAway(); err != nil {
		return err
	}
	if err := fail(false); err != nil {
		return err
	}
	if err := s.do(name, pre, edit); err != nil {
		return err
	}
	return fail(true)
}

// isAway returns an error while nothing is answered.
func (s *apiServer) isAway() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	return nil
}

// setAway ends all watches as well.
func (s *apiServer) setAway(away bool) {
	s.mu.Lock()
	s.away = away
	s.mu.Unlock()
	s.cutWatches("")
}

func (s *apiServer) do(name cache.ObjectName, pre *metav1.Preconditions, edit func(p *corev1.Pod) watch.EventType) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.pods[name]
	if before == nil {
		return apierrors.NewNotFound(podResource, name.Name)
	}
	if pre != nil && (pre.UID != nil && *pre.UID != before.UID || pre.ResourceVersion != nil &&
		*pre.ResourceVersion != before.ResourceVersion) {
		return apierrors.NewConflict(podResource, name.Name, errors.New("precondition failed"))
	}
	after := before.DeepCopy()
	if kind := edit(after); kind != "" {
		s.change(kind, before, after)
	}
	return nil
}

// create says whether there was none of the name.
func (s *apiServer) create(p *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods[nameOf(p)] != nil {
		return false
	}
	s.change(watch.Added, nil, p)
	return true
}

var errAway = errors.New("dial tcp: connection refused")

var errAPI = errors.New("apiserver: the server is currently unable to handle the request")

// remove is DELETE.
func (s *apiServer) remove(name cache.ObjectName, o metav1.DeleteOptions) error {
	return s.edit(name, o.Preconditions, func(p *corev1.Pod) watch.EventType {
		grace := int64(30)
		if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
			grace = *g
		}
		if o.GracePeriodSeconds != nil {
			grace = *o.GracePeriodSeconds
		}
		if grace == 0 {
			return watch.Deleted
		}
		end := metav1.NewTime(time.Now().Add(s.w.apiClock + time.Duration(grace)*time.Second))
		if p.DeletionTimestamp != nil && !end.Before(p.DeletionTimestamp) {
			return ""
		}
		if p.DeletionTimestamp == nil {
			s.w.mu.Lock()
			s.w.deleted[p.UID] = time.Now()
			s.w.mu.Unlock()
		}
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, &grace
		return watch.Modified
	})
}

// client is a client of the API server that dies with its Kip.
type client struct {
	s *apiServer
	k *kip
	corev1client.PodInterface
}

// request counts a request of Kip that writes, whatever comes of it.
func (c client) request(do func() error) error {
	c.k.running(c.k.ctx)
	if err := c.k.alive(); err != nil {
		return err
	}
	c.s.mu.Lock()
	before := c.s.writes
	c.s.mu.Unlock()
	err := c.s.isAway()
	if err == nil {
		err = do()
	}
	c.s.mu.Lock()
	if c.s.writes == before {
		c.s.writes++
	}
	c.s.mu.Unlock()
	if errors.Is(err, errAPI) {
		c.s.w.happened("api faults")
	}
	return err
}

func (c client) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	c.k.running(c.k.ctx)
	if err := c.k.alive(); err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	pod, fail := c.s.pods[cache.ObjectName{Namespace: namespace, Name: name}], c.s.fail
	c.s.mu.Unlock()
	if err := c.s.isAway(); err != nil {
		return nil, err
	}
	if err := fail(false); err != nil {
		c.s.w.happened("api faults")
		return nil, err
	}
	if pod == nil {
		return nil, apierrors.NewNotFound(podResource, name)
	}
	return pod, nil
}

func (c client) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, err
	}
	name, one := selector.RequiresExactMatch(metav1.ObjectNameField)
	if !one {
		return nil, fmt.Errorf("list pods by %q: this model lists one pod, by its name", o.FieldSelector)
	}
	pod, err := c.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return &corev1.PodList{}, nil
	case err != nil:
		return nil, err
	}
	return &corev1.PodList{Items: []corev1.Pod{*pod}}, nil
}

func (c client) UpdateStatus(_ context.Context, pod *corev1.Pod, _ metav1.UpdateOptions) (*corev1.Pod, error) {
	pre := &metav1.Preconditions{UID: &pod.UID}
	if pod.ResourceVersion != "" {
		pre.ResourceVersion = &pod.ResourceVersion
	}
	return nil, c.request(func() error {
		return c.s.edit(nameOf(pod), pre, func(p *corev1.Pod) watch.EventType {
			c.s.w.writesSet(p, pod)
			pod.Status.DeepCopyInto(&p.Status)
			return watch.Modified
		})
	})
}

func (c client) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	return c.request(func() error { return c.deletes(name, o) })
}

func (c client) deletes(name string, o metav1.DeleteOptions) error {
	w := c.s.w
	w.mu.Lock()
	for _, m := range w.machines {
		if o.Preconditions == nil || o.Preconditions.UID == nil || m.up && m.running && m.pod == *o.Preconditions.UID {
			w.violateLocked("Kip deletes no pod that may run: pod %s, while cell %s runs", name, m.cell)
		}
	}
	if o.Preconditions != nil && o.Preconditions.UID != nil {
		w.deletesSetLocked(*o.Preconditions.UID)
	}
	w.mu.Unlock()
	return c.s.remove(cache.ObjectName{Namespace: namespace, Name: name}, o)
}

func (c client) EvictV1(_ context.Context, e *policyv1.Eviction) error {
	return c.request(func() error { return c.evicts(e) })
}

func (c client) evicts(e *policyv1.Eviction) error {
	uid := *e.DeleteOptions.Preconditions.UID
	c.s.mu.Lock()
	_, again := c.s.forbidden[uid]
	delete(c.s.forbidden, uid)
	c.s.mu.Unlock()
	if again {
		c.s.w.happened("eviction tried again")
	}
	if c.s.takes(&c.s.blocked, "eviction blocked") {
		c.s.mu.Lock()
		c.s.forbidden[uid] = time.Now()
		c.s.mu.Unlock()
		return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	}
	return c.s.remove(cache.ObjectName{Namespace: e.Namespace, Name: e.Name}, *e.DeleteOptions)
}

// takes says that one of some failures to come is now.
func (s *apiServer) takes(left *int, kind string) bool {
	s.mu.Lock()
	taken := *left > 0
	if taken {
		*left--
	}
	s.mu.Unlock()
	if taken {
		s.w.happened(kind)
	}
	return taken
}

// listerWatcher feeds an informer.
type listerWatcher struct{ *cache.ListWatch }

func (listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func (s *apiServer) listerWatcher(k *kip) cache.ListerWatcher {
	return listerWatcher{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			k.running(ctx)
			if err := s.isAway(); err != nil {
				return nil, err
			}
			if s.takes(&s.failLists, "list fails") {
				return nil, errAPI
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.version, 10)}}
			lacked := false
			for _, p := range s.pods {
				if lacked = lacked || p.UID == s.lacks; p.UID != s.lacks {
					list.Items = append(list.Items, *p)
				}
			}
			if lacked {
				defer s.w.happened("list lacks")
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			from, err := strconv.ParseInt(o.ResourceVersion, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("watch from %q: %w", o.ResourceVersion, err)
			}
			if err := s.isAway(); err != nil {
				return nil, err
			}
			s.mu.Lock()
			old := s.tooOld
			s.tooOld = false
			s.mu.Unlock()
			if old {
				s.w.happened("watch too old")
				return nil, apierrors.NewResourceExpired("too old resource version")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			f := &feed{kip: k, events: make(chan watch.Event), stopped: make(chan struct{})}
			go f.run(ctx, s, int(from), s.cut)
			return f, nil
		},
	}}
}

// feed is one watch: change n has resource version n.
type feed struct {
	kip     *kip
	events  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

func (f *feed) ResultChan() <-chan watch.Event { return f.events }
func (f *feed) Stop()                          { f.once.Do(func() { close(f.stopped) }) }

func (f *feed) run(ctx context.Context, s *apiServer, next int, cut <-chan struct{}) {
	defer close(f.events)
	ended := func() {
		s.mu.Lock()
		by := s.cutBy
		s.mu.Unlock()
		if by != "" {
			s.w.happened(by)
		}
	}
	wait := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		case <-ctx.Done():
		case <-f.stopped:
		case <-cut:
			ended()
		}
		return false
	}
	for {
		s.mu.Lock()
		more, lag, log, at := s.more, s.lag, s.log, s.at
		s.mu.Unlock()
		if next == len(log) {
			if !wait(more) {
				return
			}
			continue
		}
		if late := time.Until(at[next].Add(lag)); late > 0 {
			due, stop := context.WithTimeout(ctx, late)
			ok := wait(due.Done())
			stop()
			if !ok || ctx.Err() != nil {
				return
			}
			s.w.happened("watch lag")
		}
		f.kip.running(ctx)
		select {
		case f.events <- log[next]:
			next++
		case <-ctx.Done():
			return
		case <-f.stopped:
			return
		case <-cut:
			ended()
			return
		}
	}
}

// cutWatches ends all watches; informers watch again. That one ended counts as an
// event of a kind, if any.
func (s *apiServer) cutWatches(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutBy = kind
	close(s.cut)
	s.cut = make(chan struct{})
}
