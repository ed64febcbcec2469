//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// zonesHere are those of the local cloud in these tests; the first is the usual one.
var zonesHere = []string{"local", "east", "west"}

// inZones gives Kip a virtual node for each zone, beside its usual one, until leave is
// called, which has them taken out when they have no pods any more.
func inZones(t *testing.T, s *space) (leave func()) {
	t.Helper()
	undo, err := world.Reconfigure(t.Context(), func(provider map[string]any) {
		provider["cloud"].(map[string]any)["local"].(map[string]any)["zones"] = zonesHere
		provider["nodes"] = nodesFor(zonesHere...)
	})
	restore := sync.OnceFunc(func() {
		if err := undo(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	if err != nil {
		t.Fatal(err)
	}
	waitNodes(s, zonesHere...)
	return func() {
		restore()
		waitNodes(s)
	}
}

func nodesFor(zones ...string) []any {
	nodes := []any{map[string]any{"suffix": 0}}
	for _, zone := range zones {
		nodes = append(nodes, map[string]any{"zones": []string{zone}})
	}
	return nodes
}

// configureNodes writes other nodes into the configuration of the world's Kip, which runs
// on; nil for the one.
func configureNodes(t *testing.T, nodes []any) {
	t.Helper()
	path := filepath.Join(world.State, "provider.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	provider := map[string]any{}
	if err := yaml.Unmarshal(data, &provider); err != nil {
		t.Fatal(err)
	}
	delete(provider, "nodes")
	if nodes != nil {
		provider["nodes"] = nodes
	}
	if data, err = yaml.Marshal(provider); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// zoneNodes are Kip's nodes that are in one zone, by their zones.
func zoneNodes(ctx context.Context) (map[string]corev1.Node, error) {
	list, err := world.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "type=virtual-kubelet"})
	if err != nil {
		return nil, err
	}
	nodes := map[string]corev1.Node{}
	for _, n := range list.Items {
		if strings.HasPrefix(n.Name, "kip-0-") {
			nodes[n.Labels[corev1.LabelTopologyZone]] = n
		}
	}
	return nodes, nil
}

// waitNodes waits until there is a Ready node for each zone, and no other.
func waitNodes(s *space, zones ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("Kip has nodes for the zones %v", zones), func(ctx context.Context) error {
		nodes, err := zoneNodes(ctx)
		if err != nil {
			return err
		}
		if got := slices.Sorted(maps.Keys(nodes)); !slices.Equal(got, slices.Sorted(slices.Values(zones))) {
			return fmt.Errorf("there are nodes for %v", got)
		}
		for zone, n := range nodes {
			if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				return fmt.Errorf("node %s of zone %s is not Ready", n.Name, zone)
			}
		}
		return nil
	})
}

// whereIs returns the zone of a pod's node, which its cell must be in, and which the
// pod must believe to be on.
func (s *space) whereIs(name string) string {
	s.Helper()
	pod, err := s.Pod(s.Context(), name)
	if err != nil {
		s.Fatal(err)
	}
	node, err := world.Admin.CoreV1().Nodes().Get(s.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	zone, cell := node.Labels[corev1.LabelTopologyZone], s.CellOf(name)
	if cell.Status.Zone != zone || cell.Status.Node != node.Name {
		s.Errorf("pod %s is on node %s of zone %s, its cell is of node %s in zone %s", name, node.Name, zone, cell.Status.Node, cell.Status.Zone)
	}
	if got := s.in(name, "echo $NODE"); got != node.Name {
		s.Errorf("pod %s believes to be on node %s, it is on %s", name, got, node.Name)
	}
	return zone
}

const spreadOver = `
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 2
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: topology.kubernetes.io/zone
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: spread}}
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'echo here; trap "exit 0" TERM; while :; do sleep 0.1; done']
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]`

func TestADeploymentSpreadsOverTheZonesOfVirtualNodes(t *testing.T) {
	s := newSpace(t)
	defer inZones(t, s)()
	s.Apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:` + spreadOver + "\n")
	var pods []corev1.Pod
	s.Eventually("three pods are Ready", func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=spread"})
		if err != nil {
			return err
		}
		pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !namespace.IsReady(&p) })
		if len(pods) != 3 {
			return fmt.Errorf("%d are", len(pods))
		}
		return nil
	})
	zones := map[string]bool{}
	for _, p := range pods {
		zones[s.whereIs(p.Name)] = true
		// By the kubelet port of that node.
		if log := s.Kubectl("logs", p.Name); strings.TrimSpace(log) != "here" {
			t.Errorf("the log of pod %s is %q", p.Name, log)
		}
	}
	if len(zones) != 3 {
		t.Errorf("the pods are in %v: want one in each of %v", zones, zonesHere)
	}
	s.Kubectl("delete", "deployment", "web")
	for _, p := range pods {
		s.WaitGone(p.Name)
	}
}

func TestPodsOfAStatefulSetComeBackToTheZonesOfTheirDisks(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	defer inZones(t, s)()
	s.Apply(`apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:` + spreadOver + `
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: kip, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`)
	names := []string{"db-0", "db-1", "db-2"}
	zones, first := map[string]string{}, map[string]*corev1.Pod{}
	var volumes []*corev1.PersistentVolume
	for _, name := range names {
		first[name] = s.WaitReady(name)
		zones[name] = s.whereIs(name)
		s.in(name, "echo "+name+" > /data/f; sync")
		pv := s.volumeOf("data-" + name)
		if got := pv.Spec.CSI.VolumeAttributes["zone"]; got != zones[name] {
			t.Errorf("the disk of pod %s in zone %s is in %s", name, zones[name], got)
		}
		volumes = append(volumes, pv)
	}
	if len(slices.Compact(slices.Sorted(maps.Values(zones)))) != 3 {
		t.Errorf("the pods are in %v", zones)
	}
	s.Kubectl(append([]string{"delete", "pod"}, names...)...)
	for _, name := range names {
		s.WaitPod(name, "is another and Ready", func(p *corev1.Pod) bool { return p.UID != first[name].UID && namespace.IsReady(p) })
		if got := s.in(name, "cat /data/f"); got != name {
			t.Errorf("pod %s has the data %q", name, got)
		}
		if zone := s.whereIs(name); zone != zones[name] {
			t.Errorf("pod %s came back in zone %s, its disk is in %s", name, zone, zones[name])
		}
	}
	s.Kubectl("delete", "statefulset", "db")
	s.Kubectl("delete", "pvc", "data-db-0", "data-db-1", "data-db-2")
	s.noVolumes(volumes...)
}

func TestAZoneOfTheLocalCloudThatFailsLosesItsMachinesAndGetsNoPods(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	defer inZones(t, s)()
	nodes, err := zoneNodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	west := nodes["west"].Name
	out := func(on bool) {
		t.Helper()
		if err := host.Outage(localCloud(), "west", on); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name, zone string) string {
		return strings.Replace(namespace.Sleeper(name), "{type: virtual-kubelet}",
			"{type: virtual-kubelet, topology.kubernetes.io/zone: "+zone+"}", 1)
	}
	s.Apply(in("lost", "west") + "---\n" + in("kept", "east"))
	lost, kept, cell := s.WaitReady("lost"), s.WaitReady("kept"), s.CellOf("kept").Name
	out(true)
	defer out(false)
	if n, err := host.FailMachines(localCloud(), "west"); err != nil || n < 1 {
		t.Fatalf("%d machines have failed, %v", n, err)
	}
	s.Apply(in("waits", "west"))
	s.WaitEvent("waits", "NoCapacity", "")
	s.tainted(west, true)
	s.Apply(in("elsewhere", "east"))
	s.WaitReady("elsewhere")
	s.tainted(nodes["east"].Name, false)
	s.WaitEvent("lost", "CellLost", "")
	out(false)
	s.tainted(west, false)
	if on := s.WaitReady("waits").Spec.NodeName; on != west {
		t.Errorf("the pod is on node %s, want %s", on, west)
	}
	again := s.WaitReady("lost")
	if on := s.CellOf("lost").Status; again.UID != lost.UID || on.Zone != "west" {
		t.Errorf("the pod whose machine failed is %s, before %s, on a cell in zone %s", again.UID, lost.UID, on.Zone)
	}
	if p, err := s.Pod(t.Context(), "kept"); err != nil || p.UID != kept.UID || s.CellOf("kept").Name != cell {
		t.Errorf("the pod of a zone that is well is %+v, %v", p, err)
	}
	s.deleteAll("lost", "kept", "waits", "elsewhere")
}

func TestAVirtualNodeThatIsTakenOutGoesWithItsLastPod(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	defer inZones(t, s)()
	s.Apply(strings.Replace(namespace.Sleeper("stays"), "{type: virtual-kubelet}",
		"{type: virtual-kubelet, topology.kubernetes.io/zone: west}", 1))
	before := s.WaitReady("stays")
	configureNodes(t, nodesFor(zonesHere[:2]...))
	node := before.Spec.NodeName
	s.Eventually("the node is cordoned", func(ctx context.Context) error {
		n, err := world.Admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil || !n.Spec.Unschedulable {
			return fmt.Errorf("it is not: %v", err)
		}
		return nil
	})
	s.Eventually("the pod runs on", s.ExecTrue("stays"))
	after, err := s.Pod(t.Context(), "stays")
	if err != nil || after.UID != before.UID || !namespace.IsReady(after) || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod of a node that was taken out is %+v, %v", after, err)
	}
	s.Kubectl("delete", "pod", "stays")
	s.WaitGone("stays")
	s.Eventually("the node is gone", func(ctx context.Context) error {
		if _, err := world.Admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%v)", err)
		}
		return nil
	})
	waitNodes(s, zonesHere[:2]...)
}
