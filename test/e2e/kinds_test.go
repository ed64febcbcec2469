//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/test/tier"
)

// many is more GPUs than the pods of a test ask for.
const many = 10

// lacks waits until a node says which kinds are out of capacity, and takes so many GPUs: from least to most.
func (s *space) lacks(name, reason, kinds string, least, most int64) {
	s.Helper()
	what := fmt.Sprintf("node %s says %s (%s), and takes %d to %d GPUs", name, reason, kinds, least, most)
	s.Within(servedAgain, what, func(ctx context.Context) error {
		n, err := world.Admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		has := n.Status.Allocatable[resourceGPU]
		for _, c := range n.Status.Conditions {
			if c.Type == node.ShortageCondition && c.Reason == reason && strings.Contains(c.Message, kinds) &&
				has.Value() >= least && has.Value() <= most {
				return nil
			}
		}
		return fmt.Errorf("it takes %s GPUs, and its conditions are %+v", has.String(), n.Status.Conditions)
	})
}

// unscheduled waits until the scheduler says of a pod why no node takes it.
func (s *space) unscheduled(pod, why string) {
	s.Helper()
	s.WaitPod(pod, "is on no node: "+why, func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, why) {
				return p.Spec.NodeName == ""
			}
		}
		return false
	})
}

// A node that offers several kinds keeps the others while one is out.
func TestTheSchedulerHearsWhichKindIsOutOfCapacityAndWhenItIsBack(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const name = "kip-kinds"
	sold := append(spotToo("a", "b"), catalog.InstanceType{
		Name: "gpus", Arch: "amd64", MilliCPU: 4000, MemoryBytes: 16 << 30, GPUs: []catalog.GPU{{Model: "T4", Count: 1}},
		Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 5}},
	})
	machines := kipBeside(t, name, "127.77.0.0/16", sold, map[string]any{"zones": []string{"a", "b"},
		"capacity": map[string]any{"cpu": "auto", "memory": "auto", "pods": "auto", resourceGPU: "auto"}})
	s := newSpace(t)
	kip := s.besideNode(name, besideKey, name).Name
	here := "  nodeSelector: {KIP}\n"
	gpus := func(pod string) string {
		return strings.Replace(beside(name, pod, here), "requests: {cpu: 100m}", "limits: {"+resourceGPU+": 1}", 1)
	}
	launched := func(pod, what string) {
		t.Helper()
		s.Within(servedAgain, "for pod "+pod+" a machine "+what+" is launched", func(ctx context.Context) error {
			p, err := s.Pod(ctx, pod)
			if err != nil {
				return err
			}
			if got := machines.of(p); p.Spec.NodeName != kip || got != what {
				return fmt.Errorf("it is on node %q, and a machine %q was launched", p.Spec.NodeName, got)
			}
			return nil
		})
	}
	s.lacks(kip, "CapacityAvailable", "", many, math.MaxInt64)

	// GPUs: the first pod is bound before the cloud refuses it, the next one is not.
	machines.fail(cloud.Scope{InstanceType: "gpus"}, time.Minute)
	s.Apply(gpus("first"))
	s.WaitEvent("first", "NoCapacity", "gpus")
	s.lacks(kip, "SomeUnavailable", resourceGPU, 1, 1) // that of the pod that waits
	s.Apply(gpus("next"))
	s.unscheduled("next", "Insufficient "+resourceGPU)
	s.Apply(beside(name, "other", here))
	launched("other", "nano in a")
	s.tainted(kip, false)
	machines.fail(cloud.Scope{}, 0)
	launched("first", "gpus in a")
	s.lacks(kip, "CapacityAvailable", "", many, math.MaxInt64)
	launched("next", "gpus in a")
	s.deleteAll("first", "next", "other")

	// A zone: pods go to the other one.
	machines.fail(cloud.Scope{Zone: "a"}, outage)
	s.Apply(beside(name, "falls", here))
	launched("falls", "nano in b")
	s.lacks(kip, "SomeUnavailable", "zone a", 0, math.MaxInt64)
	machines.fail(cloud.Scope{}, 0)
	s.lacks(kip, "CapacityAvailable", "", 0, math.MaxInt64)
	s.Apply(beside(name, "after", here))
	launched("after", "nano in a")
	s.deleteAll("falls", "after")
}
