//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/hollow"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// besideKey is of the label and the taint of the nodes of a Kip beside the world's: no
// pod of another test is on them.
const besideKey = "kip-beside"

// outage is how long a shortage of zoned goes on after each refusal, where nothing else is
// said.
const outage = 12 * time.Second

// zoned is a simulated cloud of hollow machines, with a record of what was launched, of
// which a zone or a capacity type can fail.
type zoned struct {
	*sim.Cloud

	mu       sync.Mutex
	failed   cloud.Scope
	lasts    time.Duration
	launched map[string]string // pods, by UID: instance type, zone and market

	kipSocket string // of the Kip that launches there
}

// fail lets launches in a zone, or of a capacity type, be refused; the empty scope ends that. What
// was refused is to be asked for again after so long.
func (c *zoned) fail(scope cloud.Scope, lasts time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed, c.lasts = scope, lasts
}

// out says that a launch falls under what has failed. The caller holds mu.
func (c *zoned) out(r cloud.LaunchRequest) bool {
	return c.failed.Says() && (c.failed.Zone == "" || c.failed.Zone == r.Zone) && (c.failed.Spot == nil || *c.failed.Spot == r.Spot()) &&
		(c.failed.InstanceType == "" || c.failed.InstanceType == r.InstanceType)
}

// vanish ends all machines, without a word.
func (c *zoned) vanish(t *testing.T) {
	t.Helper()
	for _, i := range c.Truth() {
		if err := c.Interrupter.Vanish(i.ID); err != nil {
			t.Error(err)
		}
	}
}

func (c *zoned) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	c.mu.Lock()
	out, failed, lasts := c.out(r), c.failed, c.lasts
	what := r.InstanceType + " in " + r.Zone
	if r.Spot() {
		what += " as spot"
	}
	for n := range r.Machines {
		if uid := r.TagsOf(n)[cloud.TagPodUID]; !out {
			c.launched[uid] = what
		}
	}
	c.mu.Unlock()
	if out {
		return cloud.NotLaunched(len(r.Machines), &cloud.Error{
			Cause:       cloud.ErrCapacity,
			Scope:       failed,
			RetryAfter:  lasts,
			NothingDone: true,
			Err:         errors.New("it is rehearsed"),
		})
	}
	return c.Cloud.Launch(ctx, r)
}

// of is what was launched for a pod.
func (c *zoned) of(pod *corev1.Pod) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.launched[string(pod.UID)]
}

// kipBeside starts a Kip of another name beside the world's, with virtual nodes of its
// own, until the test ends. addresses are of its machines, on this host.
func kipBeside(t *testing.T, name, addresses string, sold []catalog.InstanceType, nodes ...map[string]any) *zoned {
	t.Helper()
	fleet, err := hollow.New(hollow.Config{})
	if err != nil {
		t.Fatal(err)
	}
	machines, err := sim.New(sim.Config{Catalogue: sold, Boot: fleet.Boot, ManagementCIDR: netip.MustParsePrefix(addresses)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(machines.Close(), fleet.Close()); err != nil {
			t.Error(err)
		}
	})
	dir := shortDir(t)
	c := &zoned{Cloud: machines, launched: map[string]string{}, kipSocket: filepath.Join(dir, "kip", "kip.sock")}
	socket := serveCloud(t, dir, c)
	for _, n := range nodes {
		n["labels"], n["taints"] = map[string]any{besideKey: name}, []any{map[string]any{"key": besideKey}}
	}
	file := providerFile(t, func(provider map[string]any) {
		provider["cloud"] = map[string]any{"sim": map[string]any{"socket": socket}}
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": filepath.Join(dir, "kip")}}
		provider["nodes"] = nodes
	})
	letBe(t, name, len(nodes))
	k, err := world.RunKip(filepath.Join(filepath.Dir(file), "kip.log"), "--provider-config="+file, "--nodename="+name,
		fmt.Sprint("--kubelet-port=", freePorts(t, len(nodes))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endBeside(t, k, name) })
	return c
}

// endBeside ends a Kip beside the world's, and removes its nodes.
func endBeside(t *testing.T, k *harness.Kip, name string) {
	if err := k.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-k.Done()
	if err := k.Amiss(); err != nil {
		t.Error(err)
	}
	all := metav1.ListOptions{LabelSelector: besideKey + "=" + name}
	if err := world.Admin.CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, all); err != nil {
		t.Error(err)
	}
}

// letBe gives Kip's user the rights of deploy/manifests/rights/rbac.yaml for a node name and the first n
// of its numbers, until the test ends.
func letBe(t *testing.T, name string, n int) {
	t.Helper()
	names, users := []string{name}, []string{"system:node:" + name}
	for i := range n {
		names, users = append(names, fmt.Sprintf("%s-%d", name, i+1)), append(users, fmt.Sprintf("system:node:%s-%d", name, i+1))
	}
	meta, roles := metav1.ObjectMeta{Name: "e2e-" + name}, world.Admin.RbacV1()
	if _, err := roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: users, Verbs: []string{"impersonate"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: names, Verbs: []string{"get", "update", "patch", "delete"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(roles.ClusterRoleBindings().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}),
			roles.ClusterRoles().Delete(context.Background(), meta.Name, metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
	})
	kip := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "kip-system", Name: "kip"}
	if _, err := roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{kip},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Kip, too, asks at its start, and then not for a minute.
	ask := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + kip.Namespace + ":" + kip.Name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users", Name: users[n]},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := namespace.Poll(ctx, func(ctx context.Context) error {
		answer, err := world.Admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, ask, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = errors.New("it may not")
		}
		return err
	}); err != nil {
		t.Fatalf("Kip's user may be %s: %v", users[n], err)
	}
}

// freePorts returns a port for --kubelet-port where those of the first n numbered nodes are
// free, too.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	var more []int
	for i := range n {
		more = append(more, 100+i+1)
	}
	port, err := harness.FreePort(more...)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// besideNode waits for the Ready node of a Kip beside the world's that has a label.
func (s *space) besideNode(name, key, value string) (is corev1.Node) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%s has a Ready node with %s=%s", name, key, value), func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: besideKey + "=" + name + "," + key + "=" + value})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		is = list.Items[0]
		if !slices.ContainsFunc(is.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return errors.New("it is not Ready")
		}
		return nil
	})
	return is
}

// beside is a pod on a node of a Kip beside the world's; more is in its spec.
func beside(kip, name, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  tolerations: [{key: %s, operator: Exists}]
  containers: [{name: main, image: any, resources: {requests: {cpu: 100m}}}]
%s`, name, besideKey, strings.ReplaceAll(more, "KIP", besideKey+": "+kip))
}

// tainted waits until a node says that there is nothing to be had for its pods, or does not.
func (s *space) tainted(name string, want bool) {
	s.Helper()
	s.Eventually(fmt.Sprintf("node %s has the taint of a shortage: %t", name, want), func(ctx context.Context) error {
		n, err := world.Admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if is := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == node.ShortTaint }); is != want {
			return fmt.Errorf("its taints are %v", n.Spec.Taints)
		}
		return nil
	})
}

// inDeployment keeps one pod, of that manifest.
func inDeployment(pod string) string {
	meta, spec, _ := strings.Cut(pod, "spec:\n")
	_, name, _ := strings.Cut(meta, "name: ")
	name, _, _ = strings.Cut(name, "}")
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:%[2]s
`, name, strings.ReplaceAll("\n"+strings.TrimRight(spec, "\n"), "\n", "\n    "))
}

// servedAgain is patience after what Kip itself waits for before it gives a cell, or a spot
// node, up.
const servedAgain = 2*time.Minute + namespace.LossPatience

// besidePodOf waits for the one pod of a Deployment, another than one of before, to run.
func (s *space) besidePodOf(app string, before types.UID) *corev1.Pod {
	s.Helper()
	var found corev1.Pod
	s.Within(servedAgain, "another pod of "+app+" runs", func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, app)
		if err != nil {
			return err
		}
		if len(pods) != 1 || pods[0].UID == before || pods[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("its pods are %d: %+v", len(pods), pods)
		}
		found = pods[0]
		return nil
	})
	return &found
}

func (s *space) waitRunning(name string) *corev1.Pod {
	s.Helper()
	return s.WaitPod(name, "is Running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
}

func TestPodsGetMachinesOfTheArchitectureThatTheySelect(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const name = "kip-archs"
	sold := sizes.Types("amd64", "a")
	for _, typ := range sizes.Types("arm64", "a") {
		typ.Name = "arm-" + typ.Name
		sold = append(sold, typ)
	}
	machines := kipBeside(t, name, "127.66.0.0/16", sold,
		map[string]any{"architectures": []string{"amd64"}}, map[string]any{"architectures": []string{"arm64"}})
	s := newSpace(t)
	for arch, prefix := range map[string]string{"amd64": "", "arm64": "arm-"} {
		node := s.besideNode(name, corev1.LabelArchStable, arch)
		if node.Status.NodeInfo.Architecture != arch {
			t.Errorf("node %s of %s says that it is %s", node.Name, arch, node.Status.NodeInfo.Architecture)
		}
		s.Apply(beside(name, arch, "  nodeSelector: {KIP, kubernetes.io/arch: "+arch+"}\n"))
		pod := s.waitRunning(arch)
		if got, want := machines.of(pod), prefix+"nano in a"; pod.Spec.NodeName != node.Name || got != want {
			t.Errorf("a pod for %s is on node %s, want %s, and a machine %q was launched for it, want %q", arch, pod.Spec.NodeName, node.Name,
				got, want)
		}
	}
	s.deleteAll("amd64", "arm64")
}

// twoZones are a Kip beside the world's with a node in each of the zones a and b, and a
// namespace for its pods.
type twoZones struct {
	*space
	machines *zoned
	nodes    map[string]string // by zone
}

// inTwoZones starts such a Kip, until the test ends.
func inTwoZones(t *testing.T, name, addresses string) twoZones {
	t.Helper()
	z := twoZones{
		machines: kipBeside(t, name, addresses, sizes.Types("amd64", "a", "b"),
			map[string]any{"zones": []string{"a"}}, map[string]any{"zones": []string{"b"}}),
		nodes: map[string]string{},
	}
	z.space = newSpace(t)
	for _, zone := range []string{"a", "b"} {
		z.nodes[zone] = z.besideNode(name, corev1.LabelTopologyZone, zone).Name
	}
	return z
}

// in wants a pod on the node of a zone, and on a machine that was launched for it there.
func (z twoZones) in(pod *corev1.Pod, zone string) {
	z.Helper()
	if got := z.machines.of(pod); pod.Spec.NodeName != z.nodes[zone] || got != "nano in "+zone {
		z.Errorf("pod %s is on node %s, want %s, and a machine %q was launched for it", pod.Name, pod.Spec.NodeName, z.nodes[zone], got)
	}
}

// likes is of a pod that goes to another zone only where there is nothing in this one.
func likes(zone string) string {
	return `  nodeSelector: {KIP}
  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
    {weight: 100, preference: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [` + zone + `]}]}}]}}
`
}

func TestAZoneThatFailsGetsNoPodsUntilItIsBack(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const name = "kip-zones"
	s := inTwoZones(t, name, "127.67.0.0/16")
	tainted := func(zone string, want bool) {
		t.Helper()
		s.tainted(s.nodes[zone], want)
	}
	in := func(pod, zone string) {
		t.Helper()
		s.in(s.waitRunning(pod), zone)
	}
	likesA := likes("a")
	s.Apply(beside(name, "before", likesA))
	in("before", "a")

	s.machines.fail(cloud.Scope{Zone: "a"}, outage)
	s.Apply(beside(name, "waits", "  nodeSelector: {KIP, topology.kubernetes.io/zone: a}\n"))
	s.WaitEvent("waits", "NoCapacity", "")
	tainted("a", true)
	s.Apply(beside(name, "elsewhere", likesA))
	in("elsewhere", "b")
	tainted("b", false)
	if pod, err := s.Pod(t.Context(), "waits"); err != nil || pod.Spec.NodeName != s.nodes["a"] || pod.Status.Phase != corev1.PodPending {
		t.Errorf("the pod that is for the zone is %+v, %v", pod, err)
	}

	s.machines.fail(cloud.Scope{}, 0)
	tainted("a", false)
	in("waits", "a")
	s.Apply(beside(name, "after", likesA))
	in("after", "a")
	s.deleteAll("before", "waits", "elsewhere", "after")
}

func TestADrainOfOneVirtualNodeMovesItsPodsAlone(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const name = "kip-drain"
	s := inTwoZones(t, name, "127.70.0.0/16")
	s.Apply(inDeployment(beside(name, "moves", likes("a"))) + "---\n" + inDeployment(beside(name, "stays", likes("b"))) + "---\n" +
		beside(name, "bare", likes("b")))
	moves, stays, bare := s.besidePodOf("moves", ""), s.besidePodOf("stays", ""), s.waitRunning("bare")
	s.in(moves, "a")
	s.in(stays, "b")
	s.in(bare, "b")
	cells := map[string]string{stays.Name: s.CellOf(stays.Name).Name, bare.Name: s.CellOf(bare.Name).Name}

	s.Kubectl("drain", s.nodes["a"], "--timeout=5m")
	s.WaitGone(moves.Name)
	moved := s.besidePodOf("moves", moves.UID)
	s.in(moved, "b")
	for _, before := range []*corev1.Pod{stays, bare} {
		after, err := s.Pod(t.Context(), before.Name)
		if err != nil || after.UID != before.UID || after.DeletionTimestamp != nil || after.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s of the other node is %+v, %v", before.Name, after, err)
		}
		if is := s.CellOf(before.Name).Name; is != cells[before.Name] {
			t.Errorf("pod %s of the other node has cell %s, and had %s", before.Name, is, cells[before.Name])
		}
	}
	if truth := s.machines.Truth(); len(truth) != 3 {
		t.Errorf("there are %d machines for 3 pods: %+v", len(truth), truth)
	}

	s.Kubectl("uncordon", s.nodes["a"])
	s.Apply(beside(name, "next", likes("a")))
	s.in(s.waitRunning("next"), "a")
	s.Kubectl("delete", "deployment", "moves", "stays")
	s.deleteAll("bare", "next")
}

func TestPeopleReadWellWhatANodeIs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const name = "kip-reads"
	kipBeside(t, name, "127.71.0.0/16", sizes.Types("amd64", "a"), map[string]any{"zones": []string{"a"}})
	s := newSpace(t)
	n := s.besideNode(name, corev1.LabelTopologyZone, "a")
	s.Apply(beside(name, "web", "  nodeSelector: {KIP}\n"))
	s.waitRunning("web")
	row := func() map[string]string {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(s.Kubectl("get", "node", n.Name, "-o=wide")), "\n")
		if len(lines) != 2 {
			t.Fatalf("kubectl get node: %q", lines)
		}
		// Columns are two blanks apart at least; a value may have one in it.
		apart := regexp.MustCompile(` {2,}`)
		keys, values := apart.Split(strings.TrimSpace(lines[0]), -1), apart.Split(strings.TrimSpace(lines[1]), -1)
		if len(keys) != len(values) {
			t.Fatalf("kubectl get node: %q and %q", keys, values)
		}
		columns := map[string]string{}
		for i, key := range keys {
			columns[key] = values[i]
		}
		return columns
	}
	is := row()
	for column, want := range map[string]string{
		"NAME":              regexp.QuoteMeta(n.Name),
		"STATUS":            "Ready",
		"ROLES":             "agent",
		"AGE":               `(\d+m)?(\d+s)?`,
		"VERSION":           `v1\.\d+\.\d+-kip-\S+`,
		"INTERNAL-IP":       `10\.\d+\.0\.1`,
		"EXTERNAL-IP":       "<none>",
		"OS-IMAGE":          `Kip \S+ \(a machine for each pod\)`,
		"CONTAINER-RUNTIME": `kip://\S+`,
	} {
		if !regexp.MustCompile("^" + want + "$").MatchString(is[column]) {
			t.Errorf("kubectl get nodes: %s is %q, want %s", column, is[column], want)
		}
	}
	s.Kubectl("label", "node", n.Name, "node-role.kubernetes.io/pods=")
	if got := row()["ROLES"]; got != "agent,pods" {
		t.Errorf("a node that was given a role has %q", got)
	}
	described := s.Kubectl("describe", "node", n.Name)
	for _, want := range []string{
		"topology.kubernetes.io/zone=a", besideKey + ":NoSchedule", "Unschedulable:      false", "KipReady", "CellPerPod",
		"ProviderID:", "kip://", "Non-terminated Pods:", s.NS, "web",
	} {
		if !strings.Contains(described, want) {
			t.Errorf("kubectl describe node does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(described)
	}
	s.deleteAll("web")
}
