package cellapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/credentialproviders"
	"github.com/elotl/kip/internal/hostports"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watches"
)

var onNode = fields.OneTermEqualSelector("spec.nodeName", nodeName)

// The same reflectors that a kubelet runs follow every kind, in both formats, with
// and without WatchList, through creation, change and deletion.
func TestKubeletFollowsSharedKinds(t *testing.T) {
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		for _, watchList := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s watchlist=%t", contentType, watchList), func(t *testing.T) {
				featurestesting.SetFeatureDuringTest(t, features.WatchListClient, watchList)
				h := newHouse(t)
				m := newMachine(t, "c1")
				m.join(h)
				client := m.client(t, contentType)
				named := func(k *watches.Kind, name string) watches.APIObject {
					o := k.New()
					o.SetName(name)
					o.SetLabels(map[string]string{discoveryv1.LabelServiceName: "web"})
					if s, ok := o.(*discoveryv1.EndpointSlice); ok {
						s.AddressType = discoveryv1.AddressTypeIPv4
					}
					if k.Name != "Namespace" && k.Name != "RuntimeClass" && k.Name != "CSIDriver" && k.Name != "ServiceCIDR" {
						o.SetNamespace("shop")
					}
					return o
				}
				mirrors := map[string]*mirror{}
				for _, k := range watches.SharedKinds() {
					h.up.put(named(k, "first"))
					mirrors[k.Name] = follow(t, k.Client(client), k, "", fields.Everything())
				}
				for _, k := range watches.SharedKinds() {
					mir, first, second := mirrors[k.Name], named(k, "first"), named(k, "second")
					eventually(t, k.Name+" that was there is seen", func() bool { return mir.has(watches.Key(first.GetNamespace(), "first")) })
					h.up.put(second)
					eventually(t, "a new "+k.Name+" is seen", func() bool { return mir.has(watches.Key(second.GetNamespace(), "second")) })
					// Labels that every kind keeps.
					label := map[string]string{"Service": watches.LabelServiceProxyName, "EndpointSlice": discoveryv1.LabelServiceName}[k.Name]
					if label == "" {
						label = "changed"
					}
					first.SetLabels(map[string]string{label: "yes"})
					h.up.put(first)
					eventually(t, "a change of a "+k.Name+" is seen", func() bool {
						o, ok, _ := mir.GetByKey(watches.Key(first.GetNamespace(), "first"))
						return ok && o.(watches.APIObject).GetLabels()[label] == "yes"
					})
					h.up.remove(second)
					eventually(t, "a deletion of a "+k.Name+" is seen", func() bool { return !mir.has(watches.Key(second.GetNamespace(), "second")) })
					if mir.synced() != 1 {
						t.Errorf("%s was listed %d times, want once", k.Name, mir.synced())
					}
				}
			})
		}
	}
}

func TestSelectorsOfAKubeProxy(t *testing.T) {
	h := newHouse(t)
	m := newMachine(t, "c1")
	m.join(h)
	client := m.kubelet(t)
	service := func(name, ip string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip}}
	}
	h.up.put(service("web", "10.1.0.1"))
	h.up.put(service("headless", corev1.ClusterIPNone))
	services := watches.SharedKinds()[0]
	mir := follow(t, client.CoreV1().RESTClient(), services, "", fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone))
	eventually(t, "the service is seen", func() bool { return mir.has("shop/web") })
	if mir.has("shop/headless") {
		t.Error("a headless service was seen through spec.clusterIP!=None")
	}
	h.up.put(service("web", corev1.ClusterIPNone))
	eventually(t, "a service that no longer matches goes", func() bool { return !mir.has("shop/web") })
	h.up.put(service("headless", "10.1.0.2"))
	eventually(t, "a service that matches now comes", func() bool { return mir.has("shop/headless") })

	ctx := context.Background()
	if _, err := client.CoreV1().Services("").List(ctx,
		metav1.ListOptions{FieldSelector: "spec.externalName=x"}); !apierrors.IsBadRequest(err) {
		t.Errorf("an unknown field in a selector: %v, want BadRequest", err)
	}
	list, err := client.CoreV1().Services("elsewhere").List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("services of another namespace: %v, %v", list, err)
	}
	if _, err := client.CoreV1().Services("shop").Get(ctx, "web", metav1.GetOptions{}); err != nil {
		t.Errorf("get a service: %v", err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get a missing namespace: %v, want NotFound", err)
	}
}

// However many cells, the API server sees the same watches; a referenced object is
// watched once for all, and no longer than someone needs it.
func TestUpstreamWatchesDoNotGrowWithCells(t *testing.T) {
	h := newHouse(t)
	h.up.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}})
	const base = 9 // seven shared kinds, the virtual node, the pods
	eventually(t, "the constant watches are open", func() bool { return h.up.watches() == base })
	var ids []string
	var first *mirror // of the ConfigMap
	for i := range 5 {
		m := newMachine(t, fmt.Sprintf("c%d", i))
		c := m.join(h)
		ids = append(ids, m.id)
		client := m.kubelet(t)
		for _, k := range watches.SharedKinds() {
			mir := follow(t, k.Client(client), k, "", fields.Everything())
			eventually(t, "a cell has "+k.Name, func() bool { return mir.synced() == 1 })
		}
		pod := podOn(fmt.Sprintf("p%d", i))
		pod.Spec.Containers[0].EnvFrom = pod.Spec.Containers[0].EnvFrom[1:] // the ConfigMap, which all share
		h.bindNew(c, pod)
		mir := follow(t, client.CoreV1().RESTClient(), configMapKind, "shop", fields.OneTermEqualSelector("metadata.name", "settings"))
		eventually(t, "a cell has its ConfigMap", func() bool { return mir.has("shop/settings") })
		if first == nil {
			first = mir
		}
		if got := h.up.watches(); got != base+1 {
			t.Errorf("%d watches on the API server with %d cells, want %d", got, i+1, base+1)
		}
	}
	for _, id := range ids[1:] {
		h.server.RemoveCell(id)
	}
	// A watch that is given up ends a little later: that it goes on is seen by what it
	// brings.
	h.up.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}, Data: map[string]string{"colour": "red"}})
	eventually(t, "the cell that is left has the ConfigMap's change", func() bool {
		o, ok, _ := first.GetByKey("shop/settings")
		return ok && o.(*corev1.ConfigMap).Data["colour"] == "red"
	})
	if got := h.up.watchesOf("configmaps", "settings"); got != 1 {
		t.Errorf("%d watches of the ConfigMap while one cell needs it, want 1", got)
	}
	h.server.RemoveCell(ids[0])
	eventually(t, "the last cell's watch ends", func() bool { return h.up.watches() == base })
}

func heartbeat(now time.Time, ready corev1.ConditionStatus) []byte {
	b, _ := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"labels":      map[string]any{"kubernetes.io/arch": "arm64", "own": "label", "type": nil},
			"annotations": map[string]any{"own": "annotation"},
		},
		"spec": map[string]any{"unschedulable": true},
		"status": map[string]any{
			"conditions": []any{map[string]any{"type": "Ready", "status": ready, "lastHeartbeatTime": now.Format(time.RFC3339)}},
			"images":     []any{map[string]any{"names": []any{"busybox"}}},
			"capacity":   map[string]any{"cpu": "3"},
		},
	})
	return b
}

func TestNodeOfACellIsItsOwn(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	m1, m2 := newMachine(t, "c1"), newMachine(t, "c2")
	c1, c2 := m1.join(h), m2.join(h)
	if h.server.AddCell("c1", CellInfo{}) != c1 {
		t.Error("a second AddCell made another cell")
	}
	k1, k2 := m1.kubelet(t), m2.kubelet(t)
	mir := follow(t, k1.CoreV1().RESTClient(), nodeKind, "", fields.OneTermEqualSelector("metadata.name", nodeName))
	eventually(t, "the kubelet's informer has the node", func() bool { return mir.has(nodeName) })

	if _, err := k1.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}},
		metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("register: %v, want AlreadyExists", err)
	}
	n, err := k1.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n.UID != "virtual-uid" || n.Labels["type"] != "virtual-kubelet" || n.Annotations["from"] != "virtual" || len(n.Spec.Taints) != 1 {
		t.Errorf("the node does not carry what the virtual node has: %v", n)
	}
	if cpu := n.Status.Allocatable[corev1.ResourceCPU]; cpu.String() != "1900m" {
		t.Errorf("allocatable CPU %s before the kubelet reported, want the cell's 1900m", cpu.String())
	}
	if pods := n.Status.Allocatable[corev1.ResourcePods]; pods.Value() < 1 {
		t.Errorf("allocatable pods %s: the kubelet would refuse its pod", pods.String())
	}
	if !slices.Contains(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.5"}) ||
		!slices.Contains(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fd00::5"}) {
		t.Errorf("addresses %v lack the cell's", n.Status.Addresses)
	}

	if !c1.LastHeartbeat().IsZero() {
		t.Error("a heartbeat before the kubelet said anything")
	}
	if _, err := k1.CoreV1().Nodes().PatchStatus(ctx, nodeName, heartbeat(time.Now(), corev1.ConditionFalse)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c1.NodeReady():
		t.Error("ready though the kubelet says it is not")
	default:
	}
	patched, err := k1.CoreV1().Nodes().PatchStatus(ctx, nodeName, heartbeat(time.Now(), corev1.ConditionTrue))
	if err != nil {
		t.Fatal(err)
	}
	closed(t, "the node is ready", c1.NodeReady())
	if c1.LastHeartbeat().IsZero() {
		t.Error("no heartbeat after a status")
	}
	if patched.Labels["kubernetes.io/arch"] != "amd64" || patched.Labels["type"] != "virtual-kubelet" {
		t.Errorf("the kubelet changed labels of the virtual node: %v", patched.Labels)
	}
	if patched.Labels["own"] != "label" || patched.Annotations["own"] != "annotation" {
		t.Errorf("what the kubelet added is lost: %v %v", patched.Labels, patched.Annotations)
	}
	if patched.Spec.Unschedulable {
		t.Error("a status patch changed the spec")
	}
	if cpu := patched.Status.Capacity[corev1.ResourceCPU]; cpu.String() != "3" {
		t.Errorf("capacity %s after the kubelet reported 3", cpu.String())
	}
	if len(patched.Status.Conditions) != 4 {
		t.Errorf("conditions were not merged by type: %v", patched.Status.Conditions)
	}
	if len(c1.Node().Status.Images) != 1 {
		t.Errorf("images %v", c1.Node().Status.Images)
	}

	// The whole object by PUT, as kubectl and older clients do; a stale one not.
	put := patched.DeepCopy()
	put.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("4")
	put.Status.Images = nil
	inJSON := m1.client(t, runtime.ContentTypeJSON)
	if _, err := inJSON.CoreV1().Nodes().UpdateStatus(ctx, put, metav1.UpdateOptions{}); err != nil {
		t.Errorf("update the status: %v", err)
	}
	if _, err := inJSON.CoreV1().Nodes().UpdateStatus(ctx, put, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update from a stale version: %v, want Conflict", err)
	}
	// The main resource changes metadata only.
	main, err := k1.CoreV1().Nodes().Patch(ctx, nodeName, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"more":"x"}},"status":{"capacity":{"cpu":"99"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if cpu := main.Status.Capacity[corev1.ResourceCPU]; cpu.String() != "4" || main.Labels["more"] != "x" {
		t.Errorf("patch of the node gave capacity %s, labels %v", cpu.String(), main.Labels)
	}

	// The virtual node changes: every cell's node follows, and its watchers see it.
	v := virtual()
	v.Labels["zone"] = "b"
	h.up.put(v)
	eventually(t, "a new label of the virtual node reaches the kubelet's informer", func() bool {
		o, ok, _ := mir.GetByKey(nodeName)
		return ok && o.(*corev1.Node).Labels["zone"] == "b" && o.(*corev1.Node).Labels["own"] == "label"
	})
	eventually(t, "and other cells", func() bool { return c2.Node().Labels["zone"] == "b" })

	other, err := k2.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if other.Labels["own"] != "" || other.Status.Capacity.Cpu().String() != "2" {
		t.Errorf("the node of c2 has what c1's kubelet said: %v", other)
	}
	select {
	case <-c2.NodeReady():
		t.Error("c2 is ready since c1 is")
	default:
	}
	if mir.synced() != 1 {
		t.Errorf("the node was listed %d times, want once", mir.synced())
	}
}

func TestNodeUpdatesThatCannotBe(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	m := newMachine(t, "c1")
	m.join(h)
	k := m.kubelet(t).CoreV1().Nodes()
	eventually(t, "the node is there", func() bool { return h.server.nodes[nodeName].virtual.Load() != nil })

	// A patch against the node of an earlier Kip: the kubelet must read first.
	if _, err := k.PatchStatus(ctx, nodeName, heartbeat(time.Now(), corev1.ConditionTrue)); !apierrors.IsConflict(err) {
		t.Errorf("patch before any read: %v, want Conflict", err)
	}
	if _, err := k.Get(ctx, nodeName, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		kind  types.PatchType
		patch string
		want  func(error) bool
	}{
		"another UID":     {types.StrategicMergePatchType, `{"metadata":{"uid":"x"}}`, apierrors.IsConflict},
		"another version": {types.StrategicMergePatchType, `{"metadata":{"resourceVersion":"1"}}`, apierrors.IsConflict},
		"another name":    {types.StrategicMergePatchType, `{"metadata":{"name":"x"}}`, apierrors.IsBadRequest},
		"no JSON":         {types.StrategicMergePatchType, `{`, apierrors.IsBadRequest},
		"wrong type":      {types.MergePatchType, `{"status":{"capacity":7}}`, apierrors.IsInvalid},
		"JSON patch":      {types.JSONPatchType, `[]`, apierrors.IsUnsupportedMediaType},
		"too large": {types.StrategicMergePatchType, `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 3<<20) + `"}}}`,
			apierrors.IsRequestEntityTooLargeError},
	} {
		if _, err := k.Patch(ctx, nodeName, tc.kind, []byte(tc.patch), metav1.PatchOptions{}, "status"); !tc.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLeaseAndCSINodeOfACell(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	m1, m2 := newMachine(t, "c1"), newMachine(t, "c2")
	c1 := m1.join(h)
	m2.join(h)
	k1, k2 := m1.kubelet(t), m2.client(t, runtime.ContentTypeJSON)

	leases := k1.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if _, err := leases.Get(ctx, nodeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("lease before it is made: %v, want NotFound", err)
	}
	lease, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(nodeName)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := c1.LastHeartbeat()
	if lease.UID == "" || lease.Namespace != corev1.NamespaceNodeLease || first.IsZero() {
		t.Errorf("lease %v, heartbeat %v", lease, first)
	}
	if _, err := leases.Create(ctx, lease, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("make the lease twice: %v", err)
	}
	stale := lease.DeepCopy()
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	if _, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !c1.LastHeartbeat().After(first) {
		t.Error("renewing the lease is no heartbeat")
	}
	if _, err := leases.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of a stale lease: %v, want Conflict", err)
	}
	if p, err := leases.Patch(ctx, nodeName, types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":40}}`),
		metav1.PatchOptions{}); err != nil || *p.Spec.LeaseDurationSeconds != 40 || p.Spec.RenewTime == nil {
		t.Errorf("patch of the lease: %v %v", p, err)
	}
	if _, err := k2.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, nodeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("c2 sees the lease of c1: %v", err)
	}

	csi := k2.StorageV1().CSINodes()
	driver := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", NodeID: "n"}}}}
	if _, err := csi.Create(ctx, driver, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := csi.Get(ctx, nodeName, metav1.GetOptions{}); err != nil || len(got.Spec.Drivers) != 1 {
		t.Errorf("CSINode %v %v", got, err)
	}
	if err := csi.Delete(ctx, nodeName, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := csi.Get(ctx, nodeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("CSINode after its deletion: %v", err)
	}
	driver.Name = "other"
	if _, err := csi.Create(ctx, driver, metav1.CreateOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("CSINode of another node: %v, want BadRequest", err)
	}
	if got := h.up.asked(func(r apiRequest) bool { return r.resource == "leases" || r.resource == "csinodes" }); len(got) != 0 {
		t.Errorf("the API server was asked %v", got)
	}
}

// To the scheduler host ports are told apart; the kubelet maps them as the pod's owner wrote them.
func TestACellIsShownHostPortsAsTheirOwnerWroteThem(t *testing.T) {
	h := newHouse(t)
	m := newMachine(t, "c1")
	c := m.join(h)
	pod := podOn("web")
	apart, _ := hostports.NewMark().Apart("")
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: apart}}
	h.bindNew(c, pod)
	mir := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", onNode)
	eventually(t, "the pod is seen", func() bool { return mir.has("shop/web") })
	o, _, _ := mir.GetByKey("shop/web")
	if port := o.(*corev1.Pod).Spec.Containers[0].Ports[0]; port.HostIP != "" || port.HostPort != 80 {
		t.Errorf("the kubelet is shown %+v", port)
	}
	if stored := h.up.get("pods", "shop", "web").(*corev1.Pod); stored.Spec.Containers[0].Ports[0].HostIP != apart {
		t.Errorf("the pod that all share has become %+v", stored.Spec.Containers[0].Ports[0])
	}
}

// What a kubelet sees of pods, from waiting for one to the end of it.
func TestPodsOfACell(t *testing.T) {
	h := newHouse(t)
	other := h.server.AddCell("c2", info)
	stranger := h.bindNew(other, podOn("stranger"))
	eventually(t, "the other cell has its pod", func() bool { p, _ := other.lastPod(); return p != nil })
	m := newMachine(t, "c1")
	c := m.join(h)
	mir := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", onNode)
	eventually(t, "the kubelet has listed pods", func() bool { return mir.synced() == 1 })
	if len(mir.ListKeys()) != 0 {
		t.Errorf("pods before binding: %v", mir.ListKeys())
	}
	pod := h.bindNew(c, podOn("web"))
	eventually(t, "the pod is seen", func() bool { return mir.has("shop/web") })
	changed := pod.DeepCopy()
	changed.Labels = map[string]string{"new": "label"}
	h.up.put(changed)
	eventually(t, "its change is seen", func() bool {
		o, ok, _ := mir.GetByKey("shop/web")
		return ok && o.(*corev1.Pod).Labels["new"] == "label"
	})
	h.up.remove(pod)
	eventually(t, "its deletion is seen", func() bool { return !mir.has("shop/web") })
	// A pod of the same name is another pod.
	again := podOn("web")
	again.UID = "second"
	h.up.put(again)
	// Pods are handled in the order of their changes: with this one the second pod is.
	stranger = stranger.DeepCopy()
	stranger.Labels = map[string]string{"after": "the second pod"}
	h.up.put(stranger)
	eventually(t, "the second pod has been handled", func() bool { p, _ := other.lastPod(); return p.Labels["after"] != "" })
	code, _, body := get(context.Background(), c, "/api/v1/pods?fieldSelector="+url.QueryEscape(onNode.String()))
	var list corev1.PodList
	if err := json.Unmarshal(body, &list); err != nil || code != http.StatusOK || len(list.Items) != 0 {
		t.Errorf("pods of others are listed: %d %s", code, body)
	}
	if mir.has("shop/web") || mir.has("shop/stranger") {
		t.Errorf("pods of others are seen: %v", mir.ListKeys())
	}
	if mir.synced() != 1 {
		t.Errorf("pods were listed %d times, want once: all the rest by one watch", mir.synced())
	}
	if got := h.up.asked(func(r apiRequest) bool { return r.resource == "pods" && r.verb == "watch" }); len(got) > 1 {
		t.Errorf("%d watches of pods on the API server, want Kip's one", len(got))
	}
}

func TestBindIsOnceAndForOneCell(t *testing.T) {
	h := newHouse(t)
	m := newMachine(t, "c1")
	c1, c2 := m.join(h), h.server.AddCell("c2", info)
	pod := h.bindNew(c1, podOn("web"))
	if err := c1.Bind("shop", "web", pod.UID); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := c1.Bind("shop", "web", "other"); err == nil {
		t.Error("a cell was bound to a second pod")
	}
	if err := c2.Bind("shop", "web", pod.UID); err == nil {
		t.Error("a pod was bound to a second cell")
	}
	h.server.RemoveCell("c1")
	if err := c2.Bind("shop", "web", pod.UID); err != nil {
		t.Errorf("bind after the first cell is gone: %v", err)
	}
	if err := c1.Bind("shop", "x", "x"); err == nil {
		t.Error("a removed cell was bound")
	}
}

// Kip restarts while kubelets run on: each goes on with the same pod, none is told
// an empty list, and what changed meanwhile is seen.
func TestRestartOfKip(t *testing.T) {
	for _, watchList := range []bool{true, false} {
		t.Run(fmt.Sprintf("watchlist=%t", watchList), func(t *testing.T) {
			featurestesting.SetFeatureDuringTest(t, features.WatchListClient, watchList)
			ctx := context.Background()
			h := newHouse(t)
			h.up.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}})
			running, ended, standby := newMachine(t, "running"), newMachine(t, "ended"), newMachine(t, "standby")
			live := h.bindNew(running.join(h), podOn("live"))
			dead := h.bindNew(ended.join(h), podOn("dead"))
			standby.join(h)

			pods := func(m *machine) *mirror {
				return follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", onNode)
			}
			livePods, deadPods, noPods := pods(running), pods(ended), pods(standby)
			client := running.kubelet(t)
			nodes := follow(t, client.CoreV1().RESTClient(), nodeKind, "", fields.OneTermEqualSelector("metadata.name", nodeName))
			settings := follow(t, client.CoreV1().RESTClient(), configMapKind, "shop", fields.OneTermEqualSelector("metadata.name", "settings"))
			eventually(t, "all is seen", func() bool {
				return livePods.has("shop/live") && deadPods.has("shop/dead") && noPods.synced() == 1 && nodes.has(nodeName) &&
					settings.has("shop/settings")
			})
			if _, err := client.CoreV1().Nodes().PatchStatus(ctx, nodeName, heartbeat(time.Now(), corev1.ConditionTrue)); err != nil {
				t.Fatal(err)
			}
			lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx,
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}

			for _, m := range []*machine{running, ended, standby} {
				m.cut()
			}
			h.stop()
			changed := live.DeepCopy()
			changed.Labels = map[string]string{"changed": "meanwhile"}
			h.up.put(changed)
			h.up.remove(dead)
			v := virtual()
			v.Labels["changed"] = "meanwhile"
			h.up.put(v)
			h.up.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"},
				Data: map[string]string{"changed": "meanwhile"}})
			h.start()
			for m, pod := range map[*machine]*corev1.Pod{running: live, ended: dead} {
				// As Kip does: bound before anything is served.
				if err := h.server.AddCell(m.id, info).Bind(pod.Namespace, pod.Name, pod.UID); err != nil {
					t.Fatal(err)
				}
				m.join(h)
			}
			standby.join(h)

			eventually(t, "the pod's change is seen", func() bool {
				o, ok, _ := livePods.GetByKey("shop/live")
				return ok && o.(*corev1.Pod).Labels["changed"] == "meanwhile"
			})
			eventually(t, "the other pod's end is seen", func() bool { return !deadPods.has("shop/dead") })
			eventually(t, "the node's change is seen", func() bool {
				o, ok, _ := nodes.GetByKey(nodeName)
				return ok && o.(*corev1.Node).Labels["changed"] == "meanwhile"
			})
			eventually(t, "the ConfigMap's change is seen", func() bool {
				o, ok, _ := settings.GetByKey("shop/settings")
				return ok && o.(*corev1.ConfigMap).Data["changed"] == "meanwhile"
			})
			if livePods.emptyLists() != 0 {
				t.Error("the kubelet was told that its pod is gone")
			}
			n, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if n.Status.Allocatable.Cpu().IsZero() {
				t.Error("the node is an empty machine after the restart")
			}
			c := running.handler.Load()
			select {
			case <-c.NodeReady():
				t.Error("ready before the kubelet has told this Kip")
			default:
			}
			// The kubelet renews the lease that it had, and reports again.
			if _, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
				t.Errorf("renew the lease: %v", err)
			}
			if _, err := client.CoreV1().Nodes().PatchStatus(ctx, nodeName, heartbeat(time.Now(), corev1.ConditionTrue)); err != nil {
				t.Errorf("report the status: %v", err)
			}
			closed(t, "the node is ready", c.NodeReady())

			later := h.bindNew(standby.handler.Load(), podOn("later"))
			eventually(t, "the standby cell gets its pod", func() bool { return noPods.has(watches.Key(later.Namespace, later.Name)) })
		})
	}
}

// get asks the cell and returns status and body. It gives up when ctx does.
func get(ctx context.Context, c *Cell, path string) (int, http.Header, []byte) {
	return do(ctx, c, http.MethodGet, path, "", nil)
}

// do gives up after two minutes: a watch that should have been refused ends only then.
func do(ctx context.Context, c *Cell, method, path, contentType string, body []byte) (int, http.Header, []byte) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Code, w.Header(), w.Body.Bytes()
}

// As long as Kip does not know, it does not say "none".
func TestPodListIsNeverFalselyEmpty(t *testing.T) {
	const list = "/api/v1/pods?fieldSelector=spec.nodeName%3Dkip-0"
	items := func(t *testing.T, b []byte) int {
		t.Helper()
		var l corev1.PodList
		if err := json.Unmarshal(b, &l); err != nil {
			t.Fatal(err)
		}
		return len(l.Items)
	}
	ctx := context.Background()

	t.Run("the informer has not synced", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		up := newAPIServer(t)
		server, err := New(Config{NodeName: nodeName, Node: up.asNode(), Own: up.asKip(), Pods: podInformer(t, up), Clock: clk})
		if err != nil {
			t.Fatal(err)
		}
		c := server.AddCell("c1", info)
		if err := c.Bind("shop", "web", "u"); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{list, list + "&watch=true&resourceVersion=60", list + "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
			done := make(chan struct{})
			var code int
			var header http.Header
			go func() { defer close(done); code, header, _ = get(ctx, c, p) }()
			eventually(t, "the request waits", clk.HasWaiters)
			clk.Step(patience)
			closed(t, "it ends", done)
			if code != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
				t.Errorf("%s: %d with Retry-After %q, want 429 with one", p, code, header.Get("Retry-After"))
			}
		}
	})

	t.Run("the informer lags behind the API server", func(t *testing.T) {
		up := newAPIServer(t)
		up.stale = true
		up.put(virtual())
		pod := up.put(podOn("web"))
		h := &house{t: t, up: up, clock: clock.RealClock{}}
		h.start()
		defer h.stop()
		c := h.server.AddCell("c1", info)
		if err := c.Bind("shop", "web", pod.GetUID()); err != nil {
			t.Fatal(err)
		}
		code, _, b := get(ctx, c, list)
		if code != http.StatusOK || items(t, b) != 1 {
			t.Errorf("%d with %d pods, want the pod that the API server has", code, items(t, b))
		}
		if _, ok, _ := h.server.pods.GetStore().GetByKey("shop/web"); ok {
			t.Error("the informer did not lag, the test proves nothing")
		}
	})

	t.Run("the API server cannot be asked", func(t *testing.T) {
		up := newAPIServer(t)
		up.stale = true
		up.put(virtual())
		pod := up.put(podOn("web"))
		var mu sync.Mutex
		broken := true
		up.refuse = func(r apiRequest) error {
			mu.Lock()
			defer mu.Unlock()
			if broken && r.resource == "pods" && strings.Contains(r.selector, "metadata.name") {
				return apierrors.NewInternalError(errors.New("etcd is away"))
			}
			return nil
		}
		h := &house{t: t, up: up, clock: clock.RealClock{}}
		h.start()
		defer h.stop()
		c := h.server.AddCell("c1", info)
		if err := c.Bind("shop", "web", pod.GetUID()); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		var code, n int
		go func() {
			defer close(done)
			var b []byte
			code, _, b = get(ctx, c, list)
			n = items(t, b)
		}()
		eventually(t, "the API server was asked in vain", func() bool {
			return len(up.asked(func(r apiRequest) bool { return strings.Contains(r.selector, "metadata.name=web") })) > 1
		})
		select {
		case <-done:
			t.Errorf("answered %d with %d pods while nobody knows", code, n)
		default:
		}
		mu.Lock()
		broken = false
		mu.Unlock()
		closed(t, "the list is answered", done)
		if code != http.StatusOK || n != 1 {
			t.Errorf("%d with %d pods, want one", code, n)
		}
	})

	t.Run("the binding has not been restored", func(t *testing.T) {
		h := newHouse(t)
		c := h.server.AddCell("c1", info)
		for _, p := range []string{list + "&watch=true&resourceVersion=60", list + "&resourceVersion=60", list + "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=60"} {
			if code, header, _ := get(ctx, c, p); code != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
				t.Errorf("%s: %d, want 429", p, code)
			}
		}
		if code, _, b := get(ctx, c, list); code != http.StatusOK || items(t, b) != 0 {
			t.Errorf("a kubelet that has seen nothing: %d with %d pods", code, items(t, b))
		}
	})

	t.Run("the pod is really gone", func(t *testing.T) {
		h := newHouse(t)
		c := h.server.AddCell("c1", info)
		if err := c.Bind("shop", "web", "never-was"); err != nil {
			t.Fatal(err)
		}
		code, _, b := get(ctx, c, list)
		if code != http.StatusOK || items(t, b) != 0 {
			t.Errorf("%d with %d pods, want none", code, items(t, b))
		}
		if code, _, _ := get(ctx, c, list+"&watch=true&resourceVersion=60"); code != http.StatusGone {
			t.Errorf("a watch from when it was there: %d, want 410", code)
		}
	})
}

func TestReferencedObjects(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	secret := func(name, value string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: map[string][]byte{"k": []byte(value)}}
	}
	h.up.put(secret("web-secret", "one"))
	h.up.put(secret("late", "debug"))
	m := newMachine(t, "c1")
	c := m.join(h)
	client := m.kubelet(t)
	pod := h.bindNew(c, podOn("web"))
	mir := follow(t, client.CoreV1().RESTClient(), secretKind, "shop", fields.OneTermEqualSelector("metadata.name", "web-secret"))
	eventually(t, "the secret is seen", func() bool { return mir.has("shop/web-secret") })
	h.up.put(secret("web-secret", "two"))
	eventually(t, "its change is seen", func() bool {
		o, ok, _ := mir.GetByKey("shop/web-secret")
		return ok && string(o.(*corev1.Secret).Data["k"]) == "two"
	})
	// Named but not there: optional references are the kubelet's business.
	if _, err := client.CoreV1().ConfigMaps("shop").Get(ctx, "settings", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a missing ConfigMap: %v, want NotFound", err)
	}
	// Not named, until an ephemeral container names it.
	if _, err := client.CoreV1().Secrets("shop").Get(ctx, "late", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a secret that the pod does not name: %v, want Forbidden", err)
	}
	pod = pod.DeepCopy()
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug",
		EnvFrom: []corev1.EnvFromSource{{
			SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "late"}},
		}},
	}}}
	h.up.put(pod)
	eventually(t, "the secret of the ephemeral container is served", func() bool {
		s, err := client.CoreV1().Secrets("shop").Get(ctx, "late", metav1.GetOptions{})
		return err == nil && string(s.Data["k"]) == "debug"
	})
	h.up.remove(pod)
	eventually(t, "the watches end with the pod", func() bool {
		return h.up.watchesOf("secrets", "web-secret") == 0 && h.up.watchesOf("secrets", "late") == 0 &&
			h.up.watchesOf("configmaps", "settings") == 0
	})
	if _, err := client.CoreV1().Secrets("shop").Get(ctx, "web-secret", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a secret of a pod that is gone: %v, want Forbidden", err)
	}
}

// Right after a binding the API server's Node authorizer may not know the pod.
func TestRefusalsRightAfterBindingAreTriedAgain(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	h.up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-secret"}})
	var mu sync.Mutex
	refused := map[string]int{}
	h.up.mu.Lock()
	h.up.refuse = func(r apiRequest) error {
		mu.Lock()
		defer mu.Unlock()
		if what := r.verb + " " + r.resource; (r.resource == "secrets" || r.resource == "serviceaccounts" || what == "get pods") &&
			refused[what] < 2 {
			refused[what]++
			return apierrors.NewForbidden(podKind.GroupResource(), r.name, errors.New("no relationship found between node 'kip-0' and this object"))
		}
		return nil
	}
	h.up.mu.Unlock()
	m := newMachine(t, "c1")
	c := m.join(h)
	client := m.kubelet(t)
	pod := h.bindNew(c, podOn("web"))
	if _, err := client.CoreV1().Secrets("shop").Get(ctx, "web-secret", metav1.GetOptions{}); err != nil {
		t.Errorf("secret: %v", err)
	}
	if _, err := client.CoreV1().Pods("shop").Get(ctx, "web", metav1.GetOptions{}); err != nil {
		t.Errorf("pod: %v", err)
	}
	if _, err := client.CoreV1().ServiceAccounts("shop").CreateToken(ctx, "clerk", tokenFor(pod), metav1.CreateOptions{}); err != nil {
		t.Errorf("token: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if refused["get pods"] != 2 || refused["create serviceaccounts"] != 2 {
		t.Errorf("refused %v: the test proves nothing", refused)
	}
}

func tokenFor(pod *corev1.Pod) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:      []string{"api"},
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
}

func TestPodStatusAndDeletion(t *testing.T) {
	ctx := context.Background()
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(contentType, func(t *testing.T) {
			h := newHouse(t)
			m := newMachine(t, "c1")
			c := m.join(h)
			pods := m.client(t, contentType).CoreV1().Pods("shop")
			pod := h.bindNew(c, podOn("web"))

			if got, err := pods.Get(ctx, "web", metav1.GetOptions{}); err != nil || got.UID != pod.UID {
				t.Errorf("get: %v %v", got, err)
			}
			patch := func(uid string) error {
				body := `{"status":{"phase":"Running"}}`
				if uid != "" {
					body = fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Running"}}`, uid)
				}
				_, err := pods.Patch(ctx, "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")
				return err
			}
			if err := patch(string(pod.UID)); err != nil {
				t.Errorf("patch of the status: %v", err)
			}
			if got := h.up.get("pods", "shop", "web").(*corev1.Pod); got.Status.Phase != corev1.PodRunning || got.Spec.NodeName != nodeName {
				t.Errorf("the API server has %v", got.Status)
			}
			if err := patch("other"); !apierrors.IsConflict(err) {
				t.Errorf("patch with another UID: %v, want Conflict", err)
			}
			if err := patch(""); err != nil {
				t.Errorf("patch without a UID: %v", err)
			}
			sent := h.up.asked(func(r apiRequest) bool { return r.verb == "patch" })
			if len(sent) != 2 || !strings.Contains(sent[1].body, string(pod.UID)) || sent[1].user != nodeUser {
				t.Errorf("passed on: %+v, want each with the pod's UID", sent)
			}
			if _, err := pods.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("patch of the pod itself: %v, want Forbidden", err)
			}
			if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("update of the status: %v, want Forbidden", err)
			}

			if err := pods.Delete(ctx, "web", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
				t.Errorf("delete with another UID: %v, want Conflict", err)
			}
			if err := pods.Delete(ctx, "web", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
				t.Errorf("delete: %v", err)
			}
			deletes := h.up.asked(func(r apiRequest) bool { return r.verb == "delete" })
			var options metav1.DeleteOptions
			if err := json.Unmarshal([]byte(deletes[0].body), &options); err != nil {
				t.Fatal(err)
			}
			if len(deletes) != 1 || *options.Preconditions.UID != pod.UID || *options.GracePeriodSeconds != 0 {
				t.Errorf("passed on: %+v, want one deletion with the pod's UID", deletes)
			}
			eventually(t, "a pod that is gone is not found", func() bool {
				_, err := pods.Get(ctx, "web", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
		})
	}
}

// An API server that was restored from a backup lacks pods that run, and nobody has seen them deleted: no kubelet is told to
// kill one.
func TestAPodThatNobodySawDeletedStaysOnItsKubelet(t *testing.T) {
	ctx := t.Context()
	up := newAPIServer(t)
	up.put(virtual())
	pod := up.put(podOn("web")).(*corev1.Pod)
	h := &house{t: t, up: up, clock: clock.RealClock{}}
	h.start()
	defer h.stop()
	m := newMachine(t, "c1")
	c := m.join(h)
	if err := c.Bind("shop", "web", pod.UID); err != nil {
		t.Fatal(err)
	}
	closed(t, "the pod is known", c.bound().known)
	pods := m.kubelet(t).CoreV1().Pods("")
	on := metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName}
	has := func() int {
		list, err := pods.List(ctx, on)
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	h.server.podGone(cache.DeletedFinalStateUnknown{Key: "shop/web", Obj: pod})
	if n := has(); n != 1 {
		t.Errorf("its kubelet has %d pods, want the one that it runs", n)
	}
	again := pod.DeepCopy()
	again.ResourceVersion, again.Labels = "1000000", map[string]string{"came": "back"}
	h.server.podSeen(nil, again)
	list, err := pods.List(ctx, on)
	if err != nil || len(list.Items) != 1 || list.Items[0].Labels["came"] != "back" {
		t.Errorf("the pod that is shown again is for its kubelet %v: %v", list, err)
	}
	again.DeletionTimestamp = new(metav1.Now())
	h.server.podGone(cache.DeletedFinalStateUnknown{Key: "shop/web", Obj: again})
	if n := has(); n != 0 {
		t.Errorf("of a pod that was being deleted, and is in no list, its kubelet has %d, want none", n)
	}
}

// Its kubelet would remove the file systems of the containers, and their logs.
func TestTheKubeletOfAKeptPodDoesNotHearThatItIsGone(t *testing.T) {
	h := newHouse(t)
	m := newMachine(t, "c1")
	pod := h.bindNew(m.join(h), podOn("web"))
	pods := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", onNode)
	eventually(t, "the pod is seen", func() bool { return pods.has("shop/web") })
	m.handler.Load().KeepPod()
	deleted := pod.DeepCopy()
	deleted.ResourceVersion, deleted.DeletionTimestamp = "1000000", new(metav1.Now())
	h.server.podSeen(nil, deleted)
	h.up.remove(pod)
	other := newMachine(t, "c2")
	last := h.bindNew(other.join(h), podOn("last"))
	h.up.remove(last)
	others := follow(t, other.kubelet(t).CoreV1().RESTClient(), podKind, "", onNode)
	eventually(t, "the end of another pod is seen, which ended later", func() bool { return others.synced() > 0 && !others.has("shop/last") })
	if o, has, _ := pods.GetByKey("shop/web"); !has || o.(*corev1.Pod).DeletionTimestamp != nil {
		t.Errorf("its kubelet sees %v", o)
	}

	// After a restart Kip finds no such pod.
	m.cut()
	h.stop()
	h.start()
	again := h.server.AddCell(m.id, info)
	again.KeepPod()
	if err := again.Bind(pod.Namespace, pod.Name, pod.UID); err != nil {
		t.Fatal(err)
	}
	gone := h.server.AddCell("c3", info)
	if err := gone.Bind(last.Namespace, last.Name, last.UID); err != nil {
		t.Fatal(err)
	}
	m.join(h)
	closed(t, "it is known that the other pod is gone", gone.bound().known)
	select {
	case <-again.bound().known:
		t.Error("of the kept pod, too")
	default:
	}
	if !pods.has("shop/web") || pods.emptyLists() != 0 {
		t.Error("its kubelet was told that the pod is gone")
	}
}

// A pod that was made anew under the same name, before the informer has noticed, is
// out of the cell's reach.
func TestRecreatedPodIsAnotherPod(t *testing.T) {
	ctx := context.Background()
	up := newAPIServer(t)
	up.stale = true // the informer learns nothing
	up.put(virtual())
	pod := up.put(podOn("web"))
	h := &house{t: t, up: up, clock: clock.RealClock{}}
	h.start()
	defer h.stop()
	m := newMachine(t, "c1")
	c := m.join(h)
	if err := c.Bind("shop", "web", pod.GetUID()); err != nil {
		t.Fatal(err)
	}
	closed(t, "the pod is known", c.bound().known)
	second := podOn("web")
	second.UID = "second"
	second.Spec.NodeName = "elsewhere" // so that Kip's informer never has it
	up.put(second)
	pods := m.kubelet(t).CoreV1().Pods("shop")
	if _, err := pods.Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want NotFound", err)
	}
	if _, err := pods.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{},
		"status"); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		t.Errorf("patch: %v, want Conflict or NotFound", err)
	}
	if err := pods.Delete(ctx, "web", metav1.DeleteOptions{}); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		t.Errorf("delete: %v, want Conflict or NotFound", err)
	}
	if got := up.get("pods", "shop", "web").(*corev1.Pod); got.UID != "second" || got.Status.Phase != "" {
		t.Errorf("the second pod was touched: %v", got)
	}
}

func TestTokensAreThePodsOwn(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	m := newMachine(t, "c1")
	c := m.join(h)
	accounts := m.kubelet(t).CoreV1().ServiceAccounts("shop")
	pod := h.bindNew(c, podOn("web"))
	closed(t, "the pod is known", c.bound().known)

	got, err := accounts.CreateToken(ctx, "clerk", tokenFor(pod), metav1.CreateOptions{})
	if err != nil || !slices.Equal(got.Spec.Audiences, []string{"api"}) {
		t.Fatalf("token: %v %v", got, err)
	}
	for name, tc := range map[string]struct {
		account string
		change  func(*authenticationv1.BoundObjectReference) *authenticationv1.BoundObjectReference
	}{
		"another account": {"boss", func(r *authenticationv1.BoundObjectReference) *authenticationv1.BoundObjectReference { return r }},
		"not bound":       {"clerk", func(*authenticationv1.BoundObjectReference) *authenticationv1.BoundObjectReference { return nil }},
		"another pod": {"clerk", func(r *authenticationv1.BoundObjectReference) *authenticationv1.BoundObjectReference {
			r.Name = "other"
			return r
		}},
		"another UID": {"clerk", func(r *authenticationv1.BoundObjectReference) *authenticationv1.BoundObjectReference {
			r.UID = "other"
			return r
		}},
		"no UID": {"clerk", func(r *authenticationv1.BoundObjectReference) *authenticationv1.BoundObjectReference {
			r.UID = ""
			return r
		}},
		"a secret": {"clerk", func(r *authenticationv1.BoundObjectReference) *authenticationv1.BoundObjectReference {
			r.Kind = "Secret"
			return r
		}},
	} {
		request := tokenFor(pod)
		request.Spec.BoundObjectRef = tc.change(request.Spec.BoundObjectRef)
		if _, err := accounts.CreateToken(ctx, tc.account, request, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", name, err)
		}
	}
	if n := len(h.up.asked(func(r apiRequest) bool { return r.resource == "serviceaccounts" })); n != 1 {
		t.Errorf("%d requests for tokens were passed on, want 1", n)
	}
}

func TestTokensForCredentialProvidersAreOfThePodsServiceAccount(t *testing.T) {
	ctx := context.Background()
	provider := func(image string, token bool) (p credentialproviders.Provider) {
		p.MatchImages = []string{"x.example", image}
		if token {
			p.TokenAttributes = &credentialproviders.TokenAttributes{Audience: "registry"}
		}
		return p
	}
	for name, tc := range map[string]struct {
		providers []credentialproviders.Provider
		may       bool
	}{
		"none":                       {nil, false},
		"one of the pod's image":     {[]credentialproviders.Provider{provider("docker.io/library", true)}, true},
		"one of other images":        {[]credentialproviders.Provider{provider("docker.io", false), provider("docker.io/other", true)}, false},
		"one of an init container":   {[]credentialproviders.Provider{provider("init.example", true)}, true},
		"one of a volume's image":    {[]credentialproviders.Provider{provider("*.volume.example", true)}, true},
		"one that is given no token": {[]credentialproviders.Provider{provider("docker.io", false)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouseAt(t, clock.RealClock{}, func(h *house) { h.providers = tc.providers })
			for _, name := range []string{"clerk", "boss"} {
				h.up.put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
					Annotations: map[string]string{"of": name}}})
			}
			m := newMachine(t, "c1")
			c := m.join(h)
			accounts := m.kubelet(t).CoreV1().ServiceAccounts("shop")
			of := podOn("web")
			of.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "init.example/a:1"}}
			of.Spec.Volumes = append(of.Spec.Volumes, corev1.Volume{Name: "image",
				VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "a.volume.example/b@sha256:0"}}})
			pod := h.bindNew(c, of)
			closed(t, "the pod is known", c.bound().known)
			may := func(err error, want bool) bool { return want && err == nil || !want && apierrors.IsForbidden(err) }

			is, err := accounts.Get(ctx, "clerk", metav1.GetOptions{})
			if !may(err, tc.may) || err == nil && is.Annotations["of"] != "clerk" {
				t.Errorf("the pod's own service account: %v, %v", is.Annotations, err)
			}
			if _, err := accounts.Get(ctx, "boss", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("another service account: %v", err)
			}
			if _, err := accounts.List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("all service accounts: %v", err)
			}
			year := int64(365 * 24 * 3600)
			for _, asked := range []struct {
				account, audience string
				seconds           *int64
				want              bool
			}{
				{"clerk", "registry", nil, tc.may},
				{"boss", "registry", nil, false},
				{"clerk", "vault", nil, false},
				{"clerk", "registry", &year, false},
			} {
				request := tokenFor(pod)
				request.Spec.Audiences, request.Spec.ExpirationSeconds = []string{asked.audience}, asked.seconds
				if _, err := accounts.CreateToken(ctx, asked.account, request, metav1.CreateOptions{}); !may(err, asked.want) {
					t.Errorf("a token of %s for %s: %v, want %v", asked.account, asked.audience, err, asked.want)
				}
			}
		})
	}
}

func TestEventsOfACell(t *testing.T) {
	ctx := context.Background()
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	m := newMachine(t, "c1")
	c := m.join(h)
	client := m.kubelet(t)
	pod := h.bindNew(c, podOn("web"))
	about := corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web", UID: pod.UID}
	event := func(name, namespace string, about corev1.ObjectReference) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, InvolvedObject: about, Reason: "Pulled",
			Message: "m", Count: 1}
	}
	passed := func() int { return len(h.up.asked(func(r apiRequest) bool { return r.resource == "events" })) }

	made, err := client.CoreV1().Events("shop").Create(ctx, event("web.1", "shop", about), metav1.CreateOptions{})
	if err != nil || made.Name != "web.1" || h.up.get("events", "shop", "web.1") == nil {
		t.Fatalf("event about the pod: %v %v", made, err)
	}
	again := func(name, patch string) error {
		_, err := client.CoreV1().Events("shop").Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	if err := again("web.1", `{"count":2,"message":"n"}`); err != nil {
		t.Errorf("the event recurs: %v", err)
	}
	if got := h.up.get("events", "shop", "web.1").(*corev1.Event); got.Count != 2 {
		t.Errorf("count %d, want 2", got.Count)
	}
	if err := again("web.1", `{"involvedObject":{"name":"other"}}`); !apierrors.IsForbidden(err) {
		t.Errorf("an event changes what it is about: %v, want Forbidden", err)
	}
	h.up.put(event("other.1", "shop", corev1.ObjectReference{}))
	if err := again("other.1", `{"count":9}`); !apierrors.IsNotFound(err) {
		t.Errorf("an event of someone else: %v, want NotFound", err)
	}
	n := passed()

	// About the node: answered as if made, and nothing is passed on.
	node := corev1.ObjectReference{Kind: "Node", Name: nodeName, UID: nodeName}
	made, err = client.CoreV1().Events("default").Create(ctx, event("kip-0.1", "default", node), metav1.CreateOptions{})
	if err != nil || made.Reason != "Pulled" || made.UID == "" {
		t.Errorf("event about the node: %v %v", made, err)
	}
	grouped, err := client.EventsV1().Events("default").Create(ctx,
		&eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "kip-0.2", Namespace: "default"}, Regarding: node}, metav1.CreateOptions{})
	if err != nil || grouped.Name != "kip-0.2" {
		t.Errorf("event of events.k8s.io about the node: %v %v", grouped, err)
	}
	for name, tc := range map[string]struct {
		namespace string
		about     corev1.ObjectReference
	}{
		"another pod":          {"shop", corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "other", UID: pod.UID}},
		"another UID":          {"shop", corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web", UID: "other"}},
		"another namespace":    {"bank", corev1.ObjectReference{Kind: "Pod", Namespace: "bank", Name: "web", UID: pod.UID}},
		"another node":         {"default", corev1.ObjectReference{Kind: "Node", Name: "kip-1"}},
		"a node, not default":  {"shop", node},
		"something else":       {"shop", corev1.ObjectReference{Kind: "Service", Namespace: "shop", Name: "web", UID: pod.UID}},
		"a pod, its namespace": {"default", about},
	} {
		if _, err := client.CoreV1().Events(tc.namespace).Create(ctx, event("e", tc.namespace, tc.about),
			metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", name, err)
		}
	}
	if err := client.CoreV1().Events("shop").Delete(ctx, "web.1", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete an event: %v, want Forbidden", err)
	}
	if passed() != n {
		t.Errorf("%d requests about events were passed on, want %d", passed(), n)
	}

	// More than a kubelet sends at once waits.
	body, err := encode(formatJSON, func() runtime.Object {
		e := event("web.9", "shop", about)
		e.TypeMeta = metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}
		return e
	}())
	if err != nil {
		t.Fatal(err)
	}
	post := func() {
		t.Helper()
		code, _, answer := do(ctx, c, http.MethodPost, "/api/v1/namespaces/shop/events", "application/json", body)
		if code != http.StatusCreated {
			t.Errorf("%d %s", code, answer)
		}
	}
	clk.Step(time.Hour)
	for range eventBurst {
		post()
	}
	over := make(chan struct{})
	go func() { defer close(over); post() }()
	eventually(t, "one more waits", clk.HasWaiters)
	clk.Step(time.Second)
	closed(t, "it is stored", over)
}

func TestClaimsAndVolumesOfThePod(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	claim := func(name, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	volume := func(name, claim string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: claim, UID: types.UID("uid-" + claim)},
		}}
	}
	h.up.put(claim("web-data", "pv-web"))
	h.up.put(claim("other-data", "pv-other"))
	h.up.put(volume("pv-web", "web-data"))
	h.up.put(volume("pv-other", "other-data"))
	m := newMachine(t, "c1")
	h.bindNew(m.join(h), podOn("web"))
	client := m.kubelet(t).CoreV1()
	// The volume first: what is allowed does not depend on what was asked before.
	if pv, err := client.PersistentVolumes().Get(ctx, "pv-web", metav1.GetOptions{}); err != nil || pv.Name != "pv-web" {
		t.Errorf("the pod's volume: %v %v", pv, err)
	}
	if pvc, err := client.PersistentVolumeClaims("shop").Get(ctx, "web-data", metav1.GetOptions{}); err != nil ||
		pvc.Spec.VolumeName != "pv-web" {
		t.Errorf("the pod's claim: %v %v", pvc, err)
	}
	if _, err := client.PersistentVolumeClaims("shop").Get(ctx, "other-data", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another claim: %v, want Forbidden", err)
	}
	if _, err := client.PersistentVolumes().Get(ctx, "pv-other", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another volume: %v, want Forbidden", err)
	}

	// Anybody who makes claims can name a volume: it must name the claim, too.
	for name, change := range map[string]func(*corev1.ObjectReference){
		"another claim's":                    func(ref *corev1.ObjectReference) { ref.Name, ref.UID = "other-data", "uid-other-data" },
		"one's of another namespace":         func(ref *corev1.ObjectReference) { ref.Namespace = "bank" },
		"an earlier claim's of the name":     func(ref *corev1.ObjectReference) { ref.UID = "uid-before" },
		"one's that is reserved by its name": func(ref *corev1.ObjectReference) { ref.UID = "" },
	} {
		pv := volume("pv-web", "web-data")
		change(pv.Spec.ClaimRef)
		h.up.put(pv)
		if _, err := client.PersistentVolumes().Get(ctx, "pv-web", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s volume, which the pod's claim names: %v, want Forbidden", name, err)
		}
	}
	pv := volume("pv-web", "web-data")
	pv.Spec.ClaimRef = nil
	h.up.put(pv)
	if _, err := client.PersistentVolumes().Get(ctx, "pv-web", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("nobody's volume, which the pod's claim names: %v, want Forbidden", err)
	}
}

func TestACellThatAsksTooMuchIsToldToAskAgainAlsoForItsVolumes(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	h.up.put(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-data", UID: "uid-web-data"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-web"},
	})
	h.up.put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-web"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: "web-data", UID: "uid-web-data"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: "nfs.csi.k8s.io", NodePublishSecretRef: &corev1.SecretReference{Namespace: "vault", Name: "mine"},
		}},
	}})
	h.up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "vault", Name: "mine"}})
	c := h.server.AddCell("c1", info)
	h.bindNew(c, podOn("web"))
	paths := []string{
		"/api/v1/persistentvolumes/pv-web", "/api/v1/namespaces/vault/secrets/mine", "/api/v1/namespaces/shop/persistentvolumeclaims/web-data",
	}
	for _, path := range paths {
		if code, _, answer := get(ctx, c, path); code != http.StatusOK {
			t.Errorf("%s: %d %s, want 200", path, code, answer)
		}
	}
	for range 3 { // as after all that it may ask, and more than waits
		c.passed.ReserveN(time.Now(), c.passed.Burst())
	}
	for _, path := range paths {
		if code, header, answer := get(ctx, c, path); code != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
			t.Errorf("%s of a cell that has asked too much: %d %s, want 429 with Retry-After", path, code, answer)
		}
	}
}

func TestACellSeesTheDisksThatKipAttachesAsLocalVolumes(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	h.server.cloudDriver = volumes.CloudDriver{Name: "disks.clouds.example.com"}
	for name, driver := range map[string]string{"web-data": "disks.clouds.example.com", "web-share": "nfs.csi.k8s.io"} {
		h.up.put(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		})
		h.up.put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: "vol-1", NodeStageSecretRef: &corev1.SecretReference{Namespace: "vault", Name: "of-" + name},
			}},
		}})
		h.up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "vault", Name: "of-" + name}})
	}
	c := h.server.AddCell("c1", info)
	pod := podOn("web")
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "share", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "web-share"},
	}})
	h.bindNew(c, pod)
	for name, local := range map[string]bool{"web-data": true, "web-share": false} {
		code, _, answer := get(ctx, c, "/api/v1/persistentvolumes/pv-"+name)
		if code != http.StatusOK || bytes.Contains(answer, []byte(agentapi.DiskPath("vol-1"))) != local ||
			bytes.Contains(answer, []byte(`"csi"`)) == local {
			t.Errorf("%s: %d %s", name, code, answer)
		}
		// Nobody stages a disk that Kip attaches.
		if code, _, answer := get(ctx, c, "/api/v1/namespaces/vault/secrets/of-"+name); (code == http.StatusOK) == local {
			t.Errorf("the secret of %s: %d %s", name, code, answer)
		}
	}
}

// refusable are requests for what a cell may be refused. Its own claim is not: it is
// looked at for the Secrets that its volume names.
func refusable(r apiRequest) bool {
	return r.verb != "watch" && r.verb != "list" && !(r.resource == "persistentvolumeclaims" && r.name == "one-data")
}

// Two cells on one API server: whatever is not a cell's own is refused, and the
// refusal names the cell, the verb and the resource.
func TestCellsAreIsolated(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	c1, c2 := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	standby := h.server.AddCell("standby", info)
	h.up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "two-secret"}})
	h.bindNew(c1, podOn("one"))
	h.bindNew(c2, podOn("two"))
	closed(t, "pod one is known", c1.bound().known)
	closed(t, "pod two is known", c2.bound().known)
	before := len(h.up.asked(refusable))
	for _, ask := range []struct{ method, path, verb, resource string }{
		{"GET", "/api/v1/namespaces/shop/pods/two", "get", "pods"},
		{"DELETE", "/api/v1/namespaces/shop/pods/two", "delete", "pods"},
		{"PATCH", "/api/v1/namespaces/shop/pods/two/status", "patch", "pods"},
		{"POST", "/api/v1/namespaces/shop/pods", "create", "pods"},
		{"DELETE", "/api/v1/namespaces/shop/pods", "deletecollection", "pods"},
		{"POST", "/api/v1/namespaces/shop/pods/one/eviction", "create", "pods"},
		{"POST", "/api/v1/namespaces/shop/pods/one/exec", "create", "pods"},
		{"GET", "/api/v1/namespaces/shop/pods/one/log", "get", "pods"},
		{"GET", "/api/v1/namespaces/shop/secrets/two-secret", "get", "secrets"},
		{"GET", "/api/v1/namespaces/shop/secrets", "list", "secrets"},
		{"GET", "/api/v1/namespaces/shop/secrets?watch=true", "watch", "secrets"},
		{"GET", "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dtwo-secret", "list", "secrets"},
		{"GET", "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dtwo-secret&watch=true", "watch", "secrets"},
		{"GET", "/api/v1/secrets", "list", "secrets"},
		{"GET", "/api/v1/secrets?fieldSelector=metadata.name%3Done-secret", "list", "secrets"},
		{"PUT", "/api/v1/namespaces/shop/secrets/one-secret", "update", "secrets"},
		{"DELETE", "/api/v1/namespaces/shop/configmaps/settings", "delete", "configmaps"},
		{"GET", "/api/v1/namespaces/bank/configmaps/settings", "get", "configmaps"},
		{"GET", "/api/v1/namespaces/shop/persistentvolumeclaims/two-data", "get", "persistentvolumeclaims"},
		{"GET", "/api/v1/namespaces/shop/persistentvolumeclaims", "list", "persistentvolumeclaims"},
		{"GET", "/api/v1/persistentvolumes", "list", "persistentvolumes"},
		{"GET", "/api/v1/nodes/kip-1", "get", "nodes"},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dkip-1", "list", "nodes"},
		{"DELETE", "/api/v1/nodes/kip-0", "delete", "nodes"},
		{"GET", "/api/v1/nodes/kip-0/proxy", "get", "nodes"},
		{"PATCH", "/api/v1/nodes/kip-0/proxy", "patch", "nodes"},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kip-0", "get", "leases"},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/kip-1", "get", "leases"},
		{"GET", "/apis/coordination.k8s.io/v1/leases", "list", "leases"},
		{"PATCH", "/apis/storage.k8s.io/v1/csinodes/kip-1", "patch", "csinodes"},
		{"POST", "/api/v1/namespaces/shop/serviceaccounts/clerk", "create", ""},
		{"GET", "/api/v1/namespaces/shop/serviceaccounts/clerk", "get", "serviceaccounts"},
		{"GET", "/api/v1/namespaces/shop/events", "list", "events"},
		{"POST", "/api/v1/namespaces/shop/services", "create", "services"},
		{"PATCH", "/api/v1/namespaces/shop", "patch", "namespaces"},
		{"PUT", "/api/v1/namespaces/shop/finalize", "update", "namespaces"},
		{"GET", "/apis/apps/v1/deployments", "list", "deployments"},
		{"GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "list", "clusterroles"},
		{"POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", "create", "certificatesigningrequests"},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", "create", "tokenreviews"},
		{"GET", "/api/v1/watch/pods", "watch", "pods"},
		{"GET", "/api/v1/watch/namespaces/shop/secrets/two-secret", "watch", "secrets"},
		{"GET", "/api/v1/proxy/namespaces/shop/pods/one", "proxy", "pods"},
		{"GET", "/api/v1/namespaces/shop/pods/one/a/b", "get", "pods"},
		{"GET", "/apis/cells.kip.elotl.co/v1/cells", "list", "cells"},
		{"GET", "/api", "", ""}, {"GET", "/version", "", ""}, {"GET", "/healthz", "", ""}, {"GET", "/metrics", "", ""},
		{"GET", "/", "", ""}, {"GET", "/openapi/v2", "", ""},
	} {
		code, _, b := do(ctx, c1, ask.method, ask.path, "application/merge-patch+json", []byte("{}"))
		var status metav1.Status
		if err := json.Unmarshal(b, &status); err != nil || status.Kind != "Status" {
			t.Errorf("%s %s: %q is not a Status (%v)", ask.method, ask.path, b, err)
			continue
		}
		if ask.verb == "create" && ask.resource == "" {
			if code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d, want 405", ask.method, ask.path, code)
			}
			continue
		}
		if code != http.StatusForbidden || status.Reason != metav1.StatusReasonForbidden {
			t.Errorf("%s %s: %d %s, want 403", ask.method, ask.path, code, status.Message)
		}
		for _, part := range []string{"cell c1", ask.verb, ask.resource} {
			if !strings.Contains(status.Message, part) {
				t.Errorf("%s %s: %q does not say %q", ask.method, ask.path, status.Message, part)
			}
		}
	}
	for _, path := range []string{"/api/v1/namespaces/shop/pods/one", "/api/v1/namespaces/shop/secrets/one-secret",
		"/api/v1/persistentvolumes/pv"} {
		if code, _, _ := get(ctx, standby, path); code != http.StatusForbidden {
			t.Errorf("a cell without a pod, %s: %d, want 403", path, code)
		}
	}
	if after := len(h.up.asked(refusable)); after != before {
		t.Errorf("%d refused requests reached the API server", after-before)
	}
	h.server.RemoveCell("c1")
	if code, _, b := get(ctx, c1, "/api/v1/nodes/kip-0"); code != http.StatusForbidden || !bytes.Contains(b, []byte("removed")) {
		t.Errorf("a removed cell: %d %s, want 403", code, b)
	}
}

func TestOddRequestsAreRefused(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	c := h.server.AddCell("c1", info)
	for _, tc := range []struct {
		method, path, contentType string
		body                      []byte
		want                      int
	}{
		{"GET", "/api/v1/namespaces/shop/../../v1/nodes/kip-0", "", nil, 400},
		{"GET", "/api/v1//nodes/kip-0", "", nil, 400},
		{"GET", "/api/v1/nodes/kip-0/", "", nil, 400},
		{"GET", "/api/v1/nodes/%2e%2e", "", nil, 400},
		{"GET", "/api/v1/nodes/a%2Fb", "", nil, 400},
		{"GET", "/api/v1/nodes/a%25b", "", nil, 400},
		{"HEAD", "/api/v1/nodes/kip-0", "", nil, 405},
		{"OPTIONS", "/api/v1/nodes/kip-0", "", nil, 405},
		{"CONNECT", "/api/v1/nodes/kip-0", "", nil, 405},
		{"PATCH", "/api/v1/nodes", "application/merge-patch+json", []byte("{}"), 405},
		{"GET", "/api/v1/nodes?labelSelector=%3D%3D%3D", "", nil, 400},
		{"GET", "/api/v1/nodes?resourceVersion=x", "", nil, 400},
		{"GET", "/api/v1/nodes?continue=x", "", nil, 410},
		{"GET", "/api/v1/nodes?sendInitialEvents=true", "", nil, 422},
		{"GET", "/api/v1/nodes?watch=true&sendInitialEvents=true", "", nil, 422},
		{"GET", "/api/v1/nodes?resourceVersion=5&resourceVersionMatch=Exact", "", nil, 410},
		{"PUT", "/api/v1/nodes/kip-0/status", "text/plain", []byte("x"), 415},
		{"PUT", "/api/v1/nodes/kip-0/status", "application/json", []byte(`{"kind":"Pod","apiVersion":"v1"}`), 400},
		{"PUT", "/api/v1/nodes/kip-0/status", "application/json", []byte(`nonsense`), 400},
		{"PUT", "/api/v1/nodes/kip-0/status", "not a media type/", []byte(`{}`), 400},
		{"PUT", "/api/v1/nodes/kip-0/status", "application/json", bytes.Repeat([]byte(" "), 3<<20+1), 413},
	} {
		code, _, b := do(ctx, c, tc.method, tc.path, tc.contentType, tc.body)
		if code != tc.want {
			t.Errorf("%s %s: %d, want %d (%.200s)", tc.method, tc.path, code, tc.want, b)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/api/v1/nodes/kip-0", nil)
	r.Header.Set("Accept", "text/html")
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	if w.Code != http.StatusNotAcceptable {
		t.Errorf("Accept text/html: %d, want 406", w.Code)
	}
	r.Header.Set("Accept", "*/*")
	r.Header.Set("Upgrade", "websocket")
	w = httptest.NewRecorder()
	c.ServeHTTP(w, r)
	if w.Code != http.StatusBadRequest {
		t.Errorf("an upgrade: %d, want 400", w.Code)
	}
}

// The kubelet's DRA part stops asking when it is told that there is none.
func TestResourceSlicesOfACellAreNone(t *testing.T) {
	h := newHouse(t)
	m := newMachine(t, "c1")
	m.join(h)
	err := m.kubelet(t).ResourceV1().ResourceSlices().DeleteCollection(context.Background(), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.nodeName=kip-0"})
	if !apierrors.IsNotFound(err) {
		t.Errorf("%v, want NotFound", err)
	}
}

// watchFrames opens a watch by hand and returns a function that reads its next event.
func watchFrames(t *testing.T, m *machine, path string) func() (watch.EventType, map[string]any, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.http.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("watch %s: %d", path, resp.StatusCode)
	}
	d := json.NewDecoder(resp.Body)
	return func() (watch.EventType, map[string]any, error) {
		var e struct {
			Type   watch.EventType
			Object map[string]any
		}
		err := d.Decode(&e)
		return e.Type, e.Object, err
	}
}

func resourceVersionOf(o map[string]any) string {
	metadata, _ := o["metadata"].(map[string]any)
	rv, _ := metadata["resourceVersion"].(string)
	return rv
}

func TestBookmarksAndTimeouts(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	eventually(t, "services are known", func() bool {
		return h.server.watches.Of(watches.Services).Collection.Ready(context.Background(), clk, 0)
	})
	m := newMachine(t, "c1")
	m.join(h)
	services := h.server.watches.Of(watches.Services).Collection
	_, rv, _ := services.Snapshot()
	next := watchFrames(t, m, fmt.Sprintf("/api/v1/services?watch=true&allowWatchBookmarks=true&timeoutSeconds=90&resourceVersion=%d", rv))
	eventually(t, "the watch waits", func() bool { return clk.Waiters() == 2 })
	services.UpdateResourceVersion(fmt.Sprint(rv + 50))
	clk.Step(bookmarkEvery)
	if kind, o, err := next(); kind != watch.Bookmark || resourceVersionOf(o) != fmt.Sprint(rv+50) || err != nil {
		t.Errorf("%s at %s (%v), want a bookmark at %d", kind, resourceVersionOf(o), err, rv+50)
	}
	clk.Step(bookmarkEvery)
	if kind, _, err := next(); !errors.Is(err, io.EOF) {
		t.Errorf("%s (%v) after timeoutSeconds, want the end", kind, err)
	}
}

func TestWatchSemantics(t *testing.T) {
	h := newHouse(t)
	h.up.put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}})
	m := newMachine(t, "c1")
	m.join(h)
	client := m.kubelet(t)
	ctx := context.Background()
	var list *corev1.ServiceList
	eventually(t, "the service is listed", func() bool {
		var err error
		list, err = client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1
	})
	for query, want := range map[string][]string{
		"":                   {"ADDED a", "ADDED b"},
		"&resourceVersion=0": {"ADDED a", "ADDED b"},
		"&resourceVersion=" + list.ResourceVersion:                                                                                   {"ADDED b"},
		"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true":                                         {"ADDED a", "BOOKMARK ", "ADDED b"},
		"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=" + list.ResourceVersion: {"ADDED a", "BOOKMARK ", "ADDED b"},
		"&sendInitialEvents=false&resourceVersionMatch=NotOlderThan":                                                                 {"ADDED b"},
	} {
		next := watchFrames(t, m, "/api/v1/services?watch=true"+query)
		b := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "b"}}
		h.up.put(b)
		for _, w := range want {
			kind, o, err := next()
			if err != nil {
				t.Fatalf("%q: %v", query, err)
			}
			metadata := o["metadata"].(map[string]any)
			name, _ := metadata["name"].(string)
			if got := fmt.Sprintf("%s %s", kind, name); got != w {
				t.Errorf("%q: %s, want %s", query, got, w)
			}
			if kind == watch.Bookmark {
				if a, _ := metadata["annotations"].(map[string]any); a[metav1.InitialEventsAnnotationKey] != "true" {
					t.Errorf("%q: the bookmark does not end the initial events: %v", query, o)
				}
			}
		}
		h.up.remove(b)
		eventually(t, "the next round starts clean", func() bool {
			l, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
			return err == nil && len(l.Items) == 1
		})
	}

	_, err := client.CoreV1().Services("").Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from too old a version: %v, want Expired", err)
	}
}

// A version that Kip has not seen may be about to come: such a request waits a
// little, and is answered when it comes.
func TestVersionsFromTheFuture(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	c := h.server.AddCell("c1", info)
	services := h.server.watches.Of(watches.Services).Collection
	eventually(t, "services are known", func() bool { return services.Ready(t.Context(), clock.RealClock{}, 0) })
	_, rv, _ := services.Snapshot()
	const watchList = "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	for _, tc := range []struct {
		query  string
		arrive bool
		want   int
		says   string
	}{
		{"", false, http.StatusGatewayTimeout, "ResourceVersionTooLarge"},
		{watchList, false, http.StatusGatewayTimeout, "ResourceVersionTooLarge"},
		{"&watch=true", false, http.StatusGone, "Expired"},
		{"", true, http.StatusOK, "ServiceList"},
	} {
		rv += 10
		done := make(chan struct{})
		var code int
		var header http.Header
		var body []byte
		go func() {
			defer close(done)
			code, header, body = get(context.Background(), c, fmt.Sprintf("/api/v1/services?resourceVersion=%d%s", rv, tc.query))
		}()
		eventually(t, "the request waits", clk.HasWaiters)
		if tc.arrive {
			services.UpdateResourceVersion(fmt.Sprint(rv))
		} else {
			clk.Step(freshness)
		}
		closed(t, "it is answered", done)
		if code != tc.want || !strings.Contains(string(body), tc.says) || header.Get("Retry-After") != "" {
			t.Errorf("%q: %d %s, want %d with %s", tc.query, code, body, tc.want, tc.says)
		}
	}
}

// blocked is a client that takes nothing until it is let go.
type blocked struct {
	*httptest.ResponseRecorder
	letGo, waiting chan struct{}
	once           sync.Once
}

func (b *blocked) Write(p []byte) (int, error) {
	b.once.Do(func() { close(b.waiting) })
	<-b.letGo
	return b.ResponseRecorder.Write(p)
}

// A watcher that does not take its events is kept nothing for: when it comes back,
// and the history has gone on, its watch has expired.
func TestSlowWatcherIsDropped(t *testing.T) {
	h := newHouse(t)
	c := h.server.AddCell("c1", info)
	eventually(t, "the node is there", func() bool { return c.Node() != nil })
	w := &blocked{ResponseRecorder: httptest.NewRecorder(), letGo: make(chan struct{}), waiting: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/nodes?watch=true", nil))
	}()
	closed(t, "the watcher hangs", w.waiting)
	for i := range 5 * nodeHistory {
		_, err := c.node.change(true, func(n *corev1.Node) (*corev1.Node, error) {
			n.Annotations["i"] = fmt.Sprint(i)
			return n, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if events, _, _, ok := c.node.collection.Since(0); ok {
		t.Errorf("%d events are kept for a slow watcher", len(events))
	}
	close(w.letGo)
	closed(t, "its watch ends", done)
	last := strings.TrimSpace(w.Body.String())
	last = last[strings.LastIndex(last, "\n")+1:]
	if !strings.Contains(last, `"type":"ERROR"`) || !strings.Contains(last, `"code":410`) {
		t.Errorf("it was told %q at last, want an ERROR event with 410", last)
	}
}

// failing is a client whose connection is gone.
type failing struct{ *httptest.ResponseRecorder }

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestWatchEndsWithItsClientCellAndServer(t *testing.T) {
	h := newHouse(t)
	serve := func(w http.ResponseWriter, c *Cell, ctx context.Context) chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/nodes?watch=true", nil))
		}()
		return done
	}
	// What has not begun would end by itself.
	begun := func(c *Cell, ctx context.Context) chan struct{} {
		t.Helper()
		started := make(chan struct{})
		done := serve(startedWriter{sync.OnceFunc(func() { close(started) })}, c, ctx)
		closed(t, "the watch begins", started)
		return done
	}
	c := h.server.AddCell("c1", info)
	eventually(t, "the node is there", func() bool { return c.Node() != nil })
	closed(t, "a watch of a broken connection ends", serve(failing{httptest.NewRecorder()}, c, context.Background()))
	ctx, cancel := context.WithCancel(context.Background())
	left := begun(c, ctx)
	cancel()
	closed(t, "a watch that the client left ends", left)
	removed := begun(c, context.Background())
	h.server.RemoveCell("c1")
	closed(t, "a watch of a removed cell ends", removed)
	stopped := begun(h.server.AddCell("c2", info), context.Background())
	h.stop()
	closed(t, "a watch ends with the server", stopped)
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	up := newAPIServer(t)
	full := func() Config {
		return Config{NodeName: nodeName, Node: up.asNode(), Own: up.asKip(), Pods: podInformer(t, up)}
	}
	for field, change := range map[string]func(*Config){
		"NodeName": func(c *Config) { c.NodeName = "" },
		"Node":     func(c *Config) { c.Node = nil },
		"Own":      func(c *Config) { c.Own = nil },
		"Pods":     func(c *Config) { c.Pods = nil },
	} {
		cfg := full()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("without %s: %v", field, err)
		}
	}
	if _, err := New(full()); err != nil {
		t.Error(err)
	}
}

// A cell that floods waits, others do not. Who waits for long is refused.
func TestPassedRequestsAreLimitedPerCell(t *testing.T) {
	ctx := context.Background()
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	c1, c2 := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	h.bindNew(c1, podOn("one"))
	h.bindNew(c2, podOn("two"))
	closed(t, "the pod is known", c1.bound().known)
	ask := func() {
		t.Helper()
		if code, _, answer := get(ctx, c1, "/api/v1/namespaces/shop/pods/one"); code != http.StatusOK {
			t.Errorf("%d %s", code, answer)
		}
	}
	for c1.passed.TokensAt(clk.Now()) >= 1 {
		ask()
	}
	over := make(chan struct{})
	go func() { defer close(over); ask() }()
	eventually(t, "one more waits", clk.HasWaiters)
	c1.passed.ReserveN(clk.Now(), passedRate*int(patience.Seconds()))
	if code, header, _ := get(ctx, c1, "/api/v1/namespaces/shop/pods/one"); code != http.StatusTooManyRequests ||
		header.Get("Retry-After") == "" {
		t.Errorf("what would wait for longer than %v: %d, want 429 with Retry-After", patience, code)
	}
	defer func() { clk.Step(time.Minute); closed(t, "it is answered", over) }()
	if code, _, b := get(ctx, c2, "/api/v1/namespaces/shop/pods/two"); code != http.StatusOK {
		t.Errorf("another cell: %d (%s), want 200", code, b)
	}
}

// patientWriter notes the deadlines that it is given.
type patientWriter struct {
	*httptest.ResponseRecorder
	mu        sync.Mutex
	deadlines []time.Time
}

func (p *patientWriter) SetWriteDeadline(d time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadlines = append(p.deadlines, d)
	return nil
}

// A client has a limited time to take what is written, and all the time between:
// over HTTP/2 a deadline that is left standing would end an idle watch.
func TestWatchHasADeadlineOnlyWhileItWrites(t *testing.T) {
	h := newHouse(t)
	c := h.server.AddCell("c1", info)
	ctx, cancel := context.WithCancel(context.Background())
	w := &patientWriter{ResponseRecorder: httptest.NewRecorder()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/nodes?watch=true", nil))
	}()
	deadlines := func() []time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Clone(w.deadlines)
	}
	eventually(t, "the node is written", func() bool { return len(deadlines()) == 2 })
	if d := deadlines(); d[0].IsZero() || !d[1].IsZero() {
		t.Errorf("deadlines %v, want one and then none", d)
	}
	cancel()
	closed(t, "the watch ends", done)
}

// Before the virtual node is known, a cell's node is neither missing nor empty.
func TestNodeIsNotAnsweredBeforeTheVirtualNodeIsKnown(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	up := newAPIServer(t)
	h := &house{t: t, up: up, clock: clk}
	h.start()
	defer h.stop()
	c := h.server.AddCell("c1", info)
	if c.Node() != nil {
		t.Error("a node before the virtual node is known")
	}
	ask := func(end func()) int {
		done := make(chan struct{})
		var code int
		go func() { defer close(done); code, _, _ = get(context.Background(), c, "/api/v1/nodes/kip-0") }()
		eventually(t, "the request waits", clk.HasWaiters)
		end()
		closed(t, "it is answered", done)
		return code
	}
	if code := ask(func() { clk.Step(patience) }); code != http.StatusTooManyRequests {
		t.Errorf("%d, want 429", code)
	}
	if code := ask(func() { up.put(virtual()) }); code != http.StatusOK {
		t.Errorf("%d once the virtual node is there, want 200", code)
	}
}

// What an idle cell costs Kip: its objects, and the seven watches that a kubelet
// holds, without what the tunnel adds to each.
func BenchmarkIdleCell(b *testing.B) {
	up := newAPIServer(b)
	up.put(virtual())
	informer := podInformer(b, up)
	server, err := New(Config{NodeName: nodeName, Node: up.asNode(), Own: up.asKip(), Pods: informer})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { informer.RunWithContext(ctx) })
	tasks.Go(func() { _ = server.Run(ctx) })
	defer tasks.Wait()
	defer cancel()
	for _, k := range watches.SharedKinds() {
		if k.Resource != watches.EndpointSlices && !server.watches.Of(k.Resource).Collection.Ready(ctx, server.clock, time.Minute) {
			b.Fatalf("%s are not known", k.Resource.Resource)
		}
	}
	used := func() uint64 {
		goruntime.GC()
		var m goruntime.MemStats
		goruntime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := used()
	n := 0
	for b.Loop() {
		c := server.AddCell(fmt.Sprint(n), info)
		n++
		for _, path := range []string{
			"/api/v1/nodes", "/api/v1/pods", "/api/v1/services", "/apis/node.k8s.io/v1/runtimeclasses",
			"/apis/storage.k8s.io/v1/csidrivers", "/api/v1/namespaces", "/apis/discovery.k8s.io/v1/endpointslices",
		} {
			started := make(chan struct{})
			tasks.Go(func() {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, path+"?watch=true&allowWatchBookmarks=true", nil)
				c.ServeHTTP(startedWriter{sync.OnceFunc(func() { close(started) })}, r)
			})
			<-started
		}
	}
	b.ReportMetric(float64(used()-before)/float64(n)/1024, "KiB/cell")
}

// startedWriter tells when a watch has been accepted.
type startedWriter struct{ started func() }

func (startedWriter) Header() http.Header         { return http.Header{} }
func (startedWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w startedWriter) WriteHeader(int)           { w.started() }
func (startedWriter) Flush()                      {}
