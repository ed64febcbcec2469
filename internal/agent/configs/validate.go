package configs

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/sysctls"
)

// nodeNames are DNS subdomains, as Kubernetes wants names of nodes.
var nodeNames = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// maxSysctls is more than a pod needs.
const maxSysctls = 256

// maxPageSizes is more than kernels have, and maxPageBytes more than a page has.
const maxPageSizes, maxPageBytes = 8, 1 << 40

// maxSwapBytes is more than Kip asks for.
const maxSwapBytes = 1 << 40

// maxRoutes is above what a route table of a cloud takes.
const maxRoutes = 256

// Validate says all that is wrong with a Config at once, by field. It checks no credential provider: the kubelet does without one that is
// not valid.
func Validate(c agentapi.Config) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.NodeName) > 253 || !nodeNames.MatchString(c.NodeName) {
		bad("nodeName: %q is not a DNS subdomain such as kip-0", c.NodeName)
	}
	if !c.NodeIP.Is4() || c.NodeIP.IsUnspecified() {
		bad("nodeIP: %q is not an IPv4 address of this machine", c.NodeIP)
	}
	if !c.PodIP.Is4() || c.PodIP.IsUnspecified() {
		bad("podIP: %q is not an IPv4 address", c.PodIP)
	}
	if c.PodIP.IsValid() && c.PodIP == c.NodeIP {
		bad("podIP: %s is the machine's own address (nodeIP); the pod needs another", c.PodIP)
	}
	if c.NodeIPv6.IsValid() != c.PodIPv6.IsValid() {
		bad("nodeIPv6 %q and podIPv6 %q: want both, or neither", c.NodeIPv6, c.PodIPv6)
	}
	for field, a := range map[string]netip.Addr{"nodeIPv6": c.NodeIPv6, "podIPv6": c.PodIPv6} {
		if a.IsValid() && (!a.Is6() || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast()) {
			bad("%s: %q is not an IPv6 address that can be routed to", field, a)
		}
	}
	if c.PodIPv6.IsValid() && c.PodIPv6 == c.NodeIPv6 {
		bad("podIPv6: %s is the machine's own address (nodeIPv6); the pod needs another", c.PodIPv6)
	}
	for i, a := range c.ClusterDNS {
		if !a.IsValid() {
			bad("clusterDNS[%d]: not an IP address", i)
		}
	}
	if c.ClusterDomain != "" && !nodeNames.MatchString(c.ClusterDomain) {
		bad("clusterDomain: %q is not a DNS domain such as cluster.local", c.ClusterDomain)
	}
	if len(c.Routes) > maxRoutes {
		bad("routes: %d networks, want at most %d", len(c.Routes), maxRoutes)
	}
	for i, p := range c.Routes[:min(len(c.Routes), maxRoutes)] {
		switch {
		case !p.IsValid() || !p.Addr().Is4() || p != p.Masked() || p.Bits() == 0:
			bad("routes[%d]: %q is not an IPv4 network such as 10.20.0.0/16", i, p)
		case p.Contains(c.NodeIP), p.Contains(c.PodIP):
			bad("routes[%d]: %s has the machine's own address (nodeIP %s), or the pod's (podIP %s)", i, p, c.NodeIP, c.PodIP)
		}
	}
	if c.ReservedMemoryBytes < 0 {
		bad("reservedMemoryBytes: %d is negative", c.ReservedMemoryBytes)
	}
	if len(c.ImagesOfCloud) > maxImagePatterns {
		bad("imagesOfCloud: %d patterns, want at most %d", len(c.ImagesOfCloud), maxImagePatterns)
	}
	for i, p := range c.ImagesOfCloud[:min(len(c.ImagesOfCloud), maxImagePatterns)] {
		if len(p) > 253 || !imagePatterns.MatchString(p) {
			bad("imagesOfCloud[%d]: %.253q is not a pattern of hosts such as *.registry.example.com", i, p)
		}
	}
	if len(c.UnsafeSysctls) > maxSysctls {
		bad("unsafeSysctls: %d names, want at most %d", len(c.UnsafeSysctls), maxSysctls)
	}
	for i, s := range c.UnsafeSysctls[:min(len(c.UnsafeSysctls), maxSysctls)] {
		// With another the kubelet does not start.
		if !sysctls.IsName(s) || !sysctls.IsNamespaced(s) {
			bad("unsafeSysctls[%d]: %.253q is not the name of a namespaced sysctl such as kernel.msgmax", i, s)
		}
	}
	validatePages(c.HugePages, bad)
	if c.SwapBytes < 0 || c.SwapBytes > maxSwapBytes || c.SwapBytes%(1<<20) != 0 {
		bad("swapBytes: %d is not a number of whole MiB such as 2147483648, of at most %d", c.SwapBytes, int64(maxSwapBytes))
	}
	if _, err := RegistryHosts(c.RegistryMirrors, c.Registries); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// validatePages notes what is wrong with huge pages.
func validatePages(all []agentapi.HugePages, bad func(format string, args ...any)) {
	if len(all) > maxPageSizes {
		bad("hugePages: %d sizes, want at most %d", len(all), maxPageSizes)
	}
	sizes := map[int64]bool{}
	for i, p := range all[:min(len(all), maxPageSizes)] {
		switch {
		case p.PageBytes < 4096 || p.PageBytes > maxPageBytes || p.PageBytes&(p.PageBytes-1) != 0:
			bad("hugePages[%d].pageBytes: %d is not the size of a page such as 2097152", i, p.PageBytes)
		case p.Pages < 1 || p.Pages > math.MaxInt64/maxPageSizes/p.PageBytes:
			bad("hugePages[%d].pages: %d pages are none, or more than any machine has", i, p.Pages)
		case sizes[p.PageBytes]:
			bad("hugePages[%d].pageBytes: %d is there twice", i, p.PageBytes)
		}
		sizes[p.PageBytes] = true
	}
}
