package dns

import (
	"fmt"
	"net/netip"
	"strings"
)

// Domain is the cluster's.
const Domain = "cluster.local"

// Ports of CoreDNS on its address; upstream's.
const (
	port        = 53
	healthPort  = 8080
	readyPort   = 8181
	metricsPort = 9153
)

// corefile is kubeadm's, but that it listens on one address and that, where
// there is no upstream server, other names than the cluster's do not exist.
func corefile(address netip.Addr, kubeconfig string, upstream []netip.AddrPort) string {
	rest := "\ttemplate ANY ANY {\n\t\trcode NXDOMAIN\n\t}\n"
	if len(upstream) > 0 {
		servers := ""
		for _, u := range upstream {
			servers += " " + u.String()
		}
		// loop ends CoreDNS when a query comes back: a server of the host that
		// asks this one again would otherwise never stop.
		rest = fmt.Sprintf("\tforward .%s {\n\t\tmax_concurrent 1000\n\t}\n\tloop\n", servers)
	}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(address, port) }
	return fmt.Sprintf(`# Written by kip-dev, for this run.
.:%d {
	bind %s
	errors
	health %s
	ready %s
	kubernetes %s in-addr.arpa ip6.arpa {
		kubeconfig %q
		pods insecure
		fallthrough in-addr.arpa ip6.arpa
		ttl 5
	}
	prometheus %s
%s	cache 30 {
		disable success %[5]s
		disable denial %[5]s
	}
	loadbalance
}
`, port, address, at(healthPort), at(readyPort), Domain, kubeconfig, at(metricsPort), rest)
}

// nameservers are the servers of a resolv.conf that are not one of ours, of
// which the first three count: resolv.conf(5).
func nameservers(resolv string, ours ...netip.Addr) []netip.AddrPort {
	var servers []netip.AddrPort
	for line := range strings.Lines(resolv) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(fields[1])
		if err != nil {
			continue // as the resolver does
		}
		if addr.IsUnspecified() { // this host
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		own := false
		for _, o := range ours {
			own = own || addr == o
		}
		if !own && len(servers) < 3 {
			servers = append(servers, netip.AddrPortFrom(addr, port))
		}
	}
	return servers
}
