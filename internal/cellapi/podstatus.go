package cellapi

import (
	"net/http"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/agentapi"
)

// addressesOf are those of the cell's instance: with the host's network a pod has
// the host's.
func (c *podAPI) addressesOf(pod *corev1.Pod) addresses {
	i := c.node.info
	a := addresses{host: []netip.Addr{i.NodeIP, i.NodeIPv6}, pod: []netip.Addr{i.PodIP, i.PodIPv6}}
	if pod != nil && pod.Spec.HostNetwork {
		a.pod = a.host
	}
	return a
}

// addressesOfCopy are those that a pod beside the cell's may have: without the host's network one of the machine alone.
func (c *podAPI) addressesOfCopy(copy *corev1.Pod) addresses {
	a := c.addressesOf(copy)
	if !copy.Spec.HostNetwork {
		a.pod, a.within = nil, agentapi.BesideNetwork
	}
	return a
}

// passPodStatus passes a patch of the pod's status, rebuilt, with the UID of the
// cell's pod in it, so that the API server refuses it for any other.
func (c *podAPI) passPodStatus(w http.ResponseWriter, r *http.Request, a *ask) error {
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	b, err := c.ownPod(a)
	if err != nil {
		return err
	}
	p, err := readPatch(r)
	if err != nil {
		return err
	}
	if p.kind != types.StrategicMergePatchType {
		// A merge patch replaces lists, those of other controllers too.
		return unsupportedMediaType(string(p.kind), string(types.StrategicMergePatchType))
	}
	if err := ofPod(p.body, a.Name, b.uid); err != nil {
		return err
	}
	pod, _ := c.pod.lastPod()
	patch, err := podStatusPatch(p.body, pod, c.addressesOf(pod), endsOf(pod))
	if err != nil {
		return err
	}
	return c.passing.pass(w, r, a, body{mediaType: string(p.kind), bytes: patch.bytes, final: patch.ended, cuts: patch.cuts}, nil)
}
