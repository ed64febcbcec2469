package configs

import (
	"encoding/json"
	"fmt"

	"github.com/elotl/kip/internal/agentapi"
)

// CNIPlugin is the file name of itzo as a CNI plugin (package network).
const CNIPlugin = "itzo-cni"

// CNI renders the CNI configuration: the one pod of the cell has one address of
// each family that it has, and gets them when the gates below gateDir are open (network.Wait).
func CNI(c agentapi.Config, gateDir string, gates []string) ([]byte, error) {
	own := map[string]any{
		"type":    CNIPlugin,
		"podIP":   c.PodIP,
		"nodeIP":  c.NodeIP,
		"gateDir": gateDir,
		"gates":   gates,
	}
	if c.PodIPv6.IsValid() {
		own["podIPv6"], own["nodeIPv6"] = c.PodIPv6, c.NodeIPv6
	}
	if len(c.Routes) > 0 {
		own["behind"] = c.Routes
	}
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "kip",
		"plugins": []any{own, map[string]any{
			// Upstream's: hostPorts of the pod, on the management address.
			"type":         "portmap",
			"capabilities": map[string]any{"portMappings": true},
			"backend":      "nftables",
			"snat":         true,
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the CNI configuration: %w", err)
	}
	return append(b, '\n'), nil
}
