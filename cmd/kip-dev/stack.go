package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/elotl/kip/dev/cluster"
	"github.com/elotl/kip/dev/run"
	"github.com/elotl/kip/dev/stack"
)

// place are the flags that say where on this machine a stack is. Two with
// different state folders, bridges and CIDRs can run side by side.
type place struct {
	state, bin, kip, cellRoot, bridge, cidr, serviceCIDR, node, auditLog, defaultType, cloud string
	chart, emulated, ipv6CIDR, serviceIPv6CIDR                                               string
	approver                                                                                 string
	kips, virtualNodes, nodes, cpus, gpus, tolerationSeconds                                 int
	noFsync, upstreamLimits, verbose, serviceProxy, masquerade, daemonSetMachines            bool
	kipArgs, zones, images                                                                   []string
	nodeGrace                                                                                time.Duration
}

func (p *place) add(fs *pflag.FlagSet) {
	fs.StringVar(&p.state, "state", ".kip",
		"`folder` for everything that is written; only logs and the root of the cells stay there after the end")
	fs.StringVar(&p.bin, "bin", "", "`folder` of the programs that `make build` builds; default: that of kip-dev")
	fs.StringVar(&p.kip, "kip", "", "Kip's `program`: another build of it; default: that in the folder of the programs")
	fs.StringVar(&p.cloud, "cloud", stack.CloudLocal,
		"`cloud` of the cells: local, qemu for virtual machines, or aws for a model of EC2 with local cells behind its instances")
	fs.StringVar(&p.cellRoot, "cell-root", "",
		"`folder` of the root that all cells start from, made where it is missing or outdated; default: cell-root in the state folder")
	fs.StringVar(&p.bridge, "bridge", "kip0", "network `device` that cells and the control plane are on")
	fs.StringVar(&p.cidr, "cidr", "10.110.0.0/16", "`addresses` on the bridge; the first is the control plane's")
	fs.StringVar(&p.serviceCIDR, "service-cidr", "10.96.0.0/16", "`addresses` of Services")
	fs.StringVar(&p.ipv6CIDR, "ipv6-cidr", "", "IPv6 `addresses` on the bridge, such as fd10:110::/64; the cluster is dual-stack then")
	fs.StringVar(&p.serviceIPv6CIDR, "service-ipv6-cidr", "fd10:96::/112", "IPv6 `addresses` of Services, where the cluster is dual-stack")
	fs.StringVar(&p.node, "node", "kip-0", "`name` of the virtual node; its rights are those of deploy/manifests/rights/rbac.yaml")
	fs.IntVar(&p.nodes, "nodes", 0, "`number` of ordinary nodes beside the virtual one: machines like cells with upstream's kubelet")
	fs.IntVar(&p.kips, "kips", 1, "how many Kips: the second has a node kip-1, and a bridge and a half of the addresses of its own")
	fs.IntVar(&p.virtualNodes, "virtual-nodes", 1, "how many virtual nodes each Kip has: the second is kip-0-1")
	fs.StringSliceVar(&p.zones, "zones", nil,
		"names of the local cloud's `zones`, such as a,b,c: each Kip has a virtual node for each of them, from kip-0-1 on, instead of kip-0")
	fs.BoolVar(&p.serviceProxy, "service-proxy", false,
		"run kube-proxy on this machine, so that NodePorts answer at the virtual nodes' addresses; it writes nftables rules that go at the end")
	fs.BoolVar(&p.daemonSetMachines, "daemonset-machines", false,
		"give the pods of all DaemonSets cells (cells.daemonSetMachines); else only to those that ask by annotation")
	fs.BoolVar(&p.masquerade, "masquerade", true,
		"let pods and cells reach the internet through this machine, from its address; adds nftables rules, and removes them at the end")
	fs.IntVar(&p.cpus, "cpus", 1000, "how many CPUs the scheduler may place on a virtual node")
	fs.IntVar(&p.gpus, "gpus", 0, "how many stand-ins for GPUs machines of the type medium-gpu have, of the local cloud; 0 for no such type")
	fs.StringVar(&p.defaultType, "default-type", "", "instance `type` of pods that ask for no resources; default: a small one")
	fs.StringArrayVar(&p.images, "images", nil,
		"`folder` with images for the registry: an OCI layout whose index names them; may be given several times: --chart takes Kip's from the first")
	fs.StringVar(&p.chart, "chart", "",
		"`folder` of Kip's Helm chart, by which it is installed as a pod of an ordinary node; with --cloud=aws, --nodes=1 and --images")
	fs.StringVar(&p.emulated, "emulated-version", "", "minor `version` of Kubernetes, such as 1.34, whose API the control plane serves")
	fs.BoolVar(&p.noFsync, "no-fsync", false, "etcd does not wait for the disk: for tests")
	fs.BoolVar(&p.upstreamLimits, "upstream-limits", false,
		"let the controller manager and the scheduler ask no more of the API server than by default: for benchmarks")
	fs.IntVar(&p.tolerationSeconds, "toleration-seconds", 0,
		"how many `seconds` pods that do not say stay on a node that is not heard of; 0 for upstream's default")
	fs.DurationVar(&p.nodeGrace, "node-grace", 0,
		"how long a node may be silent before it is taken to be unwell; 0 for upstream's default")
	fs.StringVar(&p.auditLog, "audit-log", "",
		"`file` to which the API server appends who asked it for what: for benchmarks; it stays after the end")
	fs.StringVar(&p.approver, "csr-approver", cluster.ApproverPerson,
		"`who` answers requests for certificates of kubelet ports: person approves those of Kip, gke denies those of nodes as GKE does, or none")
	fs.BoolVarP(&p.verbose, "verbose", "v", false, "log more")
	fs.StringArrayVar(&p.kipArgs, "kip-arg", nil, "further `argument` of Kip; may be given several times")
}

func (p *place) options(command string) (stack.Options, error) {
	cidr, err := netip.ParsePrefix(p.cidr)
	if err != nil {
		return stack.Options{}, fmt.Errorf("--cidr: %w; want a network such as 10.110.0.0/16", err)
	}
	serviceCIDR, err := netip.ParsePrefix(p.serviceCIDR)
	if err != nil {
		return stack.Options{}, fmt.Errorf("--service-cidr: %w; want a network such as 10.96.0.0/16", err)
	}
	var ipv6CIDR, serviceIPv6CIDR netip.Prefix
	if p.ipv6CIDR != "" {
		if ipv6CIDR, err = netip.ParsePrefix(p.ipv6CIDR); err != nil {
			return stack.Options{}, fmt.Errorf("--ipv6-cidr: %w; want a network such as fd10:110::/64", err)
		}
		if serviceIPv6CIDR, err = netip.ParsePrefix(p.serviceIPv6CIDR); err != nil {
			return stack.Options{}, fmt.Errorf("--service-ipv6-cidr: %w; want a network such as fd10:96::/112", err)
		}
	}
	bin := p.bin
	if bin == "" {
		self, err := os.Executable()
		if err != nil {
			return stack.Options{}, fmt.Errorf("find the folder of kip-dev: %w", err)
		}
		bin = filepath.Dir(self)
	}
	if err := cluster.CheckApprover(p.approver); err != nil {
		return stack.Options{}, fmt.Errorf("--csr-approver: %w", err)
	}
	root := p.cellRoot
	if root == "" {
		root = filepath.Join(p.state, "cell-root")
	}
	var level slog.Level = slog.LevelWarn
	if p.verbose {
		level = slog.LevelDebug
	}
	return stack.Options{
		State:           p.state,
		Bin:             bin,
		Kip:             p.kip,
		Cloud:           p.cloud,
		CellRoot:        root,
		Bridge:          p.bridge,
		CIDR:            cidr,
		ServiceCIDR:     serviceCIDR,
		IPv6CIDR:        ipv6CIDR,
		ServiceIPv6CIDR: serviceIPv6CIDR,
		Node:            p.node,
		Kips:            p.kips,
		VirtualNodes:    p.virtualNodes,
		Zones:           p.zones,
		Nodes:           p.nodes,
		CPUs:            p.cpus,
		GPUs:            p.gpus,
		Masquerade:      p.masquerade,
		ServiceProxy:    p.serviceProxy,
		DefaultType:     p.defaultType,
		Images:          p.images,
		Chart:           p.chart,
		NoFsync:         p.noFsync,
		EmulatedVersion: p.emulated,
		UpstreamLimits:  p.upstreamLimits,
		AuditLog:        p.auditLog,
		Approver:        p.approver,
		Verbose:         p.verbose,
		KipArgs:         p.kipArgs,
		Command:         command,
		Log:             slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),

		DaemonSetMachines: p.daemonSetMachines,
		TolerationSeconds: p.tolerationSeconds,
		NodeGrace:         p.nodeGrace,
	}, nil
}

func runCommand() *cobra.Command {
	var p place
	var once bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Start everything, run examples/hello.yaml on a cell, and stay up until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := p.options("make run")
			if err != nil {
				return err
			}
			return run.Example(cmd.Context(), run.Options{Stack: o, Once: once, Out: cmd.OutOrStdout()})
		},
	}
	p.add(cmd.Flags())
	cmd.Flags().BoolVar(&once, "once", false, "end after the example, with exit status 0 only if it succeeded and nothing is left")
	return cmd
}

func upCommand() *cobra.Command {
	var p place
	var noKip bool
	var ready string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start everything but the example, for tests and benchmarks",
		Long: `Start the control plane, the registry and Kip, print a line that begins with
READY, and stay up until SIGTERM or Ctrl-C.

SIGUSR1 kills Kip as a crash would; SIGUSR2 starts it again. While Kip runs, the
file kip.json in the state folder names its process.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := p.options("kip-dev up")
			if err != nil {
				return err
			}
			kill, start := make(chan os.Signal, 1), make(chan os.Signal, 1)
			signal.Notify(kill, syscall.SIGUSR1)
			signal.Notify(start, syscall.SIGUSR2)
			defer signal.Stop(kill)
			defer signal.Stop(start)
			return run.Up(cmd.Context(), run.UpOptions{
				Stack:     o,
				NoKip:     noKip,
				ReadyFile: ready,
				Out:       cmd.OutOrStdout(),
				Kill:      kill,
				StartKip:  start,
			})
		},
	}
	p.add(cmd.Flags())
	cmd.Flags().BoolVar(&noKip, "no-kip", false, "do not start Kip, until SIGUSR2")
	cmd.Flags().StringVar(&ready, "ready-file", "", "`file` that gets the READY line when everything is up")
	return cmd
}

func clusterCommand() *cobra.Command {
	var p place
	var ready string
	var eks bool
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Start only the control plane, with its DNS, and stay up until SIGTERM or Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := p.options("kip-dev cluster")
			if err != nil {
				return err
			}
			o.EKS = eks
			return run.Up(cmd.Context(), run.UpOptions{
				Stack:       o,
				ClusterOnly: true,
				ReadyFile:   ready,
				Out:         cmd.OutOrStdout(),
			})
		},
	}
	p.add(cmd.Flags())
	cmd.Flags().StringVar(&ready, "ready-file", "", "`file` that gets the READY line when everything is up")
	cmd.Flags().BoolVar(&eks, "eks", false,
		"start a model of EC2, too, that shows the cluster as one of Amazon EKS in an empty account; with --cloud=aws, --nodes=1 and --images")
	return cmd
}

func cleanCommand() *cobra.Command {
	var p place
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "End and remove what a killed run left on this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := p.options("kip-dev clean")
			if err != nil {
				return err
			}
			return run.Clean(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	p.add(cmd.Flags())
	return cmd
}
