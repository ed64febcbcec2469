package hostports

import (
	"crypto/rand"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// prefix is that of the addresses by which ports are told apart: the discard-only block of IPv6
// (RFC 6666). No machine has an address of it.
var prefix = netip.MustParsePrefix("100::/64")

// written are the values of hostIP that may be any cell's. Their index is in an address of the
// prefix, in the first byte after that: values are only appended. Another address is that of one
// machine, which nobody knows before the cell is there.
var written = []string{"", "0.0.0.0", "127.0.0.1", "::", "::1"}

// Mark tells the host ports of one pod from those of all others. All its ports have the same, so
// that the API server still refuses a pod that names one twice.
type Mark [7]byte

// NewMark returns a mark that no other pod has.
func NewMark() (m Mark) {
	_, _ = rand.Read(m[:]) // it never fails
	return m
}

// Apart returns the hostIP by which a port with this one is told apart; false where it stays.
// One that is told apart already, such as of a pod that was copied, gets the mark of this pod.
func (m Mark) Apart(hostIP string) (string, bool) {
	if own, apart := original(hostIP); apart {
		hostIP = own
	}
	index := slices.Index(written, hostIP)
	if index < 0 {
		return "", false
	}
	address := prefix.Addr().As16()
	address[8] = byte(index)
	copy(address[9:], m[:])
	return netip.AddrFrom16(address).String(), true
}

// original is the hostIP that the owner of a pod wrote, of one by which ports are told apart.
func original(hostIP string) (string, bool) {
	address, err := netip.ParseAddr(hostIP)
	if err != nil || !prefix.Contains(address) {
		return "", false
	}
	if index := int(address.As16()[8]); index < len(written) {
		return written[index], true
	}
	return "", false
}

// Restore gives the ports of a pod the hostIP that its owner wrote. The pod is the caller's.
func Restore(pod *corev1.Pod) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for c := range list {
			for p := range list[c].Ports {
				port := &list[c].Ports[p]
				if own, apart := original(port.HostIP); apart {
					port.HostIP = own
				}
			}
		}
	}
}
