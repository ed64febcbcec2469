package stack

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/nodeplan"
)

// kip is one Kip of a stack: a virtual node with a state folder and a local cloud
// of its own. The first has the stack's own folder, the others folders in it.
type kip struct {
	node   string
	dir    string
	bridge string
	cidr   netip.Prefix
	// address is this machine's on the bridge: where its kubelet port is.
	address netip.Addr
	// ipv6 are the bridge's IPv6 addresses, if there are any, the first this machine's.
	ipv6    netip.Prefix
	process *child.Process
}

func (k *kip) path(name string) string { return filepath.Join(k.dir, name) }

// plan says where each of n Kips is. They share the stack's network in equal
// parts; one alone has all of it.
func plan(o Options) ([]*kip, error) {
	if o.Kips < 1 || o.Kips > 9 {
		return nil, fmt.Errorf("--kips is %d: it must be from 1 to 9", o.Kips)
	}
	if o.VirtualNodes < 0 || o.VirtualNodes > config.MaxNodes {
		return nil, fmt.Errorf("--virtual-nodes is %d: it must be from 1 to %d", o.VirtualNodes, config.MaxNodes)
	}
	if err := o.checkZones(); err != nil {
		return nil, err
	}
	if o.GPUs < 0 || o.GPUs > sizes.MostGPUs || o.GPUs > 0 && cmp.Or(o.Cloud, CloudLocal) != CloudLocal {
		return nil, fmt.Errorf("--gpus is %d: it must be from 0 to %d, and 0 with another cloud than %s", o.GPUs, sizes.MostGPUs, CloudLocal)
	}
	parts := bits.Len(uint(o.Kips - 1)) // so many bits number them
	if o.CIDR.Bits()+parts > 28 {
		return nil, fmt.Errorf("--cidr %s is too small for %d Kips: each needs a /28 of it", o.CIDR, o.Kips)
	}
	var kips []*kip
	for i := range o.Kips {
		k := &kip{
			node:   o.Node,
			dir:    o.State,
			bridge: o.Bridge,
			cidr:   part(o.CIDR, parts, i),
			ipv6:   o.IPv6CIDR,
		}
		if i > 0 {
			k.node = strings.TrimSuffix(o.Node, "-0") + "-" + strconv.Itoa(i)
			k.dir = filepath.Join(o.State, peersFolder, k.node)
			k.bridge += "-" + strconv.Itoa(i)
		}
		var err error
		if k.address, err = o.cloudOf(k).Gateway(); err != nil {
			return nil, err
		}
		kips = append(kips, k)
	}
	return kips, nil
}

// nodeLabel tells apart virtual nodes that offer the same.
const nodeLabel = "kip-dev/virtual-node"

// checkZones says whether each Kip can have a virtual node for each zone.
func (o Options) checkZones() error {
	zones := slices.Clone(o.Zones)
	slices.Sort(zones)
	switch all := strings.Join(o.Zones, ","); {
	case len(zones) == 0:
		return nil
	case o.EC2():
		return fmt.Errorf("--zones is %q: the model of EC2 has its own zones", all)
	case o.VirtualNodes > 1:
		return fmt.Errorf("--zones is %q and --virtual-nodes is %d: want one of them; each zone has a virtual node", all, o.VirtualNodes)
	case zones[0] == "" || len(slices.Compact(zones)) < len(o.Zones):
		return fmt.Errorf("--zones is %q: want names that differ, such as a,b,c", all)
	}
	return nil
}

// virtualNodes are those of a Kip as provider.yaml lists them; nil for the one that there
// is without a list. There is one for each zone, or they offer the same.
func (o Options) virtualNodes() (list []map[string]any) {
	for i, zone := range o.Zones {
		list = append(list, map[string]any{"suffix": i + 1, "zones": []string{zone}})
	}
	if list != nil {
		return list
	}
	if o.VirtualNodes < 2 {
		return nil
	}
	for i := range o.VirtualNodes {
		list = append(list, map[string]any{"suffix": i, "labels": map[string]any{nodeLabel: strconv.Itoa(i)}})
	}
	return list
}

// nodeNames are the names of a Kip's virtual nodes.
func (o Options) nodeNames(k *kip) []string {
	var names []string
	first, last := 0, max(o.VirtualNodes-1, 0)
	if len(o.Zones) > 0 {
		first, last = 1, len(o.Zones)
	}
	for number := first; number <= last; number++ {
		names = append(names, nodeplan.Name(k.node, number))
	}
	return names
}

// nodeIP is the value of Kip's flag of that name.
func (k *kip) nodeIP() string {
	if k.ipv6.IsValid() {
		return k.address.String() + "," + k.ipv6.Masked().Addr().Next().String()
	}
	return k.address.String()
}

// checkIPv6 says whether a dual-stack cluster can be had.
func (o Options) checkIPv6() error {
	switch {
	case o.IPv6CIDR.IsValid() != o.ServiceIPv6CIDR.IsValid():
		return fmt.Errorf("--ipv6-cidr is %q and --service-ipv6-cidr is %q: want both, or none", o.IPv6CIDR, o.ServiceIPv6CIDR)
	case !o.IPv6CIDR.IsValid():
		return nil
	case o.Kips > 1:
		return fmt.Errorf("--ipv6-cidr is %s and --kips is %d: want one Kip; several share no IPv6 network", o.IPv6CIDR, o.Kips)
	case !o.ServiceIPv6CIDR.Addr().Is6():
		return fmt.Errorf("--service-ipv6-cidr is %s: want an IPv6 network such as fd10:96::/112", o.ServiceIPv6CIDR)
	case o.IPv6CIDR.Overlaps(o.ServiceIPv6CIDR):
		return fmt.Errorf("the cells' network %s and the Services' %s overlap: choose others with --ipv6-cidr or --service-ipv6-cidr",
			o.IPv6CIDR, o.ServiceIPv6CIDR)
	}
	return nil
}

// part is the i-th of the 2^n equal parts of an IPv4 network.
func part(p netip.Prefix, n, i int) netip.Prefix {
	b := p.Masked().Addr().As4()
	address := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	address += uint32(i) << (32 - p.Bits() - n)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(address >> 24), byte(address >> 16), byte(address >> 8), byte(address)}), p.Bits()+n)
}

// cloudOf is what a Kip's local cloud keeps, seen from outside of Kip.
func (o Options) cloudOf(k *kip) local.Config {
	return local.Config{Config: host.Config{
		StateDir: k.path("cloud"),
		Bridge:   k.bridge,
		CIDR:     k.cidr,
		IPv6CIDR: k.ipv6,
		Log:      o.Log,
	}}
}
