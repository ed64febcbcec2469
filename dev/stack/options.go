package stack

import (
	"log/slog"
	"net/netip"
	"time"
)

// Options say where a stack is and what it is made of.
type Options struct {
	State        string       // folder for everything that is written
	Bin          string       // folder of the programs
	Kip          string       // Kip's program; that in Bin when empty
	Cloud        string       // of the cells, one of Clouds; CloudLocal when empty
	CellRoot     string       // the cells' root; made where it is missing or outdated
	Bridge       string       // network device
	CIDR         netip.Prefix // its addresses; the first is the host's
	ServiceCIDR  netip.Prefix
	Node         string   // name of the virtual node
	Nodes        int      // how many ordinary nodes there are beside it
	Kips         int      // how many Kips; those after the first have nodes, bridges and parts of CIDR of their own
	VirtualNodes int      // how many virtual nodes each Kip has; 0 for one
	Zones        []string // of this host's cloud, each with a virtual node; one when empty, with what VirtualNodes says
	CPUs         int      // what the scheduler may place on a virtual node
	GPUs         int      // stand-ins of a machine of the local cloud's type with GPUs; 0 for no such type
	Masquerade   bool     // cells and pods reach the internet by this machine, if it does
	ServiceProxy bool     // kube-proxy runs on this machine, for NodePorts at the virtual nodes' addresses
	DefaultType  string   // instance type of pods that ask for nothing; a small one when empty
	Images       []string // folders with images for the registry, OCI layouts
	NoFsync      bool     // etcd does not wait for the disk
	// EmulatedVersion is the minor version of Kubernetes whose API the control plane serves; its own when empty.
	EmulatedVersion string
	// Chart is the folder of Kip's Helm chart. Kip then runs as a pod of the first ordinary node, with exactly the chart's rights;
	// the first of Images has its image. Empty for a Kip that is a process of this machine.
	Chart string
	// EKS has the model of EC2 show this cluster as one of Amazon EKS, in an account that has nothing else: no boot image, and no security
	// group but the cluster's. No Kip is started.
	EKS bool
	// UpstreamLimits: the cluster's components may ask no more than by default.
	UpstreamLimits bool
	// DaemonSetMachines: pods of DaemonSets get cells without asking.
	DaemonSetMachines bool
	// TolerationSeconds: for how long pods stay on a node that is not heard of; 0 for
	// upstream's default.
	TolerationSeconds int
	// NodeGrace: how long a node may be silent before it is taken to be unwell; 0 for
	// upstream's default.
	NodeGrace time.Duration
	AuditLog  string   // file for who asked the API server for what; none when empty
	Approver  string   // who answers requests for certificates of kubelet ports, one of cluster.Approvers; a person when empty
	Verbose   bool     // Kip logs everything
	KipArgs   []string // further arguments of Kip
	Command   string   // what the user typed, for whoever meets the lock
	Log       *slog.Logger

	// IPv6CIDR are the bridge's IPv6 addresses, ServiceIPv6CIDR those of Services:
	// both where the cluster is dual-stack, else none. Ordinary nodes have IPv4 only.
	IPv6CIDR, ServiceIPv6CIDR netip.Prefix
}
