package pods

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"
)

// modelCells is what package cells promises, without machines.
type modelCells struct {
	mu            sync.Mutex
	cells         map[types.UID]cells.Cell
	requests      []string
	disks         []cells.Disk   // of the last request
	plugins       []cells.Plugin // likewise
	gpus          int64
	accelerators  map[corev1.ResourceName]int64
	refuse        error // of a request
	released      []string
	behind        string // what Behind says
	unsure        bool   // and that it is not sure
	other         string // what may run a pod besides
	asked         []bool // whether each that EndDuplicates was asked of has no earlier cell
	noEarlierCell []bool // whether each that was requested for has none
	holds         bool   // the end of those that vanish
	beyond        string // the type that a budget does not allow
}

func (m *modelCells) Behind() (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.behind, !m.unsure
}

func (m *modelCells) EndDuplicates(_ types.UID, _ time.Time, noEarlierCell bool) (string, bool) {
	m.asked = append(m.asked, noEarlierCell)
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
	m.noEarlierCell = append(m.noEarlierCell, r.NoEarlierCell)
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

func (m *modelCells) Affords(_ context.Context, r cells.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.ContainsFunc(r.Offerings, func(o offering.Offering) bool { return o.InstanceType != m.beyond }) {
		return fmt.Errorf("afford: %w", &cells.BudgetError{Offering: r.Offerings[0]})
	}
	return nil
}

func (m *modelCells) Release(uid types.UID, _ string, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.cells[uid]; has {
		m.released = append(m.released, fmt.Sprintf("%s ended=%t", uid, ended))
	}
}

func (m *modelCells) ReleaseFailed(uid types.UID, _ string, keep time.Duration, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.cells[uid]; has {
		m.released = append(m.released, fmt.Sprintf("%s kept=%s most=%d", uid, keep, most))
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
	cfg       Config
	cells     *modelCells
	client    *fake.Clientset
	clock     *testclock.FakeClock
	informer  cache.SharedIndexInformer
	events    []string
	messages  []string // of these
	forgotten []types.UID
	place     func(*corev1.Pod) ([]offering.Offering, error)
	zone      string // that was asked for last
	placed    *corev1.Pod
	needs     volumes.Needs
	volumeErr error
	forbidden error                                // why pods are not evicted
	rank      func([]offering.Key) placement.Ranks // nil for pods that have one choice
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

func (h *harness) Rank(_ context.Context, p *corev1.Pod, _ string, keys []offering.Key) (placement.Ranks, error) {
	if h.rank == nil {
		return placement.Ranks{Of: make([]int, len(keys)), WhyNot: []error{nil}}, nil
	}
	return h.rank(keys), nil
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
		place: func(*corev1.Pod) ([]offering.Offering, error) {
			return []offering.Offering{{InstanceType: "nano", Zone: "local", Reason: "cheapest"}}, nil
		},
	}
	h.informer = cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)
	h.cfg = Config{
		Pods:     listed{h.informer, h},
		Nodes:    h,
		Cells:    h.cells,
		Volumes:  h,
		Events:   h,
		Observer: h,
		Clock:    h.clock,
		Random:   func() float64 { return 1 }, // no jitter
		Log:      slog.New(slog.DiscardHandler),
	}
	h.restarted(func(*Config) {})
	return h
}

// restarted is the next process of Kip, with another configuration.
func (h *harness) restarted(change func(*Config)) {
	h.Helper()
	change(&h.cfg)
	c, err := New(h.cfg)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(c.Close) // which Run would do
	h.c = c
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
