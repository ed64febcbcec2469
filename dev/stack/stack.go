package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/dev/cloudmodel/hardware"
	"github.com/elotl/kip/dev/cluster"
	"github.com/elotl/kip/dev/dns"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/dev/leftovers"
	"github.com/elotl/kip/dev/listen"
	"github.com/elotl/kip/dev/registry"
	"github.com/elotl/kip/image"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/qemu"
	kipnode "github.com/elotl/kip/internal/node"
)

// registryPort is preferred; another is taken when it is not free.
const registryPort = 5000

// markVariable is in the environment of all that a stack starts, with the state
// folder as its value, so that what is left of it is found.
const markVariable = "KIP_DEV_STATE"

// ExampleImage is what the registry has, under the name that it has on docker.io.
const ExampleImage = "library/busybox:1.36"

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

// Stack is what runs, or is left, in one state folder.
type Stack struct {
	opts    Options
	lock    *Lock
	address netip.Addr
	nodes   *local.Cloud // of ordinary nodes; nil when there are none
	proxy   *child.Process
	example v1.Image      // that under ExampleImage
	ec2     *machines.EC2 // nil on the local cloud
	kips    []*kip        // Kip, below, is the process of the first
	ready   bool          // all Kips were up once, so that they can end well

	Cluster  *cluster.Cluster
	DNS      *dns.Server
	Registry *registry.Registry
	Kip      *child.Process
}

// HostError says what this machine lacks.
type HostError struct{ Problems []Problem }

func (e *HostError) Error() string {
	lines := []string{"this machine cannot run cells:"}
	for _, p := range e.Problems {
		lines = append(lines, "  - "+p.String())
	}
	return strings.Join(lines, "\n")
}

// Open claims the state folder. It fails with *HeldError when another
// process has it, and with *HostError when this machine lacks something.
func Open(o Options) (*Stack, error) {
	paths := []*string{&o.State, &o.Bin, &o.CellRoot}
	for _, p := range []*string{&o.AuditLog, &o.Kip, &o.Chart} {
		if *p != "" {
			paths = append(paths, p)
		}
	}
	o.Images = slices.Clone(o.Images)
	for i := range o.Images {
		paths = append(paths, &o.Images[i])
	}
	for _, p := range paths {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return nil, fmt.Errorf("folder %s: %w", *p, err)
		}
		*p = abs
	}
	if problems := checkHost(o.State); len(problems) > 0 {
		return nil, &HostError{Problems: problems}
	}
	if o.CIDR.Overlaps(o.ServiceCIDR) {
		return nil, fmt.Errorf("the cells' network %s and the Services' %s overlap: choose others with --cidr or --service-cidr", o.CIDR,
			o.ServiceCIDR)
	}
	if o.EKS {
		o.CellRoot = filepath.Join(filepath.Dir(o.CellRoot), "eks-"+filepath.Base(o.CellRoot)) // which gets a file of its own
	}
	if err := o.checkIPv6(); err != nil {
		return nil, err
	}
	if err := o.checkCloud(); err != nil {
		return nil, err
	}
	kips, err := plan(o)
	if err != nil {
		return nil, err
	}
	s := &Stack{opts: o, kips: kips, address: kips[0].address}
	if o.Nodes < 0 {
		return nil, fmt.Errorf("--nodes %d: want the number of ordinary nodes, from 0", o.Nodes)
	}
	if o.Nodes > 0 {
		if _, err := podCIDR(s.nodesCloud(), o.Nodes-1); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	s.lock, err = acquire(s.path("lock"), Holder{PID: os.Getpid(), Command: o.Command, Since: time.Now()})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Stack) path(name string) string { return filepath.Join(s.opts.State, name) }

// cloud is what the first Kip's local cloud keeps, seen from outside of Kip.
func (s *Stack) cloud() local.Config { return s.opts.cloudOf(s.kips[0]) }

// Address is this machine's address on the bridge.
func (s *Stack) Address() netip.Addr { return s.address }

// KipLog is the path of Kip's log, which holds the last run's when Kip has not
// been started yet.
func (s *Stack) KipLog() string { return s.path("kip.log") }

// KipRecord is the path of the file that names Kip's process while it runs:
// {"pid": …, "start": …}.
func (s *Stack) KipRecord() string { return s.path("kip.json") }

// thrownAway is what goes from the state folder with a run. What helps to
// understand it (the logs) and what makes the next one faster (the cells' root)
// stays; what others put there is not ours to remove.
var thrownAway = []string{
	"pki", "etcd", "registry", "kip", "cloud", "ami", "nodes", "kip.json", "provider.yaml", peersFolder,
	"values.yaml", "helm",
	"Corefile", "coredns.json", "coredns.kubeconfig", "kubeconfig", "kip.kubeconfig", "controller-manager.kubeconfig", "scheduler.kubeconfig",
}

// Clean ends and removes what an earlier run left, however it ended. It says
// what there was.
func (s *Stack) Clean(ctx context.Context) ([]string, error) {
	found, err := s.Leftovers(ctx)
	if err != nil {
		return nil, err
	}
	for _, record := range []string{s.KipRecord(), s.path("coredns.json")} {
		if err := child.KillRecorded(ctx, record); err != nil {
			return found, fmt.Errorf("clean up after an earlier run: %w", err)
		}
	}
	if err := errors.Join(s.stopMasquerade(ctx), s.stopProxy(ctx), s.stopNodes(ctx), hardware.Unplug(s.opts.Bridge)); err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	if err := errors.Join(s.killPeers(ctx), s.destroyClouds(ctx)); err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	if err := s.removeState(); err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	logs, err := filepath.Glob(s.peerLog("*"))
	if err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	for _, log := range append(logs, s.KipLog(), s.DNSLog(), s.ProxyLog(), s.path("control-plane.log")) {
		if err := os.Remove(log); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, fmt.Errorf("remove an earlier run's log: %w", err)
		}
	}
	left, err := s.Leftovers(ctx)
	if err == nil && len(left) > 0 {
		err = &leftovers.Error{Left: left}
	}
	if err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	return found, nil
}

// destroyClouds ends and removes all machines and bridges.
func (s *Stack) destroyClouds(ctx context.Context) error {
	clouds, err := s.peerClouds()
	errs := []error{err}
	for _, c := range append(clouds, s.cloud()) {
		// An earlier run may have had another cloud in the same folder.
		errs = append(errs, qemu.Destroy(ctx, qemu.Config{Config: c.Config}), local.Destroy(ctx, c))
	}
	return errors.Join(errs...)
}

func (s *Stack) removeState() error {
	for _, name := range thrownAway {
		if err := os.RemoveAll(s.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// StartCluster makes the bridge and starts the control plane on it, with its DNS.
func (s *Stack) StartCluster(ctx context.Context) error {
	if err := s.makeBridges(ctx); err != nil {
		return err
	}
	s.startMasquerade(ctx)
	clusterIP, err := dns.ClusterIP(s.opts.ServiceCIDR)
	if err != nil {
		return err
	}
	var upstream []netip.AddrPort
	var upstreamErr error
	var asked sync.WaitGroup
	asked.Go(func() { upstream, upstreamErr = dns.Upstream(ctx, s.address, clusterIP) })
	s.Cluster, err = cluster.Start(ctx, cluster.Options{
		StateDir:          s.opts.State,
		Address:           s.address,
		ServiceCIDR:       s.opts.ServiceCIDR,
		ServiceIPv6CIDR:   s.opts.ServiceIPv6CIDR,
		NoFsync:           s.opts.NoFsync,
		UpstreamLimits:    s.opts.UpstreamLimits,
		TolerationSeconds: s.opts.TolerationSeconds,
		NodeGrace:         s.opts.NodeGrace,
		NodeName:          s.opts.Node,
		WithoutKip:        s.opts.kipIsPod(),
		EmulatedVersion:   s.opts.EmulatedVersion,
		Peers:             s.peers(),
		AuditLog:          s.opts.AuditLog,
		Approver:          s.opts.Approver,
		Log:               s.opts.Log,
	})
	asked.Wait()
	if err := errors.Join(err, upstreamErr); err != nil {
		return err
	}
	return s.startDNS(ctx, clusterIP, upstream)
}

// StartRegistry starts the registry on the bridge and pushes the example image and
// those of Options.Images.
func (s *Stack) StartRegistry(ctx context.Context) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("find busybox: %w", err)
	}
	if s.example, err = registry.Busybox(ctx, busybox); err != nil {
		return err
	}
	l, err := listen.On(ctx, s.address, registryPort)
	if err != nil {
		return fmt.Errorf("start the registry: %w", err)
	}
	if s.Registry, err = registry.Start(l, s.path("registry"), s.opts.Log); err != nil {
		return err
	}
	if err := s.Registry.Push(ctx, ExampleImage, s.example); err != nil {
		return err
	}
	for _, folder := range s.opts.Images {
		if err := s.Registry.PushLayout(ctx, folder); err != nil {
			return err
		}
	}
	return nil
}

// BuildCellRoot makes the tree that all cells start from, where it is missing
// or made of other programs. Virtual machines have theirs in their image.
func (s *Stack) BuildCellRoot(ctx context.Context) error {
	if s.opts.Virtual() {
		return nil
	}
	o, err := s.rootOptions()
	if err != nil {
		return err
	}
	return image.Build(ctx, o)
}

// rootOptions are what a cell's root is made of.
func (s *Stack) rootOptions() (image.Options, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return image.Options{}, fmt.Errorf("find busybox: %w", err)
	}
	programs, err := image.HostPrograms()
	if err != nil {
		return image.Options{}, err
	}
	certificates := image.HostCertificates
	if _, err := os.Stat(certificates); errors.Is(err, fs.ErrNotExist) {
		certificates = "" // the cells then pull from our registry only
	}
	bin := func(name string) string { return filepath.Join(s.opts.Bin, name) }
	programs[image.Portmap] = bin("portmap")
	return image.Options{
		Dir:            s.opts.CellRoot,
		Itzo:           bin("itzo"),
		ItzoContainerd: bin("itzo-containerd"),
		ItzoLite:       bin("itzo-lite"),
		Runc:           bin("runc"),
		Pause:          bin("pause"),
		Busybox:        busybox,
		Certificates:   certificates,
		Programs:       programs,
	}, nil
}

// providerConfig is the provider.yaml of a Kip, as keys.
func (s *Stack) providerConfig(k *kip) map[string]any {
	mirror := []string{"http://" + s.Registry.Address()}
	mirrors := map[string]any{"docker.io": mirror, "_default": mirror}
	cloud := map[string]any{
		"stateDir": k.path("cloud"), "bridge": k.bridge, "cidr": k.cidr.String(),
		"nameservers": []string{s.address.String()}, // CoreDNS
	}
	if k.ipv6.IsValid() {
		cloud["ipv6CIDR"] = k.ipv6.String()
	}
	if len(s.opts.Zones) > 0 {
		cloud["zones"] = s.opts.Zones
	}
	cells := map[string]any{
		"defaultInstanceType": cmp.Or(s.opts.DefaultType, "small"),
		// On one machine one break is that of many cells, and tests break them on purpose.
		"endLimit": map[string]any{"least": 100},
		// What pods may ask for is granted by the policies of deploy/.
		"grants":          map[string]any{"unrestricted": true},
		"registryMirrors": mirrors,
	}
	name := CloudLocal
	switch s.opts.Cloud {
	case CloudQEMU:
		name, cloud["image"] = CloudQEMU, s.opts.bootImage()
	default:
		cloud["rootDir"] = s.opts.CellRoot
		if s.opts.GPUs > 0 {
			cloud["gpus"] = s.opts.GPUs
		}
	}
	if s.opts.DaemonSetMachines {
		cells["daemonSetMachines"] = true
	}
	if s.ec2 != nil {
		name, cloud = CloudAWS, s.awsConfig()
		mirrors[machines.Registry()] = []string{s.ec2.PodsURL()}
		cells["defaultInstanceType"] = cmp.Or(s.opts.DefaultType, machines.Types()[0].Name)
		cells["bootImageSpec"] = map[string]any{"name": machines.Image}
		if s.opts.Virtual() {
			cells["bootImageSpec"] = map[string]any{"name": "kip-cell-" + runtime.GOARCH + "-*"}
		}
	}
	// More than any test asks for: what fits is for placement to say, not for the scheduler.
	capacity := map[string]any{"cpu": s.opts.CPUs, "memory": "4Ti", "pods": "1000"}
	if s.opts.GPUs > 0 {
		capacity["nvidia.com/gpu"] = s.opts.CPUs
	}
	config := map[string]any{
		"apiVersion": "v1",
		"kind":       "serverConfig",
		"cloud":      map[string]any{name: cloud},
		"etcd":       map[string]any{"internal": map[string]any{"dataDir": k.path("kip")}},
		"cells":      cells,
		"kubelet":    map[string]any{"capacity": capacity},
		// The API server verifies kubelets, as most do.
		"servingCertificate": map[string]any{"signerName": certificatesv1.KubeletServingSignerName},
	}
	if nodes := s.opts.virtualNodes(); nodes != nil {
		config["nodes"] = nodes
	}
	return config
}

// WriteProviderConfig writes the provider.yaml of the first Kip and returns its
// path; a test may change it before Kip is started again.
func (s *Stack) WriteProviderConfig() (string, error) {
	return s.kips[0].path("provider.yaml"), s.writeProviderConfig(s.kips[0])
}

func (s *Stack) writeProviderConfig(k *kip) error {
	data, err := yaml.Marshal(s.providerConfig(k))
	if err != nil {
		return fmt.Errorf("make provider.yaml of %s: %w", k.node, err)
	}
	data = append([]byte("# Written by kip-dev, for this run.\n"), data...)
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", k.node, err)
	}
	if err := os.WriteFile(k.path("provider.yaml"), data, 0o600); err != nil {
		return fmt.Errorf("write provider.yaml: %w", err)
	}
	return nil
}

// command is how a Kip is run in this stack: its path and arguments, and what
// its environment has besides.
func (s *Stack) command(k *kip) (path string, args, env []string) {
	args = []string{
		"--kubeconfig=" + s.Cluster.KipKubeconfig(),
		"--provider-config=" + k.path("provider.yaml"),
		"--nodename=" + k.node,
		"--node-ip=" + k.nodeIP(),
		"--metrics-addr=" + net.JoinHostPort(k.address.String(), "10255"),
	}
	env = []string{markVariable + "=" + s.opts.State}
	if s.ec2 != nil {
		env = append(env, awsEnvironment...)
	}
	if s.opts.Nodes == 0 {
		args = append(args, "--disable-taint")
	} else {
		// Pods that do not choose go to ordinary nodes; those that choose Kip
		// need no toleration, with ordinary nodes or without.
		env = append(env, kipnode.TaintEffectEnv+"="+string(corev1.TaintEffectPreferNoSchedule))
	}
	if s.opts.Verbose {
		args = append(args, "--v=1")
	}
	args = append(args, s.opts.KipArgs...)
	return cmp.Or(s.opts.Kip, filepath.Join(s.opts.Bin, "kip")), args, env
}

// StartKip starts the first Kip. It can be called again when that has ended.
func (s *Stack) StartKip() error {
	path, args, env := s.command(s.kips[0])
	var err error
	s.Kip, err = child.Start(child.Spec{
		Path:    path,
		Args:    args,
		Env:     env,
		LogFile: s.KipLog(),
		Record:  s.KipRecord(),
	})
	return err
}

// NodeReady waits until the virtual nodes of all Kips are Ready and take pods, or
// a Kip ends.
func (s *Stack) NodeReady(ctx context.Context) error {
	for _, k := range s.kips {
		process := k.process
		if k == s.kips[0] {
			process = s.Kip
		}
		for _, name := range s.opts.nodeNames(k) {
			if err := s.nodeReady(ctx, name, process); err != nil {
				return err
			}
		}
	}
	s.ready = true
	return nil
}

// nodeReady waits until a node is Ready and takes pods, or the Kip that has it
// ends, which is nil for an ordinary node.
func (s *Stack) nodeReady(ctx context.Context, name string, kip *child.Process) error {
	var ended <-chan struct{}
	if kip != nil {
		ended = kip.Done()
	}
	client, err := kubernetes.NewForConfig(s.Cluster.AdminConfig())
	if err != nil {
		return err
	}
	state := "there is no such node"
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("kip ended: %w", endOf(kip))
		case err := <-s.Cluster.Failed():
			return false, err
		default:
		}
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			if !apierrors.IsNotFound(err) {
				state = err.Error()
			}
			return false, nil
		}
		var ready bool
		ready, state = takesPods(node)
		if ready && (kip != nil || s.virtual(name)) && s.Approves() {
			// As kubectl logs, which fails until the API server can verify the kubelet port.
			_, err = client.CoreV1().RESTClient().Get().Resource("nodes").Name(name).SubResource("proxy").Suffix("healthz").DoRaw(ctx)
			if err != nil {
				ready, state = false, "its kubelet port: "+err.Error()
			}
		}
		return ready, nil
	})
	if err != nil {
		return fmt.Errorf("wait for node %s (%s): %w", name, state, err)
	}
	return nil
}

// Approves reports whether this process approves the certificates of kubelet ports.
func (s *Stack) Approves() bool {
	return cmp.Or(s.opts.Approver, cluster.ApproverPerson) == cluster.ApproverPerson
}

// KillKip ends the first Kip as a crash would, if it runs. That it had died by
// itself a moment before is an error.
func (s *Stack) KillKip() error {
	if s.Kip == nil {
		return nil
	}
	err := errors.Join(s.Kip.Kill(), unasked(s.kips[0].node, s.Kip))
	s.Kip = nil
	return err
}

// unasked says that a Kip has ended otherwise than as it was asked to.
func unasked(node string, p *child.Process) error {
	if err := p.Unasked(); err != nil {
		return fmt.Errorf("kip of node %s did not end as it was asked to: %w", node, err)
	}
	return nil
}

func endOf(p *child.Process) error {
	if err := p.Err(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// Failed waits until a part ends that nobody stopped, and says which. It
// returns nil when ctx ends first.
func (s *Stack) Failed(ctx context.Context) error {
	var kip <-chan struct{}
	if s.Kip != nil {
		kip = s.Kip.Done()
	}
	var registry <-chan error
	if s.Registry != nil {
		registry = s.Registry.Failed()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var proxy <-chan struct{}
	if s.proxy != nil {
		proxy = s.proxy.Done()
	}
	var ec2 <-chan error
	if s.ec2 != nil {
		ec2 = s.ec2.Failed()
	}
	peer := make(chan error, 1)
	go func() { peer <- s.peerEnded(ctx) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.Cluster.Failed():
		return err
	case <-s.DNS.Done():
		return s.DNS.End()
	case err := <-registry:
		return err
	case err := <-ec2:
		return err
	case err := <-peer:
		return err
	case <-proxy:
		return fmt.Errorf("kube-proxy ended: %w; its last words:\n%s", endOf(s.proxy), Tail(s.ProxyLog(), 5))
	case <-kip:
		return fmt.Errorf("kip ended: %w", endOf(s.Kip))
	}
}

// Stop ends everything in order and removes it, with all of the state folder that
// a later run does not use. It is for a stack that was started in
// part too, and can be called twice.
func (s *Stack) Stop(ctx context.Context) error {
	var errs []error
	if s.Kip != nil {
		errs = append(errs, s.Kip.Stop(ctx))
		if s.ready {
			errs = append(errs, unasked(s.kips[0].node, s.Kip))
		}
	}
	errs = append(errs, s.stopNodes(ctx), s.stopPeers(ctx), s.stopProxy(ctx))
	if s.ec2 != nil {
		errs = append(errs, s.ec2.Close())
		s.ec2 = nil
	}
	// The machines go once Kip cannot launch more, and while the bridge is
	// still used: it goes with them in the end.
	if s.Registry != nil {
		errs = append(errs, s.Registry.Stop())
	}
	if s.DNS != nil {
		errs = append(errs, s.DNS.Stop(ctx))
	}
	if s.Cluster != nil {
		errs = append(errs, s.Cluster.Stop(ctx))
	}
	errs = append(errs, s.stopMasquerade(ctx), s.destroyClouds(ctx))
	if err := s.removeState(); err != nil {
		errs = append(errs, fmt.Errorf("empty the state folder: %w", err))
	}
	s.Kip, s.Registry, s.DNS, s.Cluster = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Close gives the state folder up.
func (s *Stack) Close() error { return s.lock.Release() }

// Leftovers names what is on this machine of a stack in this folder, when none
// should run: processes, cgroups, network devices, mounts.
func (s *Stack) Leftovers(ctx context.Context) ([]string, error) {
	clouds, err := s.peerClouds()
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	found, err := s.proxyLeftovers(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	masquerades, err := s.masqueradeLeftovers()
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	found = append(found, masquerades...)
	rules, err := hardware.Plugged(s.opts.Bridge)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	for _, r := range rules {
		found = append(found, fmt.Sprintf("routing rule %d of bridge %s", r.Priority, r.IifName))
	}
	for _, c := range append(clouds, s.cloud(), s.nodesCloud()) {
		left, err := local.Leftovers(ctx, c)
		virtual, virtualErr := qemu.Leftovers(ctx, qemu.Config{Config: c.Config})
		if err := errors.Join(err, virtualErr); err != nil {
			return nil, fmt.Errorf("look for leftovers: %w", err)
		}
		for _, what := range append(left, virtual...) {
			if !slices.Contains(found, what) {
				found = append(found, what)
			}
		}
	}
	pids, err := child.Marked(markVariable + "=" + s.opts.State)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	for _, pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue // it ended meanwhile
		}
		what := fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
		if !slices.Contains(found, what) {
			found = append(found, what)
		}
	}
	return found, nil
}

// Tail returns the last n lines of a file, or why they cannot be had.
func Tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return LastLines(string(data), n)
}

// LastLines returns the last n lines of a text.
func LastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
