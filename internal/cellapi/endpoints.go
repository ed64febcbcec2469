package cellapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/elotl/kip/internal/watches"
)

// A cell runs one pod; it must not pay for every endpoint of a large cluster. Up
// to endpointBudget endpoints are shown to all cells alike. Beyond that every
// Service with more endpoints than a cap is shown in part: the cap is the largest
// power of two with which a cell stays within the budget, and never less than
// minShown.
//
// Which part is the cell's view. Endpoints lie on a ring by a hash of their
// address, views begin at even distances on it, and a view has the next so many
// that are ready. So the fleet as a whole spreads over all endpoints, an endpoint
// that comes or goes changes those few views that reach it and each by one, and
// Kip stores and encodes per view, not per cell.
const (
	endpointBudget = 1024
	minShown       = 2
	views          = 128
	// subBits of a resource version are Kip's own: what one event of the API
	// server changes in a view beyond the object that the event is about.
	subBits = 16
	// viewHistory is how many events of a view are kept.
	viewHistory = 256
)

// caps are the caps to choose from, in falling order; the first is none.
var caps = []int{1 << 62, 512, 256, 128, 64, 32, 16, 8, 4, minShown}

// endpoints holds the EndpointSlices of the cluster, and shows cells their part.
// A reflector feeds it.
type endpoints struct {
	kind     *watches.Kind
	nodeName string // of the virtual nodes, without a number
	ipv6     bool   // slices of IPv6 are of use
	budget   int
	salt     uint64 // where this process's versions of partial views begin

	mu       sync.Mutex
	known    bool
	rv       uint64 // upstream's
	services map[string]*endpointsOf
	owner    map[string]string // service of a slice
	local    map[string]bool   // Services that prefer endpoints on the virtual node
	totals   []int             // endpoints that a cell would be shown with each of caps
	level    int               // the index in caps that holds
	epoch    uint64            // how often a part of the views was made anew
	views    map[int]*view
}

var (
	_ cache.ReflectorStore         = (*endpoints)(nil)
	_ cache.ResourceVersionUpdater = (*endpoints)(nil)
)

// endpointsOf a Service, those of one family: a part of them must have some of each.
type endpointsOf struct {
	key    string
	slices map[string]*sourceSlice
	count  int    // of all endpoints
	ring   []spot // its usable endpoints in order; nil until a part is wanted
}

// sourceSlice is a slice as the API server has it.
type sourceSlice struct {
	key   string
	whole *watches.Object // what is shown of it where all of it is
}

func (s *sourceSlice) slice() *discoveryv1.EndpointSlice {
	return s.whole.APIObject.(*discoveryv1.EndpointSlice)
}

// spot is the place of an endpoint on the ring.
type spot struct {
	at    uint64
	slice *sourceSlice
	index int32
	grade grade
	here  bool // on the virtual node
}

// grade says how well an endpoint can be used; kube-proxy uses those of the second
// grade where there is none of the first, and no others.
type grade int8

const (
	ready grade = iota
	servingWhileTerminating
	unusable
)

func gradeOf(e *discoveryv1.Endpoint) grade {
	switch c := e.Conditions; {
	case c.Ready == nil || *c.Ready:
		return ready
	case c.Terminating != nil && *c.Terminating && (c.Serving == nil || *c.Serving):
		return servingWhileTerminating
	}
	return unusable
}

// view is what some cells see.
type view struct {
	number     int
	users      int
	collection *watches.Collection
	shown      map[string]map[string]rendered // by Service and slice
}

// rendered is what a view shows of a slice, and what it was made from last.
type rendered struct {
	*watches.Object
	from shownSlice
}

// shownSlice is the part of a slice that a view is to have: whole, or the endpoints
// at these indexes.
type shownSlice struct {
	of      *sourceSlice
	whole   bool
	indexes []int32
}

// is says that o shows just this. A slice of which other endpoints have changed is
// no news to a view.
func (s shownSlice) is(o rendered) bool {
	if s.of == o.from.of && s.whole == o.from.whole && slices.Equal(s.indexes, o.from.indexes) {
		return true
	}
	if s.whole {
		return false // it has changed, or it was shown in part
	}
	from, has := s.of.slice(), o.APIObject.(*discoveryv1.EndpointSlice)
	if !equality.Semantic.DeepEqual(from.Ports, has.Ports) || !maps.Equal(from.Labels, has.Labels) {
		return false
	}
	if len(s.indexes) != len(has.Endpoints) {
		return false
	}
	for i, index := range s.indexes {
		if !equality.Semantic.DeepEqual(from.Endpoints[index], has.Endpoints[i]) {
			return false
		}
	}
	return true
}

// ofIPv6 ends the key of a Service's IPv6 endpoints; no Service's name ends so.
const ofIPv6 = " IPv6"

func newEndpoints(k *watches.Kind, nodeName string, ipv6 bool, salt uint64) *endpoints {
	return &endpoints{
		kind:     k,
		nodeName: nodeName,
		ipv6:     ipv6,
		budget:   endpointBudget,
		salt:     salt%(1<<(subBits-1)-1) + 1,
		services: map[string]*endpointsOf{},
		owner:    map[string]string{},
		local:    map[string]bool{},
		totals:   make([]int, len(caps)),
		views:    map[int]*view{},
	}
}

// hash64 is FNV-1a with a final mixing, so that like addresses lie far apart.
func hash64(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	// The finalizer of MurmurHash3.
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// acquire returns the collection that a cell reads. release gives it up.
func (e *endpoints) acquire(cell string) *watches.Collection {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := int(hash64(cell) % views)
	v := e.views[n]
	if v == nil {
		v = &view{number: n, collection: watches.NewCollection(e.kind, viewHistory)}
		e.views[n] = v
		if e.known {
			e.restart(v)
		}
	}
	v.users++
	return v.collection
}

func (e *endpoints) release(cell string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := int(hash64(cell) % views)
	if v := e.views[n]; v != nil {
		if v.users--; v.users == 0 {
			delete(e.views, n)
		}
	}
}

// adopt takes over a slice from a reflector; nil when cells are not shown it. seen
// is its upstream resource version in any case.
func (e *endpoints) adopt(o any) (slice *sourceSlice, service string, seen uint64, err error) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, "", 0, fmt.Errorf("collect %s: got a %T", e.kind.Name, o)
	}
	if seen, err = strconv.ParseUint(s.ResourceVersion, 10, 64); err != nil {
		return nil, "", 0, fmt.Errorf("collect %s: resourceVersion %q is not a number", e.kind.Name, s.ResourceVersion)
	}
	e.kind.Slim(s)
	slice = &sourceSlice{key: watches.Key(s.Namespace, s.Name)}
	slice.whole, err = e.object(s, seen<<subBits|e.epoch)
	service = watches.Key(s.Namespace, s.Labels[discoveryv1.LabelServiceName])
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		service += ofIPv6
	}
	usable := s.AddressType == discoveryv1.AddressTypeIPv4 || e.ipv6 && s.AddressType == discoveryv1.AddressTypeIPv6
	if s.Labels[discoveryv1.LabelServiceName] == "" || !usable {
		service = "" // kube-proxy has no use for it
	}
	return slice, service, seen, err
}

// object takes over s, to be shown at a resource version.
func (e *endpoints) object(s *discoveryv1.EndpointSlice, rv uint64) (*watches.Object, error) {
	s.ResourceVersion = strconv.FormatUint(rv, 10)
	return watches.NewObject(e.kind, s)
}

// Add implements [cache.ReflectorStore].
func (e *endpoints) Add(o any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, service, rv, err := e.adopt(o)
	if err != nil {
		return err
	}
	e.rv = rv
	if before, ok := e.owner[s.key]; ok && before != service {
		e.drop(s.key)
		e.settle(before, rv)
	}
	if service == "" {
		e.advance()
		return nil
	}
	e.keep(s, service)
	e.settle(service, rv)
	return nil
}

// Update implements [cache.ReflectorStore].
func (e *endpoints) Update(o any) error { return e.Add(o) }

// Delete implements [cache.ReflectorStore].
func (e *endpoints) Delete(o any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, _, rv, err := e.adopt(o)
	if err != nil {
		return err
	}
	e.rv = rv
	service, ok := e.owner[s.key]
	if !ok {
		e.advance()
		return nil
	}
	e.drop(s.key)
	e.settle(service, rv)
	return nil
}

// Replace implements [cache.ReflectorStore].
func (e *endpoints) Replace(list []any, resourceVersion string) error {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("collect %s: resourceVersion %q of the list is not a number", e.kind.Name, resourceVersion)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	partial := e.known && e.partial()
	before := e.services
	e.services, e.owner, e.totals = map[string]*endpointsOf{}, map[string]string{}, make([]int, len(caps))
	for _, o := range list {
		s, service, _, err := e.adopt(o)
		if err != nil {
			return err
		}
		if service == "" {
			continue
		}
		if old := before[service]; old != nil && old.slices[s.key] != nil && old.slices[s.key].whole.RV == s.whole.RV {
			s = old.slices[s.key] // its encodings are made already
		}
		e.keep(s, service)
	}
	e.rv, e.known = rv, true
	e.level = e.wanted()
	partial = partial || e.partial()
	if partial {
		e.renew()
	}
	for _, v := range e.views {
		if partial {
			e.restart(v)
		} else {
			v.collection.Become(e.compose(v), rv<<subBits)
		}
	}
	return nil
}

// Resync implements [cache.ReflectorStore].
func (e *endpoints) Resync() error { return nil }

// UpdateResourceVersion implements [cache.ResourceVersionUpdater].
func (e *endpoints) UpdateResourceVersion(resourceVersion string) {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known && rv > e.rv {
		e.rv = rv
		e.advance()
	}
}

// advance tells the views that nothing of theirs changed up to the present version.
func (e *endpoints) advance() {
	version := strconv.FormatUint(e.rv<<subBits, 10)
	for _, v := range e.views {
		v.collection.UpdateResourceVersion(version)
	}
}

// serviceSeen is told of every Service: whether it prefers endpoints on its own
// node, as traffic policies want it.
func (e *endpoints) serviceSeen(s *corev1.Service) {
	local := s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal ||
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal ||
		s.Spec.TrafficDistribution != nil && *s.Spec.TrafficDistribution == corev1.ServiceTrafficDistributionPreferSameNode
	e.prefer(watches.Key(s.Namespace, s.Name), local)
}

func (e *endpoints) prefer(service string, local bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.local[service] == local {
		return
	}
	if local {
		e.local[service] = true
	} else {
		delete(e.local, service)
	}
	for _, family := range []string{"", ofIPv6} {
		if svc := e.services[service+family]; svc != nil && e.known && svc.count > caps[e.level] {
			for _, v := range e.views {
				e.show(v, svc, e.rv)
			}
		}
	}
}

// keep stores a slice. e.mu is held, as for all that follows.
func (e *endpoints) keep(s *sourceSlice, service string) {
	svc := e.services[service]
	if svc == nil {
		svc = &endpointsOf{key: service, slices: map[string]*sourceSlice{}}
		e.services[service] = svc
	}
	before := svc.count
	if old := svc.slices[s.key]; old != nil {
		svc.count -= len(old.slice().Endpoints)
	}
	if svc.ring != nil {
		svc.turn(s.key, e.spotsOf(s))
	}
	svc.slices[s.key] = s
	svc.count += len(s.slice().Endpoints)
	e.owner[s.key] = service
	e.count(before, svc.count)
}

// drop removes a slice.
func (e *endpoints) drop(slice string) {
	svc := e.services[e.owner[slice]]
	delete(e.owner, slice)
	before := svc.count
	svc.count -= len(svc.slices[slice].slice().Endpoints)
	delete(svc.slices, slice)
	svc.turn(slice, nil)
	e.count(before, svc.count)
}

// count notes that a Service has so many endpoints now.
func (e *endpoints) count(before, now int) {
	for i, c := range caps {
		e.totals[i] += min(now, c) - min(before, c)
	}
}

// wanted is the level that the budget allows. Going back to a higher one wants
// some room, so that a cluster at the edge does not swing.
func (e *endpoints) wanted() int {
	for i := range caps {
		budget := e.budget
		if i < e.level {
			budget -= budget / 4
		}
		if e.totals[i] <= budget {
			return i
		}
	}
	return len(caps) - 1
}

// partial says that some Service is shown in part.
func (e *endpoints) partial() bool { return e.totals[e.level] < e.totals[0] }

// settle shows the views what has changed with one Service, as of the upstream
// version rv.
func (e *endpoints) settle(service string, rv uint64) {
	svc := e.services[service]
	if level := e.wanted(); level != e.level && e.known {
		e.level = level
		e.renew()
		for _, v := range e.views {
			e.restart(v)
		}
	} else if e.known {
		for _, v := range e.views {
			e.show(v, svc, rv)
		}
		e.advance()
	}
	if len(svc.slices) == 0 {
		delete(e.services, service)
	}
}

// renew gives every slice another version, since its views will be others: a
// client takes an object of the same version for the same.
func (e *endpoints) renew() {
	e.epoch = (e.epoch + 1) & (1<<subBits - 1)
	for _, svc := range e.services {
		svc.ring = nil
		for k, s := range svc.slices {
			whole := s.whole.At(s.whole.RV>>subBits<<subBits | e.epoch)
			svc.slices[k] = &sourceSlice{key: k, whole: whole}
		}
	}
}

// restart makes a view from nothing. Its watchers list anew.
func (e *endpoints) restart(v *view) {
	objects := e.compose(v)
	rv := e.rv << subBits
	if e.partial() {
		// An earlier process may have shown another part as of the same version:
		// nobody may go on from there.
		rv += e.salt
	}
	v.collection.Restart(objects, max(rv, v.collection.Version()+1))
}

// compose returns all that a view shows, each slice at its own version.
func (e *endpoints) compose(v *view) []*watches.Object {
	v.shown = make(map[string]map[string]rendered, len(e.services))
	objects := make([]*watches.Object, 0, len(e.owner))
	for _, svc := range e.services {
		shown := map[string]rendered{}
		for k, s := range e.part(v, svc) {
			shown[k] = rendered{e.render(s, s.of.whole.RV), s}
			objects = append(objects, shown[k].Object)
		}
		v.shown[svc.key] = shown
	}
	return objects
}

// show brings a Service's slices in a view up to date, as of the upstream version rv.
func (e *endpoints) show(v *view, svc *endpointsOf, rv uint64) {
	shown, want := v.shown[svc.key], e.part(v, svc)
	if shown == nil {
		shown = map[string]rendered{}
		v.shown[svc.key] = shown
	}
	next := max(rv<<subBits, v.collection.Version()+1)
	for _, k := range slices.Sorted(maps.Keys(want)) {
		s := want[k]
		if old, had := shown[k]; had && s.is(old) {
			shown[k] = rendered{old.Object, s} // the older slice need not be kept
			continue
		}
		o := s.of.whole
		if !s.whole || o.RV < next {
			o = e.render(s, next)
		}
		v.collection.Put(o)
		shown[k] = rendered{o, s}
		next = max(next, o.RV) + 1
	}
	for _, k := range slices.Sorted(maps.Keys(shown)) {
		if _, still := want[k]; !still {
			v.collection.Remove(shown[k].At(next))
			delete(shown, k)
			next++
		}
	}
	if len(shown) == 0 {
		delete(v.shown, svc.key)
	}
}

// render makes the object for a part of a slice.
func (e *endpoints) render(s shownSlice, rv uint64) *watches.Object {
	if s.whole && s.of.whole.RV == rv {
		return s.of.whole
	}
	from := s.of.slice()
	part := from.Endpoints
	if !s.whole {
		part = make([]discoveryv1.Endpoint, len(s.indexes))
		for i, index := range s.indexes {
			part[i] = from.Endpoints[index]
		}
	}
	c := *from // all but the endpoints is shared, and never changed
	c.Endpoints = part
	c.ResourceVersion = strconv.FormatUint(rv, 10)
	return &watches.Object{APIObject: &c, RV: rv}
}

// part returns what a view has of a Service, by slice.
func (e *endpoints) part(v *view, svc *endpointsOf) map[string]shownSlice {
	limit := caps[e.level]
	out := make(map[string]shownSlice, len(svc.slices))
	if svc.count <= limit {
		svc.ring = nil
		for k, s := range svc.slices {
			out[k] = shownSlice{of: s, whole: true}
		}
		return out
	}
	if svc.ring == nil {
		svc.ring = e.ringOf(svc)
	}
	start := sort.Search(len(svc.ring), func(i int) bool { return svc.ring[i].at >= uint64(v.number)<<(64-viewBits) })
	taken := map[*sourceSlice][]int32{}
	n := 0
	take := func(limit int, wanted func(spot) bool) {
		for i := 0; i < len(svc.ring) && n < limit; i++ {
			s := svc.ring[(start+i)%len(svc.ring)]
			if wanted(s) && !slices.Contains(taken[s.slice], s.index) {
				taken[s.slice] = append(taken[s.slice], s.index)
				n++
			}
		}
	}
	if e.local[strings.TrimSuffix(svc.key, ofIPv6)] {
		// Half for the node's own, where a policy wants those only.
		take(limit/2, func(s spot) bool { return s.here && s.grade == ready })
	}
	take(limit, func(s spot) bool { return s.grade == ready })
	if n == 0 {
		take(limit, func(s spot) bool { return s.grade == servingWhileTerminating })
	}
	for s, indexes := range taken {
		slices.Sort(indexes)
		out[s.key] = shownSlice{of: s, indexes: indexes}
	}
	return out
}

// viewBits is the logarithm of views.
const viewBits = 7

// order is that of the ring.
func order(a, b spot) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.slice.key, b.slice.key), cmp.Compare(a.index, b.index))
}

// ringOf puts the spots of all slices of a Service in order.
func (e *endpoints) ringOf(svc *endpointsOf) []spot {
	ring := make([]spot, 0, svc.count)
	for _, s := range svc.slices {
		ring = append(ring, e.spotsOf(s)...)
	}
	slices.SortFunc(ring, order)
	return ring
}

// turn puts other spots in the place of a slice's, if the Service has a ring: that
// is quicker than to sort all of it again.
func (svc *endpointsOf) turn(slice string, spots []spot) {
	if svc.ring == nil {
		return
	}
	slices.SortFunc(spots, order)
	ring := make([]spot, 0, len(svc.ring)+len(spots))
	for _, s := range svc.ring {
		for len(spots) > 0 && order(spots[0], s) < 0 {
			ring, spots = append(ring, spots[0]), spots[1:]
		}
		if s.slice.key != slice {
			ring = append(ring, s)
		}
	}
	svc.ring = append(ring, spots...)
}

// spotsOf are the usable endpoints of a slice.
func (e *endpoints) spotsOf(s *sourceSlice) []spot {
	all := s.slice().Endpoints
	spots := make([]spot, 0, len(all))
	for i := range all {
		p := &all[i]
		if g := gradeOf(p); g != unusable && len(p.Addresses) > 0 {
			here := p.NodeName != nil && isOf(e.nodeName, *p.NodeName)
			spots = append(spots, spot{
				at:    hash64(p.Addresses[0]),
				slice: s,
				index: int32(i),
				grade: g,
				here:  here,
			})
		}
	}
	return spots
}

// isOf says that a node is one of the virtual nodes with that name: the one that has
// it, or one with a number. Cells of all of them are shown the same.
func isOf(name, node string) bool {
	number, numbered := strings.CutPrefix(node, name+"-")
	return node == name || numbered && len(number) <= 2 && strings.Trim(number, "0123456789") == ""
}

// serviceFeed is the collection of Services, which also tells what their
// endpoints depend on.
type serviceFeed struct {
	*watches.Collection
	endpoints *endpoints
}

func (f serviceFeed) Add(o any) error {
	if err := f.Collection.Add(o); err != nil {
		return err
	}
	f.endpoints.serviceSeen(o.(*corev1.Service))
	return nil
}

func (f serviceFeed) Update(o any) error { return f.Add(o) }

func (f serviceFeed) Delete(o any) error {
	if err := f.Collection.Delete(o); err != nil {
		return err
	}
	m := o.(metav1.Object)
	f.endpoints.prefer(watches.Key(m.GetNamespace(), m.GetName()), false)
	return nil
}

func (f serviceFeed) Replace(list []any, rv string) error {
	if err := f.Collection.Replace(list, rv); err != nil {
		return err
	}
	for _, o := range list {
		f.endpoints.serviceSeen(o.(*corev1.Service))
	}
	return nil
}
