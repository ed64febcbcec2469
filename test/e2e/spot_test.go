//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/test/tier"
)

// spotToo are instance types in zones that can be had as spot, too, for a third.
func spotToo(zones ...string) []catalog.InstanceType {
	types := sizes.Types("amd64", zones...)
	for i := range types {
		for _, spot := range types[i].Offerings {
			spot.Spot, spot.PricePerHour = true, spot.PricePerHour/3
			types[i].Offerings = append(types[i].Offerings, spot)
		}
	}
	return types
}

// likesSpot is of a pod that takes spot where there is some, and else what there is.
const likesSpot = `  nodeSelector: {KIP}
  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 100, preference: {matchExpressions: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]}}]}}
`

// market is a Kip beside the world's that has a node for each market.
type market struct {
	*space

	kip            string
	machines       *zoned
	spot, onDemand string // nodes
}

func newMarket(t *testing.T, name, addresses string) market {
	t.Helper()
	machines := kipBeside(t, name, addresses, spotToo("a"),
		map[string]any{"launchTypes": []string{config.Spot}}, map[string]any{"launchTypes": []string{config.OnDemand}})
	s := newSpace(t)
	return market{
		space:    s,
		kip:      name,
		machines: machines,
		spot:     s.besideNode(name, "karpenter.sh/capacity-type", config.Spot).Name,
		onDemand: s.besideNode(name, "karpenter.sh/capacity-type", config.OnDemand).Name,
	}
}

// on checks that a pod is on the node of its machine's market.
func (m market) on(pod *corev1.Pod, spot bool) {
	m.Helper()
	node, machine := m.onDemand, "nano in a"
	if spot {
		node, machine = m.spot, "nano in a as spot"
	}
	if got := m.machines.of(pod); pod.Spec.NodeName != node || got != machine {
		m.Errorf("pod %s is on node %s, want %s, and a machine %q was launched for it, want %q", pod.Name, pod.Spec.NodeName, node, got, machine)
	}
}

func TestAPodThatPrefersSpotFallsToOnDemand(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := newMarket(t, "kip-spot", "127.68.0.0/16")
	m.Apply(beside(m.kip, "before", likesSpot))
	m.on(m.waitRunning("before"), true)

	m.machines.fail(cloud.Scope{Spot: new(true)}, outage)
	m.Apply(beside(m.kip, "waits", "  nodeSelector: {KIP, karpenter.sh/capacity-type: spot}\n"))
	m.WaitEvent("waits", "NoCapacity", "")
	m.tainted(m.spot, true)
	m.Apply(beside(m.kip, "falls", likesSpot))
	m.on(m.waitRunning("falls"), false)
	m.tainted(m.onDemand, false)
	if pod, err := m.Pod(t.Context(), "waits"); err != nil || pod.Spec.NodeName != m.spot || pod.Status.Phase != corev1.PodPending {
		t.Errorf("the pod that is for spot is %+v, %v", pod, err)
	}

	m.machines.fail(cloud.Scope{}, 0)
	m.tainted(m.spot, false)
	m.on(m.waitRunning("waits"), true)
	m.Apply(beside(m.kip, "after", likesSpot))
	m.on(m.waitRunning("after"), true)
	m.deleteAll("before", "waits", "falls", "after")
}

// said waits for an Event about a pod, as long as Kip itself waits.
func (m market) said(pod, reason string) {
	m.Helper()
	m.Within(servedAgain, "pod "+pod+" has the Event "+reason, func(ctx context.Context) error {
		events, code, stderr := m.Attempt(ctx, "get", "events", "--field-selector=involvedObject.name="+pod+",reason="+reason, "-o=name")
		if code != 0 {
			return errors.New(stderr)
		}
		if strings.TrimSpace(events) == "" {
			return errors.New("it has none")
		}
		return nil
	})
}

func TestPodsLeaveASpotNodeThatStaysWithoutCapacity(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := newMarket(t, "kip-leave", "127.69.0.0/16")
	m.Apply(beside(m.kip, "bare", likesSpot) + "---\n" +
		inDeployment(beside(m.kip, "moves", likesSpot)) + "---\n" +
		inDeployment(beside(m.kip, "kept", likesSpot)) + `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: kept}
spec: {minAvailable: 1, selector: {matchLabels: {app: kept}}}
`)
	bare, moves, kept := m.waitRunning("bare"), m.besidePodOf("moves", ""), m.besidePodOf("kept", "")
	for _, p := range []*corev1.Pod{bare, moves, kept} {
		m.on(p, true)
	}

	m.machines.fail(cloud.Scope{Spot: new(true)}, time.Hour)
	m.machines.vanish(t)
	m.on(m.besidePodOf("moves", moves.UID), false)
	m.said(kept.Name, "EvictionBlocked")
	m.said("bare", "UnservablePodStays")
	if pod, err := m.Pod(t.Context(), "bare"); err != nil || pod.UID != bare.UID || pod.DeletionTimestamp != nil {
		t.Errorf("the pod without a controller is %+v, %v", pod, err)
	}
	if pod, err := m.Pod(t.Context(), kept.Name); err != nil || pod.UID != kept.UID || pod.DeletionTimestamp != nil {
		t.Errorf("the pod that a disruption budget keeps is %+v, %v", pod, err)
	}

	m.Kubectl("delete", "pdb", "kept")
	m.on(m.besidePodOf("kept", kept.UID), false)
	m.Kubectl("delete", "deployment", "moves", "kept")
	m.deleteAll("bare")
}

// zonedMarket is a Kip beside the world's that has a node of spot in each of two zones, and
// one on demand. In zone a a pod runs that needs little.
type zonedMarket struct {
	*space

	kip      string
	machines *zoned
	nodes    map[string]string // by zone; that on demand by its market
	little   *corev1.Pod
}

// scarce is the only type with room for a pod of needsScarce.
const scarce = "2xlarge"

func newZonedMarket(t *testing.T, name, addresses string) zonedMarket {
	t.Helper()
	m := zonedMarket{kip: name, nodes: map[string]string{}}
	m.machines = kipBeside(t, name, addresses, spotToo("a", "b"),
		map[string]any{"zones": []string{"a"}, "launchTypes": []string{config.Spot}},
		map[string]any{"zones": []string{"b"}, "launchTypes": []string{config.Spot}},
		map[string]any{"launchTypes": []string{config.OnDemand}})
	m.space = newSpace(t)
	for _, zone := range []string{"a", "b"} {
		m.nodes[zone] = m.besideNode(name, corev1.LabelTopologyZone, zone).Name
	}
	m.nodes[config.OnDemand] = m.besideNode(name, "karpenter.sh/capacity-type", config.OnDemand).Name
	m.Apply(beside(name, "little", "  nodeSelector: {KIP, topology.kubernetes.io/zone: a}\n"))
	m.little = m.waitRunning("little")
	return m
}

// needsScarce is a Deployment of a pod that likes spot in zone a best, then other spot.
func (m zonedMarket) needsScarce(name string) string {
	pod := beside(m.kip, name, `  nodeSelector: {KIP}
  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 100, preference: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [a]}]}},
    {weight: 50, preference: {matchExpressions: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]}}]}}
`)
	return inDeployment(strings.Replace(pod, "cpu: 100m", `cpu: "5"`, 1))
}

// waitsOn returns the one pod of a Deployment, once it is bound to a node that has nothing
// for it.
func (m zonedMarket) waitsOn(app, node string) (is *corev1.Pod) {
	m.Helper()
	m.Eventually("the pod of "+app+" waits on node "+node, func(ctx context.Context) error {
		pods, err := m.PodsOf(ctx, app)
		if err != nil || len(pods) != 1 {
			return fmt.Errorf("its pods are %d (%w)", len(pods), err)
		}
		if is = &pods[0]; is.Spec.NodeName != node || is.Status.Phase != corev1.PodPending {
			return fmt.Errorf("it is %s on node %q", is.Status.Phase, is.Spec.NodeName)
		}
		return nil
	})
	m.WaitEvent(is.Name, "NoCapacity", scarce)
	return is
}

// nodeSays waits for an Event about a node.
func (m zonedMarket) nodeSays(node, reason, text string) {
	m.Helper()
	about := metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node + ",reason=" + reason}
	m.Within(servedAgain, "node "+node+" has the Event "+reason+" with "+text, func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Events(metav1.NamespaceDefault).List(ctx, about)
		if err != nil {
			return err
		}
		var said []string
		for _, e := range list.Items {
			if strings.Contains(e.Message, text) {
				return nil
			}
			said = append(said, e.Message)
		}
		return fmt.Errorf("it has %q", said)
	})
}

// littleStays checks that the pod that needs little was left alone, and that a node of which
// pods have left takes others that need as little.
func (m zonedMarket) littleStays() {
	m.Helper()
	m.tainted(m.nodes["a"], false)
	is, err := m.Pod(m.Context(), "little")
	if err != nil || is.UID != m.little.UID || is.DeletionTimestamp != nil || is.Status.Phase != corev1.PodRunning {
		m.Errorf("the pod that needs little is %+v, %v", is, err)
	}
	m.Apply(beside(m.kip, "next", "  nodeSelector: {KIP, topology.kubernetes.io/zone: a}\n"))
	if next := m.waitRunning("next"); m.machines.of(next) != "nano in a as spot" {
		m.Errorf("a machine %q was launched for another that needs little", m.machines.of(next))
	}
	m.deleteAll("little", "next")
}

func TestPodsLeaveASpotNodeForWantOfTheirType(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := newZonedMarket(t, "kip-type", "127.72.0.0/16")
	m.machines.fail(cloud.Scope{InstanceType: scarce, Zone: "a", Spot: new(true)}, time.Hour)
	m.Apply(m.needsScarce("moves"))
	first := m.waitsOn("moves", m.nodes["a"])
	m.nodeSays(m.nodes["a"], "NodeOutOfCapacity", "no capacity for "+scarce+" as spot in zone a;")
	moved := m.besidePodOf("moves", first.UID)
	if got := m.machines.of(moved); moved.Spec.NodeName != m.nodes["b"] || got != scarce+" in b as spot" {
		t.Errorf("the pod moved to node %s, want %s, and a machine %q was launched for it", moved.Spec.NodeName, m.nodes["b"], got)
	}
	m.nodeSays(m.nodes["a"], "NodeHasCapacity", "may still be no capacity for "+scarce+" as spot in zone a")
	m.littleStays()
	m.Kubectl("delete", "deployment", "moves")
}

func TestPodsLeaveAllSpotNodesForWantOfTheirType(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := newZonedMarket(t, "kip-types", "127.73.0.0/16")
	m.machines.fail(cloud.Scope{InstanceType: scarce, Spot: new(true)}, time.Hour)
	m.Apply(m.needsScarce("falls"))
	first := m.waitsOn("falls", m.nodes["a"])
	for _, zone := range []string{"a", "b"} {
		m.nodeSays(m.nodes[zone], "NodeOutOfCapacity", "no capacity for "+scarce+" as spot in zone "+zone)
	}
	fallen := m.besidePodOf("falls", first.UID)
	onDemand, got := m.nodes[config.OnDemand], m.machines.of(fallen)
	if fallen.Spec.NodeName != onDemand || !strings.HasPrefix(got, scarce) || strings.Contains(got, "spot") {
		t.Errorf("the pod fell to node %s, want %s, and a machine %q was launched for it", fallen.Spec.NodeName, onDemand, got)
	}
	m.littleStays()
	m.Kubectl("delete", "deployment", "falls")
}

func TestPodsLeaveANodeWhoseZoneFailsWithItsMachines(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const kip = "kip-dark"
	machines := kipBeside(t, kip, "127.74.0.0/16", sizes.Types("amd64", "a", "b"),
		map[string]any{"zones": []string{"a"}}, map[string]any{"zones": []string{"b"}})
	s, nodes := newSpace(t), map[string]string{}
	for _, zone := range []string{"a", "b"} {
		nodes[zone] = s.besideNode(kip, corev1.LabelTopologyZone, zone).Name
	}
	likesA := beside(kip, "moves", `  nodeSelector: {KIP}
  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 100, preference: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [a]}]}}]}}
`)
	s.Apply(inDeployment(likesA))
	first := s.besidePodOf("moves", "")
	if first.Spec.NodeName != nodes["a"] {
		t.Fatalf("the pod is on node %s, want %s", first.Spec.NodeName, nodes["a"])
	}
	machines.fail(cloud.Scope{Zone: "a"}, time.Hour)
	machines.vanish(t)
	s.tainted(nodes["a"], true)
	moved := s.besidePodOf("moves", first.UID)
	if got := machines.of(moved); moved.Spec.NodeName != nodes["b"] || got != "nano in b" {
		t.Errorf("the pod moved to node %s, want %s, and a machine %q was launched for it", moved.Spec.NodeName, nodes["b"], got)
	}
	s.tainted(nodes["b"], false)
	s.Kubectl("delete", "deployment", "moves")
}
