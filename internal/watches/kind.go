package watches

import (
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

// APIObject is what every type of k8s.io/api is, seen from here.
type APIObject interface {
	runtime.Object
	metav1.Object
}

// Kind is one resource of the API with what is needed to store and write it.
type Kind struct {
	Resource    schema.GroupVersionResource
	Name        string // Kind, as in Service
	New         func() APIObject
	Selectable  func(APIObject) fields.Set // fields beside metadata.name and metadata.namespace; may be nil
	Slim        func(APIObject)            // drops what nobody reads, before the object is stored; may be nil
	labels      string                     // selector of the watch on the API server; "" for all objects
	OfOneReader bool                       // each object is read by one: what was written of it is not kept
	own         bool                       // Kip reads it with its own service account, since a node may not
	Client      func(kubernetes.Interface) rest.Interface
}

// GVK is the kind with its group and version.
func (k *Kind) GVK() schema.GroupVersionKind {
	return k.Resource.GroupVersion().WithKind(k.Name)
}

// ListGVK is the kind of lists.
func (k *Kind) ListGVK() schema.GroupVersionKind {
	return k.Resource.GroupVersion().WithKind(k.Name + "List")
}

// GroupResource names the resource in errors.
func (k *Kind) GroupResource() schema.GroupResource { return k.Resource.GroupResource() }

// Fields are the values that a field selector may ask for.
func (k *Kind) Fields(o APIObject) fields.Set {
	set := fields.Set{}
	if k.Selectable != nil {
		set = k.Selectable(o)
	}
	set["metadata.name"] = o.GetName()
	set["metadata.namespace"] = o.GetNamespace()
	return set
}

// SharedKinds are the kinds of which every cell sees all objects.
func SharedKinds() []*Kind {
	core := func(c kubernetes.Interface) rest.Interface { return c.CoreV1().RESTClient() }
	return []*Kind{
		{
			Resource: corev1.SchemeGroupVersion.WithResource("services"), Name: "Service",
			New: func() APIObject { return &corev1.Service{} },
			Selectable: func(o APIObject) fields.Set {
				s := o.(*corev1.Service)
				return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
			},
			Slim:   slimService,
			Client: core,
		},
		{
			Resource: nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), Name: "RuntimeClass",
			New:    func() APIObject { return &nodev1.RuntimeClass{} },
			Client: func(c kubernetes.Interface) rest.Interface { return c.NodeV1().RESTClient() },
		},
		{
			Resource: storagev1.SchemeGroupVersion.WithResource("csidrivers"), Name: "CSIDriver",
			New:    func() APIObject { return &storagev1.CSIDriver{} },
			Client: func(c kubernetes.Interface) rest.Interface { return c.StorageV1().RESTClient() },
		},
		{
			Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Name: "EndpointSlice",
			New: func() APIObject { return &discoveryv1.EndpointSlice{} },
			// What kube-proxy asks for: those of headless Services are for DNS.
			labels: "!" + corev1.IsHeadlessService,
			Slim:   slimEndpointSlice,
			own:    true, Client: func(c kubernetes.Interface) rest.Interface { return c.DiscoveryV1().RESTClient() },
		},
		{
			Resource: networkingv1.SchemeGroupVersion.WithResource("servicecidrs"), Name: "ServiceCIDR",
			New: func() APIObject { return &networkingv1.ServiceCIDR{} },
			own: true, Client: func(c kubernetes.Interface) rest.Interface { return c.NetworkingV1().RESTClient() },
		},
		{
			Resource: networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), Name: "NetworkPolicy",
			New: func() APIObject { return &networkingv1.NetworkPolicy{} },
			own: true, Client: func(c kubernetes.Interface) rest.Interface { return c.NetworkingV1().RESTClient() },
		},
		{
			Resource: corev1.SchemeGroupVersion.WithResource("namespaces"), Name: "Namespace",
			New: func() APIObject { return &corev1.Namespace{} },
			own: true, Client: core,
		},
	}
}
