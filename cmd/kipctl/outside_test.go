package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/cloudtest"
	"github.com/elotl/kip/internal/cloud/sim"
)

// hasty is a clock on which each wait is over at once.
type hasty struct{ *clocktesting.FakeClock }

func (h hasty) After(d time.Duration) <-chan time.Time {
	h.Step(d)
	over := make(chan time.Time, 1)
	over <- h.Now()
	return over
}

// ec2Of is a model of EC2 with two instances of each owner, a disk and a security group, and the provider.yaml of its cloud.
func ec2Of(t *testing.T, owners ...string) (model *ec2.Model, file string) {
	t.Helper()
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIATESTS") // and nothing of the cluster or of Kip's store
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	offer := []catalog.PurchaseOption{{Zone: "us-east-1a", Subnet: "subnet-1"}}
	model, err := ec2.New(ec2.Config{
		Sim: sim.Config{
			Catalogue: []catalog.InstanceType{
				{Name: "t3.nano", MilliCPU: 2000, MemoryBytes: 1 << 29, Arch: "amd64", Offerings: offer},
				{Name: "g4dn.xlarge", MilliCPU: 4000, MemoryBytes: 16 << 30, Arch: "amd64", Offerings: offer, GPUs: []catalog.GPU{{Model: "T4", Count: 1}}},
			},
		},
		Subnets: []ec2.Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "us-east-1a"}},
		Images:  []ec2.Image{{ID: "ami-1", Name: "kip", Owner: "self", Created: "2026-06-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(model)
	t.Cleanup(func() {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	kip, err := aws.New(t.Context(), aws.Config{Region: "us-east-1", Endpoint: server.URL, Subnets: []string{"subnet-1"}, Cluster: "prod"})
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range owners {
		tags := map[string]string{
			cloud.TagOwner: owner, cloud.TagNameTag: owner + "-tag", cloud.TagNamespace: "shop", cloud.TagName: "Kip volume of " + owner,
		}
		spec := cloud.LaunchSpec{InstanceType: "t3.nano", Zone: "us-east-1a", Subnet: "subnet-1", Tags: tags,
			Options: cloud.Options{Image: map[string]string{"imageID": "ami-1"}}}
		if err := cloudtest.Launch(t.Context(), kip, cloud.LaunchRequest{
			Token: owner, LaunchSpec: spec, Machines: make([]cloud.Machine, 2), UserData: []byte("x"),
		}).Err(); err != nil {
			t.Fatal(err)
		}
		disk := cloud.DiskRequest{Token: owner, SizeBytes: 1 << 30, Zone: "us-east-1a", Tags: tags}
		if _, err := kip.CreateDisk(t.Context(), disk); err != nil {
			t.Fatal(err)
		}
	}
	file = filepath.Join(t.TempDir(), "provider.yaml")
	// The files that it names are not here, and it does not say where cells are launched.
	text := fmt.Sprintf("apiVersion: v1\nkind: serverConfig\ncloud: {aws: {region: us-east-1, endpointURL: '%s'}}\n"+
		"cells: {defaultInstanceType: t3.nano, cloudInitFile: /none/there}\n", server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return model, file
}

// leftCluster is what a Kip of the controller "gone" leaves whose namespace was deleted, beside another that lives.
func leftCluster(others bool, change func(node *corev1.Node, lease *coordinationv1.Lease)) *cluster {
	node := func(name, controller string) *corev1.Node {
		labels := map[string]string{"type": "virtual-kubelet", apiv1.LabelController: controller}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "kip-0"},
		Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now.Add(-time.Hour)}}}
	own := node("kip-0", "gone")
	change(own, lease)
	labelled := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "kip"}}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "kip-system", Name: "data-kip-0",
		Labels: map[string]string{"app": "kip-provider"}}}
	objects := []runtime.Object{
		own, lease, claim,
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: labelled("kip-0")},
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: labelled("kip-volumes.kip-0")},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: labelled("kip-volumes.kip-0")},
		&rbacv1.ClusterRole{ObjectMeta: labelled("kip.kip-0")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: labelled("kip.kip-0")},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}},
	}
	cell := testCell("c-gone", "default", "web", apiv1.CellStatus{Phase: apiv1.Bound})
	cell.Status.ControllerID = "gone"
	cells := []*apiv1.Cell{cell}
	if others {
		objects = append(objects, node("kip-9", "lives"), &rbacv1.ClusterRole{ObjectMeta: labelled("kip.kip-9")},
			&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: labelled("kip-9")})
		cells = append(cells, testCell("c-lives", "default", "api", apiv1.CellStatus{Phase: apiv1.Bound}))
	}
	var dynamics []runtime.Object
	for _, c := range cells {
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
		if err != nil {
			panic(err) // of this package's own type
		}
		dynamics = append(dynamics, &unstructured.Unstructured{Object: u})
	}
	return &cluster{kube: fake.NewClientset(objects...), dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{apiv1.Resource: "CellList"}, dynamics...)}
}

func dead(*corev1.Node, *coordinationv1.Lease) {}

// runOutside runs "kipctl cleanup" with a clock on which no wait takes time.
func runOutside(t *testing.T, c *cluster, args ...string) result {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var out, stderr bytes.Buffer
	waits := hasty{clocktesting.NewFakeClock(now)}
	k := &kipctl{
		out: &out, err: &stderr, clock: waits, waits: waits,
		connect: func(clientcmd.ClientConfig) (*cluster, error) {
			if c == nil {
				return nil, errors.New("no Kubernetes cluster to ask")
			}
			return c, nil
		},
	}
	root := newRoot(k, "kipctl")
	root.SetArgs(append([]string{"cleanup"}, args...))
	err := root.ExecuteContext(t.Context())
	return result{out.String(), stderr.String(), err}
}

func owners(model *ec2.Model) (all []string) {
	for _, i := range model.Machines().Truth() {
		all = append(all, i.Tags[cloud.TagOwner])
	}
	slices.Sort(all)
	return all
}

func has(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not have %q:\n%s", what, w, text)
		}
	}
}

func TestCleanupFromOutsideListsWhoseInstancesThereAreAndEndsNone(t *testing.T) {
	model, file := ec2Of(t, "gone", "lives")
	r := runOutside(t, leftCluster(true, dead), "-f", file)
	if r.failed == nil || len(owners(model)) != 4 {
		t.Errorf("%v; instances of %q", r.failed, owners(model))
	}
	has(t, "the error", r.err, "nothing was done: --controller ID")
	has(t, "the table", r.out, "CONTROLLER", "gone", "lives", "kip-0", "kip-9", "gone-tag", "prod", "shop")
	empty, file := ec2Of(t)
	r = runOutside(t, nil, "-f", file)
	if r.failed != nil || len(owners(empty)) != 0 {
		t.Errorf("of an empty account: %+v", r)
	}
	has(t, "what is said of an empty account", r.err, "shows nothing with the tag KipControllerID")
}

func TestCleanupFromOutsideShowsWhatOneKipHasLeft(t *testing.T) {
	model, file := ec2Of(t, "gone", "lives")
	r := runOutside(t, leftCluster(false, dead), "-f", file, "--controller", "gone")
	if r.failed == nil || len(owners(model)) != 4 {
		t.Errorf("%v; instances of %q", r.failed, owners(model))
	}
	has(t, "the error", r.err, "nothing was done: --yes ends the instances")
	has(t, "the table", r.out, "security group sg-", "Kip volume of gone",
		"kubectl delete node kip-0\n", "kubectl delete lease -n kube-node-lease kip-0\n",
		"kubectl delete mutatingwebhookconfiguration kip-0\n", "kubectl delete validatingadmissionpolicy kip-volumes.kip-0\n",
		"kubectl delete validatingadmissionpolicybinding kip-volumes.kip-0\n", "kubectl delete clusterrole kip.kip-0\n",
		"kubectl delete clusterrolebinding kip.kip-0\n", "kubectl delete cells.kip.elotl.co -l kip.elotl.co/controller=gone\n",
		"kubectl delete crd cells.kip.elotl.co\n", "kubectl delete pvc -n kip-system data-kip-0")
	if strings.Contains(r.out, "Kip volume of lives") {
		t.Errorf("another Kip's disk is shown:\n%s", r.out)
	}
	r = runOutside(t, leftCluster(true, dead), "-f", file, "--controller", "gone", "-o", "json")
	has(t, "beside another Kip", r.out, "kubectl delete clusterrole kip.kip-0", "data-kip-0")
	for _, not := range []string{"kip-9", "delete crd"} {
		if strings.Contains(r.out, not) {
			t.Errorf("beside another Kip it names %s:\n%s", not, r.out)
		}
	}
}

func TestCleanupFromOutsideEndsOneKipsInstances(t *testing.T) {
	model, file := ec2Of(t, "gone", "lives")
	r := runOutside(t, leftCluster(true, dead), "-f", file, "--controller", "gone", "--yes")
	if r.failed != nil || !slices.Equal(owners(model), []string{"lives", "lives"}) || len(model.Volumes.All()) != 2 {
		t.Fatalf("%v; instances of %q\n%s", r.failed, owners(model), r.err)
	}
	has(t, "what is said", r.err, "terminating 2 instances: ", "the cloud has shown no instance twice",
		"Clean: two complete lists of cloud aws in region us-east-1 show nothing of controller gone")
	has(t, "the table", r.out, "Kip volume of gone", "kubectl delete node kip-0")
	groups := 0
	model.Change(func(cfg *ec2.Config) { groups = len(cfg.Groups) })
	if groups != 1 {
		t.Errorf("there are %d security groups: want that of the other Kip", groups)
	}
	if r := runOutside(t, leftCluster(true, dead), "-f", file, "--controller", "gone", "--yes"); r.failed != nil {
		t.Errorf("the second time: %v\n%s", r.failed, r.err)
	}
}

func TestCleanupFromOutsideRefusesWhileTheKipLives(t *testing.T) {
	ready := func(n *corev1.Node, _ *coordinationv1.Lease) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	young := func(_ *corev1.Node, l *coordinationv1.Lease) { l.Spec.RenewTime.Time = now.Add(-30 * time.Second) }
	model, file := ec2Of(t, "gone")
	for what, alive := range map[string]func(*corev1.Node, *coordinationv1.Lease){
		"node kip-0 is Ready": ready, "node kip-0 renewed its lease": young,
	} {
		c := leftCluster(false, alive)
		c.kube.(*fake.Clientset).PrependReactor("create", "subjectaccessreviews", mayAct)
		installKip(t, c, "a-tenant")
		installKip(t, c, "kip-system")
		for _, more := range [][]string{nil, {"--kip-gone"}} { // it is seen not to be
			r := runOutside(t, c, append([]string{"-f", file, "--controller", "gone", "--yes"}, more...)...)
			if r.failed == nil || len(owners(model)) != 2 {
				t.Errorf("%s: %v; instances of %q", what, r.failed, owners(model))
			}
			has(t, "the error", r.err, what, "kubectl exec -n kip-system kip-0 -- kipctl cleanup --yes")
		}
	}
	// The lease looks old, by the clock of another machine, and is renewed.
	c := leftCluster(false, dead)
	renewals := 0
	kube := c.kube.(*fake.Clientset)
	kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		renewals++
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "kip-0"}}
		l.Spec.RenewTime = &metav1.MicroTime{Time: now.Add(-time.Hour + time.Duration(renewals)*10*time.Second)}
		return true, l, nil
	})
	r := runOutside(t, c, "-f", file, "--controller", "gone", "--yes")
	if r.failed == nil || len(owners(model)) != 2 || renewals == 0 {
		t.Errorf("a lease that is renewed: %v; instances of %q", r.failed, owners(model))
	}
	has(t, "the error", r.err, "node kip-0 renewed its lease")
}

func TestCleanupFromOutsideNeedsAPersonWhereNoClusterTells(t *testing.T) {
	model, file := ec2Of(t, "gone", "lives")
	elsewhere := leftCluster(false, func(n *corev1.Node, _ *coordinationv1.Lease) { n.Labels[apiv1.LabelController] = "lives" })
	elsewhere.dynamic = leftCluster(false, dead).dynamic
	cell, err := elsewhere.dynamic.Resource(apiv1.Resource).Get(t.Context(), "c-gone", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := elsewhere.dynamic.Resource(apiv1.Resource).Delete(t.Context(), cell.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*cluster{"no Kubernetes cluster to ask": nil, "no node and no Cell of controller gone": elsewhere} {
		r := runOutside(t, c, "-f", file, "--controller", "gone", "--yes")
		if r.failed == nil || len(owners(model)) != 4 {
			t.Errorf("%s: %v; instances of %q", what, r.failed, owners(model))
		}
		has(t, "the error", r.err, "nothing was done", what, "add --kip-gone")
	}
	r := runOutside(t, nil, "-f", file, "--controller", "gone", "--yes", "--kip-gone")
	if r.failed != nil || !slices.Equal(owners(model), []string{"lives", "lives"}) {
		t.Errorf("%v; instances of %q\n%s", r.failed, owners(model), r.err)
	}
}

// A Kip that crashes, waits for a node or is cut off has a node that is not Ready and an old lease, and its cells run on.
func TestCleanupFromOutsideNeedsAPersonWhileKipMayStartAgain(t *testing.T) {
	meta := func(labels string) metav1.ObjectMeta {
		key, value, _ := strings.Cut(labels, "=")
		return metav1.ObjectMeta{Namespace: "kip-system", Name: "kip", Labels: map[string]string{key: value}}
	}
	none := int32(0)
	pod := &corev1.Pod{ObjectMeta: meta(labelsOfPods), Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for what, one := range map[string]struct {
		object runtime.Object
		kind   string // its list fails
	}{
		"pod kip-system/kip":                    {object: pod},
		"statefulset kip-system/kip":            {object: &appsv1.StatefulSet{ObjectMeta: meta(labelsOfKip)}},
		"deployment kip-system/kip":             {object: &appsv1.Deployment{ObjectMeta: meta(labelsOfPods)}},
		"list pods of Kip: not allowed":         {kind: "pods"},
		"list statefulsets of Kip: not allowed": {kind: "statefulsets"},
		"":                                      {object: &appsv1.StatefulSet{ObjectMeta: meta(labelsOfKip), Spec: appsv1.StatefulSetSpec{Replicas: &none}}},
	} {
		model, file := ec2Of(t, "gone")
		c := leftCluster(false, dead)
		kube := c.kube.(*fake.Clientset)
		if one.object != nil {
			if err := kube.Tracker().Add(one.object); err != nil {
				t.Fatal(err)
			}
		}
		if one.kind != "" {
			kube.PrependReactor("list", one.kind, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("not allowed")
			})
		}
		r := runOutside(t, c, "-f", file, "--controller", "gone", "--yes")
		if what == "" {
			if r.failed != nil || len(owners(model)) != 0 {
				t.Errorf("without replicas: %v; instances of %q", r.failed, owners(model))
			}
			continue
		}
		if r.failed == nil || len(owners(model)) != 2 {
			t.Errorf("%s: %v; instances of %q", what, r.failed, owners(model))
		}
		has(t, "the error", r.err, "nothing was done", what, "add --kip-gone")
		if r := runOutside(t, c, "-f", file, "--controller", "gone", "--yes", "--kip-gone"); r.failed != nil || len(owners(model)) != 0 {
			t.Errorf("%s, with --kip-gone: %v; instances of %q", what, r.failed, owners(model))
		}
	}
}

func TestCleanupFromOutsideSeesAKipThatAClusterShowsLater(t *testing.T) {
	ready := func(n *corev1.Node, _ *coordinationv1.Lease) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	for _, fails := range []int{1, 2, 1 << 20} { // lists of nodes: that before anything, and that before the lists of the cloud
		model, file := ec2Of(t, "gone")
		c, lists := leftCluster(false, ready), 0
		c.kube.(*fake.Clientset).PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			return lists <= fails, nil, errors.New("connection refused")
		})
		r := runOutside(t, c, "-f", file, "--controller", "gone", "--yes", "--kip-gone")
		if fails == 1<<20 {
			if r.failed != nil || len(owners(model)) != 0 {
				t.Errorf("of a cluster that never answers: %v; instances of %q\n%s", r.failed, owners(model), r.err)
			}
			continue
		}
		if r.failed == nil || len(owners(model)) != 2 {
			t.Errorf("%d lists fail: %v; instances of %q", fails, r.failed, owners(model))
		}
		has(t, "the error", r.err, "The cluster is not known", "node kip-0 is Ready")
	}
}

func TestCleanupFromOutsideNamesNothingThatMayBeAnotherKips(t *testing.T) {
	_, file := ec2Of(t, "gone")
	c := leftCluster(false, dead)
	if err := c.kube.CoreV1().Nodes().Delete(t.Context(), "kip-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r := runOutside(t, c, "-f", file, "--controller", "gone")
	has(t, "the table", r.out, "kubectl delete cells.kip.elotl.co -l kip.elotl.co/controller=gone\n",
		"Not known of the cluster: whether the webhooks", "controller gone has no node here")
	if n := strings.Count(r.out, "kubectl delete"); n != 1 {
		t.Errorf("there are %d commands, without a node:\n%s", n, r.out)
	}
}

func TestCleanupFromOutsideProvesNothingOfAKipOfWhichNothingIsSeen(t *testing.T) {
	_, file := ec2Of(t, "gone")
	for _, more := range [][]string{nil, {"--yes", "--kip-gone"}} {
		r := runOutside(t, nil, append([]string{"-f", file, "--controller", "lost"}, more...)...)
		if r.failed == nil || strings.Contains(r.err, "Clean") {
			t.Errorf("%q: %v\n%s", more, r.failed, r.err)
		}
		has(t, "the error", r.err, "cloud aws in region us-east-1 shows nothing of controller lost", "only if the ID")
	}
	text := strings.Replace(read(t, file), "region: us-east-1, ", "", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_REGION", "eu-west-1")
	r := runOutside(t, nil, "-f", file)
	if r.failed == nil {
		t.Error("a region of the environment is taken")
	}
	has(t, "the error", r.err, "cloud.aws.region: there is no value", "want the region of this Kip's instances")
}

func TestCleanupFromOutsideRefusesFlagsThatDoNotGoTogether(t *testing.T) {
	for args, want := range map[string]string{
		"--controller gone":            "--controller needs -f",
		"--kip-gone --yes":             "--kip-gone needs -f",
		"-f p.yaml --yes":              "--yes needs --controller",
		"-f p.yaml --kip-gone":         "--kip-gone needs --yes",
		"-f /none/p.yaml":              "read the configuration: open /none/p.yaml",
		"-f p.yaml --yes --timeout 0s": "--timeout is 0s",
	} {
		if r := runOutside(t, nil, strings.Fields(args)...); r.failed == nil || !strings.Contains(r.err, want) {
			t.Errorf("%s: %v, want %q", args, r.failed, want)
		}
	}
}
