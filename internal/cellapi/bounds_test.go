package cellapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

const webStatus = "/api/v1/namespaces/shop/pods/web/status"

// What an ordinary node may do, a cell may do: each bound is tried with the largest honest case.
func TestEachBoundTakesWhatAKubeletMayDo(t *testing.T) {
	for _, b := range []struct {
		bound  string // the constant
		source string // where it comes from
		most   string // the largest honest case that it is tried with
		try    func(*testing.T)
	}{
		{"statusBody, perContainer, perMount, perSpecByte", "the pod's spec, by what a kubelet writes of each container and mount",
			"70 plain containers", stores(large(0, 70, 0, 0))},
		{"specBounds.mounts", "the mounts of the spec", "30 containers of 15 mounts", stores(large(0, 30, 0, 15))},
		{"specBounds.mounts", "the mounts of the spec", "a container of 300 mounts", stores(large(0, 1, 0, 300))},
		{"specBounds.containerStatuses", "the containers of the spec", "250 containers of 15 mounts", stores(end(large(0, 250, 0, 15)))},
		{"specBounds.containerStatuses", "the containers of the spec", "600 containers", stores(end(large(0, 600, 0, 1)))},
		{"specBounds.containerStatuses", "the containers of the spec", "300 steps before the first container", stores(end(large(300, 1, 0, 2)))},
		{"specBounds.containerStatuses", "the containers of the spec", "60 debug containers", stores(large(0, 1, 60, 1))},
		{"maxRequest", "the API server's largest body", "1 MiB of environment", stores(templates(350 << 10))},
		{"specBounds.message", "a condition of Kubernetes has 32 KiB, and names containers", "250 long names that are not ready",
			stores(func() (*corev1.Pod, []corev1.PodStatus) {
				pod, all := large(0, 0, 0, 0)()
				for n := range 250 {
					name := fmt.Sprintf("%s-%03d", strings.Repeat("n", 59), n)
					pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: "busybox"})
				}
				return pod, append(all, statusOfAll(pod, waiting("ErrImagePull", strings.Repeat("failed to pull and unpack ", 20))))
			})},
		{"specBounds.image", "the image of the spec, which may be of any length", "a name of 5,000 bytes",
			stores(func() (*corev1.Pod, []corev1.PodStatus) {
				pod, _ := large(0, 1, 0, 0)()
				pod.Spec.Containers[0].Image = strings.Repeat("i", 5000)
				return pod, []corev1.PodStatus{statusOfAll(pod, waiting("InvalidImageName", "why"))}
			})},
		{"specBounds.path", "the path of the spec, which may be of any length", "one of 6,000 bytes",
			stores(func() (*corev1.Pod, []corev1.PodStatus) {
				pod, _ := large(0, 1, 0, 1)()
				pod.Spec.Containers[0].VolumeMounts[0].MountPath = "/" + strings.Repeat("p", 6000)
				return pod, []corev1.PodStatus{statusOfAll(pod, running)}
			})},
		{"maxMessage", "a condition of Kubernetes has 32 KiB", "a termination message of 4 KiB that is not UTF-8",
			stores(func() (*corev1.Pod, []corev1.PodStatus) {
				pod, _ := large(0, 1, 0, 0)()
				return pod, []corev1.PodStatus{statusOfAll(pod, func(s *corev1.ContainerStatus) {
					ended(s)
					s.State.Terminated.Message = strings.Repeat("\ufffd", 4<<10)
				})}
			})},
		{"maxGroups, maxListed", "NGROUPS_MAX", "1,000 groups and 100 resources", stores(func() (*corev1.Pod, []corev1.PodStatus) {
			pod, _ := large(0, 1, 0, 0)()
			return pod, []corev1.PodStatus{statusOfAll(pod, func(s *corev1.ContainerStatus) {
				running(s)
				s.User.Linux.SupplementalGroups = make([]int64, 1000)
				for n := range 100 {
					s.AllocatedResources[corev1.ResourceName(fmt.Sprintf("example.com/device-%d", n))] = resource.MustParse("1")
				}
			})}
		})},
		{"maxListed", "a pod may have any number of readiness gates", "200 conditions of other controllers",
			stores(func() (*corev1.Pod, []corev1.PodStatus) {
				pod, all := large(0, 1, 0, 0)()
				for n := range 200 {
					pod.Status.Conditions = append(pod.Status.Conditions,
						corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprintf("example.com/gate-%d", n)), Status: corev1.ConditionTrue})
				}
				return pod, all
			})},
		{"askedRate, askedBurst, openWatches, perObject", "the limits of a kubelet's client, and the objects of the spec",
			"300 ConfigMaps, all listed and then watched at once", readsAll(300)},
		{"openRequests, perObject", "the objects of the spec", "300 ConfigMaps, all lists open at once", listsAll(300)},
		{"passedRate, passedBurst", "the objects of the spec", "100 claims and their volumes, all at once", asksForClaims(100)},
		{"eventRate, eventBurst, eventBytesBurst", "EventBurst of a kubelet", "100 Events at once, of 2 KiB each", reports(100, 1500)},
		{"maxEventMessage", "an error of a runtime", "one Event of 8 KiB", reports(1, 8<<10)},
		{"bodyLimit, maxNode, maxImage", "NodeStatusMaxImages and MaxNamesPerImageInNodeStatus of a kubelet",
			"50 images of 5 names of 780 bytes, and 128 volumes", nodeStatus(50, 5, 780, 128)},
		{"maxNode", "what a node says without its images has to fit", "50 images of 2 names of 100 bytes, and 40 volumes", nodeStatus(50, 2, 100, 40)},
		{"maxCSINode", "the node plugins of a cell", "12 drivers of 3 topology keys", csiNode(12)},
		{"credentialsRate, credentialsBurst", "the images of the spec", "250 images, each asked for twice", credentials(250)},
	} {
		t.Run(b.most, func(t *testing.T) {
			t.Logf("%s: %s", b.bound, b.source)
			b.try(t)
		})
	}
}

// large is a pod of so many containers of each sort, with so many mounts each, and its statuses from its start to its end.
func large(inits, containers, ephemeral, mounts int) func() (*corev1.Pod, []corev1.PodStatus) {
	return func() (*corev1.Pod, []corev1.PodStatus) {
		pod := podOn("web")
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		of := func(sort string, n int) corev1.Container {
			c := corev1.Container{Name: fmt.Sprintf("%s-%d", sort, n), Image: "busybox:1.36"}
			for m := range mounts {
				mount := corev1.VolumeMount{Name: fmt.Sprintf("v%d", m), MountPath: fmt.Sprintf("/m%d", m), ReadOnly: true}
				c.VolumeMounts = append(c.VolumeMounts, mount)
			}
			return c
		}
		pod.Spec.Containers = nil
		for n := range inits {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, of("init", n))
		}
		for n := range containers {
			pod.Spec.Containers = append(pod.Spec.Containers, of("container", n))
		}
		for n := range ephemeral {
			c := of("debugger", n)
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers,
				corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)})
		}
		if containers == 0 {
			return pod, nil
		}
		return pod, []corev1.PodStatus{statusOfAll(pod, waiting("ContainerCreating", "")), statusOfAll(pod, running), statusOfAll(pod, ended)}
	}
}

// end is a pod with the last of its statuses alone.
func end(of func() (*corev1.Pod, []corev1.PodStatus)) func() (*corev1.Pod, []corev1.PodStatus) {
	return func() (*corev1.Pod, []corev1.PodStatus) {
		pod, all := of()
		return pod, all[len(all)-1:]
	}
}

// templates is a pod as Argo makes them, of three containers that have so many bytes of a template each.
func templates(bytes int) func() (*corev1.Pod, []corev1.PodStatus) {
	return func() (*corev1.Pod, []corev1.PodStatus) {
		pod, _ := large(1, 2, 0, 3)()
		env := []corev1.EnvVar{{Name: "ARGO_TEMPLATE", Value: strings.Repeat("x", bytes)}}
		pod.Spec.InitContainers[0].Env, pod.Spec.Containers[0].Env, pod.Spec.Containers[1].Env = env, env, env
		return pod, []corev1.PodStatus{statusOfAll(pod, running), statusOfAll(pod, ended)}
	}
}

func waiting(reason, message string) func(*corev1.ContainerStatus) {
	return func(s *corev1.ContainerStatus) {
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
}

// then is some time as the API server has it.
var then = metav1.NewTime(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))

// running and ended are all that a kubelet says of a container.
func running(s *corev1.ContainerStatus) {
	s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: then}}
	s.Ready, s.Started = true, ptr.To(true)
	s.Image, s.ImageID = "docker.io/library/"+s.Image, "docker.io/library/busybox@sha256:"+strings.Repeat("1", 64)
	s.ContainerID = "containerd://" + strings.Repeat("2", 64)
	s.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{SupplementalGroups: []int64{0, 10}}}
	some := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	s.AllocatedResources, s.Resources = some, &corev1.ResourceRequirements{Requests: some, Limits: some}
}

func ended(s *corev1.ContainerStatus) {
	running(s)
	over := &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", StartedAt: then, FinishedAt: then, ContainerID: s.ContainerID}
	s.State, s.LastTerminationState = corev1.ContainerState{Terminated: over}, corev1.ContainerState{Terminated: over}
	s.Ready, s.RestartCount = false, 1
}

// statusOfAll is what a kubelet writes of a pod whose containers are all as is says.
func statusOfAll(pod *corev1.Pod, is func(*corev1.ContainerStatus)) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable, StartTime: &then, ObservedGeneration: 1,
		HostIP: "10.0.0.5", HostIPs: []corev1.HostIP{{IP: "10.0.0.5"}}, PodIP: "10.0.128.5", PodIPs: []corev1.PodIP{{IP: "10.0.128.5"}}}
	var names []string
	add := func(to *[]corev1.ContainerStatus, c corev1.Container) {
		s := corev1.ContainerStatus{Name: c.Name, Image: c.Image}
		for _, m := range c.VolumeMounts {
			s.VolumeMounts = append(s.VolumeMounts, corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly,
				RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyDisabled)})
		}
		is(&s)
		if s.State.Running != nil {
			status.Phase = corev1.PodRunning
		}
		if s.State.Terminated != nil {
			status.Phase = corev1.PodFailed
		}
		names, *to = append(names, c.Name), append(*to, s)
	}
	for _, c := range pod.Spec.InitContainers {
		add(&status.InitContainerStatuses, c)
	}
	for _, c := range pod.Spec.Containers {
		add(&status.ContainerStatuses, c)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		add(&status.EphemeralContainerStatuses, corev1.Container(c.EphemeralContainerCommon))
	}
	message := fmt.Sprintf("containers with unready status: [%s]", strings.Join(names, " "))
	for _, c := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady,
		corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionFalse, Reason: "ContainersNotReady",
			Message: message, ObservedGeneration: 1, LastTransitionTime: then})
	}
	return status
}

// kubeletsPatch is the patch of a status as a kubelet makes it (k8s.io/kubernetes/pkg/util/pod, PatchPodStatus). Conditions
// of others stay.
func kubeletsPatch(t *testing.T, pod *corev1.Pod, next corev1.PodStatus) (patch []byte, want corev1.PodStatus) {
	t.Helper()
	want = *next.DeepCopy()
	var conditions []corev1.PodCondition
	for _, c := range pod.Status.Conditions {
		if !slices.Contains(ownConditions, string(c.Type)) {
			conditions = append(conditions, c)
		}
	}
	want.Conditions = append(conditions, next.Conditions...)
	from, err := json.Marshal(corev1.Pod{Status: pod.Status})
	if err != nil {
		t.Fatal(err)
	}
	to, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: want})
	if err != nil {
		t.Fatal(err)
	}
	if patch, err = strategicpatch.CreateTwoWayMergePatch(from, to, corev1.Pod{}); err != nil {
		t.Fatal(err)
	}
	return patch, want
}

// kubelet is a cell whose kubelet has the pod shop/web.
type kubelet struct {
	*Cell
	h *house
}

func runs(t *testing.T, clk clock.Clock, pod *corev1.Pod) *kubelet {
	t.Helper()
	h := newHouseAt(t, clk)
	c := h.server.AddCell("c1", info)
	h.bindNew(c, pod)
	closed(t, "the pod is known", c.bound().known)
	return &kubelet{c, h}
}

func (k *kubelet) pod() *corev1.Pod { return k.h.up.get("pods", "shop", "web").(*corev1.Pod) }

// says has the kubelet send a status, and demands that it is stored as it is.
func (k *kubelet) says(t *testing.T, next corev1.PodStatus) {
	t.Helper()
	patch, want := kubeletsPatch(t, k.pod(), next)
	code, _, answer := do(t.Context(), k.Cell, http.MethodPatch, webStatus, strategic, patch)
	if code != http.StatusOK {
		t.Fatalf("%d %.500s to a patch of %d bytes", code, answer, len(patch))
	}
	got := k.pod().DeepCopy().Status
	byType := func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) }
	slices.SortFunc(got.Conditions, byType)
	slices.SortFunc(want.Conditions, byType)
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("%.2000s is stored, want %.2000s", fmt.Sprint(got), fmt.Sprint(want))
	}
	if trouble := k.StatusTrouble(); trouble != "" {
		t.Errorf("trouble: %s", trouble)
	}
}

// stores demands that all statuses of a pod are stored as they are, without a wait.
func stores(of func() (*corev1.Pod, []corev1.PodStatus)) func(*testing.T) {
	return func(t *testing.T) {
		pod, all := of()
		k := runs(t, clocktesting.NewFakeClock(time.Now()), pod)
		for _, next := range all {
			k.says(t, next)
		}
	}
}

// mountsAll is a pod that mounts so many ConfigMaps, and names two objects more: see podOn.
func mountsAll(many int) *corev1.Pod {
	pod := podOn("web")
	for n := range many {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", n), VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("c%d", n)}},
		}})
	}
	return pod
}

// heldOpen are requests of a kubelet that go on until the test ends.
type heldOpen struct {
	k   *kubelet
	ctx context.Context
	all sync.WaitGroup
}

func (k *kubelet) opens(t *testing.T) *heldOpen {
	ctx, end := context.WithCancel(t.Context())
	o := &heldOpen{k: k, ctx: ctx}
	t.Cleanup(func() { end(); o.all.Wait() })
	return o
}

func (o *heldOpen) get(path string) { o.all.Go(func() { get(o.ctx, o.k.Cell, path) }) }

// mustBe demands that so many requests and watches are open, none was refused, and one more of these is refused by this limit.
func (o *heldOpen) mustBe(t *testing.T, requests, watches int, limit, more string) {
	t.Helper()
	eventually(t, "all are open, or some are refused", func() bool {
		requesting, watching, _ := o.k.budget.holds()
		return requesting >= requests && watching >= watches || o.k.Usage().Refused > 0
	})
	if u := o.k.Usage(); u.Refused > 0 {
		t.Fatalf("before %d requests and %d watches are open, some are refused: %v", requests, watches, u.RefusedBy)
	}
	o.get(more)
	eventually(t, "one more is refused, or open", func() bool {
		requesting, watching, _ := o.k.budget.holds()
		return requesting+watching > requests+watches || o.k.Usage().Refused > 0
	})
	requesting, watching, _ := o.k.budget.holds()
	if u := o.k.Usage(); requesting != requests || watching != watches || !maps.Equal(u.RefusedBy, map[string]uint64{limit: 1}) {
		t.Errorf("%d requests and %d watches are open, want %d and %d; refused are %v, want one by %s",
			requesting, watching, requests, watches, u.RefusedBy, limit)
	}
}

// readsAll has a kubelet list all of so many ConfigMaps at once, and hold a watch of each. Beside these it may have
// openWatches, and no more.
func readsAll(many int) func(*testing.T) {
	return func(t *testing.T) {
		k := runs(t, clocktesting.NewFakeClock(time.Now()), mountsAll(many))
		for n := range many {
			k.h.up.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("c%d", n)}})
		}
		o := k.opens(t)
		var lists sync.WaitGroup
		for n := range many {
			lists.Go(func() {
				path := fmt.Sprintf("/api/v1/namespaces/shop/configmaps?fieldSelector=metadata.name%%3Dc%d", n)
				if code, _, answer := get(t.Context(), k.Cell, path); code != http.StatusOK {
					t.Errorf("%s: %d %s", path, code, answer)
				}
				o.get(path + "&watch=true")
			})
		}
		lists.Wait()
		const services = "/api/v1/services?watch=true"
		for range openWatches + 2 {
			o.get(services)
		}
		o.mustBe(t, 0, openWatches+many+2, limitWatches, services)
	}
}

// listsAll has a kubelet list all of so many ConfigMaps at once, each at a version that Kip does not have yet. Beside what
// the objects of its pod need, it may have openRequests, and no more.
func listsAll(many int) func(*testing.T) {
	return func(t *testing.T) {
		pod := mountsAll(many)
		k := runs(t, clocktesting.NewFakeClock(time.Now()), pod)
		const later = "resourceVersion=1000000&resourceVersionMatch=NotOlderThan"
		o := k.opens(t)
		for n := range many {
			o.get(fmt.Sprintf("/api/v1/namespaces/shop/configmaps?fieldSelector=metadata.name%%3Dc%d&%s", n, later))
		}
		others := openRequests + 3 + len(pod.Spec.Volumes) // two objects of podOn, a claim, and each volume
		for range others {
			o.get("/api/v1/services?" + later)
		}
		o.mustBe(t, many+others, 0, limitOpen, "/api/v1/services?"+later)
	}
}

// asksForClaims has a pod with so many claims, each of which its kubelet asks for, and for its volume.
func asksForClaims(many int) func(*testing.T) {
	return func(t *testing.T) {
		pod := podOn("web")
		for n := range many {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", n), VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("d%d", n)},
			}})
		}
		k := runs(t, clocktesting.NewFakeClock(time.Now()), pod)
		var all sync.WaitGroup
		for n := range many {
			claim, volume := fmt.Sprintf("d%d", n), fmt.Sprintf("pv%d", n)
			k.h.up.put(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: claim, UID: "claim"},
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}})
			k.h.up.put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}, Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: claim, UID: "claim"}}})
		}
		for n := range many {
			all.Go(func() {
				for _, path := range []string{fmt.Sprintf("/api/v1/namespaces/shop/persistentvolumeclaims/d%d", n),
					fmt.Sprintf("/api/v1/persistentvolumes/pv%d", n)} {
					if code, _, answer := get(t.Context(), k.Cell, path); code != http.StatusOK {
						t.Errorf("%s: %d %s", path, code, answer)
					}
				}
			})
		}
		all.Wait()
	}
}

// reports sends so many Events about the pod at once.
func reports(many, message int) func(*testing.T) {
	return func(t *testing.T) {
		runs(t, clocktesting.NewFakeClock(time.Now()), podOn("web")).reports(t, many, message)
	}
}

func (k *kubelet) reports(t *testing.T, many, message int) {
	t.Helper()
	for n := range many {
		e := &corev1.Event{
			TypeMeta:       metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("web.%d", n), Namespace: "shop"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web", UID: k.pod().UID},
			Reason:         "FailedCreatePodSandBox", Message: strings.Repeat("m", message), Type: corev1.EventTypeWarning,
			FirstTimestamp: then, LastTimestamp: then, Count: 1,
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		code, _, answer := do(t.Context(), k.Cell, http.MethodPost, "/api/v1/namespaces/shop/events", "application/json", b)
		if code != http.StatusCreated {
			t.Fatalf("event %d: %d %s", n, code, answer)
		}
		if got := k.h.up.get("events", "shop", e.Name).(*corev1.Event); got.Message != e.Message {
			t.Errorf("a message of %d bytes is stored", len(got.Message))
		}
	}
}

// nodeStatus has a kubelet report its node with so many images and volumes. Images are left out of what is large:
// nobody reads them.
func nodeStatus(images, names, length, volumes int) func(*testing.T) {
	return func(t *testing.T) {
		k := runs(t, clock.RealClock{}, podOn("web"))
		eventually(t, "the node is there", func() bool { return k.Node() != nil })
		k.node.show()
		status := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
		for range images {
			image := corev1.ContainerImage{Names: slices.Repeat([]string{strings.Repeat("i", length)}, names), SizeBytes: 1}
			status.Images = append(status.Images, image)
		}
		for n := range volumes {
			v := corev1.UniqueVolumeName(fmt.Sprintf("kubernetes.io/csi/ebs.csi.aws.com^vol-%017d", n))
			status.VolumesInUse = append(status.VolumesInUse, v)
		}
		b, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			t.Fatal(err)
		}
		code, _, answer := do(t.Context(), k.Cell, http.MethodPatch, "/api/v1/nodes/"+nodeName+"/status", strategic, b)
		if code != http.StatusOK {
			t.Fatalf("%d %.300s", code, answer)
		}
		got := k.Node().Status
		if len(got.VolumesInUse) != volumes || length <= 100 && len(got.Images) != images {
			t.Errorf("%d volumes and %d images are kept", len(got.VolumesInUse), len(got.Images))
		}
	}
}

// csiNode has a kubelet say that so many drivers are registered.
func csiNode(drivers int) func(*testing.T) {
	return func(t *testing.T) {
		k := runs(t, clock.RealClock{}, podOn("web"))
		var all []string
		for n := range drivers {
			all = append(all, fmt.Sprintf(`{"name":"driver-%d.csi.example.com","nodeID":"%s","topologyKeys":["topology.example.com/%d-zone","kubernetes.io/os","a/b"]}`,
				n, strings.Repeat("n", 64), n))
		}
		code, _, answer := do(t.Context(), k.Cell, http.MethodPost, "/apis/storage.k8s.io/v1/csinodes", "application/json", []byte(
			`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"kip-0"},"spec":{"drivers":[`+strings.Join(all, ",")+`]}}`))
		if got, _ := k.CSIDrivers(); code != http.StatusCreated || len(got) != drivers {
			t.Errorf("%d drivers are known: %d %.300s", len(got), code, answer)
		}
	}
}

// credentials are asked for, of so many images, twice each.
func credentials(images int) func(*testing.T) {
	return func(t *testing.T) {
		h, _ := lends(t, clocktesting.NewFakeClock(time.Now()))
		c := h.server.AddCell("c1", info)
		pod := podOn("web")
		for n := range images {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", n), Image: fmt.Sprintf("%s/i%d", ecr, n)})
		}
		h.bindNew(c, pod)
		closed(t, "the pod is known", c.bound().known)
		for n := range 2 * images {
			if code, answer := askFor(t, c, fmt.Sprintf("%s/i%d", ecr, n%images)); code != http.StatusOK {
				t.Fatalf("image %d: %d %s", n, code, answer)
			}
		}
	}
}

// A kubelet that rejects a pod writes no conditions, and the patch of that has a null where the scheduler wrote one.
func TestAPodThatItsKubeletRejectsIsFailed(t *testing.T) {
	gate := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue}
	scheduled := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}
	for name, has := range map[string][]corev1.PodCondition{
		"scheduled": {scheduled}, "bound by its author": nil, "gated": {gate, scheduled}, "gated alone": {gate},
	} {
		for _, reason := range []string{"SysctlForbidden", "OutOfcpu", "UnexpectedAdmissionError", "AppArmor", "PodOSNotSupported"} {
			t.Run(name+" "+reason, func(t *testing.T) {
				pod := podOn("web")
				pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort, Conditions: has}
				k := runs(t, clock.RealClock{}, pod)
				k.says(t, corev1.PodStatus{
					Phase: corev1.PodFailed, QOSClass: corev1.PodQOSBestEffort, Reason: reason, Message: "Pod was rejected: why",
				})
			})
		}
	}
}

// The latest status of a large pod always arrives, about twice a second and never late; its end and its deletion wait
// for nothing.
func TestALargePodsStatusIsPacedAndItsEndIsNot(t *testing.T) {
	clk := steppedClock(t)
	pod, all := templates(80 << 10)()
	k := runs(t, clk, pod)
	k.budget.worked.SetLimit(rate.Inf) // how long this machine works on it is of no interest
	for n := range rewrites + 10 {
		began := clk.Now()
		if code, _, answer := get(t.Context(), k.Cell, strings.TrimSuffix(webStatus, "/status")); code != http.StatusOK {
			t.Fatalf("read %d: %d %.200s", n, code, answer)
		}
		next := *all[0].DeepCopy()
		next.Message = fmt.Sprint(n)
		k.says(t, next)
		if took := clk.Since(began); took > 2*time.Second/rewriteRate {
			t.Errorf("status %d waits %v", n, took)
		}
	}
	if k.written.TokensAt(clk.Now()) > 0 {
		t.Error("nothing is owed, so nothing is tried")
	}
	clk.hold(true)
	k.reports(t, 10, 1<<10)
	if code, _, answer := get(t.Context(), k.Cell, strings.TrimSuffix(webStatus, "/status")); code != http.StatusOK {
		t.Fatalf("%d %.200s", code, answer)
	}
	k.says(t, all[1])
	code, _, answer := do(t.Context(), k.Cell, http.MethodDelete, strings.TrimSuffix(webStatus, "/status"), "application/json",
		[]byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`))
	if code != http.StatusOK {
		t.Fatalf("%d %.200s", code, answer)
	}
}

// A cell may report the end of its pod finalBurst times without a wait. Further reports wait as any other status.
func TestTheEndOfAPodIsNoWayAroundTheBudget(t *testing.T) {
	clk := steppedClock(t)
	pod, _ := templates(80 << 10)()
	k := runs(t, clk, pod)
	k.budget.worked.SetLimit(rate.Inf)               // how long this machine works on it is of no interest
	k.written.ReserveN(clk.Now(), k.written.Burst()) // earlier statuses have used it
	for n := range finalBurst + 1 {
		clk.hold(n < finalBurst)
		began := clk.Now()
		code, _, answer := do(t.Context(), k.Cell, http.MethodPatch, webStatus, strategic,
			fmt.Appendf(nil, `{"status":{"phase":"Failed","message":"%d"}}`, n))
		if code != http.StatusOK {
			t.Fatalf("end %d: %d %.200s", n, code, answer)
		}
		if n == finalBurst && clk.Since(began) == 0 {
			t.Errorf("%d ends wait for nothing", n+1)
		}
	}
}

// What a status loses, and why it is not stored, is known until it is stored whole.
func TestTheTroubleWithAStatusIsKnown(t *testing.T) {
	k := runs(t, clock.RealClock{}, podOn("web"))
	patch := func(body string) {
		t.Helper()
		do(t.Context(), k.Cell, http.MethodPatch, webStatus, strategic, []byte(body))
	}
	for _, tc := range []struct{ body, want string }{
		{`{"status":{"message":"` + strings.Repeat("x", 40_000) + `"}}`, "messages cut: status.message"},
		{`{"status":{"phase":"Odd"}}`, "status.phase must be one of"},
		{`{"status":{"message":"` + strings.Repeat("x", 700_000) + `"}}`, "Kip refuses the pod's status: Request entity too large"},
		{`{"status":{"phase":"Running"}}`, ""},
	} {
		patch(tc.body)
		if got := k.StatusTrouble(); !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%.60s: %q, want %q", tc.body, got, tc.want)
		}
	}
	// Another's says nothing of the own.
	do(t.Context(), k.Cell, http.MethodPatch, "/api/v1/namespaces/shop/pods/other/status", strategic, []byte(`{"status":{}}`))
	if got := k.StatusTrouble(); got != "" {
		t.Errorf("of another's pod: %q", got)
	}
}

// allFields is a JSON value that has all fields of a type.
func allFields(t reflect.Type, name string) any {
	texts := map[string]string{"phase": "Running", "status": "True", "qosClass": "Burstable", "ip": "10.0.128.5", "podIP": "10.0.128.5",
		"hostIP": "10.0.128.5", "type": string(corev1.PodReady)}
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return "2026-07-01T12:00:00Z"
	case reflect.TypeFor[resource.Quantity]():
		return "1"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return allFields(t.Elem(), name)
	case reflect.Slice:
		return []any{allFields(t.Elem(), name)}
	case reflect.Map:
		return map[string]any{"cpu": allFields(t.Elem(), name)}
	case reflect.Struct:
		made := map[string]any{}
		for i := range t.NumField() {
			key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			made[key] = allFields(t.Field(i).Type, key)
		}
		return made
	case reflect.String:
		return cmp.Or(texts[name], "a")
	case reflect.Bool:
		return true
	}
	return int64(1)
}

// No field that a kubelet writes is left out.
func TestNoFieldThatAKubeletWritesIsLeftOut(t *testing.T) {
	pod := podOn("web")
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{}}
	ips := []netip.Addr{info.PodIP}
	for what, tc := range map[string]struct {
		of    reflect.Type
		shape shape
		none  []string // others write them
	}{
		// The conditions of a pod: see kubeletConditions.
		"a pod": {reflect.TypeFor[corev1.PodStatus](), boundsOf(pod).status(addresses{host: ips, pod: ips}),
			[]string{"nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus", "nodeAllocatableResourceClaimStatuses",
				"resources.claims"}},
		"a node": {reflect.TypeFor[corev1.NodeStatus](), func(at *field.Path, v any) (any, error) {
			made, err := nodeShape(at, map[string]any{"status": v})
			if err != nil {
				return nil, err
			}
			return made.(map[string]any)["status"], nil
		}, []string{"config"}},
	} {
		want := allFields(tc.of, "").(map[string]any)
		for _, k := range tc.none {
			in := want
			if outer, inner, nested := strings.Cut(k, "."); nested {
				in, k = want[outer].(map[string]any), inner
			}
			delete(in, k)
		}
		made, err := tc.shape(field.NewPath("status"), want)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got := made.(map[string]any)
		for k := range want {
			if !reflect.DeepEqual(got[k], want[k]) {
				t.Errorf("%s: of %s comes through\n%v, want\n%v", what, k, got[k], want[k])
			}
		}
	}
}

func TestACellIsGivenNoMoreForAStatusThatItHasMadeLarge(t *testing.T) {
	pod := podOn("web")
	want := allowanceOf(pod)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Message: strings.Repeat("x", 400<<10)}}
	if got := allowanceOf(pod); got != want {
		t.Errorf("it is given %+v, and with a small status %+v", got, want)
	}
}
