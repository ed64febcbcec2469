package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/internal/agent/configs"
)

// A Kip in a cluster runs on an ordinary node, whose kube-proxy makes NodePorts
// answer at the virtual node's address too. Here Kip runs on this machine, and
// with Options.ServiceProxy a kube-proxy does beside it.

// proxyFolder, in the state folder, is there from before kube-proxy writes
// anything on this machine until all of it is removed.
const proxyFolder = "kube-proxy"

// proxying is the kube-proxy of this machine.
type proxying struct {
	*site
	controlPlane *controlPlane

	process *child.Process
}

func (s *proxying) proxyPath(name string) string { return filepath.Join(s.path(proxyFolder), name) }

// proxyRecord is the file that names kube-proxy's process while it runs.
func (s *proxying) proxyRecord() string { return s.proxyPath("process.json") }

// ProxyLog is the path of kube-proxy's log.
func (s *proxying) ProxyLog() string { return s.path("kube-proxy.log") }

// proxyConfig is kube-proxy's, for the addresses of this machine on all bridges. The
// kernel's values for conntrack stay as they are.
func (s *proxying) proxyConfig() ([]byte, error) {
	var addresses []string
	for _, k := range s.kips {
		addresses = append(addresses, k.address.String()+"/32")
	}
	b, err := yaml.Marshal(map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"hostnameOverride":   s.FirstNode(),
		"bindAddress":        s.address.String(),
		"metricsBindAddress": s.address.String() + ":10249",
		"healthzBindAddress": s.address.String() + ":10256",
		"clientConnection":   map[string]any{"kubeconfig": s.proxyPath("kubeconfig")},
		"mode":               "nftables",
		"nodePortAddresses":  addresses,
		"conntrack":          map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	if err != nil {
		return nil, fmt.Errorf("render kube-proxy's configuration: %w", err)
	}
	return b, nil
}

// StartProxy starts kube-proxy on this machine, if the stack has one. The virtual
// nodes are Ready.
func (s *proxying) StartProxy(ctx context.Context) error {
	if !s.opts.ServiceProxy {
		return nil
	}
	if tables, err := proxyTables(ctx); err != nil {
		return err
	} else if len(tables) > 0 {
		return fmt.Errorf("this machine has a kube-proxy already, by its nftables table %s: leave --service-proxy out", tables[0])
	}
	config, err := s.proxyConfig()
	if err != nil {
		return err
	}
	identity, err := s.controlPlane.Cluster.NodeIdentity(s.FirstNode(), s.address)
	if err != nil {
		return err
	}
	pki := configs.Files{CA: s.proxyPath("ca.crt"), ClientCert: s.proxyPath("client.crt"), ClientKey: s.proxyPath("client.key")}
	kubeconfig, err := configs.KubeconfigFile(s.controlPlane.Cluster.Server(), pki)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.path(proxyFolder), 0o700); err != nil {
		return fmt.Errorf("write kube-proxy's configuration: %w", err)
	}
	for path, content := range map[string][]byte{
		s.proxyPath("config.yaml"): config, s.proxyPath("kubeconfig"): kubeconfig,
		pki.CA: identity.CA, pki.ClientCert: identity.Proxy.Cert, pki.ClientKey: identity.Proxy.Key,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("write kube-proxy's configuration: %w", err)
		}
	}
	s.process, err = child.Start(child.Spec{
		Path:    filepath.Join(s.opts.Bin, "itzo"),
		Args:    []string{"kube-proxy", "--config=" + s.proxyPath("config.yaml")},
		LogFile: s.ProxyLog(),
		Record:  s.proxyRecord(),
		Env:     []string{markVariable + "=" + s.opts.State},
	})
	return err
}

// stopProxy ends kube-proxy and takes its rules from this machine, where this
// stack has left any.
func (s *proxying) stopProxy(ctx context.Context) error {
	if s.process != nil {
		if err := s.process.Stop(ctx); err != nil {
			return err
		}
		s.process = nil
	}
	if err := child.KillRecorded(ctx, s.proxyRecord()); err != nil {
		return err
	}
	if _, err := os.Stat(s.path(proxyFolder)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	tables, err := proxyTables(ctx)
	if err != nil {
		return err
	}
	for _, table := range tables {
		if out, err := exec.CommandContext(ctx, "nft", append([]string{"delete"}, strings.Fields(table)...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("remove the nftables %s: %w: %s", table, err, out)
		}
	}
	return os.RemoveAll(s.path(proxyFolder))
}

// proxyTables are kube-proxy's nftables on this machine, such as
// "table ip kube-proxy".
func proxyTables(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "nft", "list", "tables").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list this machine's nftables: %w: %s", err, out)
	}
	var tables []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.HasSuffix(line, " kube-proxy") {
			tables = append(tables, line)
		}
	}
	return tables, nil
}

// proxyLeftovers names what a kube-proxy of this stack has left on this machine.
func (s *proxying) proxyLeftovers(ctx context.Context) ([]string, error) {
	if _, err := os.Stat(s.path(proxyFolder)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return proxyTables(ctx)
}
