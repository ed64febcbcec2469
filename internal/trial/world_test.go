package trial

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/placement"
)

const (
	boots = 3 * time.Second // from a pod's creation to the start of its container
	ends  = 4 * time.Second // from a pod's end to that of its instance
)

// world is a cluster with a Kip and its cloud, as far as a trial sees them. Its time is that of a synctest bubble.
type world struct {
	t    *testing.T
	kube *fake.Clientset
	made int // objects, for their UIDs
	// cells are those with an instance, by name; ended is when the pod of one ended.
	cells map[string]*apiv1.Cell
	ended map[string]time.Time
	// costly are all instances that there ever were.
	costly []string
	// calls are those that change something, killAt the one before or after which the process dies; 0 for none.
	calls, killAt int
	after, dying  bool
	changed       func(call int) // optional
	// at is when its time last went on, and changedNow says that something was changed after that.
	at         time.Time
	changedNow bool
	// What the cluster lacks.
	noBalancer, noClass, noSpot, noGPU, noHoldings, silentEgress bool
}

// IDs of trials.
const firstID, secondID, oldID = "frst22", "scnd22", "ld2222"

// killed is the panic of a process that is killed.
type killed struct{}

var (
	podsOf    = corev1.SchemeGroupVersion.WithResource("pods")
	spacesOf  = corev1.SchemeGroupVersion.WithResource("namespaces")
	servicesR = corev1.SchemeGroupVersion.WithResource("services")
	claimsOf  = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	volumesOf = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	eventsOf  = corev1.SchemeGroupVersion.WithResource("events")
)

func newWorld(t *testing.T, change func(*world)) *world {
	w := &world{t: t, cells: map[string]*apiv1.Cell{}, ended: map[string]time.Time{}}
	if change != nil {
		change(w)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0", Labels: map[string]string{
		"type": "virtual-kubelet", apiv1.LabelController: "me", corev1.LabelTopologyRegion: "us-east-1",
	}}}
	w.kube = fake.NewClientset(node)
	if !w.noClass {
		w.must(w.kube.Tracker().Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "kip"}, Provisioner: "disk.kip.elotl.co"}))
	}
	w.kube.PrependReactor("*", "*", w.react)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// react is what the cluster does at a request before it is answered.
func (w *world) react(a clienttesting.Action) (bool, runtime.Object, error) {
	if w.dying {
		panic(killed{})
	}
	w.advance()
	if verb := a.GetVerb(); verb != "create" && verb != "delete" {
		return false, nil, nil
	}
	w.calls, w.changedNow = w.calls+1, true
	if w.calls == w.killAt {
		if !w.after {
			panic(killed{})
		}
		w.dying = true
	}
	if w.changed != nil {
		w.changed(w.calls)
	}
	switch a := a.(type) {
	case clienttesting.CreateActionImpl:
		w.create(a.GetObject())
	case clienttesting.DeleteActionImpl:
		if err := w.keeps(a); err != nil {
			return true, nil, err
		}
		w.delete(a.GetResource(), a.GetNamespace(), a.GetName())
	}
	return false, nil, nil
}

func (w *world) create(object runtime.Object) {
	w.made++
	uid := types.UID(fmt.Sprintf("uid-%d", w.made))
	tracker := w.kube.Tracker()
	switch o := object.(type) {
	case *corev1.Namespace:
		o.UID = uid
		w.must(tracker.Add(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: o.Name, Name: "default"}}))
	case *corev1.Service:
		o.UID = uid
		if o.Spec.Type == corev1.ServiceTypeLoadBalancer && !w.noBalancer {
			o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}
		}
	case *corev1.PersistentVolumeClaim:
		w.must(tracker.Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + o.Namespace}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: o.Namespace, Name: o.Name},
		}}))
	case *corev1.Pod:
		o.UID, o.CreationTimestamp = uid, metav1.Now()
		o.Status.Phase = corev1.PodPending
	}
}

// keeps returns the API server's refusal to delete a namespace of another UID. A trial names the UID.
func (w *world) keeps(a clienttesting.DeleteActionImpl) error {
	if a.GetResource() != spacesOf {
		return nil
	}
	if a.DeleteOptions.Preconditions == nil || a.DeleteOptions.Preconditions.UID == nil {
		w.t.Errorf("namespace %s is deleted by its name alone", a.GetName())
		return nil
	}
	o, err := w.kube.Tracker().Get(spacesOf, "", a.GetName())
	if want := *a.DeleteOptions.Preconditions.UID; err == nil && o.(*corev1.Namespace).UID != want {
		return apierrors.NewConflict(spacesOf.GroupResource(), a.GetName(), fmt.Errorf("the UID is not %s", want))
	}
	return err
}

// add adds a namespace, with the value of a trial's label, or none.
func (w *world) add(name, label string) {
	w.t.Helper()
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("of " + name)}}
	if label != "" {
		n.Labels = map[string]string{Label: label}
	}
	w.must(w.kube.Tracker().Add(n))
}

// use gives a namespace a Cell and a PersistentVolume.
func (w *world) use(namespace string) {
	w.t.Helper()
	w.cells["cell-"+namespace] = &apiv1.Cell{ObjectMeta: metav1.ObjectMeta{Name: "cell-" + namespace}, Status: apiv1.CellStatus{
		Pod:        apiv1.Ref(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}),
		InstanceID: "i-" + namespace, ControllerID: "me",
	}}
	w.must(w.kube.Tracker().Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + namespace},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: "data"}}}))
}

func (w *world) delete(resource schema.GroupVersionResource, namespace, name string) {
	switch resource {
	case podsOf:
		w.endPod(namespace, name)
	case claimsOf:
		_ = w.kube.Tracker().Delete(volumesOf, "", "pvc-"+namespace)
	case spacesOf:
		for _, p := range w.pods() {
			if p.Namespace == name {
				w.endPod(name, p.Name)
			}
		}
		for _, r := range []schema.GroupVersionResource{podsOf, servicesR, claimsOf} {
			for _, object := range []string{"batch", "balancer", "data", "batch-0", "batch-1", "client", "egress", "egress-public", "egress-private",
				"writer", "reader", "spot", "gpu", "large-image"} {
				_ = w.kube.Tracker().Delete(r, name, object)
			}
		}
		_ = w.kube.Tracker().Delete(volumesOf, "", "pvc-"+name)
	}
}

func (w *world) endPod(namespace, name string) {
	for id, c := range w.cells {
		if c.Status.Pod.Namespace == namespace && c.Status.Pod.Name == name && w.ended[id].IsZero() {
			w.ended[id] = time.Now()
		}
	}
}

func (w *world) pods() []corev1.Pod {
	list, err := w.kube.Tracker().List(podsOf, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	w.must(err)
	return list.(*corev1.PodList).Items
}

// advance does what time has brought: instances, containers, ends.
func (w *world) advance() {
	if !w.changedNow && w.at.Equal(time.Now()) {
		return
	}
	w.at, w.changedNow = time.Now(), false
	for id, at := range w.ended {
		if time.Since(at) >= ends {
			delete(w.cells, id)
		}
	}
	for _, pod := range w.pods() {
		p, age := &pod, time.Since(pod.CreationTimestamp.Time)
		if w.refuses(p) || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		id := "cell-" + string(p.UID)
		c := w.cells[id]
		if c == nil && w.ended[id].IsZero() {
			c = w.launch(id, p)
		}
		if age < boots || len(p.Status.ContainerStatuses) > 0 && age < boots+2*time.Second || c == nil {
			continue
		}
		p.Status.PodIP = "10.0.0." + strings.TrimPrefix(c.Status.InstanceID, "i-")
		p.Spec.NodeName = "kip-0"
		state, phase := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.PodRunning
		switch {
		case len(p.Status.ContainerStatuses) == 0:
			c.Status.Phase = apiv1.Bound
			c.Status.Steps = append(c.Status.Steps, apiv1.Step{Name: apiv1.StepBound, Time: metav1.NowMicro()})
			if !strings.HasPrefix(p.Name, "batch") {
				break
			}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		case !strings.HasPrefix(p.Name, "batch"):
			state, phase = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, corev1.PodSucceeded
			if w.silentEgress && strings.HasPrefix(p.Name, "egress") {
				state.Terminated.ExitCode, phase = 1, corev1.PodFailed
			}
			w.ended[id] = time.Now()
			w.event(p, "Pulled", "Successfully pulled image in 12s. Image size: 400000000 bytes.")
		}
		p.Status.Phase, p.Status.ContainerStatuses = phase, []corev1.ContainerStatus{{State: state}}
		w.must(w.kube.Tracker().Update(podsOf, p, p.Namespace))
	}
}

// launch gives a pod a cell.
func (w *world) launch(id string, p *corev1.Pod) *apiv1.Cell {
	instance := fmt.Sprintf("i-%d", len(w.costly)+1)
	w.costly = append(w.costly, instance)
	c := &apiv1.Cell{ObjectMeta: metav1.ObjectMeta{Name: id}, Status: apiv1.CellStatus{
		Phase: apiv1.Booting, Pod: apiv1.Ref(p), ControllerID: "me", Node: "kip-0", InstanceID: instance, InstanceType: "t3.nano", Zone: "a",
		LaunchType: apiv1.OnDemand, PricePerHour: "0.01", Attempt: 1,
		Steps: []apiv1.Step{{Name: apiv1.StepSeen, Time: metav1.NewMicroTime(p.CreationTimestamp.Time)},
			{Name: apiv1.StepLaunched, Time: metav1.NowMicro()}},
	}}
	if p.Annotations[placement.AnnotationLaunchType] == string(placement.Spot) {
		c.Status.LaunchType = apiv1.Spot
	}
	w.cells[id] = c
	return c
}

// refuses reports whether Kip gives a pod no cell, and says so.
func (w *world) refuses(p *corev1.Pod) bool {
	switch {
	case p.Annotations[placement.AnnotationMaxPrice] == noGPUCosts && w.noGPU:
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "Insufficient nvidia.com/gpu",
		}}
		w.must(w.kube.Tracker().Update(podsOf, p, p.Namespace))
	case p.Annotations[placement.AnnotationMaxPrice] == noGPUCosts:
		w.event(p, events.Unplaceable, "needs 1 GPU: 9 types considered: 8 have too few GPUs, 1 is dearer than the $0.0001 an hour")
	case p.Annotations[placement.AnnotationLaunchType] == string(placement.Spot) && w.noSpot:
		w.event(p, events.Unplaceable, "9 types considered: 9 are not offered as spot")
	default:
		return false
	}
	return true
}

func (w *world) event(p *corev1.Pod, reason, message string) {
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name + "." + strings.ToLower(reason)},
		InvolvedObject: corev1.ObjectReference{UID: p.UID}, Reason: reason, Message: message}
	_ = w.kube.Tracker().Create(eventsOf, e, p.Namespace) // it may be there
}

// left is what the world has of trials.
func (w *world) left() (names []string) {
	w.advance()
	for _, p := range w.pods() {
		names = append(names, "pod "+p.Name)
	}
	for id := range w.cells {
		names = append(names, id)
	}
	for r, kind := range map[schema.GroupVersionResource]string{spacesOf: "Namespace", servicesR: "Service", claimsOf: "PersistentVolumeClaim",
		volumesOf: "PersistentVolume"} {
		list, err := w.kube.Tracker().List(r, corev1.SchemeGroupVersion.WithKind(kind), "")
		w.must(err)
		objects, err := runtime.DefaultUnstructuredConverter.ToUnstructured(list)
		w.must(err)
		if items, _ := objects["items"].([]any); len(items) > 0 {
			names = append(names, fmt.Sprintf("%d of kind %s", len(items), kind))
		}
	}
	slices.Sort(names)
	return names
}

// trial returns a new one in the world.
func (w *world) trial(id string, change func(*Config)) *Trial {
	w.t.Helper()
	c := Config{
		Cluster: Cluster{
			Kube: w.kube,
			Cells: func(context.Context) (all []apiv1.Cell, err error) {
				if w.dying {
					panic(killed{})
				}
				w.advance()
				for _, c := range w.cells {
					one := *c
					one.Status.Steps = slices.Clone(c.Status.Steps)
					all = append(all, one)
				}
				return all, nil
			},
			Logs: func(context.Context, string, string) (string, error) { return reached + " batch-1", nil },
			Holdings: func(context.Context) ([]adminapi.Holdings, error) {
				if w.noHoldings {
					return nil, fmt.Errorf("no pod of Kip runs")
				}
				w.advance()
				h := adminapi.Holdings{Node: "kip-0"}
				for id, c := range w.cells {
					h.Instances = append(h.Instances, c.Status.InstanceID+" of "+id)
				}
				return []adminapi.Holdings{h}, nil
			},
			Catalogue: costing(0.01),
			Subnets: func(context.Context) ([]finding.Subnet, error) {
				return nil, errors.New("nobody answers")
			},
			DryRun: func(context.Context, []string) ([]finding.Finding, error) {
				return []finding.Finding{finding.Fine("the cloud would launch it")}, nil
			},
		},
		Options: Options{
			Image: "busybox", LargeImage: "python", Endpoint: "example.com:443", MaxPricePerHour: 0.08, PrivateZone: "a", PublicZone: "a",
		},
		ID:    id,
		Clock: clock.RealClock{},
		Say:   func(string) {},
	}
	if change != nil {
		change(&c)
	}
	t, err := New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}
