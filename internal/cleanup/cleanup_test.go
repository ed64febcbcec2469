package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/store"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
)

// kipWorld is what a cleaner meets: a cluster, a cloud, and cells that end some
// time after their pods.
type kipWorld struct {
	*testing.T
	kube    *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	store   *store.Store

	mu        sync.Mutex
	paused    string
	emptied   bool
	behind    string // what the cells say of their store
	cells     map[types.UID]cells.Cell
	instances map[string]cloud.Instance
	stuck     map[string]bool // instances that no call ends
	listBlind int
	listFails int
	nodeRuns  bool
	said      []string
	looks     int // at the cloud, since it is empty
	deleted   []string
}

const gracePeriod = 3 * time.Second // of every pod here

func newKipWorld(t *testing.T) *kipWorld {
	w := &kipWorld{
		T:         t,
		store:     store.Memory(nil),
		cells:     map[types.UID]cells.Cell{},
		instances: map[string]cloud.Instance{},
		stuck:     map[string]bool{},
		nodeRuns:  true,
		kube: fake.NewClientset(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0"}},
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "kip-0"}},
		),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{apiv1.Resource: "CellList"}),
	}
	// The fake API server ends a pod at once; here it takes its grace period, and
	// ends with it the cell.
	w.kube.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d := a.(clienttesting.DeleteAction)
		go func() {
			time.Sleep(gracePeriod)
			w.endPod(d.GetNamespace(), d.GetName())
		}()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.deleted = append(w.deleted, d.GetName())
		end := metav1.NewTime(time.Now().Add(gracePeriod))
		return true, nil, w.update(d.GetNamespace(), d.GetName(), func(p *corev1.Pod) { p.DeletionTimestamp = &end })
	})
	w.kube.PrependReactor("delete", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if len(a.(clienttesting.DeleteAction).GetDeleteOptions().DryRun) > 0 {
			return true, nil, nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.nodeRuns {
			t.Error("the node is deleted while its controller runs, which makes it again")
		}
		return false, nil, nil
	})
	for key, v := range map[string]any{"ca": "c", "ledger": map[string]string{}} {
		if _, err := w.store.Put(t.Context(), key, v, 0); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *kipWorld) update(namespace, name string, change func(*corev1.Pod)) error {
	obj, err := w.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), namespace, name)
	if err != nil {
		return err
	}
	p := obj.(*corev1.Pod).DeepCopy()
	change(p)
	return w.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, namespace)
}

func (w *kipWorld) endPod(namespace, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	obj, err := w.kube.Tracker().Get(pods, namespace, name)
	if err != nil {
		return
	}
	if len(obj.(*corev1.Pod).Finalizers) == 0 {
		if err := w.kube.Tracker().Delete(pods, namespace, name); err != nil {
			w.Error(err)
		}
	}
	w.endCell(obj.(*corev1.Pod).UID)
}

// endCell ends the cell of a pod and its instance. The caller holds mu.
func (w *kipWorld) endCell(uid types.UID) {
	cell, ok := w.cells[uid]
	if !ok || w.stuck[cell.Instance.ID] {
		return
	}
	delete(w.cells, uid)
	delete(w.instances, cell.Instance.ID)
}

// pod makes a pod with a cell that runs it.
func (w *kipWorld) pod(name string, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: "kip-0"},
	}
	for _, f := range change {
		f(p)
	}
	if err := w.kube.Tracker().Add(p); err != nil {
		w.Fatal(err)
	}
	w.instance("i-"+name, "cell-"+name)
	i := w.instances["i-"+name]
	w.cells[p.UID] = cells.Cell{ID: "cell-" + name, Phase: apiv1.Bound, Pod: apiv1.Ref(p), Instance: &i}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiv1.GroupVersion.String(), "kind": apiv1.Kind,
		"metadata": map[string]any{"name": "cell-" + name, "labels": map[string]any{cells.LabelController: "me"}},
	}}
	if err := w.dynamic.Tracker().Create(apiv1.Resource, object, ""); err != nil {
		w.Fatal(err)
	}
}

func (w *kipWorld) instance(id, cell string) {
	w.instances[id] = cloud.Instance{ID: id, State: cloud.Running, Tags: map[string]string{cloud.TagOwner: "me", cloud.TagCell: cell}}
}

// The parts of Kip that a cleaner works with.

func (w *kipWorld) List() (list []cells.Cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.cells {
		list = append(list, c)
	}
	return list
}

func (w *kipWorld) Behind() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.behind, true
}

func (w *kipWorld) Launched(i cloud.Instance) bool { return i.Tags["another's"] == "" }

func (w *kipWorld) EmptyPools() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.emptied = true
	w.endCell("standby")
}

func (w *kipWorld) Stop(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodeRuns = false
	return nil
}

type worldCloud struct{ *kipWorld }

func (worldCloud) Name() string                                              { return "model" }
func (worldCloud) Catalogue(context.Context) ([]catalog.InstanceType, error) { return nil, nil }
func (worldCloud) Capabilities() cloud.Capabilities                          { return cloud.Capabilities{} }
func (worldCloud) Optional() cloud.Optional                                  { return cloud.Optional{} }
func (worldCloud) Launch(context.Context, cloud.LaunchRequest) cloud.LaunchResults {
	return cloud.NotLaunched(1, errors.New("nothing may be launched"))
}
func (worldCloud) Describe(context.Context, ...string) ([]cloud.Instance, error) {
	return nil, errors.New("nobody asks")
}

func (w worldCloud) List(_ context.Context, owner string) (cloud.Listing, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if owner != "me" {
		w.Errorf("the instances of %q are listed", owner)
	}
	if w.listFails > 0 {
		w.listFails--
		return cloud.Listing{}, errors.New("the cloud is away")
	}
	if w.listBlind > 0 {
		w.listBlind--
		return cloud.Listing{Missing: []string{"zone-b"}}, nil
	}
	var list []cloud.Instance
	if w.looks++; len(w.instances) > 0 {
		w.looks = 0
	}
	for _, i := range w.instances {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b cloud.Instance) int { return strings.Compare(a.ID, b.ID) })
	return cloud.Listing{Instances: list}, nil
}

func (w worldCloud) Terminate(_ context.Context, ids ...string) cloud.Results {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if !w.stuck[id] {
			delete(w.instances, id)
		}
	}
	return cloud.Each(nil, ids...)
}

// worldDisks has one disk, and can do nothing but tell of it.
type worldDisks struct{ cloud.Disks }

func (worldDisks) ListDisks(_ context.Context, owner string) ([]cloud.Disk, error) {
	if owner != "me" {
		return nil, fmt.Errorf("the disks of %q are listed", owner)
	}
	return []cloud.Disk{{ID: "disk-1", SizeBytes: 64 << 20, Tags: map[string]string{cloud.TagName: "Kip volume me ns/data"}}}, nil
}

func TestACleanupTellsOfDisksAndLeavesThem(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		c := w.cleaner()
		c.cfg.Disks = worldDisks{} // whose deletion would be a nil pointer
		h, err := c.Clean(t.Context(), func(string) {})
		if err != nil || len(h.Left()) != 0 {
			t.Fatalf("left %q, %v: want nothing", h.Left(), err)
		}
		if want := []string{"disk-1 of 64Mi: Kip volume me ns/data"}; !slices.Equal(h.Disks, want) {
			t.Errorf("the disks are %q: want %q", h.Disks, want)
		}
	})
}

// worldParts are what instances have left; the first deletion fails.
type worldParts struct {
	worldCloud
	parts *[]cloud.OwnedResource
	tried *int
}

func (p worldParts) Optional() cloud.Optional { return cloud.Optional{OwnedResources: p} }

func (p worldParts) ListOwned(_ context.Context, owner string) ([]cloud.OwnedResource, error) {
	if owner != "me" {
		return nil, fmt.Errorf("the parts of %q are listed", owner)
	}
	return slices.Clone(*p.parts), nil
}

func (p worldParts) DeleteOwned(_ context.Context, ids ...string) cloud.Results {
	if p.worldCloud.looks == 0 {
		p.Error("parts are deleted while instances may have them")
	}
	if *p.tried++; *p.tried == 1 {
		return cloud.Each(errors.New("it is in use"), ids...)
	}
	*p.parts = slices.DeleteFunc(*p.parts, func(q cloud.OwnedResource) bool { return slices.Contains(ids, q.ID) })
	return cloud.Each(nil, ids...)
}

func TestACleanupDeletesThePartsOfInstancesLast(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		c := w.cleaner()
		parts, tried := []cloud.OwnedResource{{ID: "eni-1", Kind: "network interface"}, {ID: "sg-1", Kind: "security group"}}, 0
		c.cfg.Cloud = worldParts{worldCloud{w}, &parts, &tried}
		h, err := c.Holdings(t.Context())
		if want := []string{"network interface eni-1", "security group sg-1"}; err != nil || !slices.Equal(h.Parts, want) {
			t.Fatalf("there is %q, %v: want %q", h.Parts, err, want)
		}
		if left := strings.Join(h.Left(), "; "); !strings.Contains(left, "2 parts (network interface eni-1, security group sg-1)") {
			t.Errorf("left %q: want the parts named", left)
		}
		if h, err = c.Clean(t.Context(), func(string) {}); err != nil || len(h.Left()) != 0 || len(parts) != 0 || tried != 2 {
			t.Fatalf("left %q, %v, parts %v after %d tries: want nothing after 2", h.Left(), err, parts, tried)
		}
	})
}

func (w *kipWorld) cleaner() *Cleaner {
	return New(Config{
		Nodes:        func() []Node { return []Node{{Name: "kip-0", Client: w.kube}} },
		ControllerID: "me",
		Pods: func() (pods []*corev1.Pod, err error) {
			list, err := w.kube.CoreV1().Pods("").List(w.Context(), metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				pods = append(pods, &list.Items[i])
			}
			return pods, nil
		},
		Pause:     func(why string) { w.paused = why },
		Cells:     w,
		Status:    func(cells.Cell) apiv1.CellStatus { return apiv1.CellStatus{Waiting: "the cloud to end it"} },
		Cloud:     worldCloud{w},
		Guard:     guard.New(guard.Config{Clock: clock.RealClock{}}),
		ListLag:   20 * time.Second,
		AsKip:     w.kube,
		Resources: w.dynamic.Resource(apiv1.Resource),
		Store:     w.store,
		StoreHint: "in a folder",
		StopNode:  w.Stop,
		Clock:     clock.RealClock{},
	})
}

func (w *kipWorld) clean(timeout time.Duration) (left []string, err error) {
	ctx, cancel := context.WithTimeoutCause(w.Context(), timeout, fmt.Errorf("not within %s", timeout))
	defer cancel()
	w.said = nil
	h, err := w.cleaner().Clean(ctx, func(line string) { w.said = append(w.said, line) })
	return h.Left(), err
}

func (w *kipWorld) told(words string) bool {
	return slices.ContainsFunc(w.said, func(line string) bool { return strings.Contains(line, words) })
}

func inWorld(t *testing.T, f func(t *testing.T, w *kipWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, newKipWorld(t))
		time.Sleep(gracePeriod) // of what a test has left
	})
}

func TestACleanupLeavesNothingAndCanBeRepeated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		w.pod("b")
		w.instance("i-standby", "cell-standby")
		i := w.instances["i-standby"]
		w.cells["standby"] = cells.Cell{ID: "cell-standby", Phase: apiv1.Ready, Instance: &i}
		w.instance("i-orphan", "cell-lost")
		if left, err := w.cleaner().Holdings(t.Context()); err != nil || len(left.Left()) != 6 || w.paused != "" || w.emptied {
			t.Fatalf("a look found %v, %v, and paused: %q", left.Left(), err, w.paused)
		}
		left, err := w.clean(10 * time.Minute)
		if err != nil || len(left) != 0 {
			t.Fatalf("left %v, %v; said %q", left, err, w.said)
		}
		if w.paused == "" || !w.emptied {
			t.Error("Kip goes on to make cells")
		}
		if w.looks < 2 {
			t.Errorf("the empty cloud was looked at %d times", w.looks)
		}
		for _, words := range []string{
			"waiting for 2 cells", "Bound (pod ns/a)", "terminating 1 instance without a cell: i-orphan", "node kip-0 is gone",
		} {
			if !w.told(words) {
				t.Errorf("not told of %q: %q", words, w.said)
			}
		}
		if n, err := w.cleaner().Holdings(t.Context()); err != nil || n.Records["ca"] != 1 || n.Store != "in a folder" {
			t.Errorf("what stays is not reported: %+v, %v", n, err)
		}
		if left, err := w.clean(10 * time.Minute); err != nil || len(left) != 0 || !w.told("nothing to clean up") {
			t.Errorf("the second time: %v, %v, said %q", left, err, w.said)
		}
	})
}

func TestACleanupDeletesAPodOnceWithItsOwnGracePeriod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		w.kube.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			o := a.(clienttesting.DeleteAction).GetDeleteOptions()
			if o.GracePeriodSeconds != nil || o.Preconditions == nil || *o.Preconditions.UID != "uid-a" {
				t.Errorf("deleted with %+v", o)
			}
			return false, nil, nil
		})
		if left, err := w.clean(time.Minute); err != nil || len(left) != 0 || len(w.deleted) != 1 {
			t.Errorf("left %v, %v, deleted %v", left, err, w.deleted)
		}
	})
}

func TestADaemonSetIsNotFoughtBeforeTheNodeIsGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("web")
		w.pod("daemon")
		made := 0
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		w.kube.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if !strings.HasPrefix(a.(clienttesting.DeleteAction).GetName(), "daemon") {
				return false, nil, nil
			}
			if _, err := w.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", "kip-0"); err != nil {
				return false, nil, nil // it makes pods for nodes that are there
			}
			made++
			name := fmt.Sprintf("daemon-%d", made)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
			return false, nil, w.kube.Tracker().Create(pods, p, "ns")
		})
		if left, err := w.clean(10 * time.Minute); err != nil || len(left) != 0 {
			t.Fatalf("left %v, %v", left, err)
		}
		if made != 1 || !slices.Contains(w.deleted, "daemon-1") {
			t.Errorf("%d pods were made anew, deleted %v", made, w.deleted)
		}
	})
}

func TestACleanupThatCannotEndSaysWhatIsLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		w.stuck["i-a"] = true
		began := time.Now()
		left, err := w.clean(time.Minute)
		if err == nil || time.Since(began) != time.Minute {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
		for _, words := range []string{"not within 1m0s", "1 instance (i-a of cell-a)", "1 cell (cell-a Bound", "node kip-0"} {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%v does not say %q", err, words)
			}
		}
		if len(left) != 5 { // the instance, the cell, its resource, the node, its lease
			t.Errorf("left %q", left)
		}
		// Run again when the cloud works.
		w.mu.Lock()
		w.stuck = nil
		w.endCell("uid-a")
		w.mu.Unlock()
		if left, err := w.clean(time.Minute); err != nil || len(left) != 0 {
			t.Errorf("the second time: %v, %v", left, err)
		}
	})
}

func TestAPodThatAFinalizerHoldsIsNamedAndHoldsUpNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("held", func(p *corev1.Pod) { p.Finalizers = []string{"some/body"} })
		left, err := w.clean(10 * time.Minute)
		if err == nil || !slices.Equal(left, []string{"1 pod (ns/held)"}) {
			t.Errorf("left %q, %v", left, err)
		}
	})
}

func TestACleanupOutlastsACloudThatIsAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		w.listFails = 3
		if left, err := w.clean(10 * time.Minute); err != nil || len(left) != 0 || !w.told("the cloud is away; retrying") {
			t.Errorf("left %v, %v, said %q", left, err, w.said)
		}
	})
}

func TestACleanupIsNotDoneByAListThatLacksAZone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.listBlind = 3
		if left, err := w.clean(10 * time.Minute); err != nil || len(left) != 0 || !w.told("it does not answer for zone-b; retrying") {
			t.Errorf("left %v, %v, said %q", left, err, w.said)
		}
		w.listBlind = 1
		if _, err := w.cleaner().Holdings(t.Context()); err == nil || !strings.Contains(err.Error(), "zone-b") {
			t.Errorf("Holdings: %v", err)
		}
	})
}

func TestWhatCannotBeAskedIsNotReportedAsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.listFails = 1
		if _, err := w.cleaner().Holdings(t.Context()); err == nil || !strings.Contains(err.Error(), "the cloud is away") {
			t.Errorf("Holdings: %v", err)
		}
		c := w.cleaner()
		c.cfg.Pods = func() ([]*corev1.Pod, error) { return nil, errors.New("not listed yet") }
		if _, err := c.Holdings(t.Context()); err == nil || !strings.Contains(err.Error(), "not listed yet") {
			t.Errorf("Holdings: %v", err)
		}
	})
}

func TestWithoutTheRightToDeleteTheNodeNothingIsEnded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		w.kube.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "kip-0", errors.New("no such rule"))
		})
		if _, err := w.clean(time.Minute); err == nil || !strings.Contains(err.Error(), "rbac.yaml") || len(w.deleted) != 0 || w.paused != "" {
			t.Errorf("%v, deleted %v, paused %q", err, w.deleted, w.paused)
		}
	})
}

func TestOneCleanupAtATimeAndOneThatIsInterruptedEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		w.stuck["i-a"] = true
		c := w.cleaner()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.Clean(ctx, func(string) {})
			ended <- err
		}()
		synctest.Wait()
		if _, err := c.Clean(t.Context(), func(string) {}); err == nil || !strings.Contains(err.Error(), "another cleanup") {
			t.Errorf("a second one: %v", err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the interrupted one: %v", err)
		}
	})
}

// The instances may be another Kip's, which runs.
func TestNothingIsCleanedUpThatTheStoreDoesNotKnowOf(t *testing.T) {
	inWorld(t, func(t *testing.T, w *kipWorld) {
		w.pod("a")
		w.behind = "the store is older"
		_, err := w.clean(time.Minute)
		if err == nil || !strings.Contains(err.Error(), "nothing was done: the store is older") || w.paused != "" || len(w.cells) != 1 {
			t.Errorf("%v; paused %q, cells %v", err, w.paused, w.cells)
		}
	})
}
