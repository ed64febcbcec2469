package cellapi

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiObject is what every type of k8s.io/api is, seen from here.
type apiObject interface {
	runtime.Object
	metav1.Object
}

// kind is one resource of the API with what is needed to store and write it.
type kind struct {
	resource   schema.GroupVersionResource
	name       string // Kind, as in Service
	new        func() apiObject
	selectable func(apiObject) fields.Set // fields beside metadata.name and metadata.namespace; may be nil
	slim       func(apiObject)            // drops what no cell reads, before the object is stored; may be nil
	labels     string                     // selector of the watch on the API server; "" for all objects
	ofOneCell  bool                       // each object is read by one cell: what was written of it is not kept
}

func (k *kind) gvk() schema.GroupVersionKind {
	return k.resource.GroupVersion().WithKind(k.name)
}

func (k *kind) listGVK() schema.GroupVersionKind {
	return k.resource.GroupVersion().WithKind(k.name + "List")
}

func (k *kind) groupResource() schema.GroupResource { return k.resource.GroupResource() }

// fields are the values that a field selector may ask for.
func (k *kind) fields(o apiObject) fields.Set {
	set := fields.Set{}
	if k.selectable != nil {
		set = k.selectable(o)
	}
	set["metadata.name"] = o.GetName()
	set["metadata.namespace"] = o.GetNamespace()
	return set
}

var (
	nodeKind = &kind{
		resource: corev1.SchemeGroupVersion.WithResource("nodes"), name: "Node", ofOneCell: true,
		new: func() apiObject { return &corev1.Node{} },
	}
	leaseKind = &kind{
		resource: coordinationv1.SchemeGroupVersion.WithResource("leases"), name: "Lease", ofOneCell: true,
		new: func() apiObject { return &coordinationv1.Lease{} },
	}
	csiNodeKind = &kind{
		resource: storagev1.SchemeGroupVersion.WithResource("csinodes"), name: "CSINode", ofOneCell: true,
		new: func() apiObject { return &storagev1.CSINode{} },
	}
	podKind = &kind{
		resource: corev1.SchemeGroupVersion.WithResource("pods"), name: "Pod", ofOneCell: true,
		new: func() apiObject { return &corev1.Pod{} },
		selectable: func(o apiObject) fields.Set {
			return fields.Set{"spec.nodeName": o.(*corev1.Pod).Spec.NodeName}
		},
	}
	secretKind = &kind{
		resource: corev1.SchemeGroupVersion.WithResource("secrets"), name: "Secret",
		new: func() apiObject { return &corev1.Secret{} },
	}
	configMapKind = &kind{
		resource: corev1.SchemeGroupVersion.WithResource("configmaps"), name: "ConfigMap",
		new: func() apiObject { return &corev1.ConfigMap{} },
	}
)

// sharedKind is a kind that Kip watches once, whole, for all cells.
type sharedKind struct {
	kind
	// own says that Kip reads it with its own service account, since a node
	// may not.
	own    bool
	client func(kubernetes.Interface) rest.Interface
}

// sharedKinds returns the kinds of which every cell sees all objects.
func sharedKinds() []*sharedKind {
	core := func(c kubernetes.Interface) rest.Interface { return c.CoreV1().RESTClient() }
	return []*sharedKind{
		{kind: kind{
			resource: corev1.SchemeGroupVersion.WithResource("services"), name: "Service",
			new: func() apiObject { return &corev1.Service{} },
			selectable: func(o apiObject) fields.Set {
				s := o.(*corev1.Service)
				return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
			},
			slim: slimService,
		}, client: core},
		{kind: kind{
			resource: nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), name: "RuntimeClass",
			new: func() apiObject { return &nodev1.RuntimeClass{} },
		}, client: func(c kubernetes.Interface) rest.Interface { return c.NodeV1().RESTClient() }},
		{kind: kind{
			resource: storagev1.SchemeGroupVersion.WithResource("csidrivers"), name: "CSIDriver",
			new: func() apiObject { return &storagev1.CSIDriver{} },
		}, client: func(c kubernetes.Interface) rest.Interface { return c.StorageV1().RESTClient() }},
		{kind: kind{
			resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), name: "EndpointSlice",
			new: func() apiObject { return &discoveryv1.EndpointSlice{} },
			// What kube-proxy asks for: those of headless Services are for DNS.
			labels: "!" + corev1.IsHeadlessService,
		}, own: true, client: func(c kubernetes.Interface) rest.Interface { return c.DiscoveryV1().RESTClient() }},
		{kind: kind{
			resource: networkingv1.SchemeGroupVersion.WithResource("servicecidrs"), name: "ServiceCIDR",
			new: func() apiObject { return &networkingv1.ServiceCIDR{} },
		}, own: true, client: func(c kubernetes.Interface) rest.Interface { return c.NetworkingV1().RESTClient() }},
		{kind: kind{
			resource: networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), name: "NetworkPolicy",
			new: func() apiObject { return &networkingv1.NetworkPolicy{} },
		}, own: true, client: func(c kubernetes.Interface) rest.Interface { return c.NetworkingV1().RESTClient() }},
		{kind: kind{
			resource: corev1.SchemeGroupVersion.WithResource("namespaces"), name: "Namespace",
			new: func() apiObject { return &corev1.Namespace{} },
		}, own: true, client: core},
	}
}
