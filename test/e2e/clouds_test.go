//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	fakecloud "k8s.io/cloud-provider/fake"
	"k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/klog/v2"
)

const (
	// cloudUser is who deletes nodes for a cloud.
	cloudUser = "system:serviceaccount:kube-system:cloud-controller-manager"
	// cloudLooksEvery is --node-monitor-period of cloud controller managers.
	cloudLooksEvery = 5 * time.Second
)

// ordinaryCloud is a cloud whose machines are the ordinary nodes of the world. It knows of
// no other, and says so: its controller deletes their nodes while they are not Ready.
type ordinaryCloud struct {
	*fakecloud.Cloud

	mu    sync.Mutex
	asked map[string]int // how often whether the machine of a node exists
}

// provider is the cloud of all tests.
var provider = &ordinaryCloud{Cloud: &fakecloud.Cloud{}, asked: map[string]int{}}

func (c *ordinaryCloud) InstancesV2() (cloudprovider.InstancesV2, bool) { return c, true }

func (c *ordinaryCloud) InstanceExists(_ context.Context, n *corev1.Node) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[n.Name]++
	return strings.HasPrefix(n.Name, "node-"), nil
}

func (c *ordinaryCloud) askedOf(node string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[node]
}

// besideACloud runs tests beside upstream's life-cycle controller of such a cloud.
func besideACloud(run func() int) (code int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The controller logs by klog, which reads os.Stderr each time, and package testing sets
	// that when the tests begin.
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if _, err := world.Admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-cloud"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: cloudUser}},
	}, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	config := rest.CopyConfig(world.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: cloudUser}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes()
	c, err := nodelifecycle.NewCloudNodeLifecycleController(nodes, client, provider, cloudLooksEvery)
	if err != nil {
		return 0, err
	}
	synced := nodes.Informer().HasSynced
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return 0, errors.New("the nodes are not listed")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, controllers.NewControllerManagerMetrics("e2e"))
	}()
	code = run()
	cancel()
	<-done
	factory.Shutdown()
	return code, nil
}

// cloudDeletes waits until the life-cycle controller has deleted a node that is none of
// Kip's and not Ready, which it does as soon as it looks.
func (s *space) cloudDeletes(name string) {
	s.Helper()
	nodes := world.Admin.CoreV1().Nodes()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "cloud://" + name}}
	if _, err := nodes.Create(s.Context(), n, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Eventually("the cloud deletes node "+name, func(ctx context.Context) error {
		if _, err := nodes.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w)", err)
		}
		return nil
	})
}

// cloudDeletesNot waits until the life-cycle controller has tried to delete a node, and
// checks that it is there.
func (s *space) cloudDeletesNot(n *corev1.Node) {
	s.Helper()
	before := provider.askedOf(n.Name)
	s.Eventually("the cloud is asked twice of node "+n.Name+", and says that it has no such machine", func(context.Context) error {
		// Between the first and the second the node was to be deleted.
		if asked := provider.askedOf(n.Name) - before; asked < 2 {
			return fmt.Errorf("it was asked %d times", asked)
		}
		return nil
	})
	after, err := world.Admin.CoreV1().Nodes().Get(s.Context(), n.Name, metav1.GetOptions{})
	if err != nil || after.UID != n.UID || after.DeletionTimestamp != nil {
		s.Errorf("node %s with UID %s is one with %s, deleted at %s: %v", n.Name, n.UID, after.UID, after.DeletionTimestamp, err)
	}
}
