package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	cloudnode "k8s.io/cloud-provider/controllers/node"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	"k8s.io/cloud-provider/controllers/service"
	fakecloud "k8s.io/cloud-provider/fake"
	"k8s.io/component-base/metrics/prometheus/controllers"
)

// The names of nodes of these tests: Kip's, one of which is like an instance's ID on EC2,
// and a machine that the cloud has not any more.
const (
	likeInstance = "i-0123456789abcdef0"
	lostMachine  = "machine"
)

// period is how often upstream's controllers look.
const period = 10 * time.Millisecond

// clouds are how their providers judge whether a node's machine exists, where there is
// no machine. docs/nodes-in-clouds.md names the sources.
var clouds = map[string]struct {
	lost   string // the provider ID of a machine that is gone
	exists func(*corev1.Node) (bool, error)
}{
	"AWS": {"aws:///us-east-1a/i-1", func(n *corev1.Node) (bool, error) {
		id := n.Spec.ProviderID
		if !strings.HasPrefix(id, "aws://") {
			id = "aws:////" + id
		}
		u, err := url.Parse(id)
		if err != nil {
			return false, err
		}
		if last := path.Base(u.Path); strings.HasPrefix(last, "i-") || strings.HasPrefix(last, "fargate-") {
			return false, nil // EC2 has none of this ID
		}
		return false, fmt.Errorf("%s is no instance", id)
	}},
	"GCE": {"gce://project/us-central1-a/m", func(n *corev1.Node) (bool, error) {
		if !regexp.MustCompile("^gce://([^/]+)/([^/]+)/([^/]+)$").MatchString(n.Spec.ProviderID) {
			return false, errors.New("error splitting providerID")
		}
		return false, nil
	}},
	"Azure": {"azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/m", func(n *corev1.Node) (bool, error) {
		return n.Labels["kubernetes.azure.com/managed"] == "false" || !strings.HasPrefix(n.Spec.ProviderID, "azure:///"), nil
	}},
}

// cloudOf is a cloud without any machine.
type cloudOf struct {
	*fakecloud.Cloud
	exists func(*corev1.Node) (bool, error)

	mu    sync.Mutex
	asked map[string]int // how often, by node
}

var _ cloudprovider.InstancesV2 = (*cloudOf)(nil)

func (c *cloudOf) InstancesV2() (cloudprovider.InstancesV2, bool) { return c, true }

func (c *cloudOf) InstanceExists(_ context.Context, n *corev1.Node) (bool, error) {
	c.mu.Lock()
	c.asked[n.Name]++
	c.mu.Unlock()
	return c.exists(n)
}

func (c *cloudOf) InstanceShutdown(context.Context, *corev1.Node) (bool, error) { return false, nil }

func (c *cloudOf) InstanceMetadata(_ context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	if exists, err := c.exists(n); err != nil || !exists {
		return nil, errors.Join(err, cloudprovider.InstanceNotFound)
	}
	return &cloudprovider.InstanceMetadata{}, nil // as Azure's, for a node that is none of its own
}

func (c *cloudOf) askedOf(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[name]
}

// inCluster are Kip's nodes as they register, and a machine, in a cluster of their own.
// None has been heard of for a while.
func inCluster(t *testing.T, lost string) *cluster {
	t.Helper()
	c := newCluster(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lostMachine}, Spec: corev1.NodeSpec{ProviderID: lost}})
	for _, name := range []string{testNode, likeInstance} {
		cfg := config(c.own, c.node)
		cfg.Name, cfg.Controller = name, "abc"
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		registered, err := n.register(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		unknown := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}
		registered.Status = n.object(registered, unknown, n.lacks, n.capacity).Status
		if _, err := c.own.CoreV1().Nodes().UpdateStatus(t.Context(), registered, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// beside runs controllers of upstream's until the test ends.
func beside(t *testing.T, factory informers.SharedInformerFactory, runs ...func(context.Context, *controllers.ControllerManagerMetrics)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	var running sync.WaitGroup
	for _, run := range runs {
		running.Go(func() { run(ctx, controllers.NewControllerManagerMetrics("test")) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
	})
}

func TestControllersOfCloudsLeaveTheNodeAloneWhileKipIsAway(t *testing.T) {
	for name, cloud := range clouds {
		c := inCluster(t, cloud.lost)
		provider := &cloudOf{Cloud: &fakecloud.Cloud{}, exists: cloud.exists, asked: map[string]int{}}
		nodes := c.own.CoreV1().Nodes()
		before, err := nodes.List(t.Context(), metav1.ListOptions{LabelSelector: TypeLabel + "=" + TypeValue})
		if err != nil || len(before.Items) != 2 {
			t.Fatalf("%s: %v, %v", name, before, err)
		}

		factory := informers.NewSharedInformerFactory(c.own, 0)
		informer := factory.Core().V1().Nodes()
		lifecycle, err := nodelifecycle.NewCloudNodeLifecycleController(informer, c.own, provider, period)
		if err != nil {
			t.Fatal(err)
		}
		labeller, err := cloudnode.NewCloudNodeController(informer, c.own, provider, period, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		beside(t, factory, lifecycle.Run, labeller.RunWithContext)
		eventually(t, "the machine is deleted that "+name+" does not have", func() bool {
			_, err := nodes.Get(t.Context(), lostMachine, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		for _, was := range before.Items {
			asked := provider.askedOf(was.Name)
			eventually(t, name+" is asked of "+was.Name, func() bool { return provider.askedOf(was.Name) > asked+3 })
			is, err := nodes.Get(t.Context(), was.Name, metav1.GetOptions{})
			if err != nil {
				t.Errorf("%s: node %s, while Kip is away: %v", name, was.Name, err)
				continue
			}
			if !maps.Equal(is.Labels, was.Labels) || !sameTaints(is.Spec.Taints, was.Spec.Taints) ||
				!slices.Equal(is.Status.Addresses, was.Status.Addresses) {
				t.Errorf("%s: node %s was %+v, and is %+v", name, was.Name, was, is)
			}
			if slices.Contains(taintKeys(is), cloudapi.TaintExternalCloudProvider) {
				t.Errorf("%s: node %s waits for the cloud to say what it is", name, was.Name)
			}
		}
	}
}

// silent is nodes of which no event tells: the service controller's work after such an event
// and that on a service race with each other, in upstream's code.
type silent struct {
	coreinformers.NodeInformer
	none cache.SharedIndexInformer
}

func (s silent) Informer() cache.SharedIndexInformer { return s.none }

func TestNoLoadBalancerSendsToTheNode(t *testing.T) {
	c := inCluster(t, "cloud://machine")
	hosts := make(chan []*corev1.Node, 1)
	cloud := &fakecloud.Cloud{EnsureCallCb: func(call fakecloud.UpdateBalancerCall) { hosts <- call.Hosts }}
	factory := informers.NewSharedInformerFactory(c.own, 0)
	core := factory.Core().V1()
	core.Nodes().Informer() // so that the lister has them
	empty := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	nodes := silent{core.Nodes(), empty.Core().V1().Nodes().Informer()}
	empty.Start(t.Context().Done())
	t.Cleanup(empty.Shutdown)
	balancers, err := service.New(cloud, c.own, core.Services(), nodes, "test", utilfeature.DefaultFeatureGate)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.own.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	beside(t, factory, func(ctx context.Context, m *controllers.ControllerManagerMetrics) { balancers.Run(ctx, 1, m) })
	if got := <-hosts; len(got) != 1 || got[0].Name != lostMachine {
		t.Errorf("the load balancer sends to %v", got)
	}
}

// ofAWS is which targets the AWS load balancer controller has for pods that are Ready, by
// the names of nodes or the addresses of pods; the source is named in nodes-in-clouds.md.
// An error is the whole target group's, with the pods of all machines in it.
func ofAWS(nodes []corev1.Node, pods []corev1.Pod) (instances, addresses []string, err error) {
	selector := labels.NewSelector()
	for key, values := range map[string][]string{
		"node-role.kubernetes.io/master": nil, "node.kubernetes.io/exclude-from-external-load-balancers": nil,
		"alpha.service-controller.kubernetes.io/exclude-balancer": nil, "eks.amazonaws.com/compute-type": {"fargate"},
	} {
		operator := selection.DoesNotExist
		if values != nil {
			operator = selection.NotIn
		}
		r, err := labels.NewRequirement(key, operator, values)
		if err != nil {
			return nil, nil, err
		}
		selector = selector.Add(*r)
	}
	byName := map[string]corev1.Node{}
	for _, n := range nodes {
		byName[n.Name] = n
		if selector.Matches(labels.Set(n.Labels)) {
			instances = append(instances, n.Name)
		}
	}
	for _, p := range pods {
		// Of which network interface of the node is the address? Of Fargate's it is asked in the network.
		n := byName[p.Spec.NodeName]
		if id := n.Spec.ProviderID; n.Labels["eks.amazonaws.com/compute-type"] != "fargate" &&
			!strings.HasPrefix(path.Base(strings.TrimPrefix(id, "aws://")), "i-") {
			return instances, nil, fmt.Errorf("provider ID %q of node %s is not in the format of EC2 instances", id, n.Name)
		}
		addresses = append(addresses, p.Status.PodIP)
	}
	return instances, addresses, nil
}

func TestTheAWSLoadBalancerControllerTakesPodsByTheirAddresses(t *testing.T) {
	c := inCluster(t, "aws:///us-east-1a/i-1")
	list, err := c.own.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	want := map[string]string{lostMachine: "10.0.0.1", testNode: "10.0.0.2", likeInstance: "10.0.0.3"}
	for node, ip := range want {
		pods = append(pods, corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{PodIP: ip}})
	}
	instances, addresses, err := ofAWS(list.Items, pods)
	slices.Sort(addresses)
	if err != nil || !slices.Equal(instances, []string{lostMachine}) || !slices.Equal(addresses, slices.Sorted(maps.Values(want))) {
		t.Errorf("the targets are instances %v, addresses %v, %v", instances, addresses, err)
	}
}

// The cluster autoscaler on GCE takes all after the length of gce:// for a project, a zone
// and a name, and gives up for the whole cluster if there is another number of parts.
func TestTheClusterAutoscalerOnGCEReadsTheProviderID(t *testing.T) {
	c := inCluster(t, "gce://project/us-central1-a/m")
	list, err := c.own.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, n := range list.Items {
		if parts := strings.Split(n.Spec.ProviderID[len("gce://"):], "/"); len(parts) != 3 {
			t.Errorf("provider ID %q of node %s: it is read as %q", n.Spec.ProviderID, n.Name, parts)
		}
	}
}

// Their provisioners look for these keys, and their volumes for labels with them, of nodes
// to which the drivers can attach. docs/nodes-in-clouds.md says what comes of it.
func TestTheNodeHasNoTopologyOfDriversWhoseDisksNoCellCanHave(t *testing.T) {
	c := newCluster()
	cfg := config(c.own, c.node)
	cfg.Drivers = []Driver{{Name: "disks.example.com", Topology: []string{corev1.LabelTopologyZone}}}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	registered, err := n.register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.uid = registered.UID
	if err := n.showDriver(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown, err := c.own.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{})
	if err != nil || len(shown.Spec.Drivers) != 1 || shown.Spec.Drivers[0].Name != "disks.example.com" ||
		shown.Spec.Drivers[0].Allocatable != nil {
		t.Errorf("the drivers of the node are %+v, %v", shown, err)
	}
	if registered.Labels[corev1.LabelTopologyZone] != cfg.Zone {
		t.Errorf("the zone of the node is %q", registered.Labels[corev1.LabelTopologyZone])
	}
	for _, key := range []string{"topology.ebs.csi.aws.com/zone", "topology.gke.io/zone", "topology.disk.csi.azure.com/zone"} {
		if value, is := registered.Labels[key]; is {
			t.Errorf("the node has the label %s=%s", key, value)
		}
	}
}
