package cellapi

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/elotl/kip/internal/watches"
)

// sliceOf makes a slice of a Service with n ready endpoints, from the given number on.
func sliceOf(service, name string, rv uint64, from, n int) *discoveryv1.EndpointSlice {
	yes := true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, ResourceVersion: strconv.FormatUint(rv, 10),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := from; i < from+n; i++ {
		node := fmt.Sprintf("node-%d", i%50)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
		})
	}
	return s
}

// fleet is some endpoints with a cell in each view.
type fleet struct {
	*endpoints
	t     testing.TB
	cells []string
	seen  map[string]*watches.Collection
	rv    uint64
}

func newFleet(t testing.TB, objects ...any) *fleet {
	f := &fleet{endpoints: newEndpoints(sharedKindOf(watches.EndpointSlices), nodeName, false, 7), t: t,
		seen: map[string]*watches.Collection{}, rv: 1000}
	used := map[uint64]bool{}
	for i := 0; len(used) < views; i++ {
		id := fmt.Sprintf("cell-%d", i)
		if n := hash64(id) % views; !used[n] {
			used[n] = true
			f.cells = append(f.cells, id)
			f.seen[id] = f.acquire(id)
		}
	}
	if err := f.Replace(objects, "1000"); err != nil {
		t.Fatal(err)
	}
	return f
}

func sharedKindOf(resource any) *watches.Kind {
	for _, k := range watches.SharedKinds() {
		if k.Resource == resource {
			return k
		}
	}
	panic(fmt.Sprint(resource))
}

// addresses that a cell is shown of a Service.
func (f *fleet) addresses(cell, service string) []string {
	f.t.Helper()
	objects, _, _ := f.seen[cell].Snapshot()
	var all []string
	for _, o := range objects {
		s := o.APIObject.(*discoveryv1.EndpointSlice)
		if s.ResourceVersion != strconv.FormatUint(o.RV, 10) {
			f.t.Fatalf("%s says version %s and is stored as %d", s.Name, s.ResourceVersion, o.RV)
		}
		if s.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		for _, e := range s.Endpoints {
			all = append(all, e.Addresses[0])
		}
	}
	slices.Sort(all)
	return all
}

func (f *fleet) add(s *discoveryv1.EndpointSlice) {
	f.t.Helper()
	f.rv++
	s.ResourceVersion = strconv.FormatUint(f.rv, 10)
	if err := f.Add(s); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) remove(s *discoveryv1.EndpointSlice) {
	f.t.Helper()
	f.rv++
	s = s.DeepCopy()
	s.ResourceVersion = strconv.FormatUint(f.rv, 10)
	if err := f.Delete(s); err != nil {
		f.t.Fatal(err)
	}
}

func TestASmallClusterIsShownWholeAndSharesItsObjects(t *testing.T) {
	f := newFleet(t, sliceOf("web", "web-1", 900, 0, 40), sliceOf("api", "api-1", 901, 100, 3))
	f.add(sliceOf("web", "web-2", 0, 40, 40))
	var first []*watches.Object
	for _, cell := range f.cells {
		if n := len(f.addresses(cell, "web")); n != 80 {
			t.Fatalf("a cell is shown %d endpoints of 80", n)
		}
		objects, rv, _ := f.seen[cell].Snapshot()
		if rv != 1001<<subBits {
			t.Fatalf("version %d: it is not the API server's", rv)
		}
		if first == nil {
			first = objects
		}
		if !slices.Equal(first, objects) {
			t.Fatal("what is the same for two cells is stored, and encoded, twice")
		}
	}
}

func TestOfALargeServiceEveryCellIsShownItsShareAndAllTogetherAll(t *testing.T) {
	const n = 6000
	var all []any
	for i := 0; i < n; i += 100 {
		all = append(all, sliceOf("big", fmt.Sprintf("big-%d", i), uint64(i/100+1), i, 100))
	}
	all = append(all, sliceOf("small", "small-1", 999, n, 2))
	f := newFleet(t, all...)
	limit := caps[f.level]
	times := map[string]int{}
	for _, cell := range f.cells {
		shown := f.addresses(cell, "big")
		if len(shown) != limit {
			t.Fatalf("a cell is shown %d endpoints, want %d", len(shown), limit)
		}
		if len(slices.Compact(shown)) != limit {
			t.Fatal("an endpoint is shown twice")
		}
		for _, a := range shown {
			times[a]++
		}
		if got := len(f.addresses(cell, "small")); got != 2 {
			t.Fatalf("a cell is shown %d endpoints of a small Service of 2", got)
		}
	}
	// All are in use, and about equally often: with a cap of 512 the distance that
	// a view reaches varies by 1/√512.
	mean, worst := float64(len(f.cells)*limit)/n, 0.0
	for _, c := range times {
		worst = max(worst, math.Abs(float64(c)-mean)/mean)
	}
	if len(times) != n || worst > 0.4 {
		t.Errorf("%d of %d endpoints are in use; one of them %.0f %% off the mean of %.1f cells", len(times), n, 100*worst, mean)
	}
}

func TestTheBudgetHoldsOverManyServices(t *testing.T) {
	var all []any
	for i := range 100 {
		all = append(all, sliceOf(fmt.Sprintf("s%d", i), fmt.Sprintf("s%d-1", i), uint64(i+1), i*100, 50))
	}
	f := newFleet(t, all...)
	for _, cell := range f.cells {
		sum := 0
		for i := range 100 {
			n := len(f.addresses(cell, fmt.Sprintf("s%d", i)))
			if n < minShown {
				t.Fatalf("%d endpoints of a Service, never fewer than %d", n, minShown)
			}
			sum += n
		}
		if sum > endpointBudget {
			t.Fatalf("%d endpoints, the budget is %d", sum, endpointBudget)
		}
	}
}

func TestAnEndpointThatComesOrGoesChangesFewViewsAndEachByOne(t *testing.T) {
	var all []any
	for i := 0; i < 20000; i += 100 {
		all = append(all, sliceOf("big", fmt.Sprintf("big-%d", i), uint64(i/100+1), i, 100))
	}
	f := newFleet(t, all...)
	before, at := map[string][]string{}, map[string]uint64{}
	for _, cell := range f.cells {
		before[cell] = f.addresses(cell, "big")
		_, _, at[cell] = f.seen[cell].Snapshot()
	}
	changed := sliceOf("big", "big-0", 0, 0, 100)
	no := false
	changed.Endpoints[5].Conditions.Ready = &no
	f.add(changed)
	views, told := 0, 0
	for _, cell := range f.cells {
		if events, _, _, _ := f.seen[cell].Since(at[cell]); len(events) > 0 {
			told++
		}
		now := f.addresses(cell, "big")
		if slices.Contains(now, "10.0.0.5") {
			t.Fatal("an endpoint that is not ready is shown")
		}
		gone := 0
		for _, a := range before[cell] {
			if !slices.Contains(now, a) {
				gone++
			}
		}
		if len(now) != len(before[cell]) || gone > 1 {
			t.Fatalf("%d endpoints of a view are others, %d were %d", gone, len(now), len(before[cell]))
		}
		views += gone
	}
	// 128 views of 512 reach 3.3 of 20,000 endpoints each.
	if views == 0 || views > 10 || told != views {
		t.Errorf("%d views changed, the watchers of %d were told something", views, told)
	}
}

// Watchers are told every change: what they have put together is what a list says.
func TestAWatchOfAViewEndsWhereAListDoes(t *testing.T) {
	var all []any
	for i := 0; i < 2000; i += 100 {
		all = append(all, sliceOf("big", fmt.Sprintf("big-%d", i), uint64(i/100+1), i, 100))
	}
	f := newFleet(t, all...)
	cell := f.cells[3]
	c := f.seen[cell]
	have := map[string]uint64{}
	objects, rv, next := c.Snapshot()
	list := func() {
		have = map[string]uint64{}
		for _, o := range objects {
			have[o.GetName()] = o.RV
		}
	}
	list()
	follow := func() {
		events, _, _, ok := c.Since(next)
		if !ok {
			objects, rv, next = c.Snapshot()
			list()
			return
		}
		for _, e := range events {
			next++
			if e.Object.RV < rv {
				t.Fatalf("version %d after %d", e.Object.RV, rv)
			}
			rv = e.Object.RV
			if e.Kind == watch.Deleted {
				delete(have, e.Object.GetName())
			} else {
				if have[e.Object.GetName()] == e.Object.RV {
					t.Fatalf("%s is another one under the same version", e.Object.GetName())
				}
				have[e.Object.GetName()] = e.Object.RV
			}
		}
	}
	steps := []func(){
		func() { f.add(sliceOf("big", "big-100", 0, 100, 60)) },
		func() { f.add(sliceOf("big", "more", 0, 5000, 100)) },
		func() { f.remove(sliceOf("big", "big-200", 0, 200, 100)) },
		func() { f.prefer("shop/big", true) },
		func() { f.add(sliceOf("other", "other-1", 0, 9000, 10)) },
		func() { f.UpdateResourceVersion("5000"); f.rv = 5000 },
		func() { // small enough to be shown whole
			for i := 300; i < 2000; i += 100 {
				f.remove(sliceOf("big", fmt.Sprintf("big-%d", i), 0, i, 100))
				follow()
			}
		},
		func() { f.remove(sliceOf("big", "more", 0, 5000, 100)) },
		func() { f.add(sliceOf("big", "big-0", 0, 0, 99)) },
		func() { f.remove(sliceOf("other", "other-1", 0, 9000, 10)) },
	}
	for i, step := range steps {
		step()
		follow()
		now, version, _ := c.Snapshot()
		want := map[string]uint64{}
		for _, o := range now {
			want[o.GetName()] = o.RV
			if o.RV > version {
				t.Fatalf("step %d: %s has version %d, the list %d", i, o.GetName(), o.RV, version)
			}
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			t.Fatalf("step %d: the watcher has %v, a list %v", i, have, want)
		}
	}
	if got := len(f.addresses(cell, "big")); got != 99+60 {
		t.Errorf("%d endpoints in the end", got)
	}
}

func TestAServiceWithALocalPolicyIsShownTheNodesOwn(t *testing.T) {
	var all []any
	for i := 0; i < 5000; i += 100 {
		all = append(all, sliceOf("big", fmt.Sprintf("big-%d", i), uint64(i/100+1), i, 100))
	}
	here := sliceOf("big", "here", 998, 9000, 3)
	name := nodeName
	for i := range here.Endpoints {
		here.Endpoints[i].NodeName = &name
	}
	f := newFleet(t, append(all, here)...)
	policy := corev1.ServiceInternalTrafficPolicyLocal
	f.serviceSeen(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "big"}, Spec: corev1.ServiceSpec{InternalTrafficPolicy: &policy},
	})
	for _, cell := range f.cells {
		shown := f.addresses(cell, "big")
		for _, e := range here.Endpoints {
			if !slices.Contains(shown, e.Addresses[0]) {
				t.Fatalf("%s is on the node and not shown", e.Addresses[0])
			}
		}
		if len(shown) != caps[f.level] {
			t.Fatalf("%d endpoints", len(shown))
		}
	}
}

func TestEndpointsThatServeWhileTheyEndAreShownWhenNoneIsReady(t *testing.T) {
	var all []any
	yes, no := true, false
	for i := 0; i < 2000; i += 100 {
		s := sliceOf("big", fmt.Sprintf("big-%d", i), uint64(i/100+1), i, 100)
		for j := range s.Endpoints {
			s.Endpoints[j].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		}
		all = append(all, s)
	}
	f := newFleet(t, all...)
	if got := len(f.addresses(f.cells[0], "big")); got != caps[f.level] {
		t.Errorf("%d of them are shown", got)
	}
}

func TestSlicesThatNoCellUsesAreNotShown(t *testing.T) {
	six := sliceOf("web", "six", 3, 0, 3)
	six.AddressType = discoveryv1.AddressTypeIPv6
	f := newFleet(t, six, sliceOf("", "nobody's", 4, 10, 3), sliceOf("web", "four", 5, 20, 3))
	objects, _, _ := f.seen[f.cells[0]].Snapshot()
	if len(objects) != 1 || objects[0].GetName() != "four" {
		t.Errorf("%d slices are shown", len(objects))
	}
}

func TestSlicesOfIPv6AreShownWhereCellsHaveIt(t *testing.T) {
	six := sliceOf("web", "six", 3, 0, 3)
	six.AddressType = discoveryv1.AddressTypeIPv6
	f := newFleet(t)
	f.ipv6 = true
	if err := f.Replace([]any{six, sliceOf("web", "four", 5, 20, 3)}, "2000"); err != nil {
		t.Fatal(err)
	}
	if objects, _, _ := f.seen[f.cells[0]].Snapshot(); len(objects) != 2 {
		t.Errorf("%d slices are shown", len(objects))
	}
}

func TestAPartOfAServiceHasEndpointsOfBothFamilies(t *testing.T) {
	f := newFleet(t)
	f.ipv6 = true
	var all []any
	for i := 0; i < 4000; i += 100 {
		four, six := sliceOf("web", fmt.Sprintf("four-%d", i), uint64(i+1), i, 100), sliceOf("web", fmt.Sprintf("six-%d", i), uint64(i+2), i, 100)
		six.AddressType = discoveryv1.AddressTypeIPv6
		for j := range six.Endpoints {
			six.Endpoints[j].Addresses = []string{fmt.Sprintf("fd00::%x", i+j)}
		}
		all = append(all, four, six)
	}
	if err := f.Replace(all, "9000"); err != nil {
		t.Fatal(err)
	}
	node := nodeName
	here := all[1].(*discoveryv1.EndpointSlice).DeepCopy() // of IPv6
	here.ResourceVersion = "9001"
	for j := range here.Endpoints[:4] {
		here.Endpoints[j].NodeName = &node
	}
	if err := f.Update(here); err != nil {
		t.Fatal(err)
	}
	f.prefer(watches.Key(here.Namespace, "web"), true)
	for _, cell := range f.cells {
		objects, _, _ := f.seen[cell].Snapshot()
		count := map[discoveryv1.AddressType]int{}
		local := 0
		for _, o := range objects {
			s := o.APIObject.(*discoveryv1.EndpointSlice)
			count[s.AddressType] += len(s.Endpoints)
			for _, e := range s.Endpoints {
				if s.AddressType == discoveryv1.AddressTypeIPv6 && e.NodeName != nil && *e.NodeName == nodeName {
					local++
				}
			}
		}
		if want := caps[f.level]; count[discoveryv1.AddressTypeIPv4] != want || count[discoveryv1.AddressTypeIPv6] != want {
			t.Fatalf("cell %s sees %v endpoints, want %d of each family", cell, count, want)
		}
		if local < 4 {
			t.Fatalf("cell %s sees %d of the IPv6 endpoints on its own node", cell, local)
		}
	}
}

func TestAnotherProcessDoesNotGoOnWithAPartOfThisOne(t *testing.T) {
	var all []any
	for i := 0; i < 2000; i += 100 {
		all = append(all, sliceOf("big", fmt.Sprintf("big-%d", i), uint64(i/100+1), i, 100))
	}
	copies := func() (c []any) {
		for _, o := range all {
			c = append(c, o.(*discoveryv1.EndpointSlice).DeepCopy())
		}
		return c
	}
	f := newFleet(t, copies()...)
	g := newFleet(t)
	g.endpoints = newEndpoints(f.kind, nodeName, false, 8)
	_, was, _ := f.seen[f.cells[0]].Snapshot()
	c := g.endpoints.acquire(f.cells[0])
	if err := g.endpoints.Replace(copies(), "1000"); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Seek(was); ok {
		t.Error("a watch goes on from a version of another process, which may have shown other endpoints")
	}
}

func TestCellsThatGoLeaveNoViewBehind(t *testing.T) {
	f := newFleet(t, sliceOf("web", "web-1", 900, 0, 4))
	for _, cell := range f.cells {
		f.release(cell)
	}
	if len(f.endpoints.views) != 0 {
		t.Errorf("%d views are left", len(f.endpoints.views))
	}
}

// BenchmarkEndpointChange is the cost to Kip of one change of an EndpointSlice with
// cells in every view, however many those are.
func BenchmarkEndpointChange(b *testing.B) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		name            string
		services, slice int // Services, and slices of 100 each
	}{
		{"one Service of 100", 1, 1}, {"one Service of 100,000", 1, 1000}, {"1,000 Services of 100", 1000, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			var all []any
			for s := range c.services {
				for i := range c.slice {
					all = append(all, sliceOf(fmt.Sprintf("s%d", s), fmt.Sprintf("s%d-%d", s, i), uint64(len(all)+1), len(all)*100, 100))
				}
			}
			f := newFleet(b, all...)
			no := false
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s := sliceOf("s0", "s0-0", 0, 0, 100)
				s.Endpoints[i%100].Conditions.Ready = &no
				f.add(s)
			}
		})
	}
}
