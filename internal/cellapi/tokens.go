package cellapi

import (
	"context"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

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

// mayHaveToken says whether a volume of the pod asks for such a token, as its kubelet
// does: a projected one for itself, a CSI one by what its driver asks. The lifetime
// must be the same: of some the API server makes a year.
func (c *Cell) mayHaveToken(ctx context.Context, pod *corev1.Pod, asked *authenticationv1.TokenRequestSpec) (bool, error) {
	if len(asked.Audiences) > 1 {
		return false, nil // a kubelet asks for one each
	}
	audience := ""
	if len(asked.Audiences) == 1 {
		audience = asked.Audiences[0]
	}
	lifetime := lifetimeOf(asked.ExpirationSeconds)
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
	if !c.someDriverAsks(audience, lifetime) {
		return false, nil // whatever the claims are bound to
	}
	may := false
	err := c.boundVolumes(ctx, "", func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) bool {
		may = pv.Spec.CSI != nil && asks(pv.Spec.CSI.Driver)
		return may
	})
	return may, err
}

// driverAsks says whether a CSI driver asks for such a token of the pods that use it.
func (c *Cell) driverAsks(name, audience string, lifetime int64) bool {
	o := c.server.watches.Of(csiDrivers).Collection.Get(name)
	return o != nil && tokenAsked(o.APIObject, audience, lifetime)
}

func (c *Cell) someDriverAsks(audience string, lifetime int64) bool {
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
