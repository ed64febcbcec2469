package configs

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/elotl/kip/internal/agent/agentapi"
)

// nodeNames are DNS subdomains, as Kubernetes wants names of nodes.
var nodeNames = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Validate says all that is wrong with a Config at once, by field.
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
	for i, a := range c.ClusterDNS {
		if !a.IsValid() {
			bad("clusterDNS[%d]: not an IP address", i)
		}
	}
	if c.ClusterDomain != "" && !nodeNames.MatchString(c.ClusterDomain) {
		bad("clusterDomain: %q is not a DNS domain such as cluster.local", c.ClusterDomain)
	}
	if c.ReservedMemoryBytes < 0 {
		bad("reservedMemoryBytes: %d is negative", c.ReservedMemoryBytes)
	}
	if _, err := RegistryHosts(c.RegistryMirrors); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
