package watches

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is dropped here is read neither by the kubelet (the environment variables
// of Services) nor by kube-proxy: in a large cluster it is most of the bytes.

// slimMeta keeps what names an object, and the labels with the given keys.
func slimMeta(m *metav1.ObjectMeta, labels ...string) {
	kept := map[string]string{}
	for _, k := range labels {
		if v, ok := m.Labels[k]; ok {
			kept[k] = v
		}
	}
	*m = metav1.ObjectMeta{
		Name:              m.Name,
		Namespace:         m.Namespace,
		UID:               m.UID,
		ResourceVersion:   m.ResourceVersion,
		Labels:            kept,
		DeletionTimestamp: m.DeletionTimestamp,
	}
}

// LabelServiceProxyName is on Services that another proxy than kube-proxy serves.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

func slimService(o APIObject) {
	s := o.(*corev1.Service)
	slimMeta(&s.ObjectMeta, LabelServiceProxyName, corev1.IsHeadlessService)
	s.Spec.Selector = nil
	s.Status = corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer}
}

func slimEndpointSlice(o APIObject) {
	s := o.(*discoveryv1.EndpointSlice)
	slimMeta(&s.ObjectMeta, discoveryv1.LabelServiceName, corev1.IsHeadlessService)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		s.Endpoints[i] = discoveryv1.Endpoint{
			Addresses:  e.Addresses,
			Conditions: e.Conditions,
			NodeName:   e.NodeName,
			Hints:      e.Hints,
		}
	}
}
