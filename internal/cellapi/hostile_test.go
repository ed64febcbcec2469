package cellapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/watches"
)

const strategic = "application/strategic-merge-patch+json"

// What root on a cell may write to its pod is what a kubelet owns of the status, and
// bounded; of addresses, those of its instance.
func TestAPodsStatusFromItsCellIsRebuilt(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	c := h.server.AddCell("c1", info)
	pod := podOn("web")
	pod.Spec.InitContainers = []corev1.Container{{Name: "c"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: corev1.ConditionTrue, Reason: "TheirOwn"},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	pod.Status.NominatedNodeName = "theirs"
	pod = h.bindNew(c, pod)
	closed(t, "the pod is known", c.bound().known)
	patch := func(contentType, body string) (int, string) {
		code, _, answer := do(ctx, c, http.MethodPatch, "/api/v1/namespaces/shop/pods/web/status", contentType, []byte(body))
		return code, string(answer)
	}
	stored := func() *corev1.Pod { return h.up.get("pods", "shop", "web").(*corev1.Pod) }
	long := strings.Repeat("x", 200<<10)
	containers := func(n int, more string) string {
		return `[` + strings.TrimSuffix(strings.Repeat(`{"name":"c","ready":true`+more+`},`, n), ",") + `]`
	}

	before := stored()
	for name, tc := range map[string]struct{ body, field string }{
		"an annotation":        {`{"metadata":{"annotations":{"pod.elotl.co/instance-type":"2xlarge"}}}`, "metadata.annotations"},
		"a finalizer":          {`{"metadata":{"finalizers":["example.com/stay"]},"status":{"phase":"Running"}}`, "metadata.finalizers"},
		"a label":              {`{"metadata":{"uid":"` + string(pod.UID) + `","labels":{"app":"bank"}}}`, "metadata.labels"},
		"metadata for another": {`{"metadata":{"$patch":"replace"}}`, "metadata.$patch"},
		"a spec":               {`{"spec":{"activeDeadlineSeconds":1}}`, "spec"},
		"the whole":            {`{"$patch":"replace","status":{}}`, "$patch"},
		"another's address":    {`{"status":{"podIP":"8.8.8.8"}}`, "status.podIP"},
		"another's addresses":  {`{"status":{"podIPs":[{"ip":"10.0.128.5"},{"ip":"8.8.8.8"}]}}`, "status.podIPs[1].ip"},
		"its host's address":   {`{"status":{"podIP":"10.0.0.5"}}`, "status.podIP"},
		"another host":         {`{"status":{"hostIP":"10.0.0.6"}}`, "status.hostIP"},
		"other hosts":          {`{"status":{"hostIPs":[{"ip":"10.0.0.6"}]}}`, "status.hostIPs[0].ip"},
		"no address":           {`{"status":{"podIP":"\u001b[2J"}}`, "status.podIP"},
		"a list's directive":   {`{"status":{"conditions":[{"$patch":"replace"}]}}`, "status.conditions[0].$patch"},
		"no phase":             {`{"status":{"phase":"` + long[:2000] + `"}}`, "status.phase"},
		"a quantity that costs": {`{"status":{"containerStatuses":` + containers(1,
			`,"allocatedResources":{"cpu":"1e1500000000"}`) + `}}`, "cpu"},
		"a status that is a list": {`{"status":[]}`, "status"},
		"no status":               {`{"status":null}`, "status"},
		"containers without end":  {`{"status":{"containerStatuses":` + containers(300, ``) + `}}`, "status.containerStatuses"},
		"containers that are large": {`{"status":{"containerStatuses":` + containers(80, `,"image":"`+long[:1000]+`"`) + `}}`,
			"status.containerStatuses"},
		"an image's name without end": {`{"status":{"initContainerStatuses":` + containers(1, `,"image":"`+long[:2000]+`"`) + `}}`,
			"status.initContainerStatuses[0].image"},
		"mounts without end": {`{"status":{"containerStatuses":` + containers(1,
			`,"volumeMounts":[`+strings.Repeat(`{"name":"a"},`, 999)+`{}]`) + `}}`, "volumeMounts"},
		"a resource of its own naming": {`{"status":{"allocatedResources":{"example.com/a":"1e1500000000","cpu":"1e1500000000"}}}`, "status.allocatedResources.cpu"},
	} {
		if code, answer := patch(strategic, tc.body); code != http.StatusUnprocessableEntity || !strings.Contains(answer, tc.field) {
			t.Errorf("%s: %d %.300s, want 422 that names %s", name, code, answer, tc.field)
		}
	}
	if code, answer := patch(strategic, `{"status":{"message":"`+strings.Repeat(long, 20)+`"}}`); code != http.StatusRequestEntityTooLarge {
		t.Errorf("4 MB: %d %.300s, want 413", code, answer)
	}
	if code, answer := patch("application/merge-patch+json", `{"status":{"conditions":[]}}`); code != http.StatusUnsupportedMediaType {
		t.Errorf("a merge patch, which replaces others' conditions: %d %.300s, want 415", code, answer)
	}
	if after := stored(); after.ResourceVersion != before.ResourceVersion {
		t.Fatalf("the API server's pod has changed:\n%v\n%v", before, after)
	}

	// What is not the kubelet's is left out, what is too long to read is cut.
	code, answer := patch(strategic, `{"status":{"nominatedNodeName":"mine","resourceClaimStatuses":[{"name":"x"}],"madeUp":"`+long[:9000]+`","$retainKeys":["phase"],
		"allocatedResources":{"example.com/a":"1","cpu":"1"},
		"message":"`+long[:40_000]+`","conditions":[{"type":"example.com/gate","status":"False"},{"type":"Ready","status":"True","lastProbeTime":null}]}}`)
	if code != http.StatusOK {
		t.Fatalf("what can be made a status: %d %.300s", code, answer)
	}
	got := stored().DeepCopy().Status
	slices.SortFunc(got.Conditions, func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	if len(got.Conditions) != 3 || got.Conditions[0].Type != corev1.PodScheduled || got.Conditions[1].Type != corev1.PodReady ||
		got.Conditions[2].Reason != "TheirOwn" || got.Conditions[2].Status != corev1.ConditionTrue {
		t.Errorf("conditions are %+v, want the other controller's as it was, and Ready", got.Conditions)
	}
	if got.NominatedNodeName != "theirs" || len(got.Message) != maxMessage+len("cmain")+2 || len(got.ResourceClaimStatuses) != 0 ||
		len(got.AllocatedResources) != 1 {
		t.Errorf("status is %+v", got)
	}
	if code, _, answer := do(t.Context(), c, http.MethodPatch, "/api/v1/namespaces/shop/pods/web/status?dryRun=All", strategic,
		[]byte(`{"status":{"phase":"Running"}}`)); code != http.StatusBadRequest {
		t.Errorf("a dry run, which would be told as done: %d %.300s, want 400", code, answer)
	}
	// What Kip takes out of a status says nothing of others' conditions either.
	if code, answer := patch(strategic, `{"status":{"phase":"Failed","reason":"`+notAdmitted+`"}}`); code != http.StatusOK {
		t.Errorf("a pod that is turned away: %d %.300s", code, answer)
	}
	if got := stored().Status; len(got.Conditions) != 3 || got.Phase == corev1.PodFailed {
		t.Errorf("after a pod was turned away: %+v", got)
	}
	// Nor does a null for all conditions, which a kubelet writes that rejects its pod. One that is turned away
	// was scheduled still.
	for _, row := range []struct {
		body      string
		want      []corev1.PodConditionType
		nominated string // what is left of the node that a scheduler nominated
	}{
		{`{"status":{"phase":"Failed","reason":"` + notAdmitted + `","conditions":null}}`,
			[]corev1.PodConditionType{corev1.PodScheduled, "example.com/gate"}, "theirs"},
		{`{"status":{"conditions":null,"nominatedNodeName":null}}`, []corev1.PodConditionType{"example.com/gate"}, ""},
	} {
		h.up.put(pod)
		if code, answer := patch(strategic, row.body); code != http.StatusOK {
			t.Errorf("no conditions of its own: %d %.300s", code, answer)
		}
		got := stored().Status
		for _, c := range row.want {
			has := slices.ContainsFunc(got.Conditions, func(has corev1.PodCondition) bool { return has.Type == c })
			if !has || len(got.Conditions) != len(row.want) {
				t.Errorf("%s: conditions %+v, want %v", row.body, got.Conditions, row.want)
			}
		}
		if got.NominatedNodeName != row.nominated {
			t.Errorf("%s: the nominated node is %q, want %q", row.body, got.NominatedNodeName, row.nominated)
		}
	}
	for _, r := range h.up.asked(func(r apiRequest) bool { return r.verb == "patch" }) {
		if strings.Contains(r.body, "madeUp") || strings.Contains(r.body, "$retainKeys") || strings.Contains(r.body, "replace") {
			t.Errorf("passed on: %s", r.body)
		}
	}
}

// A kubelet's own patches lose nothing: those of a pod's life are made as its status
// manager makes them.
func TestAKubeletsStatusPatchesComeThroughWhole(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	c := h.server.AddCell("c1", info)
	pod := podOn("web")
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: true}}
	gate := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue}
	pod.Status.Conditions = []corev1.PodCondition{gate}
	pod = h.bindNew(c, pod)
	closed(t, "the pod is known", c.bound().known)
	now := metav1.Now().Rfc3339Copy()

	pending := corev1.PodStatus{
		Phase: corev1.PodPending, StartTime: &now, HostIP: "10.0.0.5", HostIPs: []corev1.HostIP{{IP: "10.0.0.5"}, {IP: "fd00::5"}},
		QOSClass: corev1.PodQOSBurstable, ObservedGeneration: 1,
		Conditions: []corev1.PodCondition{gate, {Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", LastTransitionTime: now}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Image: "busybox", Started: ptr.To(false),
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		}},
	}
	running := *pending.DeepCopy()
	running.Phase, running.PodIP, running.PodIPs = corev1.PodRunning, "10.0.128.5", []corev1.PodIP{{IP: "10.0.128.5"}, {IP: "fd00::8005"}}
	running.Conditions = []corev1.PodCondition{gate, {Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now,
		ObservedGeneration: 2}}
	running.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Ready: true, RestartCount: 2, Image: "docker.io/library/busybox:1", ImageID: "docker.io/library/busybox@sha256:e1234",
		ContainerID: "containerd://abc", Started: ptr.To(true),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled",
			Message: "m", StartedAt: now, FinishedAt: now, ContainerID: "containerd://def"}},
		AllocatedResources: corev1.ResourceList{"cpu": info.Capacity["cpu"], "example.com/gpu": info.Capacity["cpu"]},
		Resources:          &corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": info.Capacity["memory"]}},
		VolumeMounts: []corev1.VolumeMountStatus{{Name: "data", MountPath: "/data", ReadOnly: true,
			RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyDisabled)}},
		User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1, GID: 2, SupplementalGroups: []int64{3}}},
		AllocatedResourcesStatus: []corev1.ResourceStatus{{Name: "example.com/gpu",
			Resources: []corev1.ResourceHealth{{ResourceID: "g0", Health: corev1.ResourceHealthStatusHealthy}}}},
		StopSignal: ptr.To(corev1.SIGTERM),
	}}
	ended := *running.DeepCopy()
	ended.Phase, ended.PodIP, ended.PodIPs, ended.Reason, ended.Message = corev1.PodFailed, "", nil, "Evicted", "why"

	old := pod.Status
	for _, next := range []corev1.PodStatus{pending, running, ended} {
		from, err := json.Marshal(corev1.Pod{Status: old})
		if err != nil {
			t.Fatal(err)
		}
		to, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: next})
		if err != nil {
			t.Fatal(err)
		}
		patch, err := strategicpatch.CreateTwoWayMergePatch(from, to, corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		if code, _, answer := do(ctx, c, http.MethodPatch, "/api/v1/namespaces/shop/pods/web/status", strategic, patch); code != http.StatusOK {
			t.Fatalf("%s:\n%s\n%d %s", next.Phase, patch, code, answer)
		}
		got, err := json.Marshal(h.up.get("pods", "shop", "web").(*corev1.Pod).Status)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(next)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Fatalf("%s: the API server has\n%s\nwant\n%s\npatch\n%s", next.Phase, got, want, patch)
		}
		old = next
	}
}

// A kubelet ends each pod of a machine that is switched off. One that nobody makes anew goes on elsewhere, as
// a pod does whose machine is lost.
func TestAPodWhoseMachineIsSwitchedOffEndsWhereAnotherTakesItsPlace(t *testing.T) {
	controller := []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "uid-job", Controller: ptr.To(true)}}
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	off := &corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
		Message: switchedOff}
	evicted := off.DeepCopy()
	evicted.Message = "The node was low on resource: memory."
	for name, tc := range map[string]struct {
		policy  corev1.RestartPolicy
		owners  []metav1.OwnerReference
		phase   corev1.PodPhase
		why     *corev1.PodCondition
		reason  string
		deleted bool
		ends    bool
	}{
		"always, failed":               {policy: always, phase: corev1.PodFailed, why: off},
		"always, succeeded":            {policy: always, phase: corev1.PodSucceeded, why: off},
		"always, deleted":              {policy: always, phase: corev1.PodFailed, why: off, deleted: true, ends: true},
		"always, evicted":              {policy: always, phase: corev1.PodFailed, why: evicted, reason: "Evicted", ends: true},
		"always, of its own":           {policy: always, phase: corev1.PodFailed, ends: true},
		"always, not admitted":         {policy: always, phase: corev1.PodFailed, reason: "NodeShutdown"},
		"never, not admitted":          {policy: never, phase: corev1.PodFailed, reason: "NodeShutdown"},
		"on failure, failed":           {policy: onFailure, phase: corev1.PodFailed, why: off},
		"on failure, succeeded":        {policy: onFailure, phase: corev1.PodSucceeded, why: off, ends: true},
		"never, failed":                {policy: never, phase: corev1.PodFailed, why: off, ends: true},
		"always, failed, replaced":     {policy: always, phase: corev1.PodFailed, why: off, owners: controller, ends: true},
		"on failure, failed, of a Job": {policy: onFailure, phase: corev1.PodFailed, why: off, owners: controller, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			h := newHouse(t)
			c := h.server.AddCell("c1", info)
			pod := podOn("web")
			pod.Spec.RestartPolicy, pod.OwnerReferences = tc.policy, tc.owners
			if tc.deleted {
				pod.DeletionTimestamp, pod.Finalizers = ptr.To(metav1.Now()), []string{"example.com/kept"}
			}
			ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{ready}}
			pod = h.bindNew(c, pod)
			closed(t, "the pod is known", c.bound().known)
			next := *pod.Status.DeepCopy()
			next.Phase, next.Reason, next.Message = tc.phase, tc.reason, "why"
			next.Conditions[0].Status = corev1.ConditionFalse
			if tc.why != nil {
				next.Conditions = append(next.Conditions, *tc.why)
			}
			next.ContainerStatuses = []corev1.ContainerStatus{{
				Name:  "main",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, FinishedAt: metav1.Now().Rfc3339Copy()}},
			}}
			from, err := json.Marshal(corev1.Pod{Status: pod.Status})
			if err != nil {
				t.Fatal(err)
			}
			to, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: next})
			if err != nil {
				t.Fatal(err)
			}
			patch, err := strategicpatch.CreateTwoWayMergePatch(from, to, corev1.Pod{})
			if err != nil {
				t.Fatal(err)
			}
			code, _, answer := do(ctx, c, http.MethodPatch, "/api/v1/namespaces/shop/pods/web/status", strategic, patch)
			if code != http.StatusOK {
				t.Fatalf("%s\n%d %s", patch, code, answer)
			}
			got, want := h.up.get("pods", "shop", "web").(*corev1.Pod).Status, next
			if !tc.ends { // but it is not ready
				want = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: next.Conditions[:1]}
			}
			if !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("its status is %+v, want %+v", got, want)
			}
		})
	}
}

// What a kubelet says of the end comes perhaps before Kip, which has just begun, knows whose pod it is:
// that is waited for, and holds up nobody else.
func TestTheEndOfAPodThatIsNotKnownYetIsWaitedFor(t *testing.T) {
	known := make(chan struct{})
	h := newHouseAt(t, clock.RealClock{}, func(h *house) {
		h.up.refuse = func(r apiRequest) error {
			if r.resource == "pods" && r.verb != "patch" {
				<-known
			}
			return nil
		}
	})
	learn := sync.OnceFunc(func() { close(known) })
	t.Cleanup(learn)
	c := h.server.AddCell("c1", info)
	pod := podOn("web")
	pod.Spec.RestartPolicy, pod.Status.Phase = corev1.RestartPolicyAlways, corev1.PodRunning
	h.bindNew(c, pod)
	over := make(chan string, 1)
	go func() {
		code, _, answer := do(context.Background(), c, http.MethodPatch, "/api/v1/namespaces/shop/pods/web/status", strategic, []byte(`{"status":{
			"phase":"Failed","conditions":[{"type":"DisruptionTarget","status":"True","message":"`+switchedOff+`"}]}}`))
		over <- fmt.Sprintf("%d %s", code, answer)
	}()
	eventually(t, "the patch is received", func() bool { _, _, bodies := c.budget.holds(); return bodies > 0 })
	eventually(t, "no turn is held", func() bool { _, all := h.server.working.Taken(c.limits); return all == 0 })
	select {
	case answer := <-over:
		t.Fatalf("before the pod is known: %s", answer)
	default:
	}
	learn()
	if answer := <-over; !strings.HasPrefix(answer, "200 ") {
		t.Fatal(answer)
	}
	if got := h.up.get("pods", "shop", "web").(*corev1.Pod).Status; got.Phase != corev1.PodRunning {
		t.Errorf("the pod, which goes on elsewhere, is %+v", got)
	}
	// Nor by what is only read, such as a watch, that waits as well: it never has one.
	if err := c.worksAgain(t.Context(), &counted{ResponseWriter: httptest.NewRecorder(), cell: c.limits, rest: func() {}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no turn is held", func() bool { own, _ := h.server.working.Taken(c.limits); return own == 0 })
}

// While what a cell sent is being applied, however long that takes, nothing of it or
// of others is held up: not the health check, another cell, or a change of the virtual node.
func TestNothingWaitsWhileWhatACellSentIsApplied(t *testing.T) {
	h := newHouse(t)
	c1, c2 := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	eventually(t, "the node is there", func() bool { return c1.Node() != nil })
	c1.node.show()
	entered, release, changed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(changed)
		n, err := c1.node.change(true, func(n *corev1.Node) (*corev1.Node, error) {
			select {
			case <-entered:
			default:
				close(entered)
			}
			<-release
			n.Status.Phase = "Applied"
			n.ResourceVersion = ""
			return n, nil
		})
		if err != nil || n.Status.Phase != "Applied" || n.Labels["zone"] != "b" {
			t.Errorf("the change came to %v, %v", n, err)
		}
	}()
	leased := make(chan struct{})
	holding := make(chan struct{})
	go func() {
		defer close(leased)
		if err := c1.lease.change(func(*watches.Object) (watches.APIObject, error) {
			close(holding)
			<-release
			l := &coordinationv1.Lease{}
			l.Name, l.Namespace = nodeName, corev1.NamespaceNodeLease
			return l, nil
		}); err != nil {
			t.Error(err)
		}
	}()
	<-entered
	<-holding
	others := make(chan struct{})
	go func() {
		defer close(others)
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				c1.node.heartbeat()
				_, _ = c1.LastHeartbeat(), c1.Node()
				_, _ = c2.LastHeartbeat(), c2.Node()
				h.server.AddCell(fmt.Sprint("more-", i), info)
				_ = c1.lease.current()
				_, _ = c1.CSIDrivers()
			})
		}
		all.Wait()
	}()
	closed(t, "everybody else goes on", others)
	v := virtual()
	v.Labels["zone"] = "b"
	h.up.put(v)
	eventually(t, "the virtual node's change reaches all cells", func() bool {
		return c1.Node().Labels["zone"] == "b" && c2.Node().Labels["zone"] == "b"
	})
	close(release)
	closed(t, "the change is made of the node as it is", changed)
	closed(t, "the lease is made", leased)
}

// What root on a cell says of its machine costs little to read, and little to keep.
func TestWhatACellSaysOfItsNodeIsBounded(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	c := h.server.AddCell("c1", info)
	c.budget.worked.SetLimit(rate.Inf) // however slow this machine is
	eventually(t, "the node is there", func() bool { return c.Node() != nil })
	c.node.show()
	const node = "/api/v1/nodes/" + nodeName
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	const csiNodes = "/apis/storage.k8s.io/v1/csinodes"
	ask := func(method, path, contentType, body string) (int, string) {
		c.budget.free()
		code, _, answer := do(ctx, c, method, path, contentType, []byte(body))
		return code, string(answer)
	}
	many := func(n int, of string) string {
		var all []string
		for i := range n {
			all = append(all, strings.ReplaceAll(of, "#", fmt.Sprint(i)))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	cell := c.Node().Status.Capacity.Cpu().String()
	for what, tc := range map[string]struct {
		body string
		code int
	}{
		"an exponent that is written out": {`{"status":{"capacity":{"cpu":"1e1500000000"}}}`, 422},
		"one below zero":                  {`{"status":{"allocatable":{"cpu":"1e-1500000000"}}}`, 422},
		"digits without end":              {`{"status":{"capacity":{"memory":"` + strings.Repeat("9", 1<<14) + `"}}}`, 422},
		"a number without quotes":         {`{"status":{"capacity":{"cpu":1e300}}}`, 422},
		"resources without end":           {`{"status":{"capacity":{` + strings.Trim(many(200, `"r#":"1"`), "[]") + `}}}`, 422},
		"conditions without end":          {`{"status":{"conditions":` + many(1000, `{"type":"t#"}`) + `}}`, 422},
		"addresses without end":           {`{"status":{"addresses":` + many(1000, `{"address":"#","type":"t"}`) + `}}`, 422},
		"images without end":              {`{"status":{"images":` + many(1000, `{"names":["#"]}`) + `}}`, 422},
		"labels without end":              {`{"metadata":{"labels":{` + strings.Trim(many(1000, `"l#":"1"`), "[]") + `}}}`, 422},
		"200,000 conditions":              {`{"status":{"conditions":` + many(200_000, `{"type":"t#"}`) + `}}`, 413},
		"more than is kept of a node": {`{"metadata":{"annotations":{` + strings.Trim(many(12, `"a#":"`+strings.Repeat("x", 8000)+`"`), "[]") +
			`}}}`, 413},
		"1.2 MB": {`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 1_200_000) + `"}}}`, 413},
	} {
		for _, contentType := range []string{strategic, "application/merge-patch+json"} {
			if code, answer := ask(http.MethodPatch, node+"/status", contentType, tc.body); code != tc.code {
				t.Errorf("%s as %s: %d %.200s, want %d", what, contentType, code, answer, tc.code)
			}
		}
	}
	for _, tc := range []struct{ what, method, path, contentType, body string }{
		{"a node in the lease's place", http.MethodPost, leases, "application/json", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"kip-0"},"status":{"capacity":{"cpu":"1e1500000000"}}}`},
		{"a pod in an event's place", http.MethodPost, "/api/v1/namespaces/shop/events", "application/json",
			`{"kind":"Pod","apiVersion":"v1","spec":{"overhead":{"cpu":"1e1500000000"}}}`},
		{"a node in protobuf", http.MethodPut, node + "/status", "application/vnd.kubernetes.protobuf", "k8s\x00"},
		{"a mirror pod that costs", http.MethodPost, "/api/v1/namespaces/shop/pods", "application/json",
			`{"kind":"Pod","apiVersion":"v1","metadata":{"annotations":{"kubernetes.io/config.mirror":"x"}},"spec":{"overhead":{"cpu":"1e1500000000"}}}`},
	} {
		if code, answer := ask(tc.method, tc.path, tc.contentType, tc.body); code < 400 || code > 415 {
			t.Errorf("%s: %d %.200s, want a refusal", tc.what, code, answer)
		}
	}
	if got := c.Node().Status.Capacity.Cpu().String(); got != cell {
		t.Errorf("its capacity is %s, want %s", got, cell)
	}

	image := `{"names":["registry.example.com/#@sha256:` + strings.Repeat("0", 64) + `","i:#","j:#","k:#","l:#"],"sizeBytes":1}`
	images := `{"status":{"images":` + many(60, image) + `}}`
	if code, answer := ask(http.MethodPatch, node+"/status", strategic, images); code != http.StatusOK || len(c.Node().Status.Images) != 0 {
		t.Errorf("more images than are kept: %d %.200s, want 200 and none of them", code, answer)
	}

	// As much as is taken, and with each version something else.
	for _, tc := range []struct{ path, body string }{
		{leases, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"kip-0"}}`},
		{csiNodes, `{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"kip-0"},"spec":{"drivers":[]}}`},
	} {
		if code, answer := ask(http.MethodPost, tc.path, "application/json", tc.body); code != http.StatusCreated {
			t.Fatalf("%d %s", code, answer)
		}
	}
	before := heap()
	taken, refused := 0, 0
	for i := range 60 {
		for _, size := range []int{1_200_000, 30_000, 3_000} {
			blob := fmt.Sprintf(`{"metadata":{"annotations":{"a":"%d%s","b":"%s"}}}`, i, strings.Repeat("x", size/4),
				strings.Repeat("y", min(size/4, 8000)))
			for _, path := range []string{node + "/status", leases + "/" + nodeName, csiNodes + "/" + nodeName} {
				switch code, answer := ask(http.MethodPatch, path, "application/merge-patch+json", blob); code {
				case http.StatusOK:
					taken++
				case http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
					refused++
				default:
					t.Fatalf("%d %.200s", code, answer)
				}
			}
		}
	}
	if held := int(heap() - before); held > 256<<10 || taken < 180 || refused < 180 {
		t.Errorf("%d bytes are held of a cell after %d changes (%d refused), want at most 256 KiB", held, taken, refused)
	}
}

// heap is what is in use of it.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// free lifts the limits that are not what is tried.
func (b *budget) free() {
	for _, l := range []*rate.Limiter{b.asked, b.sent, b.answered} {
		l.SetLimit(rate.Inf)
	}
}

// A cell has the tokens that volumes of its pod ask for, and lives no longer by them.
func TestTokensAreThoseOfThePodsVolumes(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	h.up.put(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "inline.csi"},
		Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "inline"}}}})
	h.up.put(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "claimed.csi"},
		Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "claimed", ExpirationSeconds: ptr.To(int64(7200))}}}})
	h.up.put(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "another.csi"},
		Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "another"}}}})
	h.up.put(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-data", UID: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}})
	h.up.put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:               &corev1.ObjectReference{Namespace: "shop", Name: "web-data", UID: "claim"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "claimed.csi"}},
	}})
	c, bare := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	web := podOn("web")
	web.Spec.Volumes = append(web.Spec.Volumes, tokenVolume("sts.amazonaws.com", ptr.To(int64(86400))), tokenVolume("", ptr.To(int64(3607))),
		corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline.csi"}}})
	web = h.bindNew(c, web)
	none := podOn("none")
	none.Spec.AutomountServiceAccountToken, none.Spec.Volumes = ptr.To(false), nil
	none = h.bindNew(bare, none)
	closed(t, "the pod is known", c.bound().known)
	closed(t, "the other pod is known", bare.bound().known)
	eventually(t, "the drivers are known", func() bool { return h.server.watches.Of(csiDrivers).Collection.Get("another.csi") != nil })

	ask := func(c *Cell, pod *corev1.Pod, seconds *int64, audiences ...string) int {
		request := tokenFor(pod)
		request.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
		request.Labels = map[string]string{"more": "x"}
		request.Spec.Audiences, request.Spec.ExpirationSeconds = audiences, seconds
		b, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		code, _, _ := do(ctx, c, http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts/clerk/token", "application/json", b)
		return code
	}
	for _, tc := range []struct {
		audiences []string
		seconds   int64 // 0 for unsaid
		code      int
	}{
		{[]string{"api"}, 0, 201},
		{[]string{"api"}, 3600, 201},
		{nil, 3607, 201},
		{[]string{"sts.amazonaws.com"}, 86400, 201},
		{[]string{"inline"}, 0, 201},
		{[]string{"claimed"}, 7200, 201},
		{[]string{"api"}, 315360000, 403},
		{[]string{"api"}, 3607, 403},
		{nil, 86400, 403},
		{nil, 0, 403},
		{[]string{"another"}, 0, 403},
		{[]string{"vault"}, 3600, 403},
		{[]string{"api", "vault"}, 3600, 403},
		{[]string{"claimed"}, 86400, 403},
	} {
		seconds := &tc.seconds
		if tc.seconds == 0 {
			seconds = nil
		}
		if code := ask(c, web, seconds, tc.audiences...); code != tc.code {
			t.Errorf("a token for %q of %d s: %d, want %d", tc.audiences, tc.seconds, code, tc.code)
		}
		if code := ask(bare, none, seconds, tc.audiences...); code != http.StatusForbidden {
			t.Errorf("a token for %q of a pod that has none: %d, want 403", tc.audiences, code)
		}
	}
	for _, r := range h.up.asked(func(r apiRequest) bool { return r.resource == "serviceaccounts" }) {
		if strings.Contains(r.body, "more") {
			t.Errorf("passed on: %s", r.body)
		}
	}
}

// What root on a cell reports is a kubelet's event about its pod, small, and rare.
func TestEventsOfAHostileCellAreMadeAnew(t *testing.T) {
	ctx := context.Background()
	clk := steppedClock(t)
	h := newHouseAt(t, clk)
	c := h.server.AddCell("c1", info)
	pod := h.bindNew(c, podOn("web"))
	post := func(name, message string) int {
		e := &corev1.Event{
			TypeMeta:       metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
			ObjectMeta:     metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": "b"}, Finalizers: []string{"example.com/stay"}},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web", UID: pod.UID, FieldPath: strings.Repeat("f", 9000)},
			Source:         corev1.EventSource{Component: "default-scheduler", Host: "other"}, ReportingController: "default-scheduler",
			Reason: strings.Repeat("R", 9000), Message: message, Type: "Fatal", Related: &corev1.ObjectReference{Kind: "Node", Name: "other"},
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		code, _, _ := do(ctx, c, http.MethodPost, "/api/v1/namespaces/shop/events", "application/json", b)
		return code
	}
	if code := post("web.0", strings.Repeat("x", 1_200_000)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("1.2 MB: %d, want 413", code)
	}
	if code := post("web.1", strings.Repeat("ü", 10_000)); code != http.StatusCreated {
		t.Fatalf("20 KB: %d", code)
	}
	got := h.up.get("events", "shop", "web.1").(*corev1.Event)
	if len(got.Message) > maxEventMessage || len(got.Reason) > 128 || len(got.InvolvedObject.FieldPath) > 256 || got.Annotations != nil ||
		got.Finalizers != nil || got.Related != nil ||
		got.Source.Component != "kubelet" || got.Source.Host != nodeName || got.ReportingController != "kubelet" ||
		got.Type != corev1.EventTypeWarning {
		t.Errorf("stored: %+v", got)
	}
	patch := func(body string) int {
		code, _, _ := do(ctx, c, http.MethodPatch, "/api/v1/namespaces/shop/events/web.1", strategic, []byte(body))
		return code
	}
	if code := patch(`{"count":2,"message":"` + strings.Repeat("y", 10_000) + `"}`); code != http.StatusOK {
		t.Errorf("the event recurs: %d", code)
	}
	if got := h.up.get("events", "shop", "web.1").(*corev1.Event); got.Count != 2 || len(got.Message) != maxEventMessage {
		t.Errorf("stored: count %d, a message of %d bytes", got.Count, len(got.Message))
	}
	for _, body := range []string{`{"count":"x"}`, `{"series":[]}`, `{"message":{}}`} {
		if code := patch(body); code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d, want 422", body, code)
		}
	}
	// As long as it likes: what is stored is a kilobyte a second, beside the burst.
	const seconds = 300
	const most = eventBurst + (seconds+1)*eventRate
	began := clk.Now()
	for i := 0; clk.Since(began) < seconds*time.Second; i++ {
		if i > most {
			t.Fatalf("%d events were stored in %v, want at most %d in %d s", i, clk.Since(began), most, seconds)
		}
		if code := post(fmt.Sprint("more.", i), strings.Repeat("z", 10_000)); code != http.StatusCreated {
			t.Errorf("event %d: %d, want it to wait", i, code)
		}
	}
	size := 0
	for _, r := range h.up.asked(func(r apiRequest) bool { return r.resource == "events" }) {
		size += len(r.body)
	}
	if took := int(clk.Since(began).Seconds()); size > (took+1)*eventBytesRate+eventBytesBurst || size == 0 {
		t.Errorf("%d bytes of events were stored in %d s", size, took)
	}
}

// Each request is charged before its body is read, also one that is refused, and what
// a cell asks costs no other.
func TestACellsRequestsAreChargedBeforeTheyAreRead(t *testing.T) {
	ctx := context.Background()
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	c1, c2 := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	h.bindNew(c1, podOn("one"))
	h.bindNew(c2, podOn("two"))
	closed(t, "the pod is known", c1.bound().known)

	// Bodies that never come are held to a number, and none of them is read before.
	const path = "/api/v1/namespaces/shop/pods/one/status"
	var held sync.WaitGroup
	var answered sync.Map
	release := make(chan struct{})
	var reading atomic.Int32
	for i := range 1000 {
		held.Go(func() {
			r := httptest.NewRequestWithContext(ctx, http.MethodPatch, path, &neverRead{reading: &reading, release: release})
			r.ContentLength = 100 << 10
			r.Header.Set("Content-Type", strategic)
			w := httptest.NewRecorder()
			c1.ServeHTTP(w, r)
			answered.Store(i, w.Code)
		})
	}
	eventually(t, "all but those that are read are refused", func() bool {
		n := 0
		answered.Range(func(any, any) bool { n++; return true })
		return n+int(reading.Load()) == 1000
	})
	most := int32(c1.budget.allowed().status - statusBody + bodiesHeld)
	if n := reading.Load(); n == 0 || n*(100<<10) > most {
		t.Errorf("%d bodies are being read, want at most %d bytes of them", n, most)
	}
	answered.Range(func(_, code any) bool {
		if code != http.StatusTooManyRequests {
			t.Errorf("answered %d, want 429", code)
		}
		return true
	})
	if code, _, b := get(ctx, c2, "/api/v1/namespaces/shop/pods/two"); code != http.StatusOK {
		t.Errorf("another cell: %d (%s), want 200", code, b)
	}
	close(release)
	held.Wait()
	if c1.budget.open != 0 || c1.budget.bodies != 0 {
		t.Errorf("%d requests and %d bytes are still held", c1.budget.open, c1.budget.bodies)
	}
	if u := c1.Usage(); u.Requests != 1000 || u.Refused == 0 {
		t.Errorf("usage is %+v", u)
	}

	// Reads are metered, and so are requests that are forbidden.
	clk.Step(time.Hour)
	for _, path := range []string{"/api/v1/services", "/api/v1/namespaces/bank/configmaps/theirs"} {
		code := 0
		for range c1.budget.asked.Burst() + 1 {
			code, _, _ = get(ctx, c1, path)
		}
		if code != http.StatusTooManyRequests {
			t.Errorf("%s, %d times at once: %d, want 429", path, c1.budget.asked.Burst()+1, code)
		}
		clk.Step(time.Hour)
	}
	c1.budget.wrote(clk.Now(), answeredBurst)
	c1.budget.wrote(clk.Now(), 2*int(patience.Seconds())*answeredRate) // a little more waits
	if code, _, _ := get(ctx, c1, "/api/v1/services"); code != http.StatusTooManyRequests {
		t.Errorf("after more answers than it may have: %d, want 429", code)
	}
	if code, _, _ := get(ctx, c1, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/kip-0"); code != http.StatusNotFound {
		t.Errorf("its lease: %d, want 404", code)
	}
}

// neverRead is a body that does not come before it is released.
type neverRead struct {
	reading *atomic.Int32
	release chan struct{}
	once    sync.Once
}

func (n *neverRead) Read([]byte) (int, error) {
	n.once.Do(func() { n.reading.Add(1) })
	<-n.release
	return 0, io.ErrUnexpectedEOF
}

// What a cell says is in the log without its escape sequences, and once a minute.
func TestRefusalsOfACellAreLoggedOnceAMinuteAndPrintable(t *testing.T) {
	ctx := context.Background()
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	var log bytes.Buffer
	h.server.log = slog.New(slog.NewTextHandler(&log, nil))
	observed := &observed{refused: map[Refusal]int{}}
	h.server.observer = observed
	c := h.server.AddCell("c1", info)
	for range 30 {
		if code, _, _ := get(ctx, c, "/api/v1/namespaces/bank/secrets/%1B%5D0;owned%07%1B%5B2J"); code != http.StatusForbidden {
			t.Fatalf("answered %d", code)
		}
		if code, _, _ := do(ctx, c, http.MethodPut, "/api/v1/nodes/kip-0", "text/plain", []byte("x")); code != http.StatusUnsupportedMediaType {
			t.Fatalf("answered %d", code)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !maps.Equal(observed.refused, map[Refusal]int{Forbidden: 30, MediaType: 30}) {
		t.Errorf("%d lines of %v refusals:\n%s", lines, observed.refused, log.String())
	}
	clk.Step(time.Minute)
	get(ctx, c, "/api/v1/secrets")
	if lines := strings.Count(log.String(), "\n"); lines != 2 || !strings.Contains(log.String(), "cell=c1") {
		t.Errorf("a minute later: %s", log.String())
	}
	if text := log.String(); strings.ContainsAny(text, "\x1b\x07") || strings.Contains(text, `\x1b`) {
		t.Errorf("the log has escape sequences: %q", text)
	}
}

// What all cells ask is told as it is charged to each.
func TestWhatCellsAskIsObserved(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	observed := &observed{refused: map[Refusal]int{}}
	h.server.observer = observed
	c1, c2 := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	eventually(t, "the node is there", func() bool { return c1.Node() != nil && c2.Node() != nil })
	for range 3 {
		get(ctx, c1, "/api/v1/nodes/"+nodeName)
		do(ctx, c2, http.MethodPatch, "/api/v1/nodes/"+nodeName, strategic, []byte(`{"metadata":{"labels":[]}}`))
		do(ctx, c2, http.MethodPatch, "/api/v1/nodes/"+nodeName, strategic, make([]byte, 1<<20))
		renewal(c1)
	}
	u1, u2 := c1.Usage(), c2.Usage()
	all := Usage{
		Requests: u1.Requests + u2.Requests,
		Refused:  u1.Refused + u2.Refused,
		Sent:     u1.Sent + u2.Sent,
		Answered: u1.Answered + u2.Answered,
		Worked:   u1.Worked + u2.Worked,
	}
	if !reflect.DeepEqual(observed.Usage, all) || all.Requests != 12 || all.Sent == 0 || all.Answered == 0 || all.Worked == 0 {
		t.Errorf("observed %+v, the cells have %+v and %+v", observed.Usage, u1, u2)
	}
	if want := map[Refusal]int{Invalid: 3, TooLarge: 3}; !maps.Equal(observed.refused, want) {
		t.Errorf("refused %v, want %v", observed.refused, want)
	}
}

// observed adds up. It is for requests one after the other.
type observed struct {
	Usage
	refused map[Refusal]int
}

func (o *observed) CellAsked()                 { o.Requests++ }
func (o *observed) CellSent(bytes int64)       { o.Sent += uint64(bytes) }
func (o *observed) CellAnswered(bytes int)     { o.Answered += uint64(bytes) }
func (o *observed) CellWorked(d time.Duration) { o.Worked += d }
func (o *observed) CellRefused(r Refusal)      { o.Refused++; o.refused[r]++ }

// However long what a cell says is, a line of the log that has it is short, and so is
// the answer.
func TestWhatACellSaysInTheLogIsShort(t *testing.T) {
	ctx := context.Background()
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	var log bytes.Buffer
	h.server.log = slog.New(slog.NewTextHandler(&log, nil))
	c := h.server.AddCell("c1", info)
	long, short := strings.Repeat("%1B%5B31m", 6000), strings.Repeat("%1B%5B31m", 150)
	for _, path := range []string{
		"/api/v1/namespaces/bank/secrets/" + short, "/api/v1/" + short, "/" + short, "/api/v1/namespaces/bank/secrets/" + long,
		"/api/v1/" + long, "/" + long, "/apis/" + long + "/v1/x/y", "/api/v1/namespaces/" + long + "/pods",
	} {
		before := log.Len()
		_, _, answer := get(ctx, c, path)
		if n := log.Len() - before; n > 700 {
			t.Errorf("%.40s: %d bytes of log: %.200s", path, n, log.String()[before:])
		}
		if n := len(answer); n > 8<<10 {
			t.Errorf("%.40s: %d bytes of answer: %.200s", path, n, answer)
		}
		clk.Step(time.Hour)
	}
	warning, err := json.Marshal(&corev1.Event{
		TypeMeta:   metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "csi.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: agentapi.PluginNamespace, Name: agentapi.PluginPod("disks"),
			UID: "theirs"},
		Reason: "Failed", Type: corev1.EventTypeWarning, Message: strings.Repeat("\x1b[2J", 5000),
	})
	if err != nil {
		t.Fatal(err)
	}
	before := log.Len()
	code, _, _ := do(ctx, c, http.MethodPost, "/api/v1/namespaces/"+agentapi.PluginNamespace+"/events", "application/json", warning)
	if n := log.Len() - before; code != http.StatusCreated || n == 0 || n > 1<<10 || strings.Contains(log.String(), `\x1b`) {
		t.Errorf("a plugin's warning: %d, %d bytes of log: %.200s", code, n, log.String()[before:])
	}
	if log.Len() == 0 {
		t.Error("nothing was logged")
	}
}

// What a list or watch compares with each object is bounded, and the time of it is the
// cell's.
func TestSelectorsOfACellAreBoundedAndCharged(t *testing.T) {
	h := newHouse(t)
	for n := range 50 {
		h.up.put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("service-%d", n),
			Labels: map[string]string{"app": "x"}}})
	}
	c := h.server.AddCell("c1", info)
	if code, _, _ := get(t.Context(), c, "/api/v1/services"); code != http.StatusOK || c.Usage().Worked != 0 {
		t.Fatalf("a list without selectors: %d, %v of work", code, c.Usage().Worked)
	}
	absent := func(n int) string { return strings.TrimSuffix(strings.Repeat("!a,", n), ",") }
	name := strings.Repeat("n", 253)
	for query, want := range map[string]int{
		"labelSelector=" + absent(maxRequirements):                                                       http.StatusOK,
		"labelSelector=" + absent(maxRequirements+1):                                                     http.StatusBadRequest,
		"labelSelector=" + absent(maxRequirements) + "&fieldSelector=metadata.name%3Da":                  http.StatusBadRequest,
		"fieldSelector=" + strings.Repeat("metadata.name!%3Da,", maxRequirements) + "metadata.name!%3Da": http.StatusBadRequest,
		"labelSelector=a+in+(" + strings.Repeat("b,", maxQuery/2) + "c)":                                 http.StatusBadRequest,
		"limit=500&" + strings.Repeat("x", maxQuery):                                                     http.StatusBadRequest,
		// The longest of a kubelet.
		"allowWatchBookmarks=true&fieldSelector=metadata.name%3D" + name + "&resourceVersion=1&timeout=9m59s&timeoutSeconds=599": http.StatusOK,
	} {
		if code, _, answer := get(t.Context(), c, "/api/v1/services?"+query); code != want {
			t.Errorf("%.60s: %d %.200s, want %d", query, code, answer, want)
		}
		if code, _, answer := get(t.Context(), c, "/api/v1/services?watch=true&timeoutSeconds=1&"+query); want != http.StatusOK && code != want {
			t.Errorf("a watch of %.60s: %d %.200s, want %d", query, code, answer, want)
		}
	}
	listed := c.Usage().Worked
	if listed == 0 {
		t.Error("the time that objects are compared with selectors is not charged")
	}

	// A watch compares each change, and keeps of its request only what it compares.
	ctx, end := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/services?watch=true&resourceVersion=0&labelSelector=!a,!b", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+strings.Repeat("x", 4<<10))
	w := newFrames()
	done := make(chan struct{})
	go func() { defer close(done); c.ServeHTTP(w, r) }()
	eventually(t, "what is there is seen", func() bool { return w.count("service-") == 50 })
	before := c.Usage().Worked
	h.up.put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new", Labels: map[string]string{"app": "x"}}})
	eventually(t, "a new one is seen", func() bool { return w.count(`"name":"new"`) == 1 })
	if c.Usage().Worked == before {
		t.Error("the time that a watch compares changes is not charged")
	}
	end()
	<-done
	if len(r.Header) > 0 || r.URL.RawQuery != "" || r.RequestURI != "" {
		t.Errorf("a watch keeps its request: %v %v %q", r.Header, r.URL, r.RequestURI)
	}
}

// frames takes what a watch writes while it goes on.
type frames struct {
	*httptest.ResponseRecorder
	mu   sync.Mutex
	text strings.Builder
}

func newFrames() *frames { return &frames{ResponseRecorder: httptest.NewRecorder()} }

func (f *frames) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.Write(p)
}

func (f *frames) count(s string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Count(f.text.String(), s)
}

// A small patch has the API server write the whole object: so much is charged. The pod is stored twice a second, after
// a burst; what is more waits.
func TestAPatchIsChargedWhatItHasStored(t *testing.T) {
	clk := steppedClock(t)
	h := newHouseAt(t, clk)
	c := h.server.AddCell("c1", info)
	pod := podOn("web")
	for n := range 20 {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: fmt.Sprintf("c%d", n), State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Message: strings.Repeat("x", 4<<10)}},
		})
	}
	pod = h.bindNew(c, pod)
	closed(t, "the pod is known", c.bound().known)
	const seconds = 30
	began, stored := clk.Now(), 0
	for ; clk.Since(began) < seconds*time.Second; stored++ {
		if stored > rewrites+rewriteRate*(seconds+1) {
			t.Fatalf("%d small patches of what is large were stored in %v", stored, clk.Since(began))
		}
		code, _, answer := do(t.Context(), c, http.MethodPatch, "/api/v1/namespaces/shop/pods/web/status", strategic,
			fmt.Appendf(nil, `{"status":{"message":"%d"}}`, stored))
		if code != http.StatusOK || len(answer) < 80<<10 {
			t.Fatalf("patch %d: %d, %d bytes", stored, code, len(answer))
		}
	}
	if most := rewrites + rewriteRate*(int(clk.Since(began).Seconds())+1); stored > most || stored < most/2 {
		t.Errorf("%d small patches of what is large were stored in %v, want about %d", stored, clk.Since(began), most)
	}

	clk.Step(time.Hour)
	about := fmt.Sprintf(`"involvedObject":{"kind":"Pod","namespace":"shop","name":"web","uid":"%s"}`, pod.UID)
	if code, _, answer := do(t.Context(), c, http.MethodPost, "/api/v1/namespaces/shop/events", "application/json",
		[]byte(`{"kind":"Event","apiVersion":"v1","metadata":{"name":"web.1","namespace":"shop"},`+about+`,"message":"`+strings.Repeat("x", maxNote)+`"}`)); code != http.StatusCreated {
		t.Fatalf("an event: %d %s", code, answer)
	}
	clk.Step(time.Hour)
	before := c.eventBytes.TokensAt(clk.Now())
	code, _, answer := do(t.Context(), c, http.MethodPatch, "/api/v1/namespaces/shop/events/web.1", strategic, []byte(`{"count":2}`))
	if took := int(before - c.eventBytes.TokensAt(clk.Now())); code != http.StatusOK || took != len(answer) {
		t.Errorf("a patch of an event: %d, %d bytes charged, want those of the whole, %d", code, took, len(answer))
	}
}

// What fails since the cell gave its request up says nothing of the API server, and
// however much a plugin fails, it is said once a minute.
func TestWhatACellEndsItselfIsNotLogged(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	var log bytes.Buffer
	h.server.log = slog.New(slog.NewTextHandler(&log, nil))
	c := h.server.AddCell("c1", info)
	h.bindNew(c, podOn("web"))
	closed(t, "the pod is known", c.bound().known)
	ended, end := context.WithCancel(t.Context())
	end()
	for range 20 {
		if code, _, _ := get(ended, c, "/api/v1/namespaces/shop/persistentvolumeclaims/web-data"); code == http.StatusOK {
			t.Fatal("a request that has ended was passed on")
		}
		clk.Step(time.Minute)
	}
	if log.Len() > 0 {
		t.Errorf("the log says %s", log.String())
	}
	for n := range 20 {
		c.notePlugin(&corev1.Event{Type: corev1.EventTypeWarning, Reason: fmt.Sprint("Failed", n), Message: "it did"})
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || c.PluginTrouble() != "Failed19: it did" {
		t.Errorf("%d lines of 20 warnings, the last is %q", lines, c.PluginTrouble())
	}
}

// Whose limits a cell was beyond is known of each cell, and of each limit.
func TestRefusalsAreCountedByLimitForEachCell(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	c1, c2 := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	const secret = "/api/v1/namespaces/bank/secrets/theirs"
	for range askedBurst + 3 {
		get(t.Context(), c1, secret)
	}
	clk.Step(time.Hour)
	c1.budget.wrote(clk.Now(), answeredBurst)
	c1.budget.wrote(clk.Now(), answeredBurst)
	get(t.Context(), c1, "/api/v1/services")
	for range renewBurst + 1 {
		renewal(c1)
	}
	usage := h.server.Usage()
	want := map[string]uint64{Forbidden: askedBurst, limitRequests: 3, limitAnswered: 1, limitRenewals: 1}
	if u := usage["c1"]; !maps.Equal(u.RefusedBy, want) || u.Refused != askedBurst+5 || u.Requests != askedBurst+3+1+renewBurst+1 {
		t.Errorf("the usage is %+v, want refusals by %v", u, want)
	}
	if u, is := usage["c2"]; !is || u.Refused != 0 || len(usage) != 2 {
		t.Errorf("of %d cells, the other's usage is %+v", len(usage), u)
	}
	usage["c1"].RefusedBy[Forbidden] = 0
	if c1.Usage().RefusedBy[Forbidden] != askedBurst || c2.Usage().Refused != 0 {
		t.Error("what was told is not a copy")
	}
}
