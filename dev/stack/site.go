package stack

import (
	"cmp"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/elotl/kip/dev/cluster"
	"github.com/elotl/kip/internal/cloud/local"
)

// site is where a stack is, and what it is made of.
type site struct {
	opts    Options
	kips    []*kip
	address netip.Addr // this machine's on the bridge of the first Kip
}

func (s *site) path(name string) string { return filepath.Join(s.opts.State, name) }

// cloud is what the first Kip's local cloud keeps, seen from outside of Kip.
func (s *site) cloud() local.Config { return s.opts.cloudOf(s.kips[0]) }

// Address is this machine's address on the bridge.
func (s *site) Address() netip.Addr { return s.address }

// KipLog is the path of Kip's log, which holds the last run's when Kip has not
// been started yet.
func (s *site) KipLog() string { return s.path("kip.log") }

// KipRecord is the path of the file that names Kip's process while it runs:
// {"pid": …, "start": …}.
func (s *site) KipRecord() string { return s.path("kip.json") }

// FirstNode is the first virtual node of the first Kip.
func (s *site) FirstNode() string { return s.opts.nodeNames(s.kips[0])[0] }

// virtual reports whether a node is one of a Kip's.
func (s *site) virtual(node string) bool {
	return slices.ContainsFunc(s.kips, func(k *kip) bool { return slices.Contains(s.opts.nodeNames(k), node) })
}

// Approves reports whether this process approves the certificates of kubelet ports.
func (s *site) Approves() bool {
	return cmp.Or(s.opts.Approver, cluster.ApproverPerson) == cluster.ApproverPerson
}

// peerLog is the path of the log of a Kip after the first. It outlives the run.
func (s *site) peerLog(node string) string { return s.path(node + ".kip.log") }

// peers are the further virtual nodes and the addresses of their kubelet ports.
func (s *site) peers() map[string]netip.Addr {
	peers := map[string]netip.Addr{}
	for _, k := range s.kips[1:] {
		peers[k.node] = k.address
	}
	return peers
}

func (s *site) bridges() (all []string) {
	for _, k := range s.kips {
		all = append(all, k.bridge)
	}
	return all
}
