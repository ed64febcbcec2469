//go:build e2e

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/config"
)

// spotToo are instance types in zone a that can be had as spot, too, for a third.
func spotToo() []catalog.InstanceType {
	types := sizes.Types("amd64", "a")
	for i := range types {
		spot := types[i].Offerings[0]
		spot.Spot, spot.PricePerHour = true, spot.PricePerHour/3
		types[i].Offerings = append(types[i].Offerings, spot)
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
	machines := kipBeside(t, name, addresses, spotToo(),
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
	t.Parallel()
	m := newMarket(t, "kip-spot", "127.68.0.0/16")
	m.Apply(beside(m.kip, "before", likesSpot))
	m.on(m.waitRunning("before"), true)

	m.machines.fail(cloud.Scope{Spot: new(true)}, outage)
	m.Apply(beside(m.kip, "waits", "  nodeSelector: {KIP, karpenter.sh/capacity-type: spot}\n"))
	m.waitEvent("waits", "NoCapacity", "")
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
	m.within(servedAgain, "pod "+pod+" has the Event "+reason, func(ctx context.Context) error {
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
