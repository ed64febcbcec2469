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

// written are the values of hostIP that may be any cell's, beside loopback addresses of IPv4. Their
// index is in an address of the prefix, in the first byte after that: values are only appended.
// Another address is that of one machine, which nobody knows before the cell is there.
var written = []string{"", "0.0.0.0", "::", "::1"}

// loopback stands in the place of the index for an address of 127.0.0.0/8, whose last three bytes follow.
const loopback = 0xff

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
	address := prefix.Addr().As16()
	copy(address[9:], m[:])
	index := slices.Index(written, hostIP)
	own, err := netip.ParseAddr(hostIP)
	switch {
	case index >= 0:
		address[8] = byte(index)
	case err == nil && own.Is4() && own.IsLoopback():
		four := own.As4()
		address[8] = loopback
		copy(address[9:], four[1:])
	default:
		return "", false
	}
	return netip.AddrFrom16(address).String(), true
}

// original is the hostIP that the owner of a pod wrote, of one by which ports are told apart.
func original(hostIP string) (string, bool) {
	address, err := netip.ParseAddr(hostIP)
	if err != nil || !prefix.Contains(address) {
		return "", false
	}
	bytes := address.As16()
	switch index := int(bytes[8]); {
	case index < len(written):
		return written[index], true
	case index == loopback:
		return netip.AddrFrom4([4]byte{127, bytes[9], bytes[10], bytes[11]}).String(), true
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
