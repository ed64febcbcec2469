package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/netdump"
)

// Prepare makes the machine answer for the pod's address on the interface that
// has nodeIP, and forward to it. It is idempotent.
func Prepare(podIP, nodeIP netip.Addr) error {
	uplink, err := uplinkOf(nodeIP)
	if err != nil {
		return err
	}
	name := uplink.Attrs().Name
	for _, s := range []struct{ key, value string }{
		{"net/ipv4/ip_forward", "1"},
		// An answer at once, and not after up to 0.8 s of politeness to another
		// machine that might have the address: none has.
		{"net/ipv4/neigh/" + name + "/proxy_delay", "0"},
	} {
		if err := sysctl(s.key, s.value); err != nil {
			return err
		}
	}
	if err := answerFor(uplink, unix.AF_INET, podIP); err != nil {
		return err
	}
	if err := announce(uplink, podIP); err != nil {
		return fmt.Errorf("announce %s on %s: %w", podIP, name, err)
	}
	return nil
}

// answerFor makes the machine answer on its uplink for the pod's address, and for
// no earlier one of that family.
func answerFor(uplink netlink.Link, family int, podIP netip.Addr) error {
	name := uplink.Attrs().Name
	// Clouds that route by address need no proxy neighbour; where machines share
	// a link, peers ask for the pod's address by ARP or NDP. One entry, not proxy_arp:
	// the machine answers for nothing else.
	old, err := netdump.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighProxyList(uplink.Attrs().Index, family) })
	if err != nil {
		return fmt.Errorf("list proxy neighbours of %s: %w", name, err)
	}
	for _, n := range old {
		if ip, ok := netip.AddrFromSlice(n.IP); !ok || ip.Unmap() == podIP {
			continue
		}
		if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove the proxy neighbour %s of an earlier pod address: %w", n.IP, err)
		}
	}
	proxy := &netlink.Neigh{
		LinkIndex: uplink.Attrs().Index,
		Family:    family,
		Flags:     netlink.NTF_PROXY,
		IP:        podIP.AsSlice(),
		// Or the entry goes when the link loses its carrier, and the pod could
		// not be found any more once it is back.
		State: netlink.NUD_PERMANENT,
	}
	if err := netlink.NeighSet(proxy); err != nil {
		return fmt.Errorf("answer for %s on %s: %w", podIP, name, err)
	}
	return nil
}

// uplinkOf returns the interface that has the machine's address.
func uplinkOf(nodeIP netip.Addr) (netlink.Link, error) {
	addrs, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family(nodeIP)) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var have []string
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip.Unmap() == nodeIP {
			link, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil {
				return nil, fmt.Errorf("look up the interface of %s: %w", nodeIP, err)
			}
			return link, nil
		}
		have = append(have, ip.String())
	}
	return nil, fmt.Errorf("nodeIP: no interface of this machine has %s (there are %s)", nodeIP, strings.Join(have, ", "))
}

func sysctl(key, value string) error {
	path := filepath.Join("/proc/sys", key)
	if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == value {
		return nil // it may be set, on a file system that is read-only
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w", strings.ReplaceAll(key, "/", "."), value, err)
	}
	return nil
}

// announce broadcasts a gratuitous ARP: peers that still know the address as an
// earlier machine's would otherwise send there until their entry expires.
func announce(link netlink.Link, ip netip.Addr) error {
	mac := link.Attrs().HardwareAddr
	if len(mac) != 6 || link.Attrs().Flags&net.FlagBroadcast == 0 {
		return nil // not an Ethernet: there is no ARP
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ARP), Ifindex: link.Attrs().Index, Halen: 6}
	for i := range 6 {
		to.Addr[i] = 0xff
	}
	return unix.Sendto(fd, gratuitousARP(mac, ip), 0, to)
}

// gratuitousARP is an ARP request for one's own address (RFC 5227, section 3).
func gratuitousARP(mac net.HardwareAddr, ip netip.Addr) []byte {
	p := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, their lengths, request
	p = append(p, mac...)
	p = append(p, ip.AsSlice()...)
	p = append(p, make([]byte, 6)...)
	return append(p, ip.AsSlice()...)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }
