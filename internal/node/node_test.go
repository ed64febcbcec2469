package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"
	kubeletapis "k8s.io/kubelet/pkg/apis"
	clocktesting "k8s.io/utils/clock/testing"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

const testNode = "kip-0"

// cluster is an API server with one set of objects and two identities: own, and
// the node, whom it restricts as NodeRestriction does.
type cluster struct {
	own, node *fake.Clientset
}

func newCluster(objects ...runtime.Object) *cluster {
	c := &cluster{own: fake.NewClientset(objects...), node: &fake.Clientset{}}
	c.node.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if err := c.restrict(a); err != nil {
			return true, nil, err
		}
		obj, err := c.own.Invokes(a, nil)
		return true, obj, err
	})
	return c
}

// restrict is what the API server forbids a node to say about itself.
func (c *cluster) restrict(a clienttesting.Action) error {
	forbidden := func(why string) error {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), testNode, errors.New(why))
	}
	switch a := a.(type) {
	case clienttesting.CreateAction:
		if a.GetResource().Resource == "nodes" {
			return forbidden("this test lets nodes be made by Kip's own identity only")
		}
	case clienttesting.PatchAction:
		var patch struct {
			Metadata struct{ Labels map[string]any }
			Spec     map[string]any
		}
		if err := json.Unmarshal(a.GetPatch(), &patch); err != nil {
			return err
		}
		if len(patch.Spec) > 0 {
			return forbidden("a node may not change its taints")
		}
		for k := range patch.Metadata.Labels {
			if strings.Contains(k, "kubernetes.io/") && !kubeletapis.IsKubeletLabel(k) {
				return forbidden("a node may not set label " + k)
			}
		}
	}
	return nil
}

func (c *cluster) get(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := c.own.CoreV1().Nodes().Get(t.Context(), testNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func ready(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// state is Kip's health, which a test changes, and how often it was asked for.
type state struct {
	mu    sync.Mutex
	err   error
	asked int
}

func (s *state) healthy(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.err
}

func (s *state) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *state) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func config(own, node kubernetes.Interface) Config {
	return Config{
		Name: testNode, Own: own, Node: node,
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("20"),
			corev1.ResourceMemory: resource.MustParse("100Gi"),
			corev1.ResourcePods:   resource.MustParse("20"),
		},
		Labels:     map[string]string{"team": "blue", "topology.example.kubernetes.io/rack": "r1"},
		Taint:      &corev1.Taint{Key: DefaultTaintKey, Value: DefaultTaintValue, Effect: DefaultTaintEffect},
		Zone:       "us-east-1a",
		Region:     "us-east-1",
		Arch:       "amd64",
		InternalIP: netip.MustParseAddr("10.0.0.7"),
		Port:       DefaultPort,
		Version:    "v0.1.0",
		Healthy:    func(context.Context) error { return nil },
		Log:        slog.New(slog.DiscardHandler),
	}
}

// start runs a node until the test ends, or until the returned function is
// called.
func start(t *testing.T, c Config) (*Node, func()) {
	t.Helper()
	n, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return n, stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 2*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatalf("never: %s", what)
	}
}

func waitReady(t *testing.T, n *Node) {
	t.Helper()
	select {
	case <-n.Ready():
	case <-time.After(patience):
		t.Fatal("the node never became ready")
	}
}

func TestANewNodeIsMadeByKipAndKeptByTheNodeItself(t *testing.T) {
	c := newCluster()
	n, stop := start(t, config(c.own, c.node))
	waitReady(t, n)

	got := c.get(t)
	wantLabels := map[string]string{
		"type": "virtual-kubelet", "kubernetes.io/hostname": testNode, "kubernetes.io/os": "linux",
		"kubernetes.io/role": "agent",
		"kubernetes.io/arch": "amd64", "node.kubernetes.io/exclude-from-external-load-balancers": "true",
		"node.kubernetes.io/instance-type": "kip",
		"eks.amazonaws.com/compute-type":   "fargate", "kubernetes.azure.com/managed": "false",
		"topology.kubernetes.io/zone": "us-east-1a", "topology.kubernetes.io/region": "us-east-1",
		"team": "blue", "topology.example.kubernetes.io/rack": "r1",
	}
	if len(got.Labels) != len(wantLabels) {
		t.Errorf("labels %v, want %v", got.Labels, wantLabels)
	}
	for k, v := range wantLabels {
		if got.Labels[k] != v {
			t.Errorf("label %s is %q, want %q", k, got.Labels[k], v)
		}
	}
	if len(got.Spec.Taints) != 1 || got.Spec.Taints[0].ToString() != "virtual-kubelet.io/provider=kip:NoSchedule" {
		t.Errorf("taints %v", got.Spec.Taints)
	}
	if r := ready(got); r.Status != corev1.ConditionTrue || r.Reason != "KipReady" || r.LastHeartbeatTime.IsZero() ||
		r.LastTransitionTime.IsZero() {
		t.Errorf("Ready condition %+v", r)
	}
	s := got.Status
	if s.NodeInfo.KubeletVersion != "v1.36.3-kip-0.1.0" || s.NodeInfo.Architecture != "amd64" || s.NodeInfo.OSImage == "" {
		t.Errorf("node info %+v", s.NodeInfo)
	}
	if s.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
		t.Errorf("kubelet port %d", s.DaemonEndpoints.KubeletEndpoint.Port)
	}
	if !slices.Contains(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}) {
		t.Errorf("addresses %v", s.Addresses)
	}
	if cpu := s.Allocatable[corev1.ResourceCPU]; cpu.String() != "20" {
		t.Errorf("allocatable %v", s.Allocatable)
	}
	if !slices.Contains(s.DeclaredFeatures, "ExtendWebSocketsToKubelet") {
		t.Errorf("declared features %v", s.DeclaredFeatures)
	}
	eventually(t, "the lease is held", func() bool {
		lease, err := c.own.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), testNode, metav1.GetOptions{})
		return err == nil && *lease.Spec.HolderIdentity == testNode && *lease.Spec.LeaseDurationSeconds == 40
	})

	stop()
	if c.get(t).DeletionTimestamp != nil {
		t.Error("the node was deleted when Kip stopped")
	}
}

func TestAnExistingNodeIsBroughtUpToDateAndOthersMarksStay(t *testing.T) {
	c := newCluster()
	first, stop := start(t, config(c.own, c.node))
	waitReady(t, first)
	stop()

	// Others mark the node.
	n := c.get(t)
	n.UID = "the-first"
	n.Labels["mark"] = "by others"
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute})
	n.Spec.Unschedulable = true
	if _, err := c.own.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	changed := config(c.own, c.node)
	changed.Labels = map[string]string{"team": "red"}
	changed.Zone = "us-east-1b"
	changed.Taint = nil
	second, stop := start(t, changed)
	waitReady(t, second)
	stop()
	n = c.get(t)
	if n.UID != "the-first" {
		t.Error("the node was made anew")
	}
	if n.Labels["team"] != "red" || n.Labels["topology.kubernetes.io/zone"] != "us-east-1b" || n.Labels["mark"] != "by others" {
		t.Errorf("labels %v", n.Labels)
	}
	if rack, has := n.Labels["topology.example.kubernetes.io/rack"]; has {
		t.Errorf("the label that left the configuration is still there: %q", rack)
	}
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "node.kubernetes.io/unreachable" || !n.Spec.Unschedulable {
		t.Errorf("spec %+v, want the taint and the cordon of others alone", n.Spec)
	}
}

func TestARestartThatChangesNothingRegistersNothing(t *testing.T) {
	c := newCluster()
	for range 2 {
		n, err := New(config(c.own, c.node))
		if err != nil {
			t.Fatal(err)
		}
		c.own.ClearActions()
		if _, err := n.register(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range c.own.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("the second registration did %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

// An earlier Kip takes off what the registration lists, and its policy forbids it to take this label off.
func TestAnEarlierKipLeavesTheRole(t *testing.T) {
	c := newCluster()
	n, err := New(config(c.own, c.node))
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if mark := got.Annotations[registrationAnnotation]; strings.Contains(mark, roleLabel) || !strings.Contains(mark, corev1.LabelHostname) {
		t.Errorf("the registration is %s", mark)
	}
	cfg := config(c.own, c.node)
	cfg.Labels = map[string]string{roleLabel: "master"}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), `kubernetes.io/role: Kip sets it to "agent", it cannot be "master"`) {
		t.Errorf("another role is configured: %v", err)
	}
}

// A Kip may be newer than the policies of its cluster.
func TestANodeIsRegisteredWithoutItsRoleWhereAPolicyForbidsThat(t *testing.T) {
	c := newCluster()
	refuse := func(a clienttesting.Action) (bool, runtime.Object, error) {
		var text []byte
		switch a := a.(type) {
		case clienttesting.CreateAction:
			text = fmt.Append(nil, a.GetObject().(*corev1.Node).Labels)
		case clienttesting.PatchAction:
			text = a.GetPatch()
		}
		if strings.Contains(string(text), roleLabel) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), testNode, errors.New("kip-node"))
		}
		return false, nil, nil
	}
	c.own.PrependReactor("create", "nodes", refuse)
	c.own.PrependReactor("patch", "nodes", refuse)
	for range 2 { // it is made, and then it is there
		n, err := New(config(c.own, c.node))
		if err != nil {
			t.Fatal(err)
		}
		got, err := n.register(t.Context())
		if err != nil || got.Labels["team"] != "blue" || got.Labels[roleLabel] != "" {
			t.Errorf("%v, %v", got, err)
		}
	}
	c.own.PrependReactor("*", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetVerb() != "get", nil, apierrors.NewForbidden(corev1.Resource("nodes"), testNode, errors.New("RBAC"))
	})
	cfg := config(c.own, c.node)
	cfg.Labels = map[string]string{"team": "red"}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.register(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("what is forbidden for another reason: %v", err)
	}
}

// A chart that is rendered for other taints, as by a rollback, may forbid to take off those that are there.
func TestANodeKeepsTaintsThatAPolicyForbidsToChange(t *testing.T) {
	c := newCluster()
	register := func(team string, taints ...corev1.Taint) *corev1.Node {
		t.Helper()
		cfg := config(c.own, c.node)
		cfg.Labels, cfg.Taints = map[string]string{"team": team}, taints
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		got, err := n.register(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	spot := corev1.Taint{Key: "spot", Effect: corev1.TaintEffectNoSchedule}
	before := register("blue", spot)
	forbids := true
	c.own.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if forbids && strings.Contains(string(a.(clienttesting.PatchAction).GetPatch()), `"taints"`) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), testNode, errors.New("kip-node"))
		}
		return false, nil, nil
	})
	if got := register("red"); got.Labels["team"] != "red" || !slices.Equal(got.Spec.Taints, before.Spec.Taints) {
		t.Errorf("labels %v, taints %v; before %v", got.Labels, got.Spec.Taints, before.Spec.Taints)
	}
	forbids = false // Kip still knows that the taint is its own
	if got := register("red"); len(got.Spec.Taints) != len(before.Spec.Taints)-1 {
		t.Errorf("taints %v stay once they may go", got.Spec.Taints)
	}
}

func TestRegistrationStartsOverWhenSomebodyElseWrote(t *testing.T) {
	c := newCluster(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, ResourceVersion: "7",
		Labels: map[string]string{"type": "virtual-kubelet"}}})
	conflicts := 0
	c.own.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !strings.Contains(string(a.(clienttesting.PatchAction).GetPatch()), `"resourceVersion":"`) {
			t.Errorf("the patch has no resource version: %s", a.(clienttesting.PatchAction).GetPatch())
		}
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), testNode, errors.New("somebody else wrote"))
	})
	n, err := New(config(c.own, c.node))
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.register(t.Context())
	if err != nil || got.Labels["team"] != "blue" || conflicts != 2 {
		t.Errorf("after %d tries: %v, %v", conflicts, got, err)
	}
}

func TestTheTaintOfAnOlderKipIsReplaced(t *testing.T) {
	c := newCluster(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: testNode, Labels: map[string]string{"type": "virtual-kubelet"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: DefaultTaintKey, Value: "old", Effect: corev1.TaintEffectNoSchedule}}},
	})
	n, err := New(config(c.own, c.node))
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.register(t.Context())
	if err != nil || len(got.Spec.Taints) != 1 || got.Spec.Taints[0].Value != "kip" {
		t.Errorf("taints %v, %v", got.Spec.Taints, err)
	}
}

func TestAMachinesNodeIsNeverTakenOver(t *testing.T) {
	c := newCluster(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, Labels: map[string]string{"kubernetes.io/hostname": testNode}}})
	n, err := New(config(c.own, c.node))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(t.Context()); !errors.Is(err, ErrForeignNode) {
		t.Errorf("Run: %v, want ErrForeignNode", err)
	}
	if got := c.get(t); len(got.Labels) != 1 || len(got.Spec.Taints) != 0 {
		t.Errorf("the machine's node was changed: %v %v", got.Labels, got.Spec.Taints)
	}
}

// running is a node under a fake clock, and its health.
func running(t *testing.T, c *cluster, s *state) (*Node, func()) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	cfg := config(c.own, c.node)
	cfg.Clock, cfg.Healthy = clock, s.healthy
	n, _ := start(t, cfg)
	waitReady(t, n)
	return n, func() {
		t.Helper()
		eventually(t, "the ticker runs", clock.HasWaiters)
		before := s.times()
		clock.Step(checkInterval)
		eventually(t, "the health is asked for", func() bool { return s.times() > before })
	}
}

func TestReadyTurnsFalseWithTheReasonAfterFailuresInARow(t *testing.T) {
	c, s := newCluster(), &state{}
	_, tick := running(t, c, s)
	since := ready(c.get(t)).LastTransitionTime

	s.set(errors.New("etcd does not answer"))
	tick()
	s.set(nil)
	tick() // a success between: the count starts over
	s.set(errors.New("etcd does not answer"))
	tick()
	tick()
	if r := ready(c.get(t)); r.Status != corev1.ConditionTrue {
		t.Fatalf("a hiccup made the node %+v", r)
	}
	tick()
	eventually(t, "Ready is False", func() bool { return ready(c.get(t)).Status == corev1.ConditionFalse })
	r := ready(c.get(t))
	if r.Reason != "KipNotReady" || r.Message != "etcd does not answer" || !r.LastTransitionTime.After(since.Time) {
		t.Errorf("Ready condition %+v", r)
	}

	// From here on more than one tick may pass: a change waits until the one
	// before it has been written.
	s.set(errors.New("etcd has no space"))
	eventually(t, "the message changes", func() bool { tick(); return ready(c.get(t)).Message == "etcd has no space" })
	if again := ready(c.get(t)); !again.LastTransitionTime.Equal(&r.LastTransitionTime) {
		t.Errorf("the transition time moved from %v to %v without a transition", r.LastTransitionTime, again.LastTransitionTime)
	}

	s.set(nil)
	eventually(t, "Ready is True again", func() bool { tick(); return ready(c.get(t)).Status == corev1.ConditionTrue })
	if again := ready(c.get(t)); !again.LastTransitionTime.After(r.LastTransitionTime.Time) {
		t.Errorf("recovered, but since %v", again.LastTransitionTime)
	}
}

func TestANodeThatStartsUnableSaysSoAtOnce(t *testing.T) {
	c, s := newCluster(), &state{err: errors.New("no etcd")}
	running(t, c, s)
	if r := ready(c.get(t)); r.Status != corev1.ConditionFalse || r.Message != "no etcd" {
		t.Errorf("Ready condition %+v", r)
	}
}

// capacity is a list of CPUs, and pods.
func capacity(cpus, pods string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpus),
		corev1.ResourceMemory: resource.MustParse("100Gi"),
		corev1.ResourcePods:   resource.MustParse(pods),
	}
}

// shows says whether the API server has a capacity, which is allocatable whole.
func (c *cluster) shows(t *testing.T, want corev1.ResourceList) bool {
	t.Helper()
	s := c.get(t).Status
	return has(s.Capacity, want) && has(s.Allocatable, want) && len(s.Capacity) == len(want)
}

func TestACapacityThatChangesIsWrittenWithTheNextCheck(t *testing.T) {
	c, s := newCluster(), &state{}
	n, tick := running(t, c, s)
	since := ready(c.get(t)).LastTransitionTime
	if n.SetCapacity(n.Capacity()) {
		t.Error("the same capacity counts as another")
	}
	for _, want := range []corev1.ResourceList{capacity("64", "32"), capacity("1", "1"), capacity("500m", "1000")} {
		if !n.SetCapacity(want) || n.SetCapacity(want) {
			t.Error("a change is one, and once")
		}
		eventually(t, "the API server has it", func() bool { tick(); return c.shows(t, want) })
	}
	if r := ready(c.get(t)); r.Status != corev1.ConditionTrue || !r.LastTransitionTime.Equal(&since) {
		t.Errorf("the node is %+v, since %v before", r, since)
	}
	// With a change of its health, and without another check.
	s.set(errors.New("etcd does not answer"))
	want := capacity("3", "3")
	n.SetCapacity(want)
	eventually(t, "both are there", func() bool {
		tick()
		return c.shows(t, want) && ready(c.get(t)).Status == corev1.ConditionFalse
	})
}

func TestAWebhookThatChangesTheCapacityHoldsUpNothing(t *testing.T) {
	c, s := newCluster(), &state{}
	c.node.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		obj, err := c.own.Invokes(a, nil)
		if err != nil {
			return true, nil, err
		}
		n := obj.(*corev1.Node)
		n.Status.Capacity[corev1.ResourcePods] = resource.MustParse("7")
		return true, n, c.own.Tracker().Update(a.GetResource(), n, "")
	})
	n, tick := running(t, c, s)
	s.set(errors.New("etcd does not answer"))
	eventually(t, "the node is not Ready", func() bool { tick(); return ready(c.get(t)).Status == corev1.ConditionFalse })
	n.SetCapacity(capacity("64", "32"))
	s.set(nil)
	eventually(t, "it is again, with another capacity", func() bool {
		tick()
		return ready(c.get(t)).Status == corev1.ConditionTrue && c.get(t).Status.Capacity.Cpu().Value() == 64
	})
}

func TestANodeKeepsTheCapacityThatItHasUntilAnotherIsKnown(t *testing.T) {
	c := newCluster()
	cfg := config(c.own, c.node)
	cfg.Capacity, cfg.Awaited = capacity("10", "77"), []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU}
	n, stop := start(t, cfg)
	waitReady(t, n)
	if !c.shows(t, cfg.Capacity) {
		t.Errorf("a new node has %v", c.get(t).Status.Capacity)
	}
	stop()
	cfg.Capacity, cfg.Awaited = capacity("20", "20"), []corev1.ResourceName{corev1.ResourcePods}
	n, stop = start(t, cfg)
	waitReady(t, n)
	if want := capacity("20", "77"); !c.shows(t, want) || !has(n.Capacity(), want) {
		t.Errorf("a node that was there has %v", c.get(t).Status.Capacity)
	}
	stop()
	cfg.Awaited = nil
	n, stop = start(t, cfg)
	defer stop()
	waitReady(t, n)
	if !c.shows(t, cfg.Capacity) {
		t.Errorf("a node whose capacity is known has %v", c.get(t).Status.Capacity)
	}
}

func TestADeletedNodeObjectIsMadeAgainWithItsLabels(t *testing.T) {
	c, s := newCluster(), &state{}
	_, tick := running(t, c, s)
	if err := c.own.CoreV1().Nodes().Delete(t.Context(), testNode, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.set(errors.New("so that a status is written"))
	for range failuresToNotReady {
		tick()
	}
	eventually(t, "the node is back with its status", func() bool {
		n, err := c.own.CoreV1().Nodes().Get(t.Context(), testNode, metav1.GetOptions{})
		return err == nil && ready(n).Status == corev1.ConditionFalse
	})
	if n := c.get(t); n.Labels["type"] != "virtual-kubelet" || len(n.Spec.Taints) != 1 {
		t.Errorf("it came back as %v %v", n.Labels, n.Spec.Taints)
	}
}

func TestAnAPIServerThatFailsIsAskedAgain(t *testing.T) {
	c := newCluster()
	var mu sync.Mutex
	failures := 0
	c.own.PrependReactor("create", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if failures++; failures > 2 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(errors.New("starting"))
	})
	clock := clocktesting.NewFakeClock(time.Now())
	cfg := config(c.own, c.node)
	cfg.Clock = clock
	n, _ := start(t, cfg)
	for i := range 2 {
		eventually(t, "it waits before it tries again", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return failures == i+1 && clock.HasWaiters()
		})
		clock.Step(time.Minute)
	}
	waitReady(t, n)
}

func TestConfigurationErrorsNameTheFieldAndTheValue(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		says   []string
	}{
		"name":     {func(c *Config) { c.Name = "Kip_0" }, []string{`"Kip_0"`, "node name"}},
		"second":   {func(c *Config) { c.SecondIP = netip.MustParseAddr("10.0.0.8") }, []string{"second IP", "10.0.0.8", "other family"}},
		"address":  {func(c *Config) { c.InternalIP = netip.IPv4Unspecified() }, []string{"internal IP", "0.0.0.0"}},
		"port":     {func(c *Config) { c.Port = 0 }, []string{"port", "65535"}},
		"capacity": {func(c *Config) { delete(c.Capacity, "pods") }, []string{"capacity", "pods"}},
		"key":      {func(c *Config) { c.Labels = map[string]string{"a b": ""} }, []string{`"a b"`}},
		"value":    {func(c *Config) { c.Labels = map[string]string{"a": "b c"} }, []string{`"b c"`, "label a"}},
		"fixed":    {func(c *Config) { c.Labels = map[string]string{"type": "x"} }, []string{"type", `"virtual-kubelet"`, `"x"`}},
		"missing":  {func(c *Config) { c.Healthy = nil }, []string{"Healthy"}},
		"arch":     {func(c *Config) { c.Arch = "" }, []string{"Arch"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			cfg := config(cluster.own, cluster.node)
			c.change(&cfg)
			_, err := New(cfg)
			for _, want := range c.says {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to name %s", err, want)
				}
			}
		})
	}
}

func TestTaintFromTheEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string // or, in an error, what it names
		fail bool
	}{
		"default":   {nil, "virtual-kubelet.io/provider=kip:NoSchedule", false},
		"all":       {map[string]string{TaintKeyEnv: "a.b/c", TaintValueEnv: "", TaintEffectEnv: "NoExecute"}, "a.b/c:NoExecute", false},
		"no key":    {map[string]string{TaintKeyEnv: ""}, TaintKeyEnv, true},
		"bad value": {map[string]string{TaintValueEnv: "x y"}, TaintValueEnv, true},
		"effect":    {map[string]string{TaintEffectEnv: "noschedule"}, "NoSchedule", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := TaintFromEnv(func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			switch {
			case c.fail && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want an error that names %s", err, c.want)
			case !c.fail && (err != nil || got.ToString() != c.want):
				t.Errorf("got %s, %v, want %s", got.ToString(), err, c.want)
			}
		})
	}
}

func TestDeclaredFeaturesAreKnownToTheAPIServer(t *testing.T) {
	if !slices.IsSorted(CellFeatures) {
		t.Errorf("the API server wants them sorted: %v", CellFeatures)
	}
	for _, f := range CellFeatures {
		known := false
		for _, k := range features.AllFeatures {
			known = known || k.Name() == f
		}
		if !known {
			t.Errorf("%s is no feature that a node declares", f)
		}
	}
}

func TestARenewedLeaseKeepsWhatOthersHaveWrittenOfIt(t *testing.T) {
	c := newCluster()
	leases := c.own.CoordinationV1().Leases("kube-node-lease")
	made, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: testNode}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	marked := made.DeepCopy()
	marked.Annotations = map[string]string{"mark": "by others"}
	if _, err := leases.Update(t.Context(), marked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// As the node controller has it, which has not seen the mark.
	made.Spec.RenewTime = &metav1.MicroTime{Time: time.Unix(1800000000, 0)}
	made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: testNode, UID: "u"}}
	got, err := renewedLeases{leases}.Update(t.Context(), made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Annotations["mark"] != "by others" || !got.Spec.RenewTime.Equal(made.Spec.RenewTime) || len(got.OwnerReferences) != 1 {
		t.Errorf("the lease is %+v", got)
	}
}

func TestALeaseThatWasMadeAnewIsReadAgain(t *testing.T) {
	c := newCluster()
	// As the API server has it, of a lease that is there.
	c.own.PrependReactor("patch", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchAction)
		obj, err := c.own.Tracker().Get(a.GetResource(), a.GetNamespace(), patch.GetName())
		if err != nil {
			return true, nil, err
		}
		old := &obj.(*coordinationv1.Lease).ObjectMeta
		changed := old.DeepCopy()
		if err := json.Unmarshal(patch.GetPatch(), &struct{ Metadata *metav1.ObjectMeta }{changed}); err != nil {
			return true, nil, err
		}
		errs := apivalidation.ValidateObjectMetaUpdate(changed, old, field.NewPath("metadata"))
		if len(errs) > 0 {
			return true, nil, apierrors.NewInvalid(coordinationv1.SchemeGroupVersion.WithKind("Lease").GroupKind(), old.Name, errs)
		}
		return false, nil, nil
	})
	leases := c.own.CoordinationV1().Leases("kube-node-lease")
	owned := func(uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: testNode, UID: uid}}
	}
	anew, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "second", ResourceVersion: "1"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := anew.DeepCopy()
	first.UID, first.OwnerReferences = "first", owned("a node that is no more")
	if _, err := (renewedLeases{leases}).Update(t.Context(), first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("it is no conflict: %v", err)
	}
	if got, err := leases.Get(t.Context(), testNode, metav1.GetOptions{}); err != nil || len(got.OwnerReferences) > 0 {
		t.Errorf("the lease is %+v, %v", got, err)
	}
	// That which was read has the node's owner, and another error stays what it is.
	anew.OwnerReferences = owned("the node")
	if got, err := (renewedLeases{leases}).Update(t.Context(), anew, metav1.UpdateOptions{}); err != nil || len(got.OwnerReferences) != 1 {
		t.Errorf("the lease is %+v, %v", got, err)
	}
	anew.OwnerReferences = owned("")
	if _, err := (renewedLeases{leases}).Update(t.Context(), anew, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an owner without a UID: %v", err)
	}
}
