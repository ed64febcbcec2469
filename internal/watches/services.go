package watches

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Kinds of which cells are shown a part.
var (
	Services       = corev1.SchemeGroupVersion.WithResource("services")
	EndpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
)

// ClusterIP returns a Service's cluster IP, the zero address when it has none or
// is not there. It is false as long as the Services are not known.
func (w *Watches) ClusterIP(namespace, name string) (netip.Addr, bool) {
	all := w.shared[Services].Collection
	select {
	case <-all.synced:
	default:
		return netip.Addr{}, false
	}
	o := all.Get(Key(namespace, name))
	if o == nil {
		return netip.Addr{}, true
	}
	addr, err := netip.ParseAddr(o.APIObject.(*corev1.Service).Spec.ClusterIP)
	if err != nil {
		return netip.Addr{}, true // headless
	}
	return addr, true
}
