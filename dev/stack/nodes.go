package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/elotl/kip/dev/dns"
	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/local/sizes"
)

// nodeName is the name of the i-th ordinary node, from 0.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// nodes are the ordinary nodes.
type nodes struct {
	*site
	controlPlane *controlPlane
	images       *images
	roots        *roots

	machines *local.Cloud // nil when there are none
}

// nodesCloud is where the machines of ordinary nodes are: beside the cells, on
// their bridge, and in another folder, so that Kip sees nothing of them.
func (s *nodes) nodesCloud() local.Config {
	return local.Config{
		Config: host.Config{
			StateDir: s.path("nodes"),
			Bridge:   s.opts.Bridge,
			Group:    s.opts.Bridge + "-nodes",
			CIDR:     s.kips[0].cidr,
			Log:      s.opts.Log,
			Catalogue: []catalog.InstanceType{{
				Name: "node", MilliCPU: int64(runtime.NumCPU()) * 1000, MemoryBytes: nodeMemory, DiskBytes: nodeDisk, Arch: runtime.GOARCH,
				Offerings: []catalog.PurchaseOption{{Zone: sizes.Zone}},
			}},
		},
		RootDir:      s.roots.nodeRoot(),
		Init:         []string{"/" + nodeInit},
		LauncherPath: filepath.Join(s.opts.Bin, "kip"),
	}
}

// podCIDR is the i-th node's part of the network.
func podCIDR(cfg local.Config, i int) (netip.Prefix, error) {
	all, err := cfg.GuestPods()
	if err != nil {
		return netip.Prefix{}, err
	}
	room := 0
	if all.Bits() <= podBits {
		room = 1 << (podBits - all.Bits())
	}
	if i >= room {
		return netip.Prefix{},
			fmt.Errorf("the network %s has room for %d ordinary nodes, and not for %d: ask for fewer with --nodes, or choose a larger --cidr",
				cfg.CIDR, room, i+1)
	}
	a := all.Addr().As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	n += uint32(i) << (32 - podBits)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), podBits), nil
}

// kipSources are the networks that Kip is in as a pod of an ordinary node: those of the nodes' pods and, in a host's network, the
// nodes' own addresses.
func (s *nodes) kipSources() (all []netip.Prefix, err error) {
	cfg := s.nodesCloud()
	for i := range s.opts.Nodes {
		pods, err := podCIDR(cfg, i)
		if err != nil {
			return nil, err
		}
		ip, err := cfg.GuestAddress(i)
		if err != nil {
			return nil, err
		}
		all = append(all, pods, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return all, nil
}

// StartNodes launches the machines of the ordinary nodes. It does not wait until
// they are Ready: NodesReady does.
func (s *nodes) StartNodes(ctx context.Context) error {
	if s.opts.Nodes == 0 {
		return nil
	}
	cfg := s.nodesCloud()
	machines, err := local.New(cfg)
	if err != nil {
		return fmt.Errorf("start ordinary nodes: %w", err)
	}
	s.machines = machines
	for i := range s.opts.Nodes {
		if err := s.startNode(ctx, cfg, i); err != nil {
			return fmt.Errorf("start ordinary node %s: %w", nodeName(i), err)
		}
	}
	return nil
}

func (s *nodes) startNode(ctx context.Context, cfg local.Config, i int) error {
	name := nodeName(i)
	ip, err := cfg.GuestAddress(i)
	if err != nil {
		return err
	}
	pods, err := podCIDR(cfg, i)
	if err != nil {
		return err
	}
	clusterDNS, err := dns.ClusterIP(s.opts.ServiceCIDR)
	if err != nil {
		return err
	}
	pki, err := s.controlPlane.Cluster.NodeIdentity(name, ip)
	if err != nil {
		return err
	}
	mirror := []string{"http://" + s.images.Registry.Address()}
	userData, err := json.Marshal(node.Config{
		Name:          name,
		IP:            ip,
		PodCIDR:       pods,
		ClusterDNS:    clusterDNS,
		ClusterDomain: dns.Domain,
		Server:        s.controlPlane.Cluster.Server(),
		Mirrors:       map[string][]string{"docker.io": mirror, "_default": mirror},
		PKI: node.PKI{
			CA:          pki.CA,
			ClientCert:  pki.Client.Cert,
			ClientKey:   pki.Client.Key,
			ProxyCert:   pki.Proxy.Cert,
			ProxyKey:    pki.Proxy.Key,
			ServingCert: pki.Serving.Cert,
			ServingKey:  pki.Serving.Key,
		},
	})
	if err != nil {
		return err
	}
	// One after the other, so that each has the address that it is told.
	launched, err := s.machines.Launch(ctx, cloud.LaunchRequest{
		Token:      name,
		LaunchSpec: cloud.LaunchSpec{InstanceType: "node", Zone: sizes.Zone},
		Machines:   []cloud.Machine{{Tags: map[string]string{cloud.TagOwner: "kip-dev", cloud.TagName: name}, UserData: userData}},
	}).All()
	if err != nil {
		return err
	}
	if got := launched[0].ManagementIP; got != ip {
		return fmt.Errorf("its machine has address %s, and its certificate %s", got, ip)
	}
	return nil
}

// NodesReady waits until the ordinary nodes are Ready and take pods.
func (s *nodes) NodesReady(ctx context.Context) error {
	for i := range s.opts.Nodes {
		if err := s.controlPlane.nodeReady(ctx, nodeName(i), nil); err != nil {
			return fmt.Errorf("%w; its machine's last words:\n%s", err, s.nodeConsole(i))
		}
	}
	return nil
}

// nodeConsole is the end of what a node's machine and its parts have logged.
func (s *nodes) nodeConsole(i int) string {
	machines, err := s.machines.List(context.Background(), "kip-dev")
	if err != nil {
		return err.Error()
	}
	for _, m := range machines.Instances {
		if m.Tags[cloud.TagName] == nodeName(i) {
			dir := filepath.Join(s.path("nodes"), "machines", m.ID)
			return Tail(filepath.Join(dir, "console.log"), 10) + "\n" + Tail(filepath.Join(dir, "upper/var/log/kubelet.log"), 10)
		}
	}
	return "it has ended"
}

// stopNodes ends the ordinary nodes and removes their machines.
func (s *nodes) stopNodes(ctx context.Context) error {
	if s.machines != nil {
		if err := s.machines.Close(); err != nil {
			return err
		}
		s.machines = nil
	}
	if _, err := os.Stat(s.path("nodes")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return local.Destroy(ctx, s.nodesCloud())
}

const (
	// nodeInit is the first process of an ordinary node's machine, in its root.
	nodeInit = "bin/kip-node"
	// podBits is the size of a node's part of the network: 254 pods, of which the
	// kubelet takes 110.
	podBits = 24
	// nodeDisk is how large a node's disk seems, in bytes; it takes up what is
	// written.
	nodeDisk = 32 << 30
	// nodeMemory is the most that a node gets, in bytes; it is a limit, which is
	// not set aside.
	nodeMemory = 8 << 30
)
