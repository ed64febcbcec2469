package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"
)

// modelCells is what package cells promises, without machines.
type modelCells struct {
	mu           sync.Mutex
	cells        map[types.UID]cells.Cell
	requests     []string
	disks        []cells.Disk   // of the last request
	plugins      []cells.Plugin // likewise
	gpus         int64
	accelerators map[corev1.ResourceName]int64
	refuse       error // of a request
	released     []string
	behind       string // what Behind says
	unsure       bool   // and that it is not sure
	other        string // what may run a pod besides
	asked        []bool // whether each that EndElsewhere was asked of arrived
	arrived      []bool // whether each that was requested for did
	holds        bool   // the end of those that vanish
	beyond       string // the type that a budget does not allow
}

func (*modelCells) Observe(cells.Observer) {}

func (m *modelCells) Behind() (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.behind, !m.unsure
}

func (m *modelCells) EndElsewhere(_ types.UID, _ time.Time, arrived bool) (string, bool) {
	m.asked = append(m.asked, arrived)
	why, sure := m.Behind()
	return cmp.Or(why, m.other), sure
}

func (m *modelCells) Request(_ context.Context, r cells.Request) (cells.Cell, error) {
	pod, attempt, offerings := r.Pod, r.Attempt, r.Offerings
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.cells[pod.UID]; has {
		return cells.Cell{}, cells.ErrHasCell
	}
	if m.refuse != nil {
		return cells.Cell{}, m.refuse
	}
	first := offerings[0]
	offerings = slices.DeleteFunc(slices.Clone(offerings), func(o offering.Offering) bool { return o.InstanceType == m.beyond })
	if len(offerings) == 0 {
		return cells.Cell{}, &cells.BudgetError{Offering: first}
	}
	m.disks, m.plugins, m.gpus, m.accelerators = r.Disks, r.Plugins, r.GPUs, r.Accelerators
	m.arrived = append(m.arrived, r.Arrived)
	cell := cells.Cell{
		ID:        fmt.Sprintf("cell-%d", len(m.requests)),
		Pod:       pod,
		Phase:     apiv1.Requested,
		Attempt:   attempt,
		Offerings: offerings,
	}
	m.cells[pod.UID] = cell
	m.requests = append(m.requests, fmt.Sprintf("%s#%d", pod.UID, attempt))
	return cell, nil
}

func (m *modelCells) Release(uid types.UID, _ string, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.cells[uid]; has {
		m.released = append(m.released, fmt.Sprintf("%s ended=%t", uid, ended))
	}
}

func (m *modelCells) ReleaseVanished(_ context.Context, uid types.UID, _ string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, has := m.cells[uid]
	if has {
		m.released = append(m.released, string(uid)+" vanished")
	}
	return !m.holds
}

func (m *modelCells) ReleaseUnbound(uid types.UID, _ string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	cell, has := m.cells[uid]
	if has && cell.Phase == apiv1.Bound {
		return false
	}
	if has {
		m.released = append(m.released, string(uid)+" unbound")
	}
	return true
}

func (m *modelCells) ForPod(uid types.UID) (cells.Cell, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cell, ok := m.cells[uid]
	return cell, ok
}

func (m *modelCells) PodsNamed(name cache.ObjectName) (uids []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, cell := range m.cells {
		if cell.Pod.Namespace == name.Namespace && cell.Pod.Name == name.Name {
			uids = append(uids, uid)
		}
	}
	return uids
}

func (m *modelCells) List() (list []cells.Cell) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, cell := range m.cells {
		list = append(list, cell)
	}
	return list
}

func (m *modelCells) set(uid types.UID, change func(*cells.Cell)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cell := m.cells[uid]
	change(&cell)
	m.cells[uid] = cell
}

func (m *modelCells) gone(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.cells, uid)
}

// harness runs reconcile by hand: no goroutine, no real clock.
type harness struct {
	unlisted bool // the pods are not known yet
	*testing.T
	c         *Controller
	cells     *modelCells
	client    *fake.Clientset
	clock     *testclock.FakeClock
	informer  cache.SharedIndexInformer
	events    []string
	messages  []string // of these
	forgotten []types.UID
	place     func(*corev1.Pod) ([]cells.Offering, error)
	zone      string // that was asked for last
	placed    *corev1.Pod
	needs     volumes.Needs
	volumeErr error
	forbidden error // why pods are not evicted
	// What the nodes say; nil for that their pods are listed, and for nothing.
	isListed  func(node string) bool
	elsewhere func(context.Context, *corev1.Pod) []string
	turnsAway func(context.Context, *corev1.Pod) bool
}

// The harness is all that the loop asks and tells, but the cells.
var (
	_ Nodes          = (*harness)(nil)
	_ Volumes        = (*harness)(nil)
	_ Observer       = (*harness)(nil)
	_ cells.Recorder = (*harness)(nil)
)

func (h *harness) Listed(node string) bool { return h.isListed == nil || h.isListed(node) }

func (h *harness) Client(string) kubernetes.Interface { return h.client }

func (h *harness) Elsewhere(ctx context.Context, pod *corev1.Pod) []string {
	if h.elsewhere == nil {
		return nil
	}
	return h.elsewhere(ctx, pod)
}

func (h *harness) TurnsAway(ctx context.Context, pod *corev1.Pod) bool { return h.turnsAway(ctx, pod) }

func (h *harness) Choose(_ context.Context, p *corev1.Pod, zone string) (chosen placement.Chosen, err error) {
	h.zone, h.placed = zone, p
	chosen.Offerings, err = h.place(p)
	return chosen, err
}

func (h *harness) Needs(context.Context, *corev1.Pod) (volumes.Needs, error) {
	return h.needs, h.volumeErr
}

func (h *harness) Event(_ apiv1.PodReference, e events.Event) {
	h.events, h.messages = append(h.events, e.Type+" "+e.Reason), append(h.messages, e.Message)
}

func (h *harness) PodRunning(cells.Cell, time.Time) {}

func (h *harness) PodGone(uid types.UID) { h.forgotten = append(h.forgotten, uid) }

// leads is a Leadership that a function answers for.
type leads func(context.Context) error

func (f leads) Leads(ctx context.Context) error { return f(ctx) }

func newHarness(t *testing.T) *harness {
	h := &harness{
		T:      t,
		cells:  &modelCells{cells: map[types.UID]cells.Cell{}},
		client: fake.NewClientset(),
		clock:  testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		place: func(*corev1.Pod) ([]cells.Offering, error) {
			return []cells.Offering{{InstanceType: "nano", Zone: "local", Reason: "cheapest"}}, nil
		},
	}
	h.informer = cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)
	c, err := New(Config{
		Pods:     listed{h.informer, h},
		Nodes:    h,
		Cells:    h.cells,
		Volumes:  h,
		Events:   h,
		Observer: h,
		Clock:    h.clock,
		Random:   func() float64 { return 1 }, // no jitter
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.queue.ShutDown) // which Run would do
	h.c = c
	return h
}

// listed are the pods of a harness, which knows them from the start unless it says
// otherwise.
type listed struct {
	cache.SharedIndexInformer
	h *harness
}

func (l listed) HasSynced() bool { return !l.h.unlisted }

func (h *harness) put(pod *corev1.Pod) {
	h.Helper()
	if err := h.informer.GetStore().Add(pod); err != nil {
		h.Fatal(err)
	}
	err := h.client.Tracker().Add(pod)
	if apierrors.IsAlreadyExists(err) {
		err = h.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace)
	}
	if err != nil {
		h.Fatal(err)
	}
}

// vanish has neither the watch nor the API server know a pod.
func (h *harness) vanish(pod *corev1.Pod) {
	h.Helper()
	if err := h.informer.GetStore().Delete(pod); err != nil {
		h.Fatal(err)
	}
	if err := h.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) reconcile(name string) (time.Duration, error) {
	return h.c.reconcile(h.Context(), cache.ObjectName{Namespace: "ns", Name: name})
}

func (h *harness) must(name string) time.Duration {
	h.Helper()
	again, err := h.reconcile(name)
	if err != nil {
		h.Fatal(err)
	}
	return again
}

func (h *harness) exists(name string) bool {
	h.Helper()
	_, err := h.client.CoreV1().Pods("ns").Get(h.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		h.Fatal(err)
	}
	return err == nil
}

func (h *harness) want(what string, got []string, want ...string) {
	h.Helper()
	if !slices.Equal(got, want) {
		h.Fatalf("%s: %q, want %q", what, got, want)
	}
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName:      "kip-0",
			RestartPolicy: corev1.RestartPolicyAlways,
			Containers:    []corev1.Container{{Name: "c"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func deletedAt(t time.Time) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		d := metav1.NewTime(t)
		p.DeletionTimestamp, p.Finalizers = &d, []string{"test/keep"}
	}
}

func running(p *corev1.Pod) {
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name:        "c",
		Ready:       true,
		ContainerID: "containerd://x",
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
}

func TestAPodGetsOneCellHoweverOftenItIsLookedAt(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	for range 3 {
		h.must("a")
	}
	h.want("requests", h.cells.requests, "uid-a#1")
	h.want("events", h.events, "Normal CellRequested")
}

// afterTwoCells returns what has become of a pod that may have two cells in a row which do not
// become ready, when two are gone: as end says.
func afterTwoCells(t *testing.T, end func(*cells.Cell)) corev1.PodStatus {
	t.Helper()
	h := newHarness(t)
	h.c.cfg.MaxAttempts = 2
	h.put(pod("a"))
	for range 2 {
		h.must("a")
		cell, has := h.cells.ForPod("uid-a")
		if !has {
			t.Fatal("no cell")
		}
		cell.Phase = apiv1.Gone
		end(&cell)
		delete(h.cells.cells, "uid-a")
		h.c.CellChanged(cell)
		h.clock.Step(time.Hour)
	}
	h.must("a")
	got, err := h.client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status
}

// What the pod itself asks for is refused again and again; that there is no capacity ends.
func TestAPodThatTheCloudRefusesFailsAfterItsAttempts(t *testing.T) {
	for refusals, want := range map[int]corev1.PodPhase{0: corev1.PodPending, 2: corev1.PodFailed} {
		got := afterTwoCells(t, func(c *cells.Cell) {
			c.Cause, c.Refusals, c.Reason = cells.CauseNotLaunched, refusals, "InvalidParameterValue: words"
		})
		if told := strings.Contains(got.Message, "InvalidParameterValue: words"); got.Phase != want || told != (want == corev1.PodFailed) {
			t.Errorf("after cells with %d refusals: %+v, want %s", refusals, got, want)
		}
	}
}

// That the cloud takes instances back before they run, or gives them no disk, is no failure of the pod's.
func TestAPodWhoseInstancesTheCloudTakesBackWaitsOn(t *testing.T) {
	for cause, want := range map[cells.Cause]corev1.PodPhase{
		cells.CauseInterrupted: corev1.PodPending,
		cells.CauseUnfit:       corev1.PodPending, // the operator's fault
		cells.CauseNoDisk:      corev1.PodPending, // the cloud's, or of who has the disk
		cells.CauseLost:        corev1.PodFailed,
	} {
		got := afterTwoCells(t, func(c *cells.Cell) { c.Cause, c.Instance = cause, &cloud.Instance{ID: "i-1"} })
		if got.Phase != want {
			t.Errorf("after cells that ended as %s: %+v, want %s", cause, got, want)
		}
	}
}

func TestAPodThatFitsNothingSaysWhyOnceAndIsLookedAtAgain(t *testing.T) {
	h := newHarness(t)
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&placement.UnplaceableError{Need: "cpu 64"}, "Warning Unplaceable"},
		{errors.New("read the labels of node kip-1: no answer"), "Warning CellNotRequested"},
		{&placement.InvalidAnnotationError{}, "Warning InvalidAnnotation"},
		{&placement.NoCapacityError{}, "Warning NoCapacity"},
	} {
		name := strings.ToLower(strings.Fields(tc.want)[1])
		h.events = nil
		h.place = func(*corev1.Pod) ([]cells.Offering, error) { return nil, tc.err }
		h.put(pod(name))
		again := h.must(name)
		if again <= 0 {
			t.Errorf("%s: never looked at again", tc.want)
		}
		h.must(name) // too early
		h.clock.Step(again)
		h.must(name) // the same reason again
		h.want("events", h.events, tc.want)
		if got := h.c.Waiting(types.UID("uid-" + name)); got != tc.err.Error() {
			t.Errorf("waits for %q, want %q", got, tc.err)
		}
	}
	h.want("requests", h.cells.requests)
}

func TestAPodWhoseAnnotationIsMendedIsPlacedSoon(t *testing.T) {
	h := newHarness(t)
	looks := 0
	h.place = func(p *corev1.Pod) ([]cells.Offering, error) {
		looks++
		if p.Annotations["type"] == "bad" {
			return nil, &placement.InvalidAnnotationError{}
		}
		return []cells.Offering{{InstanceType: "nano"}}, nil
	}
	annotate := func(v string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{"type": v} }
	}
	h.put(pod("a", annotate("bad")))
	h.must("a")
	h.want("requests", h.cells.requests)
	// Whoever changes it all the time has it looked at no more often for that.
	for i := range 10 {
		h.put(pod("a", annotate("bad"), func(p *corev1.Pod) { p.Annotations["i"] = strconv.Itoa(i) }))
		h.must("a")
	}
	if looks != 1 {
		t.Errorf("looked for an instance %d times at once", looks)
	}
	h.put(pod("a", annotate("good")))
	if again := h.must("a"); again != changeSettles {
		t.Errorf("looked at again after %v, want %v", again, changeSettles)
	}
	h.clock.Step(changeSettles)
	h.must("a")
	h.want("requests", h.cells.requests, "uid-a#1")
}

func TestAnEndedPodLetsItsCellGoWithItsLogs(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		h := newHarness(t)
		h.put(pod("a"))
		h.must("a")
		h.put(pod("a", func(p *corev1.Pod) { p.Status.Phase = phase }))
		h.must("a")
		h.want("released", h.cells.released, "uid-a ended=true")
		h.cells.gone("uid-a")
		h.must("a")
		h.want("requests", h.cells.requests, "uid-a#1") // and no second cell
	}
}

func TestAnEndedPodKeepsItsCellUntilItsKubeletHasSaidHowItsContainersEnded(t *testing.T) {
	ended := func(state corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://1", State: state}}
		}
	}
	runs := ended(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	told := ended(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}})
	begin := func() *harness {
		h := newHarness(t)
		h.put(pod("a", running))
		h.must("a")
		h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
		h.put(pod("a", runs))
		if again := h.must("a"); again != lastWords {
			t.Errorf("looked at again after %v, want %v", again, lastWords)
		}
		h.want("released", h.cells.released)
		return h
	}

	h := begin()
	h.put(pod("a", told))
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=true")

	// One that never says it.
	h = begin()
	h.clock.Step(lastWords - time.Second)
	if again := h.must("a"); again != time.Second {
		t.Errorf("looked at again after %v, want a second", again)
	}
	h.want("released", h.cells.released)
	h.clock.Step(time.Second)
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=true")

	// One that cannot.
	h = begin()
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Terminating })
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=true")
}

func TestADeletedPodThatNoKubeletHasIsDeletedByKip(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.must("a")
	h.put(pod("a", deletedAt(h.clock.Now().Add(30*time.Second))))
	h.must("a")
	h.want("released", h.cells.released, "uid-a unbound")
	if h.exists("a") {
		t.Fatal("the pod is still there")
	}
}

func TestADeletedPodOnABoundCellIsLeftToItsKubeletUntilItIsOverdue(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
	h.put(pod("a", running, deletedAt(h.clock.Now().Add(30*time.Second))))
	again := h.must("a")
	h.want("released", h.cells.released)
	if !h.exists("a") {
		t.Fatal("Kip deleted a pod that a kubelet is ending")
	}
	h.clock.Step(again)
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=false")
	if !h.exists("a") {
		t.Fatal("the pod was deleted before its cell was confirmed gone")
	}
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Terminating })
	h.must("a")
	if !h.exists("a") {
		t.Fatal("the pod was deleted before its cell was confirmed gone")
	}
	h.cells.gone("uid-a")
	h.must("a")
	if h.exists("a") {
		t.Fatal("the pod is still there after its cell has gone")
	}
}

func TestADeletedPodThatHasEndedIsLeftToItsKubeletToo(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
	h.put(pod("a", deletedAt(h.clock.Now()), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	h.must("a")
	h.want("released", h.cells.released)
	if !h.exists("a") {
		t.Fatal("Kip deleted a pod that its kubelet is about to delete")
	}
}

func TestANameThatIsReusedLetsTheOldCellGo(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.must("a")
	h.put(pod("a", func(p *corev1.Pod) { p.UID = "uid-new" }))
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=false")
	h.want("requests", h.cells.requests, "uid-a#1", "uid-new#1")
}

func TestALostCellIsReplacedAsTheRestartPolicyAllows(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.gone("uid-a")
	again := h.must("a")
	if again <= 0 {
		t.Fatal("a second cell at once: no back-off")
	}
	h.clock.Step(again)
	h.must("a")
	h.want("requests", h.cells.requests, "uid-a#1", "uid-a#2")

	h = newHarness(t)
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	h.put(pod("b", never))
	h.must("b")
	h.cells.gone("uid-b")
	h.put(pod("b", never, running))
	h.clock.Step(time.Minute)
	h.must("b")
	h.want("requests", h.cells.requests, "uid-b#1")
	got, err := h.client.CoreV1().Pods("ns").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := got.Status
	if s.Phase != corev1.PodFailed || s.Reason != "CellLost" ||
		s.ContainerStatuses[0].State.Terminated == nil || s.ContainerStatuses[0].Ready {
		t.Fatalf("status %+v, want Failed with a terminated container", s)
	}
}

// The watch may lag behind what the lost cell's kubelet wrote.
func TestAPodOfALostCellRunsAgainOnlyIfTheAPIServerKnowsOfNoEnd(t *testing.T) {
	for what, now := range map[string]*corev1.Pod{
		"it has ended":      pod("a", running, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		"it is deleted":     pod("a", running, deletedAt(time.Now())),
		"it is another one": pod("a", running, func(p *corev1.Pod) { p.UID = "uid-other" }),
		"it is gone":        nil,
	} {
		h := newHarness(t)
		seen := pod("a", running)
		h.put(seen)
		var err error
		if now == nil {
			err = h.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "a")
		} else {
			err = h.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), now, "ns")
		}
		if err != nil {
			t.Fatal(err)
		}
		if again := h.must("a"); again != staleRetry || len(h.cells.requests) > 0 {
			t.Errorf("%s: requests %q, again after %s, want none and %s", what, h.cells.requests, again, staleRetry)
		}
		h.put(seen)
		h.must("a")
		h.want(what+" no longer: requests", h.cells.requests, "uid-a#1")
	}

	h := newHarness(t)
	h.put(pod("a", running))
	h.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	if _, err := h.reconcile("a"); err == nil || len(h.cells.requests) > 0 {
		t.Errorf("%v, requests %q: want an error and none", err, h.cells.requests)
	}
	h.want("events", h.events, "Warning CellNotRequested")
}

func TestAPodThatIsDeletedWhileNobodyWatchesIsForgotten(t *testing.T) {
	h := newHarness(t)
	h.place = func(*corev1.Pod) ([]cells.Offering, error) { return nil, errors.New("no") }
	p := pod("a")
	h.put(p)
	h.must("a")
	if len(h.c.pods) != 1 {
		t.Fatalf("%d pods are known, so nothing can be forgotten", len(h.c.pods))
	}
	h.c.deleted(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: p}) // as the informer tells it, after a list
	if len(h.c.pods) != 0 || !slices.Equal(h.forgotten, []types.UID{p.UID}) {
		t.Fatalf("still known: %v; forgotten: %v", h.c.pods, h.forgotten)
	}
	if name, _ := h.c.queue.Get(); name != (cache.ObjectName{Namespace: "ns", Name: "a"}) {
		t.Fatalf("%s is looked at, want the pod, whose cell is to be let go", name)
	}
}

func TestAPodThatNobodySawDeletedIsLetGoAsOneThatMayBeThere(t *testing.T) {
	unseen := func(p *corev1.Pod) any { return cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: p} }
	seen := func(p *corev1.Pod) any { return p }
	for _, test := range []struct {
		what   string
		event  func(*corev1.Pod) any
		change func(*corev1.Pod)
		want   string
	}{
		{"it is not in a list, nor was it at the start", nil, running, "uid-a vanished"},
		{"it is not in a list", unseen, running, "uid-a vanished"},
		{"it is not in a list, and was being deleted", unseen, deletedAt(time.Unix(1, 0)), "uid-a ended=false"},
		{"it is deleted by force", seen, running, "uid-a ended=false"},
	} {
		h := newHarness(t)
		p := pod("a", running)
		h.put(p)
		h.must("a")
		h.cells.set(p.UID, func(c *cells.Cell) { c.Phase = apiv1.Bound })
		h.cells.holds = true
		p = pod("a", test.change)
		h.vanish(p)
		if test.event != nil {
			h.c.deleted(test.event(p))
		}
		h.must("a")
		if !slices.Equal(h.cells.released, []string{test.want}) {
			t.Errorf("%s: %v, want %s", test.what, h.cells.released, test.want)
		}
		cell, _ := h.cells.ForPod(p.UID)
		cell.Phase = apiv1.Gone
		if h.c.CellChanged(cell); len(h.c.gone) != 0 {
			t.Errorf("%s: %v is kept for ever", test.what, h.c.gone)
		}
	}
}

// The watch, or the cache of the API server that it is of, may lack a pod that exists.
func TestAPodThatTheAPIServerHasIsNotLetGo(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase, c.Node = apiv1.Bound, "kip-0" })
	if err := h.informer.GetStore().Delete(pod("a")); err != nil {
		t.Fatal(err)
	}
	if again := h.must("a"); again != vanishedRetry || len(h.cells.released) > 0 {
		t.Errorf("released %v, and looked at again after %s: want no release, and a look after %s", h.cells.released, again, vanishedRetry)
	}
	for _, refusal := range []error{
		errors.New("the API server is down"),
		apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("not yet authorised")),
	} {
		h.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
		if again := h.must("a"); again != vanishedRetry || len(h.cells.released) > 0 {
			t.Errorf("while nobody can tell (%v): released %v, and looked at again after %s", refusal, h.cells.released, again)
		}
		h.client.ReactionChain = h.client.ReactionChain[1:]
	}
	h.vanish(pod("a"))
	h.must("a")
	h.want("released", h.cells.released, "uid-a vanished")
}

// Who may never look leaves it to the guard, who holds back more than a few ends.
func TestALookForAPodThatStaysForbiddenKeepsNoCellForEver(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase, c.Node = apiv1.Bound, "kip-0" })
	h.vanish(pod("a"))
	h.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("not here"))
	})
	for began := h.clock.Now(); h.clock.Since(began) < forbiddenFor; h.clock.Step(vanishedRetry) {
		if h.must("a"); len(h.cells.released) > 0 {
			t.Fatalf("released after %s, want %s", h.clock.Since(began), forbiddenFor)
		}
	}
	h.must("a")
	h.want("released", h.cells.released, "uid-a vanished")
}

func TestWhoIsNotLetGoIsLookedAtAgainSoonUntilTheCloudHasListed(t *testing.T) {
	for _, test := range []struct {
		unsure, holds bool
		want          time.Duration
	}{{false, true, vanishedRetry}, {true, true, staleRetry}, {false, false, 0}} {
		h := newHarness(t)
		h.put(pod("a", running))
		h.must("a")
		h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
		h.cells.holds, h.cells.unsure = test.holds, test.unsure
		h.vanish(pod("a"))
		if again := h.must("a"); again != test.want {
			t.Errorf("%+v: again in %s", test, again)
		}
	}
}

func TestWhatIsToldBeforeThePodsAreListedIsKeptOfThoseThatAreThere(t *testing.T) {
	h := newHarness(t)
	h.unlisted = true
	there, gone := pod("a", running), pod("b", running)
	at := h.clock.Now().Add(2 * time.Minute)
	for _, p := range []*corev1.Pod{there, gone} {
		h.c.CellInterrupted(cells.Cell{ID: "cell-" + p.Name, Pod: apiv1.Ref(p), Phase: apiv1.Bound, Interrupted: at})
	}
	h.put(there)
	h.unlisted = false
	h.c.forgetUnlisted()
	if w := h.c.pods[there.UID]; w == nil || !w.interrupted.Equal(at) || len(h.c.pods) != 1 {
		t.Errorf("known: %+v, want what was told of %s alone", h.c.pods, there.Name)
	}
}

func TestTheGracePeriodIsCountedByOneClock(t *testing.T) {
	for _, ahead := range []time.Duration{-2 * time.Minute, 0, 2 * time.Minute} {
		h := newHarness(t)
		h.put(pod("a", running))
		h.must("a")
		h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
		// The API server's clock is ahead of Kip's, or behind it.
		deleted := func(grace int64) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				deletedAt(h.clock.Now().Add(ahead + time.Duration(grace)*time.Second))(p)
				p.DeletionGracePeriodSeconds = &grace
			}
		}
		h.put(pod("a", running, deleted(100)))
		if again := h.must("a"); again != 100*time.Second+overdue {
			t.Errorf("a clock that is %s ahead: it is looked at again in %s", ahead, again)
		}
		h.clock.Step(40 * time.Second)
		if again := h.must("a"); again != 60*time.Second+overdue {
			t.Errorf("a clock that is %s ahead: 40 s later it is looked at again in %s", ahead, again)
		}
		h.put(pod("a", running, deleted(10))) // and again, with less grace
		if again := h.must("a"); again != 10*time.Second+overdue {
			t.Errorf("a clock that is %s ahead: of a shorter grace period it has left %s", ahead, again-overdue)
		}
		h.clock.Step(10*time.Second + overdue)
		h.want("released", h.cells.released)
		h.must("a")
		h.want("released", h.cells.released, "uid-a ended=false")
	}
}

func TestNothingIsKeptOfAPodThatGoesWhileItIsLookedAt(t *testing.T) {
	h := newHarness(t)
	p := pod("a")
	h.place = func(*corev1.Pod) ([]cells.Offering, error) {
		// It is deleted just now.
		if err := h.informer.GetStore().Delete(p); err != nil {
			t.Fatal(err)
		}
		h.c.forget(p.UID)
		return nil, errors.New("no")
	}
	h.put(p)
	h.must("a")
	h.c.CellChanged(cells.Cell{ID: "cell-a", Pod: apiv1.Ref(p), Phase: apiv1.Gone})
	h.c.CellSilent(cells.Cell{ID: "cell-a", Pod: apiv1.Ref(p)}, time.Time{})
	if len(h.c.pods) != 0 {
		t.Fatalf("still known: %v", h.c.pods)
	}
}

// interrupted is a running pod on a cell that the cloud takes back in two minutes.
func interrupted(h *harness) *corev1.Pod {
	p := pod("a", running, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "job", Controller: new(true)}}
	})
	h.put(p)
	h.must("a")
	h.cells.set(p.UID, func(c *cells.Cell) { c.Phase, c.Interrupted = apiv1.Bound, h.clock.Now().Add(2*time.Minute) })
	cell, _ := h.cells.ForPod(p.UID)
	h.c.CellInterrupted(cell)
	h.events = nil
	return p
}

// The budget of a pod that was ready until now does not know that it is not.
func TestAPodThatFallsSilentIsNotEvictedAtOnce(t *testing.T) {
	h := newHarness(t)
	tried := 0
	h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		tried++
		return true, nil, nil
	})
	p := interrupted(h)
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	h.put(p)
	cell, _ := h.cells.ForPod(p.UID)
	h.c.CellSilent(cell, time.Time{})
	if again := h.must("a"); tried != 0 || again != evictionRetry {
		t.Fatalf("%d evictions, and another look in %s: want none before %s", tried, again, evictionRetry)
	}
	if h.must("a"); tried != 0 { // what was marked is told by the watch
		t.Fatalf("%d evictions when the pod is seen as not ready: want none before %s", tried, evictionRetry)
	}
	h.clock.Step(evictionRetry)
	h.must("a")
	if tried != 1 {
		t.Errorf("%d evictions when its budget has had time: want 1", tried)
	}
}

func TestAnEvictionThatABudgetForbidsIsTriedAgainAndToldOnce(t *testing.T) {
	h := newHarness(t)
	tried, forbidden := 0, 2
	h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		if tried++; tried <= forbidden {
			return true, nil, apierrors.NewTooManyRequests("a disruption budget", 0)
		}
		return true, nil, nil
	})
	interrupted(h)
	for n := range forbidden {
		again := h.must("a")
		if again <= 0 || again >= 2*time.Minute {
			t.Fatalf("after refusal %d it is tried again in %s: want a time within the notice", n+1, again)
		}
		h.clock.Step(again)
	}
	h.want("events", h.events, "Warning EvictionBlocked")
	if again := h.must("a"); again != 0 || tried != forbidden+1 {
		t.Fatalf("%d evictions, and another in %s: want %d and no other", tried, again, forbidden+1)
	}
	h.want("events", h.events, "Warning EvictionBlocked", "Normal Evicted")
}

func TestAPodIsEvictedWithTheGraceThatTheNoticeLeaves(t *testing.T) {
	for left, want := range map[time.Duration]int64{2 * time.Minute: 30, 20 * time.Second: 15, 3 * time.Second: 1} {
		h := newHarness(t)
		var got []int64
		h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			e, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
			if !ok {
				return false, nil, nil
			}
			if p := e.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != "uid-a" {
				t.Errorf("the eviction is of %+v: want this pod only", p)
			}
			got = append(got, *e.DeleteOptions.GracePeriodSeconds)
			return true, nil, nil
		})
		interrupted(h)
		h.clock.Step(2*time.Minute - left)
		h.must("a")
		if !slices.Equal(got, []int64{want}) {
			t.Errorf("with %s left the pod was given %d s: want %d", left, got, want)
		}
	}
}

// A node whose pods are not known yet, or no longer, says nothing of them.
func TestACellStaysWhileThePodsOfItsNodeAreNotListed(t *testing.T) {
	h := newHarness(t)
	listed := map[string]bool{"kip-0": true}
	h.isListed = func(node string) bool { return listed[node] }
	for uid, node := range map[types.UID]string{"one": "kip-0", "two": "kip-0-2"} {
		h.cells.cells[uid] = cells.Cell{
			ID:    string(uid),
			Node:  node,
			Phase: apiv1.Bound,
			Pod:   apiv1.PodReference{Namespace: "ns", Name: string(uid), UID: uid},
		}
	}
	for _, c := range []struct {
		pod    string
		listed bool
		again  time.Duration
		stays  bool
	}{
		{"one", false, 0, false},
		{"two", false, staleRetry, true},
		{"two", true, 0, false},
	} {
		listed["kip-0-2"] = c.listed
		if again := h.must(c.pod); again != c.again {
			t.Errorf("pod %s, whose node's pods are listed: %t, is looked at again after %s, want %s", c.pod, c.listed, again, c.again)
		}
		if released := slices.Contains(h.cells.released, c.pod+" vanished"); released == c.stays {
			t.Errorf("the cell of pod %s, whose node's pods are listed: %t, is released: %t", c.pod, c.listed, released)
		}
	}
}
