package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	fakecloud "k8s.io/cloud-provider/fake"
	"k8s.io/component-base/metrics/prometheus/controllers"

	"github.com/elotl/kip/internal/node"
)

// cloudNode is the virtual node of this test, and cloudSA who deletes nodes for a cloud.
const (
	cloudNode = "kip-0-63"
	cloudSA   = "system:serviceaccount:kube-system:cloud-controller-manager"
)

// A cloud's life-cycle controller deletes each node that its cloud does not find, and the
// node IPAM controller gives each a range. Kip's node stays as it is while Kip is away.
func cloudsLeaveKipsNodeWhileKipIsAway(t *testing.T, is identities) {
	ctx := t.Context()
	nodes := is.admin.CoreV1().Nodes()
	get := func() *corev1.Node {
		t.Helper()
		n, err := nodes.Get(ctx, cloudNode, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	patch := func(name, body string, subresources ...string) {
		t.Helper()
		if _, err := nodes.Patch(ctx, name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...); err != nil {
			t.Fatal(err)
		}
	}
	const away = `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`
	gone := func(name string) func() error {
		return func() error {
			if _, err := nodes.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there (%w)", err)
			}
			return nil
		}
	}
	if _, err := is.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "cloud"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: cloudSA}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	leave := kipServes(t, is)
	becomes(t, "the node IPAM controller gives Kip's node a range", func() error {
		if n := get(); len(n.Spec.PodCIDRs) != 1 {
			return fmt.Errorf("it has %v", n.Spec.PodCIDRs)
		}
		return nil
	})
	before := get()
	leave()
	machine := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "machine"},
		Spec:       corev1.NodeSpec{ProviderID: "cloud://machine"},
	}
	if _, err := nodes.Create(ctx, machine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch(cloudNode, away, "status")
	cloudLooks(t, is)
	becomes(t, "a machine that the cloud does not find is deleted", gone(machine.Name))
	becomes(t, "the cloud is refused to delete Kip's node", func() error {
		list, err := is.admin.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + cloudNode})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == "DeletingNodeFailed" }) {
			return fmt.Errorf("of the node there are the events %v", list.Items)
		}
		return nil
	})
	leave = kipServes(t, is)
	after := get()
	if after.UID != before.UID || after.Spec.ProviderID != before.Spec.ProviderID || !slices.Equal(after.Spec.PodCIDRs, before.Spec.PodCIDRs) {
		t.Errorf("the node that Kip left as %+v it found as %+v", before, after)
	}
	leave()

	// Another Kip's node is that Kip's: the policy of this one does not hold its service account up.
	const anothers = "edge-0"
	if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: anothers, Labels: map[string]string{"kip.elotl.co/controller": "another"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := refused(is.cloud.CoreV1().Nodes().Delete(ctx, cloudNode, metav1.DeleteOptions{}), "only Kip and people delete it"); err != nil {
		t.Errorf("a component deletes Kip's node: %v", err)
	}
	if err := is.cloud.CoreV1().Nodes().Delete(ctx, anothers, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("a component deletes a node of another Kip, which has no policy here: %v", err)
	}

	// Who wants it otherwise can.
	// Not Ready first: without its label the node may be gone before the next request.
	patch(cloudNode, away, "status")
	patch(cloudNode, `{"metadata":{"labels":{"kip.elotl.co/controller":null}}}`)
	becomes(t, "a node that says no more that it is Kip's is deleted", gone(cloudNode))
}

// kipServes keeps the virtual node until leave is called, with the rights that Kip has.
func kipServes(t *testing.T, is identities) (leave func()) {
	t.Helper()
	n, err := node.New(node.Config{
		Name: cloudNode,
		Own:  is.kip,
		Node: is.cloudNode,
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("1"),
			corev1.ResourceMemory: resource.MustParse("1Gi"),
			corev1.ResourcePods:   resource.MustParse("1"),
		},
		Arch:       "amd64",
		Controller: "abc",
		InternalIP: netip.MustParseAddr("127.0.0.4"),
		Port:       node.DefaultPort,
		Version:    "v0.0.0",
		Healthy:    func(context.Context) error { return nil },
		Log:        slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	select {
	case <-n.Ready():
	case err := <-done:
		cancel()
		t.Fatalf("Kip's node: %v", err)
	}
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Kip's node: %v", err)
		}
	}
}

// cloudLooks runs upstream's life-cycle controller until the test ends, for a cloud that
// knows no machine at all.
func cloudLooks(t *testing.T, is identities) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(is.cloud, 0)
	informer := factory.Core().V1().Nodes()
	c, err := nodelifecycle.NewCloudNodeLifecycleController(informer, is.cloud,
		&fakecloud.Cloud{EnableInstancesV2: true}, pollInterval)
	if err != nil {
		t.Fatal(err)
	}
	synced := informer.Informer().HasSynced
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), synced)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, controllers.NewControllerManagerMetrics("test"))
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		factory.Shutdown()
	})
}
