//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/tier"
)

// secondNode is the other virtual node of a Kip that has two.
const secondNode = harness.Node + "-1"

// setPodOn returns the pod of a DaemonSet on a node that is not being deleted.
func (s *space) setPodOn(ctx context.Context, app, node string) (*corev1.Pod, error) {
	pods, err := s.PodsOf(ctx, app)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Spec.NodeName == node {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("DaemonSet %s has no pod on node %s", app, node)
}

// Not parallel: other Kips than the world's serve the nodes, as in TestAStandbyKipTakesOverAndNoPodNotices.
func TestDaemonSetsBesidePodsOfTwoNodesGoOnWhicheverReplicaLeads(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	c := collect(t)
	t.Cleanup(func() {
		if err := world.Admin.CoreV1().Nodes().Delete(context.Background(), secondNode, metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	killKip(t)
	etcd, machines := serveEtcd(t), openCloud(t)
	start := func() *harness.Kip {
		t.Helper()
		_, socket := serveTo(t, machines)
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		return runKip(t, func(provider map[string]any) {
			provider["cloud"] = map[string]any{"sim": map[string]any{"socket": socket}}
			provider["nodes"] = []any{map[string]any{"suffix": 0}, map[string]any{"suffix": 1, "labels": map[string]string{"side": "second"}}}
			provider["cells"].(map[string]any)["daemonSets"] = []any{map[string]any{"namespace": s.NS, "name": "shipper", "maxDelay": 60}}
			etcd.use(t, provider)
		}, fmt.Sprint("--kubelet-port=", port))
	}
	leader := start()
	s.waitLeads(leader)
	standby := start()
	s.waitLogs(standby, "waiting to lead")
	s.Apply(strings.NewReplacer("SERVER", c.url, "SPACE", s.NS).Replace(shipper))
	s.Kubectl("rollout", "status", "daemonset/shipper", "--timeout=2m")
	nodes := map[string]string{"a": harness.Node, "b": secondNode}
	before := map[string]*corev1.Pod{}
	for name, node := range nodes {
		s.Apply(strings.Replace(speaks(name), "spec:\n", "spec:\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "+
			"{nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: ["+node+"]}]}]}}}\n", 1))
	}
	for name, node := range nodes {
		before[name] = s.WaitReady(name)
		set, err := s.setPodOn(t.Context(), "shipper", node)
		if err != nil {
			t.Fatal(err)
		}
		if is := s.ships(c, name, "1"); is.Node != node || is.UID != string(set.UID) {
			t.Errorf("beside %s on %s runs pod %s of node %s, want %s", name, node, is.UID, is.Node, set.UID)
		}
	}

	// The leader dies in an update.
	s.Kubectl("set", "env", "daemonset/shipper", "VERSION=2")
	signal(t, leader, syscall.SIGKILL)
	s.waitLeads(standby)
	s.Kubectl("rollout", "status", "daemonset/shipper", "--timeout=5m")
	copies := map[string]string{}
	for name := range nodes {
		copies[name] = s.shipping(c, name, "2")
	}
	s.allUnmoved(before)

	// And it hands over while nothing happens.
	leader, standby = standby, start()
	s.waitLogs(standby, "waiting to lead")
	signal(t, leader, syscall.SIGTERM)
	if err := s.waitEnd(leader); err != nil {
		t.Errorf("a Kip that was told to end ended with %v", err)
	}
	s.waitLeads(standby)
	for name, node := range nodes {
		s.Eventually("the Cell of "+name+" says again how the copy fares", func(ctx context.Context) error {
			set, err := s.setPodOn(ctx, "shipper", node)
			if err != nil {
				return err
			}
			if got := s.beside(name, set.Name); got != "ready true, 0 restarts, " {
				return errors.New(got)
			}
			return nil
		})
		if now := s.shipping(c, name, "2"); now != copies[name] {
			t.Errorf("the copy beside %s started again: %s, before %s", name, now, copies[name])
		}
	}
	s.allUnmoved(before)
	s.Kubectl("delete", "daemonset", "shipper")
	s.Eventually("the pods of the set are gone", func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=shipper"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
	s.deleteAll("a", "b")
	signal(t, standby, syscall.SIGTERM)
	if err := s.waitEnd(standby); err != nil {
		t.Errorf("the last Kip ended with %v", err)
	}
}
