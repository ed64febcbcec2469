package policy

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is what policies ask of a pod. Nobody modifies one.
type Pod struct {
	Name   types.NamespacedName
	Labels map[string]string
	// Addresses are the pod's own: none when it has ended, has none yet, or has
	// its node's.
	Addresses []netip.Addr
	// Ports are those that have a name.
	Ports []NamedPort
	// HostNetwork pods are no policy's business.
	HostNetwork bool
}

// NamedPort is a port that a container gives a name.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// PodOf returns what policies ask of a pod.
func PodOf(p *corev1.Pod) *Pod {
	pod := &Pod{
		Name: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, Labels: p.Labels,
		HostNetwork: p.Spec.HostNetwork,
	}
	for _, c := range p.Spec.Containers {
		pod.addPorts(c)
	}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			pod.addPorts(c) // a sidecar
		}
	}
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if ended || p.Spec.HostNetwork {
		return pod // the address is another pod's soon, or a node's
	}
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			pod.Addresses = append(pod.Addresses, addr.Unmap())
		}
	}
	return pod
}

func (p *Pod) addPorts(c corev1.Container) {
	for _, port := range c.Ports {
		if port.Name == "" || port.ContainerPort < 1 || port.ContainerPort > 65535 {
			continue
		}
		protocol := port.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		p.Ports = append(p.Ports, NamedPort{Name: port.Name, Protocol: protocol, Port: uint16(port.ContainerPort)})
	}
}

// equal says whether two states of a pod are the same to every policy.
func (p *Pod) equal(o *Pod) bool {
	return p == o || p != nil && o != nil && p.Name == o.Name && p.HostNetwork == o.HostNetwork && maps.Equal(p.Labels, o.Labels) &&
		slices.Equal(p.Addresses, o.Addresses) && slices.Equal(p.Ports, o.Ports)
}

// named are the numbers that the pod gives a name.
func (p *Pod) named(name string, protocol corev1.Protocol) (numbers []uint16) {
	for _, port := range p.Ports {
		if port.Name == name && port.Protocol == protocol && !slices.Contains(numbers, port.Port) {
			numbers = append(numbers, port.Port)
		}
	}
	return numbers
}
