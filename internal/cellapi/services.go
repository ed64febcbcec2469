package cellapi

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

var (
	services       = corev1.SchemeGroupVersion.WithResource("services")
	endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
)

// ClusterIP returns a Service's cluster IP, the zero address when it has none or
// is not there. It is false as long as the Services are not known.
func (s *Server) ClusterIP(namespace, name string) (netip.Addr, bool) {
	all := s.shared[services].collection
	select {
	case <-all.synced:
	default:
		return netip.Addr{}, false
	}
	o := all.get(key(namespace, name))
	if o == nil {
		return netip.Addr{}, true
	}
	addr, err := netip.ParseAddr(o.apiObject.(*corev1.Service).Spec.ClusterIP)
	if err != nil {
		return netip.Addr{}, true // headless
	}
	return addr, true
}
