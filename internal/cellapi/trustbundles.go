package cellapi

import (
	"net/http"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/internal/watches"
)

// trustBundleKind is watched as a whole, and only while a pod has a volume of trust bundles: such a volume may select them by signer
// and labels, and a kubelet lists all of them. Every service account may read them. Few API servers serve them.
var trustBundleKind = &watches.Kind{
	Resource: certificatesv1beta1.SchemeGroupVersion.WithResource("clustertrustbundles"), Name: "ClusterTrustBundle",
	New:    func() watches.APIObject { return &certificatesv1beta1.ClusterTrustBundle{} },
	Client: func(c kubernetes.Interface) rest.Interface { return c.CertificatesV1beta1().RESTClient() },
}

// trustBundleDiscovery is where a kubelet asks whether the API server serves trust bundles, by version, before it lists them
// (k8s.io/kubernetes/pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go, clusterTrustBundlesAvailable).
const trustBundleDiscovery = "/apis/certificates.k8s.io/"

// isTrustBundleDiscovery reports whether a request is one for the resources of a version of that group.
func isTrustBundleDiscovery(r *http.Request) bool {
	version := r.URL.Path[min(len(trustBundleDiscovery), len(r.URL.Path)):]
	return r.Method == http.MethodGet && r.URL.Path == trustBundleDiscovery+version && (version == "v1beta1" || version == "v1alpha1")
}

// trustBundles is the watch that the pod's volume of trust bundles has; nil without such a volume.
func (c *sharedAPI) trustBundles() *heldRef {
	return c.pod.reference(watches.Ref{Node: c.as.name, Kind: trustBundleKind})
}

// serveTrustBundleDiscovery says whether the API server serves trust bundles. A kubelet that is told so once asks no more.
func (c *sharedAPI) serveTrustBundleDiscovery(w http.ResponseWriter, r *http.Request) error {
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	ref := c.trustBundles()
	unserved := apierrors.NewNotFound(schema.GroupResource{Group: trustBundleKind.Resource.Group}, r.URL.Path)
	switch {
	case ref == nil, r.URL.Path != trustBundleDiscovery+trustBundleKind.Resource.Version:
		return unserved
	case apierrors.IsNotFound(ref.shared.Refusal()):
		return unserved
	case !ref.shared.Collection.Ready(r.Context(), c.server.clock, 0):
		return notYet("whether there are trust bundles")
	}
	gv := trustBundleKind.Resource.GroupVersion().String()
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv,
		APIResources: []metav1.APIResource{{
			Name:  trustBundleKind.Resource.Resource,
			Kind:  trustBundleKind.Name,
			Verbs: []string{"get", "list", "watch"},
		}},
	}
	writeObject(w, f, http.StatusOK, list)
	return nil
}

// serveTrustBundles answers from all trust bundles.
func (c *sharedAPI) serveTrustBundles(w http.ResponseWriter, r *http.Request, a *ask) error {
	ref := c.trustBundles()
	switch {
	case a.Subresource != "" || (a.Verb != "get" && a.Verb != "list" && a.Verb != "watch"):
		return c.forbidden(a, a.Resource+" can only be read")
	case ref == nil:
		return c.forbidden(a, "its pod has no volume of them")
	}
	return c.read(w, r, &reader{
		collection: ref.shared.Collection,
		clock:      c.server.clock,
		missed:     ref.shared.Refusal,
		lifetime:   ref.lifetime,
	}, a)
}
