package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// Config is what a node is told, as its machine's user data.
type Config struct {
	Name string     `json:"name"`
	IP   netip.Addr `json:"ip"`
	// PodCIDR is the node's own part of the bridge's network, on which its pods
	// are found by ARP.
	PodCIDR       netip.Prefix `json:"podCIDR"`
	ClusterDNS    netip.Addr   `json:"clusterDNS"`
	ClusterDomain string       `json:"clusterDomain"`
	Server        string       `json:"server"` // URL of the API server
	// Mirrors are the registries to pull from, as in cells.registryMirrors of
	// provider.yaml.
	Mirrors map[string][]string `json:"mirrors"`
	PKI     PKI                 `json:"pki"`
}

// PKI is the node's identity, in PEM. That keys come with the user data is for a
// cluster that is thrown away with the host's folder that they are in.
type PKI struct {
	CA          []byte `json:"ca"`
	ClientCert  []byte `json:"clientCert"`
	ClientKey   []byte `json:"clientKey"`
	ProxyCert   []byte `json:"proxyCert"`
	ProxyKey    []byte `json:"proxyKey"`
	ServingCert []byte `json:"servingCert"`
	ServingKey  []byte `json:"servingKey"`
}

// Read reads a node's configuration.
func Read(path string) (Config, error) {
	var c Config
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read the node's configuration: %w", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read the node's configuration %s: %w", path, err)
	}
	return c, c.check()
}

func (c Config) check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("node's configuration: "+format, args...))
	}
	if c.Name == "" {
		bad("name is empty: want one such as node-1")
	}
	if !c.IP.Is4() {
		bad("ip: %q is not an IPv4 address", c.IP)
	}
	if !c.PodCIDR.Addr().Is4() || c.PodCIDR.Bits() > 29 {
		bad("podCIDR: %q is not an IPv4 network of at least 8 addresses", c.PodCIDR)
	}
	if c.Server == "" {
		bad("server is empty: want the URL of the API server")
	}
	for name, pem := range map[string][]byte{
		"ca": c.PKI.CA, "clientCert": c.PKI.ClientCert, "clientKey": c.PKI.ClientKey, "proxyCert": c.PKI.ProxyCert, "proxyKey": c.PKI.ProxyKey,
		"servingCert": c.PKI.ServingCert, "servingKey": c.PKI.ServingKey,
	} {
		if len(pem) == 0 {
			bad("pki.%s is empty", name)
		}
	}
	return errors.Join(errs...)
}
