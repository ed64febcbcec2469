package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

var update = flag.Bool("update", false, "rewrite testdata/*.golden from what the commands print")

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func testPod(namespace, name, node string, status corev1.PodStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: ago(5 * time.Minute)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     status,
	}
}

func waitingStatus(container, reason, message string) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason,
		Message: message}}}}
}

func testCell(name, namespace, pod string, s apiv1.CellStatus) *apiv1.Cell {
	s.Pod = apiv1.PodReference{Namespace: namespace, Name: pod, UID: types.UID("uid-" + pod)}
	s.Node, s.ControllerID = "kip-0", "id"
	return &apiv1.Cell{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiv1.GroupVersion.String(), Kind: apiv1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(5 * time.Minute)},
		Status:     s,
	}
}

// installKip makes a StatefulSet with Kip's labels, and its pod. In kip-system that is Kip itself.
func installKip(t *testing.T, c *cluster, namespace string) {
	t.Helper()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kip", UID: types.UID("set-" + namespace)}}
	kip := testPod(namespace, "kip-0", "machine", corev1.PodStatus{Phase: corev1.PodRunning})
	kip.Labels = map[string]string{"app": "kip-provider", "app.kubernetes.io/name": "kip"}
	kip.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set.Name, UID: set.UID,
		Controller: new(true)}}
	kip.Spec.ServiceAccountName = "kip"
	kip.Spec.Containers = []corev1.Container{{Name: kipContainer, Args: []string{"--nodename=kip-0"}}}
	kip.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "kip"}}}}}
	_, err1 := c.kube.AppsV1().StatefulSets(namespace).Create(t.Context(), set, metav1.CreateOptions{})
	_, err2 := c.kube.CoreV1().Pods(namespace).Create(t.Context(), kip, metav1.CreateOptions{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
}

// mayAct has the service account kip of kip-system act as any virtual node, and no other.
func mayAct(a clienttesting.Action) (bool, runtime.Object, error) {
	review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
	review.Status.Allowed = review.Spec.User == "system:serviceaccount:kip-system:kip"
	return true, review, nil
}

// testCluster has two virtual nodes, a machine, pods on each and cells.
func testCluster(t *testing.T) *cluster {
	t.Helper()
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	virtual := map[string]string{"type": "virtual-kubelet"}
	event := func(name string, uid types.UID, d time.Duration, count int32, reason, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name},
			InvolvedObject: corev1.ObjectReference{UID: uid}, LastTimestamp: ago(d), Count: count,
			Type: "Warning", Reason: reason, Message: message,
		}
	}
	deleted := testPod("batch", "leaving", "kip-1", corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.9"})
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: now}, []string{"kept/here"}
	daemon := testPod("batch", "logs", "kip-1", corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: apiv1.NoMachine, Status: corev1.ConditionTrue, Message: "Kip launches no machine for a pod of a DaemonSet"}}})
	daemon.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", Controller: new(true)}}
	unbound := testPod("default", "unbound", "", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"}}})
	unbound.Annotations = map[string]string{"pod.elotl.co/profile": "batch"}
	kube := fake.NewClientset(
		node("kip-0", virtual), node("kip-1", virtual), node("machine", nil),
		testPod("default", "web", "kip-0", corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.5"}),
		testPod("default", "pulls", "kip-0", corev1.PodStatus{Phase: corev1.PodPending,
			ContainerStatuses: waitingStatus("main", "ImagePullBackOff", `Back-off pulling image "nope"`)}),
		testPod("default", "boots", "kip-0", corev1.PodStatus{Phase: corev1.PodPending}),
		testPod("default", "early", "kip-0", corev1.PodStatus{Phase: corev1.PodPending}),
		unbound,
		testPod("default", "elsewhere", "machine", corev1.PodStatus{Phase: corev1.PodRunning}),
		deleted, daemon,
		event("e2", "uid-boots", 10*time.Second, 1, "Launched", "instance i-2 of c5.large"),
		event("e1", "uid-boots", time.Minute, 3, "NoCapacity", "no capacity for t3.nano in us-east-1a, trying c5.large"),
		event("e3", "uid-early", 20*time.Second, 4, "NoInstanceType", "needs cpu 99: 8 types considered, none fits"),
		event("other", "uid-web", time.Minute, 1, "Unhealthy", "readiness probe failed"),
	)
	kube.PrependReactor("create", "subjectaccessreviews", mayAct)
	// The fake API server does not select by fields; a real one does.
	kube.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		list := a.(clienttesting.ListAction)
		selector := list.GetListRestrictions().Fields
		if selector.Empty() {
			return false, nil, nil
		}
		obj, err := kube.Tracker().List(a.GetResource(), kindOf(a.GetResource()), a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		switch all := obj.(type) {
		case *corev1.PodList:
			kept := all.Items[:0]
			for _, p := range all.Items {
				if selector.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName}) {
					kept = append(kept, p)
				}
			}
			all.Items = kept
		case *corev1.EventList:
			kept := all.Items[:0]
			for _, e := range all.Items {
				if selector.Matches(fields.Set{"involvedObject.uid": string(e.InvolvedObject.UID)}) {
					kept = append(kept, e)
				}
			}
			all.Items = kept
		}
		return true, obj, nil
	})
	step := func(name string, d time.Duration) apiv1.Step {
		return apiv1.Step{Name: name, Time: metav1.NewMicroTime(now.Add(-d))}
	}
	since := func(ms int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(ms) * time.Millisecond} }
	var objects []runtime.Object
	for _, c := range []*apiv1.Cell{
		testCell("c-web", "default", "web", apiv1.CellStatus{Phase: apiv1.Bound, Attempt: 1, InstanceID: "i-1", InstanceType: "t3.nano",
			Zone:       "us-east-1a",
			LaunchType: "On-Demand", PricePerHour: "0.0052", IP: "10.1.0.5", Reason: "cheapest of 40 that fit"}),
		testCell("c-pulls", "default", "pulls", apiv1.CellStatus{Phase: apiv1.Bound, Attempt: 1, InstanceID: "i-3", InstanceType: "t3.nano",
			Zone:       "us-east-1b",
			LaunchType: "Spot", PricePerHour: "0.0016"}),
		testCell("c-boots-1", "default", "boots", apiv1.CellStatus{Phase: apiv1.Terminating, Attempt: 1}),
		testCell("c-boots-2", "default", "boots", apiv1.CellStatus{Phase: apiv1.Booting, Attempt: 2, InstanceID: "i-2",
			InstanceType: "c5.large", Zone: "us-east-1a",
			LaunchType: "On-Demand", PricePerHour: "0.085", Reason: "no capacity for t3.nano", Steps: []apiv1.Step{
				step("seen", 90*time.Second), step("placed", 89500*time.Millisecond), step("launched", 10*time.Second)},
			Boot:  &apiv1.Boot{Kernel: since(2613), UserSpace: since(4800), Network: since(5100), Joined: since(6500), Ready: since(8050)},
			Agent: &apiv1.Agent{Version: "v1.4.1", SHA256: strings.Repeat("0af", 21) + "9"}}),
		testCell("c-leaving", "batch", "leaving", apiv1.CellStatus{Phase: apiv1.Draining, Attempt: 1, InstanceType: "m5.large",
			Zone: "us-east-1a", LaunchType: "On-Demand", PricePerHour: "0.096"}),
	} {
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, &unstructured.Unstructured{Object: u})
	}
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{apiv1.Resource: "CellList"}, objects...)
	return &cluster{kube: kube, dynamic: dyn}
}

func kindOf(r schema.GroupVersionResource) schema.GroupVersionKind {
	return r.GroupVersion().WithKind(map[string]string{"pods": "Pod", "events": "Event", "nodes": "Node"}[r.Resource])
}

// result is what a command printed and returned.
type result struct {
	out, err string
	failed   error
}

// TestMain hides the socket that who runs the tests may have named. With asProgram it is kipctl.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	if err := os.Unsetenv(socketEnv); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// run runs a command against c, with no socket unless args or the environment
// name one. Nobody serves the default one, which is shown as in earnest.
func run(t *testing.T, c *cluster, args ...string) result {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var out, stderr bytes.Buffer
	k := &kipctl{
		out: &out, err: &stderr, clock: clocktesting.NewFakePassiveClock(now), waits: atOnce{},
		connect: func(clientcmd.ClientConfig) (*cluster, error) {
			if c == nil {
				return nil, errors.New("no cluster")
			}
			return c, nil
		},
		fallbackSocket: filepath.Join(t.TempDir(), adminapi.SocketName),
		leaderWait:     time.Second,
		consolePause:   time.Millisecond,
	}
	root := newRoot(k, "kipctl")
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	shown := strings.NewReplacer(k.fallbackSocket, defaultSocket)
	return result{shown.Replace(out.String()), shown.Replace(stderr.String()), err}
}

// atOnce is a clock by which nobody waits.
type atOnce struct{ clock.RealClock }

func (atOnce) After(time.Duration) <-chan time.Time {
	over := make(chan time.Time, 1)
	over <- time.Now()
	return over
}

func TestOutput(t *testing.T) {
	for name, args := range map[string]string{
		"get-cells":           "get cells",
		"get-cells-namespace": "get cells -n batch",
		"get-cells-names":     "get cells c-web c-pulls",
		"get-cells-json":      "get cells c-web -o json",
		"get-cells-yaml":      "get cl -n batch -o yaml",
		"get-pods":            "get pods",
		"get-pods-all":        "get pods -A",
		"get-pods-namespace":  "get po -n batch",
		"get-pods-json":       "get pods web -o json",
		"why-boots":           "why boots",
		"why-boots-yaml":      "why default/boots -o yaml",
		"why-running":         "why pod/web",
		"why-pulls":           "why pulls",
		"why-no-cell":         "why early",
		"why-unbound":         "why unbound",
		"why-no-machine":      "why batch/logs",
		"help":                "--help",
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, testCluster(t), strings.Fields(args)...)
			if got.failed != nil || got.err != "" {
				t.Fatalf("kipctl %s: %v, stderr %q", args, got.failed, got.err)
			}
			golden(t, name, got.out)
		})
	}
}

// golden compares what was printed with a file.
func golden(t *testing.T, name, printed string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(printed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if printed != string(want) {
		t.Errorf("printed\n%s\nwant\n%s", printed, want)
	}
}

func TestErrorsAreClearAndFail(t *testing.T) {
	for args, want := range map[string]string{
		"get":                           `say what to get: "kipctl get capacity", "kipctl get cells", "kipctl get pods", "kipctl get standby"`,
		"get cells nope":                `cell "nope" not found`,
		"get pods nope":                 `pod "nope" not found on a virtual node in namespace "default"`,
		"get pods elsewhere":            `pod "elsewhere" not found on a virtual node`,
		"get cells -A -n x":             "exclude each other",
		"get pods -A -n x":              "exclude each other",
		"get cells -o wide":             `--output: "wide" is not a format: it must be table, json or yaml`,
		"get nodes":                     "unknown command",
		"get standby web":               `kipctl get standby takes no arguments: got "web"`,
		"ca web":                        `kipctl ca takes no arguments: got "web"`,
		"ca rotate web":                 `kipctl ca rotate takes no arguments: got "web"`,
		"ca drop web":                   `kipctl ca drop takes no arguments: got "web"`,
		"price pod.yaml":                "manifests are named with -f: -f pod.yaml",
		"console":                       "name one cell: CELL; got 0 arguments",
		"console -f c-web -o json":      "--follow shows text as it comes: --output json is not for it",
		"why":                           "name one pod",
		"why a b":                       "got 2 arguments",
		"why a/b/c":                     `"a/b/c" is not the name of a pod`,
		"why batch/x -n default":        `--namespace says "default"`,
		"why nope":                      "get pod default/nope",
		"why elsewhere":                 "not a virtual node",
		"why web --socket /none/k.sock": "no Kip serves this socket: /none/k.sock",
		"version --socket /none/k.sock": "no Kip serves this socket: /none/k.sock: start Kip, or name its socket",

		"console c-web --socket /none/k.sock": "no Kip serves this socket: /none/k.sock",
		"get standby --socket /none/k.sock":   "no Kip serves this socket: /none/k.sock",
		"get capacity --socket /none/k.sock":  "no Kip serves this socket: /none/k.sock",
		"backup -f /none/b --socket /none/k":  "/none/b is not written",
		"cleanup --socket /none/k.sock":       "no Kip serves this socket: /none/k.sock",
		"cleanup --yes --timeout 0s":          "--timeout is 0s: it must be above 0",
		"restore":                             "name one backup: FILE; got 0 arguments",
		"restore b":                           "--provider-config must name Kip's provider.yaml",
		"restore b --provider-config /none/p": "--provider-config: read the configuration: open /none/p",
	} {
		got := run(t, testCluster(t), strings.Fields(args)...)
		if got.failed == nil || !strings.Contains(got.err, want) || got.out != "" && !strings.Contains(args, "nodes") {
			t.Errorf("kipctl %s: error %v, stderr %q, stdout %q\nwant %q", args, got.failed, got.err, got.out, want)
		}
	}
}

func TestAClusterWithoutKip(t *testing.T) {
	c := testCluster(t)
	c.dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("list", "cells", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(apiv1.Resource.GroupResource(), "")
	})
	if got := run(t, c, "get", "cells"); got.failed == nil || !strings.Contains(got.err, "no resource cells.kip.elotl.co") {
		t.Errorf("get cells: %v, %q", got.failed, got.err)
	}
	if got := run(t, c, "get", "pods"); got.failed != nil || !strings.Contains(got.err, "Warning: cells are not shown") ||
		!strings.Contains(got.out, "web") {
		t.Errorf("get pods: %v, %q, %q", got.failed, got.err, got.out)
	}
	if got := run(t, &cluster{kube: fake.NewClientset(), dynamic: c.dynamic}, "get", "pods", "-A"); got.failed != nil || got.out != "" ||
		got.err != "No pods found on virtual nodes.\n" {
		t.Errorf("get pods without any: %+v", got)
	}
	if got := run(t, nil, "get", "cells"); got.failed == nil || !strings.Contains(got.err, "no cluster") {
		t.Errorf("no cluster: %+v", got)
	}
}

// A pod that was rejected has the kubelet's reason, one whose status is not stored what is wrong with it.
func TestWhySaysWhyAPodFailedAndWhatIsWrongWithItsStatus(t *testing.T) {
	var out bytes.Buffer
	k := &kipctl{out: &out, err: &out, clock: clock.RealClock{}}
	if err := k.explanation(&out, &adminapi.Explanation{
		PodPhase: "Failed", Ended: "SysctlForbidden: Pod was rejected: why", StatusTrouble: "Kip refuses the pod's status: it is odd",
	}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Failed, SysctlForbidden: Pod was rejected: why\n", "Kip refuses the pod's status: it is odd\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in:\n%s", line, out.String())
		}
	}
}

// explainer is a Kip that knows one pod.
type explainer struct{}

func (explainer) Why(_ context.Context, namespace, pod string) (adminapi.Explanation, error) {
	if namespace+"/"+pod != "default/large" {
		return adminapi.Explanation{}, adminapi.ErrNotFound
	}
	heard := now.Add(-3 * time.Second)
	return adminapi.Explanation{
		Pod: apiv1.PodReference{Namespace: "default", Name: "large", UID: "u"}, Node: "kip-0", Profile: "gpus", PodPhase: "Pending",
		Waiting: "capacity",
		Cell: &adminapi.Cell{Name: "c-large", Status: apiv1.CellStatus{Phase: apiv1.Booting, InstanceType: "c5.large", Zone: "us-east-1a",
			PricePerHour: "0.085", Agent: &apiv1.Agent{Version: "v1.4.1", Kip: "v1.4.2"},
			Beside: []apiv1.BesidePod{{Namespace: "logging", Name: "fluent-bit-x", Ready: true},
				{Namespace: "security", Name: "falco-y", Message: "it has no room here"}}},
			Tunnel: &adminapi.Tunnel{Error: "connection refused", LastHeard: &heard},
			Agent: &adminapi.Agent{Components: []adminapi.Component{{Name: "containerd", PID: 7, Restarts: 1},
				{Name: "kubelet", Waiting: "waiting for containerd"}}},
			Console: &adminapi.Console{Lines: []string{"[    0.1] Linux", "itzo: no \x1b[31maddress"}}},
		Placement: &adminapi.Placement{
			Need:    "cpu 2, memory 3Gi",
			Standby: "cell-standby",
			Candidates: []adminapi.Candidate{
				{InstanceType: "c5.large", Zone: "us-east-1a", LaunchType: "On-Demand", PricePerHour: "0.085", Why: "cheapest"},
				{InstanceType: "m5.large", Zone: "us-east-1a", LaunchType: "On-Demand", PricePerHour: "0.096",
					BurstPerHour: "0.01", DiskPerHour: apiv1.Unknown, AddressPerHour: "0.005", CostPerHour: "0.111"},
				{InstanceType: "m5.large", Zone: "us-east-1a", LaunchType: "Spot", PricePerHour: apiv1.Unknown, CostPerHour: apiv1.Unknown},
			},
			Rank: 3, Ranks: 3, MovesBack: now.Add(40 * time.Minute),
			Better:     []adminapi.Better{{Rank: 1, Why: "no capacity now as spot"}, {Rank: 2, Why: "can be launched now"}},
			PricesTold: now.Add(-129 * 24 * time.Hour),
			Rejected: []adminapi.Rejection{{What: "t3.medium in us-east-1a", Why: "no capacity until 12:02"},
				{What: "3 types", Why: "have too little memory"}},
		},
		Events: []adminapi.Event{{Time: now.Add(-time.Minute), Count: 2, Type: "Warning", Reason: "NoCapacity",
			Message: "no capacity for t3.medium"}},
	}, nil
}

func (explainer) Console(_ context.Context, cell string) (adminapi.ConsoleText, error) {
	return adminapi.ConsoleText{}, fmt.Errorf("cell %s: %w", cell, adminapi.ErrNotFound)
}

func (explainer) Cells(context.Context) ([]adminapi.Cell, error) { return nil, nil }

func (explainer) Standby(context.Context) ([]adminapi.Pool, error) {
	return []adminapi.Pool{{Name: "large", Want: 3, Ready: 2, Booting: 1},
		{Name: "small/spot", Want: 1, Why: "small/spot has no capacity now"}}, nil
}

func (explainer) Capacity(context.Context) ([]adminapi.Shortage, error) {
	return []adminapi.Shortage{
		{Subnet: "subnet-1", Until: now.Add(20 * time.Second), Why: "no free addresses"},
		{Family: "standard", LeastMilliCPU: 4000, LaunchType: "On-Demand", Until: now.Add(time.Minute), Why: "VcpuLimitExceeded"},
		{InstanceType: "c5.large", Zone: "us-east-1a", LaunchType: "Spot", Until: now.Add(150 * time.Second), Why: "none left"},
	}, nil
}

// socket serves explainer, and what else change adds, and names it in the
// environment.
func socket(t *testing.T, change ...func(*adminapi.Config)) {
	t.Helper()
	dir := t.TempDir()
	c := adminapi.Config{Dir: dir, Version: "v9.9.9", Explainer: explainer{}, Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	s, err := adminapi.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, adminapi.SocketName)
	t.Setenv(socketEnv, path)
	for deadline := time.Now().Add(patience); ; {
		if _, err := adminapi.NewClient(path).Version(t.Context()); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestWhyAsksTheSocketFirst(t *testing.T) {
	socket(t)
	got := run(t, nil, "why", "large") // no cluster is needed
	if got.failed != nil {
		t.Fatal(got.failed)
	}
	golden(t, "why-socket", got.out)
	// A pod of another Kip: the API server knows it.
	if got := run(t, testCluster(t), "why", "boots"); got.failed != nil || !strings.Contains(got.out, "c-boots-2") {
		t.Errorf("why boots: %+v", got)
	}
}

func TestPoolsAndShortagesComeFromTheSocket(t *testing.T) {
	socket(t)
	for _, what := range []string{"standby", "capacity"} {
		got := run(t, nil, "get", what)
		if got.failed != nil || got.err != "" {
			t.Errorf("get %s: %+v", what, got)
		}
		golden(t, "get-"+what, got.out)
	}
	if got := run(t, nil, "get", "capacity", "-o", "json"); got.failed != nil || !strings.Contains(got.out, `"launchType": "Spot"`) {
		t.Errorf("as JSON: %+v", got)
	}
}

func TestTheWorstCellsComeFirst(t *testing.T) {
	socket(t, func(c *adminapi.Config) {
		c.Usage = func() []adminapi.CellUsage {
			return []adminapi.CellUsage{
				{Cell: "c-idle", Requests: 12, SentBytes: 1, AnsweredBytes: 2049},
				{Cell: "c-web", Pod: apiv1.PodReference{Namespace: "default", Name: "web"}, Requests: 60, WorkedSeconds: .5},
				{
					Cell:          "c-hostile",
					Pod:           apiv1.PodReference{Namespace: "batch", Name: "miner"},
					Requests:      1 << 40,
					SentBytes:     3 << 30,
					WorkedSeconds: .5,
					RefusedBy:     map[string]uint64{"work_time": 7, "forbidden": 1 << 33},
				},
				{Cell: "c-busy", Pod: apiv1.PodReference{Namespace: "batch", Name: "busy"}, Requests: 900, SentBytes: 1 << 20, WorkedSeconds: 12.34},
			}
		}
	})
	for name, args := range map[string]string{
		"worst-cells":           "get cells --worst",
		"worst-cells-one":       "get cells --worst=1",
		"worst-cells-namespace": "get cells --worst -n batch",
		"worst-cells-names":     "get cells --worst c-web",
	} {
		got := run(t, nil, strings.Fields(args)...) // no cluster is needed
		if got.failed != nil || got.err != "" {
			t.Errorf("%s: %+v", args, got)
		}
		golden(t, name, got.out)
	}
	got := run(t, nil, "get", "cells", "--worst=1", "-o", "json")
	if got.failed != nil || !strings.Contains(got.out, `"workedSeconds": 12.34`) {
		t.Errorf("as JSON: %+v", got)
	}
	got = run(t, nil, "get", "cells", "--worst", "c-none")
	if got.failed == nil || !strings.Contains(got.failed.Error(), `"c-none" not found`) {
		t.Errorf("of a cell that is not there: %+v", got)
	}
}

func TestVersionShowsBothSides(t *testing.T) {
	if got := run(t, nil, "version"); got.failed != nil || !strings.Contains(got.out, "kipctl: ") ||
		!strings.Contains(got.out, "kip:    not asked: no Kip serves this socket: /opt/kip/data/kip.sock") ||
		!strings.Contains(got.out, "\nprices: aws 20") {
		t.Errorf("without a socket: %+v", got)
	}
	socket(t)
	if got := run(t, nil, "version", "-o", "json"); got.failed != nil || !strings.Contains(got.out, `"version": "v9.9.9"`) ||
		!strings.Contains(got.out, `"gce": "20`) {
		t.Errorf("with a socket: %+v", got)
	}
}

func TestAsAPluginItIsCalledKubectlKip(t *testing.T) {
	for file, want := range map[string]string{"/usr/bin/kubectl-kip": "kubectl kip", "bin/kipctl": "kipctl",
		"kubectl-kip.exe": "kubectl kip"} {
		if got := displayName(file); got != want {
			t.Errorf("%s is called %q, want %q", file, got, want)
		}
	}
	var out bytes.Buffer
	root := newRoot(&kipctl{out: &out, err: &out}, "kubectl kip")
	root.SetArgs([]string{"get", "cells", "--help"})
	if err := root.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "kubectl kip get cells [NAME...]") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
