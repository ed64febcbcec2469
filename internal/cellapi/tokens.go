package cellapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/elotl/kip/internal/credentialproviders"
	"github.com/elotl/kip/internal/watches"
)

// defaultLifetime is what a token lives, in seconds, where nobody says.
const defaultLifetime = 3600

func lifetimeOf(seconds *int64) int64 {
	if seconds == nil {
		return defaultLifetime
	}
	return *seconds
}

// tokenAPI has tokens of the pod's service account made.
type tokenAPI struct {
	*base
	pod     *boundPod
	passing *passing
	volumes *volumeAPI
}

// mayHaveToken says whether a volume of the pod asks for such a token, as its kubelet
// does: a projected one for itself, a CSI one by what its driver asks; or whether a
// credential provider of the operator's is given such tokens for an image of the pod. The lifetime
// must be the same: of some the API server makes a year.
func (c *tokenAPI) mayHaveToken(ctx context.Context, pod *corev1.Pod, asked *authenticationv1.TokenRequestSpec) (bool, error) {
	if len(asked.Audiences) > 1 {
		return false, nil // a kubelet asks for one each
	}
	audience := ""
	if len(asked.Audiences) == 1 {
		audience = asked.Audiences[0]
	}
	lifetime := lifetimeOf(asked.ExpirationSeconds)
	if lifetime == defaultLifetime && c.providerAsks(pod, func(p credentialproviders.Provider) bool {
		return p.TokenAttributes.Audience == audience
	}) {
		return true, nil
	}
	asks := func(driver string) bool { return c.driverAsks(driver, audience, lifetime) }
	for _, v := range pod.Spec.Volumes {
		if v.CSI != nil && asks(v.CSI.Driver) {
			return true, nil
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if t := s.ServiceAccountToken; t != nil && t.Audience == audience && lifetimeOf(t.ExpirationSeconds) == lifetime {
				return true, nil
			}
		}
	}
	if !c.someDriverAsks(audience, lifetime) || !c.pod.isOwn(pod) {
		return false, nil // whatever the claims are bound to
	}
	may := false
	err := c.volumes.boundVolumes(ctx, "", func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) bool {
		may = pv.Spec.CSI != nil && asks(pv.Spec.CSI.Driver)
		return may
	})
	return may, err
}

// withTokens returns the credential providers that are given tokens.
func withTokens(all []credentialproviders.Provider) []credentialproviders.Provider {
	return slices.DeleteFunc(slices.Clone(all), func(p credentialproviders.Provider) bool { return p.TokenAttributes == nil })
}

// providerAsks says whether the kubelet asks such a credential provider, of those that are given tokens, for an image of the pod.
func (c *tokenAPI) providerAsks(pod *corev1.Pod, such func(credentialproviders.Provider) bool) bool {
	return slices.ContainsFunc(c.server.providers, func(p credentialproviders.Provider) bool {
		return such(p) && slices.ContainsFunc(imagesOf(pod), p.Matches)
	})
}

// driverAsks says whether a CSI driver asks for such a token of the pods that use it.
func (c *tokenAPI) driverAsks(name, audience string, lifetime int64) bool {
	o := c.server.watches.Of(csiDrivers).Collection.Get(name)
	return o != nil && tokenAsked(o.APIObject, audience, lifetime)
}

func (c *tokenAPI) someDriverAsks(audience string, lifetime int64) bool {
	all, _, _ := c.server.watches.Of(csiDrivers).Collection.Snapshot()
	return slices.ContainsFunc(all, func(o *watches.Object) bool { return tokenAsked(o.APIObject, audience, lifetime) })
}

func tokenAsked(o watches.APIObject, audience string, lifetime int64) bool {
	driver, ok := o.(*storagev1.CSIDriver)
	return ok && slices.ContainsFunc(driver.Spec.TokenRequests, func(t storagev1.TokenRequest) bool {
		return t.Audience == audience && lifetimeOf(t.ExpirationSeconds) == lifetime
	})
}

var csiDrivers = storagev1.SchemeGroupVersion.WithResource("csidrivers")

// boundTo is the reference by which a token is bound to a pod.
func boundTo(pod *corev1.Pod) authenticationv1.BoundObjectReference {
	return authenticationv1.BoundObjectReference{
		Kind:       "Pod",
		APIVersion: "v1",
		Name:       pod.Name,
		UID:        pod.UID,
	}
}

// serveToken passes the request for a token of the pod's service account that is
// bound to the pod.
func (c *tokenAPI) serveToken(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Subresource == "" && a.Verb == "get" && len(c.server.providers) > 0 {
		return c.serveServiceAccount(w, r, a)
	}
	if a.Subresource != "token" || a.Verb != "create" {
		return c.forbidden(a, "it may only have tokens made")
	}
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	request, err := decodeBody[*authenticationv1.TokenRequest](r, authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	if err != nil {
		return err
	}
	// Those of one pod are not those of another that the cell runs.
	pods := slices.DeleteFunc(c.pod.shownPods(), func(pod *corev1.Pod) bool {
		return a.Namespace != pod.Namespace || a.Name != pod.Spec.ServiceAccountName
	})
	if len(pods) == 0 {
		return c.forbidden(a, "only its pod's service account")
	}
	asked := slices.IndexFunc(pods, func(pod *corev1.Pod) bool {
		ref := request.Spec.BoundObjectRef
		return ref != nil && *ref == boundTo(pod)
	})
	if asked < 0 {
		return c.forbidden(a, fmt.Sprintf("spec.boundObjectRef must be the pod %s", bindingID(pods[0].Namespace, pods[0].Name, pods[0].UID)))
	}
	pod := pods[asked]
	want := boundTo(pod)
	rests(w) // while others are asked
	may, err := c.mayHaveToken(r.Context(), pod, &request.Spec)
	if err != nil {
		return err
	}
	if !may {
		return c.forbidden(a, fmt.Sprintf("no volume of its pod asks for a token for %q of %d seconds", request.Spec.Audiences,
			lifetimeOf(request.Spec.ExpirationSeconds)))
	}
	b, err := encode(formatJSON, &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: authenticationv1.SchemeGroupVersion.String()},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: request.Spec.Audiences, ExpirationSeconds: request.Spec.ExpirationSeconds, BoundObjectRef: &want,
		},
	})
	if err != nil {
		return err
	}
	return c.passing.pass(w, r, a, body{mediaType: runtime.ContentTypeJSON, bytes: b}, nil)
}

// serveServiceAccount passes the get of the pod's service account, of which credential providers are given annotations.
func (c *tokenAPI) serveServiceAccount(w http.ResponseWriter, r *http.Request, a *ask) error {
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	if !slices.ContainsFunc(c.pod.shownPods(), func(pod *corev1.Pod) bool {
		return a.Namespace == pod.Namespace && a.Name == pod.Spec.ServiceAccountName &&
			c.providerAsks(pod, func(credentialproviders.Provider) bool { return true })
	}) {
		return c.forbidden(a, "only its pod's service account, for a credential provider of an image of the pod")
	}
	return c.passing.pass(w, r, a, body{}, nil)
}
