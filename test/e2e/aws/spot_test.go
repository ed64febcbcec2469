//go:build e2e

package aws

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// notices are what EC2 says of a Deployment's spot instance by some ways, and what Kip tells of it.
var notices = []struct {
	name string
	// untold are the ways by which nothing is said.
	untold []cloudmodel.Way
	// onlyRisk says that EC2 does not take the instance back, but recommends to leave it.
	onlyRisk bool
	says     string
}{
	{name: "by-metadata", untold: []cloudmodel.Way{ec2.WayRequest}, says: "it was told so itself"},
	{name: "by-request", untold: []cloudmodel.Way{ec2.WayMetadata}, says: "marked-for-termination"},
	{name: "risk", onlyRisk: true, says: "more likely than usual"},
}

// mayAsk is the one whose pod may ask the metadata service itself. The agents of the others may all
// the same.
const mayAsk = "by-request"

// deployment keeps one pod on a spot instance.
func deployment(name string) string {
	return strings.NewReplacer("NAME", name, "ALLOWED", strconv.FormatBool(name == mayAsk)).Replace(`apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}, annotations: {pod.elotl.co/launch-type: spot, pod.elotl.co/allow-metadata: "ALLOWED"}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
        resources: {requests: {cpu: 100m, memory: 64Mi}}
---
`)
}

// podOf waits until a Deployment has a pod that is ready and not this one.
func (s *space) podOf(deployment, not string) (pod *corev1.Pod) {
	s.Helper()
	s.Eventually("Deployment "+deployment+" has a pod that is ready", func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=" + deployment})
		if err != nil {
			return err
		}
		n := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.Name != not && namespace.IsReady(&p) })
		if n < 0 {
			return fmt.Errorf("of %d pods none is ready, or only %q", len(list.Items), not)
		}
		pod = &list.Items[n]
		return nil
	})
	return pod
}

func TestEachWayByWhichEC2TakesASpotInstanceBackIsHeard(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	var all strings.Builder
	for _, n := range notices {
		all.WriteString(deployment(n.name))
	}
	s.Apply(all.String())
	pods, on := map[string]*corev1.Pod{}, map[string]sim.Instance{}
	for _, n := range notices {
		pods[n.name] = s.podOf(n.name, "")
		on[n.name] = s.of(pods[n.name])
		if !on[n.name].Spot {
			t.Fatalf("the instance of %s is %+v, want it spot", n.name, on[n.name])
		}
	}
	first := pods[mayAsk].Name
	answer := s.says(t.Context(), first, "PUT /latest/api/token HTTP/1.1", lifetime)
	_, given, found := strings.Cut(answer, "\r\n\r\n")
	if !found || !strings.Contains(answer, "200 OK") {
		t.Fatalf("a pod that may gets no token: %q", answer)
	}
	const action = "GET /latest/meta-data/spot/instance-action HTTP/1.1"
	if out := s.says(t.Context(), first, action, token+strings.TrimSpace(given)); !strings.Contains(out, "404") {
		t.Errorf("before the notice: %q", out)
	}
	for _, n := range notices {
		if n.onlyRisk {
			s.order("rebalance", ec2.Rebalance{Instance: on[n.name].ID})
		} else {
			s.order("interrupt", cloudmodel.Interruption{Instance: on[n.name].ID, Untold: n.untold})
		}
	}
	for _, n := range notices {
		if n.onlyRisk {
			s.waitEvent(pods[n.name].Name, events.RebalanceRecommended, n.says)
		} else {
			s.waitEvent(pods[n.name].Name, events.Interrupted, n.says)
			s.moved(n.name, pods[n.name], on[n.name])
		}
	}
	for _, n := range notices {
		if !n.onlyRisk {
			continue
		}
		if again := s.podOf(n.name, ""); again.UID != pods[n.name].UID || s.of(again).ID != on[n.name].ID {
			t.Errorf("the pod of %s has moved by a recommendation", n.name)
		}
	}
}

// A retirement is mostly told of days before. Kip, which was away, sees it when it starts.
func TestAnInstanceThatEC2RetiresWithinTheHourIsLeft(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(strings.ReplaceAll(deployment("soon")+deployment("later"), "launch-type: spot", "launch-type: on-demand"))
	soon, later := s.podOf("soon", ""), s.podOf("later", "")
	on, stays := s.of(soon), s.of(later)
	if on.Spot || stays.Spot {
		t.Fatalf("the instances are %+v and %+v, want them not spot", on, stays)
	}
	if err := world.KillKip(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.order("maintain", ec2.Maintenance{Instance: on.ID, Code: "instance-retirement", NotBefore: now.Add(30 * time.Minute)})
	s.order("maintain", ec2.Maintenance{Instance: stays.ID, Code: "instance-retirement", NotBefore: now.Add(2 * time.Hour)})
	if err := world.StartKip(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.waitEvent(soon.Name, events.Interrupted, "instance-retirement")
	s.moved("soon", soon, on)
	if again := s.podOf("later", ""); again.UID != later.UID || s.of(again).ID != stays.ID {
		t.Errorf("the pod has moved, two hours before its instance retires")
	}
}

// moved waits until a Deployment has another pod instead of one whose instance EC2 takes back, and
// checks that Kip has ended the instance: EC2's own time was not over yet.
func (s *space) moved(deployment string, pod *corev1.Pod, from sim.Instance) {
	s.Helper()
	if to := s.of(s.podOf(deployment, pod.Name)); to.ID == from.ID {
		s.Errorf("the next pod of %s is on the same instance", deployment)
	}
	s.Eventually("the instance of pod "+pod.Name+" is over, and the pod is gone", func(ctx context.Context) error {
		all := s.state(ctx).Instances
		n := slices.IndexFunc(all, func(i sim.Instance) bool { return i.ID == from.ID })
		if from = all[n]; from.Ended.IsZero() {
			return fmt.Errorf("instance %s is %s", from.ID, from.State)
		}
		if _, err := s.Pod(ctx, pod.Name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s is there (%v)", pod.Name, err)
		}
		return nil
	})
	if from.Cause != sim.Terminated {
		s.Errorf("the instance of pod %s has ended by %q, want it terminated", pod.Name, from.Cause)
	}
}
