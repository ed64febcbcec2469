package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agent/access"
	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/disks"
	"github.com/elotl/kip/internal/agent/firewall"
	"github.com/elotl/kip/internal/agent/firstboot"
	"github.com/elotl/kip/internal/agent/kernel"
	"github.com/elotl/kip/internal/agent/localapi"
	"github.com/elotl/kip/internal/agent/logind"
	"github.com/elotl/kip/internal/agent/modules"
	"github.com/elotl/kip/internal/agent/network"
	"github.com/elotl/kip/internal/agent/notices"
	"github.com/elotl/kip/internal/agent/plugins"
	"github.com/elotl/kip/internal/agent/supervise"
	"github.com/elotl/kip/internal/agent/upgrade"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/tunnel"
)

const (
	// logBytes bounds a component's log file; it and one rotated one are kept.
	logBytes = 4 << 20
	// stopTimeout is what the kubelet and containerd have from SIGTERM to
	// SIGKILL. Neither stops a pod, so both end within a fraction of a second.
	stopTimeout = 4 * time.Second
	// podGrace is what containers have at most when the machine goes down under them.
	// Kip ends a pod through the API, with the pod's own grace period; this is
	// for a machine that is switched off. With what else the end takes it is less than the
	// 30 s that GCE gives a machine ("Preemption process" of its Spot VMs), also where kubelet and
	// containerd hang: then 17 s, stopTimeout, leftGrace and killTime, and stopTimeout again.
	podGrace = 12 * time.Second
	// pluginGrace is what the node plugins of CSI drivers have after that, which let go of its volumes.
	pluginGrace = 3 * time.Second
	// leftGrace is the least that is left to what the kubelet has not ended.
	leftGrace = 3 * time.Second
	// killTime is what containerd has beside that to end what did not.
	killTime = time.Second
	// lastWords is how long the kubelet goes on when it has said that its pods have ended: who
	// follows a log has the rest of it, and Kip fetches the logs. It is part of what all of that
	// has, with the graces.
	lastWords = 2 * time.Second
	// importRetry is the pause after a failed import of the pause image.
	importRetry = time.Second
)

// StateDir is where an agent keeps what it is, unless it is told otherwise.
const StateDir = "/var/lib/itzo"

// LogDir is where it keeps the logs of its parts, unless it is told otherwise, and LogName the file there with its own.
const (
	LogDir  = "/var/log"
	LogName = "itzo.log"
)

// RunDir is where it keeps what ends with the machine's boot, so, too.
const RunDir = "/run/itzo"

// Options of an Agent. New fills in what is zero.
type Options struct {
	// Root is the directory below which configuration is written: "/".
	Root string
	// UserData is the file with the user data.
	UserData string
	// StateDir keeps the cell's identity and the last configuration.
	StateDir string
	// RunDir holds what ends with the machine: certificates, links.
	RunDir string
	LogDir string
	// PauseArchive is the image of the pod's sandbox. Where there is no such
	// file containerd takes the one of its own default from the registry.
	PauseArchive string
	// Listen is where the tunnel listens.
	Listen string
	// APIListen is where, on loopback, the kubelet finds its API server.
	APIListen string
	// ProxyHealth is where, on loopback, kube-proxy serves its health.
	ProxyHealth string
	// Self is the executable that is the shim and the CNI plugin, Components
	// the one that is the kubelet, Containerd the one that is containerd and what
	// asks it; they may be the same.
	Self, Components, Containerd string
	// Nft is the program that changes the kernel's packet filter, Modprobe the one that loads its modules.
	Nft, Modprobe string
	// Init says that this is PID 1: it reaps orphans, has cgroups to itself,
	// and the pods end with it.
	Init    bool
	Version string
	Log     *slog.Logger
	Clock   clock.WithTicker
	// Boot is how the machine came to the agent; zero where no kernel was started for it.
	Boot agentapi.Boot
	// SinceBoot is the time since that kernel started.
	SinceBoot func() time.Duration
	// SetHostname sets the running machine's name.
	SetHostname func(name string) error
	// Metadata is the URL of EC2's metadata service, which is asked whether the machine is taken
	// back; "" on a machine that is not EC2's.
	Metadata string
	// Prepare readies the machine's network for the pod's address. Keep keeps it so until ctx ends; optional with
	// Prepare.
	Prepare func(c agentapi.Config) error
	Keep    func(ctx context.Context)
}

func (o *Options) defaults() {
	set := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	set(&o.Root, "/")
	set(&o.UserData, cloudinit.SeedFile)
	set(&o.StateDir, StateDir)
	set(&o.RunDir, RunDir)
	set(&o.LogDir, LogDir)
	set(&o.PauseArchive, "/usr/share/kip/pause.tar")
	// All addresses: the agent starts before a cloud's DHCP may have given the
	// machine one. What guards the port is mutual TLS, not its address.
	set(&o.Listen, fmt.Sprintf(":%d", agentapi.Port))
	set(&o.APIListen, localapi.Address)
	set(&o.ProxyHealth, configs.KubeProxyHealth)
	set(&o.Nft, programPath("nft"))
	set(&o.Modprobe, programPath("modprobe"))
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.SinceBoot == nil {
		o.SinceBoot = console.SinceBoot
	}
	if o.SetHostname == nil {
		o.SetHostname = func(name string) error { return unix.Sethostname([]byte(name)) }
	}
	if o.Prepare == nil {
		host := network.NewHost(o.Log)
		o.Prepare = func(c agentapi.Config) error { return host.Prepare(c.PodIP, c.NodeIP, c.PodIPv6, c.NodeIPv6) }
		o.Keep = host.Keep
	}
}

// Agent is one cell's agent.
type Agent struct {
	o      Options
	host   configs.Host
	user   agentapi.UserData
	pki    *localapi.PKI
	reaper *supervise.Reaper
	disks  *disks.Set
	// plugins are those of CSI drivers.
	plugins *plugins.Set
	kernel  *kernel.Kernel
	// machine has the operator's cloud-init file carried out.
	machine *firstboot.Machine
	// upgrade is the agent that Kip wants in the place of this one.
	upgrade *upgrade.Upgrade
	// access lets an operator onto the machine.
	access *access.Access

	containerd *supervise.Process
	cell       *tunnel.Cell
	api        *localapi.Endpoint
	firewall   *firewall.Firewall
	// logind tells the kubelet that the machine ends; nil where that is somebody else's.
	logind *logind.Server
	// told waits until Kip has taken that the pod ended.
	told func(context.Context) error
	// imported is closed when containerd serves and has the pause image.
	imported chan struct{}

	mu      sync.Mutex
	config  *agentapi.Config // the one in force
	kubelet *component       // with kube-proxy; nil before the first configuration
	running context.Context  // of the components; nil before Run and after
	// devicePlugin offers the machine's GPUs; nil where there are none.
	devicePlugin *supervise.Process
	boot         agentapi.Boot // with the first configuration
	pages        reservedPages
	providers    imageProviders
	swap         madeSwap
}

// reservedPages are the huge pages of the configuration in force.
type reservedPages struct {
	has     []agentapi.HugePages
	refused string // why there are none of a size; "" where there are, or might be
}

// madeSwap is the swap of the configuration in force.
type madeSwap struct {
	bytes   int64
	refused string // why there is none; "" where there is, or none is asked for
}

// component is a part that runs with a configuration of Kip.
type component struct {
	process *supervise.Process
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
}

// startComponent runs p, and what goes with it, until it or everything is
// stopped. The caller holds the lock.
func (a *Agent) startComponent(p *supervise.Process, with ...func(context.Context)) *component {
	ctx, cancel := context.WithCancel(a.running)
	c := &component{process: p, cancel: cancel}
	c.tasks.Go(func() {
		defer p.Close()
		p.Run(ctx)
	})
	for _, task := range with {
		c.tasks.Go(func() { task(ctx) })
	}
	return c
}

// stop ends the component, which may be nil.
func (c *component) stop() {
	if c != nil {
		c.cancel()
		c.tasks.Wait()
	}
}

// status reports how the component, which may be nil, fares.
func (c *component) status(name string) agentapi.Component {
	if c == nil {
		return agentapi.Component{Name: name, Waiting: "waiting for its configuration from Kip"}
	}
	return c.process.Status()
}

// newKernel returns the kernel of the machine.
func (a *Agent) newKernel() *kernel.Kernel {
	return kernel.New(kernel.Options{
		Root:     a.o.Root,
		StateDir: a.o.StateDir,
		RunDir:   a.o.RunDir,
		Shared:   !a.host.SysModule,
		CgroupV2: a.host.CgroupV2,
		SwapFile: configs.SwapFile,
		Load:     a.loadModule,
	})
}

// New reads the user data and prepares everything short of starting it.
func New(o Options) (*Agent, error) {
	o.defaults()
	user, err := cloudinit.Read(o.UserData)
	if err != nil {
		return nil, err
	}
	host, err := configs.InspectHost(o.Root)
	if err != nil {
		return nil, err
	}
	log := o.Log // the tunnel names the cell itself
	o.Log = log.With("cell", user.CellID)
	a := &Agent{
		o:        o,
		user:     user,
		host:     host,
		reaper:   supervise.NewReaper(o.Log),
		disks:    disks.New(o.Root, o.Log),
		plugins:  plugins.New(o.Root, o.Log),
		imported: make(chan struct{}),
	}
	a.kernel = a.newKernel()
	if a.pki, err = localapi.NewPKI(filepath.Join(o.RunDir, "pki"), o.Clock.Now()); err != nil {
		return nil, err
	}
	a.told = a.pki.Told
	a.machine, err = firstboot.New(firstboot.Options{
		Root:        o.Root,
		StateDir:    o.StateDir,
		LogDir:      o.LogDir,
		KipsImage:   o.Init,
		SetHostname: o.SetHostname,
		Sync:        unix.Sync,
		Reaper:      a.reaper,
		Log:         o.Log,
	})
	if err != nil {
		return nil, err
	}
	a.access = a.newAccess()
	a.upgrade = upgrade.New(upgrade.Options{
		Dir:  UpgradeDir(o.StateDir),
		Self: o.Self,
		Try:  a.versionOf,
		Log:  o.Log,
	})
	if err := a.writeContainerdConfig(); err != nil {
		return nil, err
	}
	a.firewall = firewall.New(o.RunDir, a.nft, firewall.Look, o.Log)
	a.containerd, err = a.process(supervise.Spec{Name: "containerd", Path: a.o.Containerd,
		Args: []string{"--config=" + configs.ContainerdConfig}})
	if err != nil {
		return nil, err
	}
	a.cell, err = tunnel.NewCell(tunnel.CellConfig{
		UserData: user,
		StateDir: filepath.Join(o.StateDir, "identity"),
		Handler:  a.Handler(),
		Log:      log,
	})
	if err != nil {
		return nil, fmt.Errorf("open the cell's identity: %w", err)
	}
	if a.api, err = a.pki.Listen(o.APIListen, a.cell.RoundTripper(), o.Log); err != nil {
		return nil, err
	}
	if o.Init {
		if a.logind, err = logind.Listen(filepath.Join(o.RunDir, "logind"), podGrace+pluginGrace+stopTimeout, o.Log); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// newAccess returns what lets an operator onto the machine.
func (a *Agent) newAccess() *access.Access {
	return access.New(access.Options{
		Env:    a.env(),
		Reaper: a.reaper,
		Logs: map[string]string{
			agentapi.LogAgent:      filepath.Join(a.o.LogDir, LogName),
			agentapi.LogKubelet:    filepath.Join(a.o.LogDir, "kubelet.log"),
			agentapi.LogContainerd: filepath.Join(a.o.LogDir, "containerd.log"),
			agentapi.LogCloudInit:  filepath.Join(a.o.LogDir, firstboot.LogName),
		},
		Log: a.o.Log,
	})
}

// process prepares a supervised component, whose path the caller has set.
func (a *Agent) process(s supervise.Spec) (*supervise.Process, error) {
	if err := os.MkdirAll(a.o.LogDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of logs: %w", err)
	}
	log, err := supervise.OpenLog(filepath.Join(a.o.LogDir, s.Name+".log"), logBytes)
	if err != nil {
		return nil, err
	}
	s.Env, s.StopTimeout, s.Log = append(a.env(), s.Env...), stopTimeout, log
	return supervise.New(s, supervise.Options{
		Reaper: a.reaper,
		Clock:  a.o.Clock,
		Log:    a.o.Log,
	}), nil
}

// env is the components' environment.
func (a *Agent) env() []string {
	return []string{
		"PATH=" + a.binDir() + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		// Memory is what a cell is short of: collect twice as often as Go does.
		"GOGC=50",
	}
}

// binDir holds itzo's other names, for those who look programs up by name.
func (a *Agent) binDir() string { return filepath.Join(a.o.RunDir, "bin") }

// UpgradeDir is where an agent with this folder for its state keeps the one that is to take
// its place.
func UpgradeDir(stateDir string) string { return filepath.Join(stateDir, "agent") }

// ReplacedError is that of an agent that has ended so that another one takes its place.
type ReplacedError struct {
	// Program is the other one's, verified. It takes the arguments of this one.
	Program string
}

func (e *ReplacedError) Error() string { return "another agent takes over: " + e.Program }

// tryTimeout bounds a run of another agent that says its version.
const tryTimeout = 20 * time.Second

// versionOf has an agent's program say its version.
func (a *Agent) versionOf(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	out, err := a.run(ctx, commandOutput, program, "itzo", "version")
	out = strings.TrimSpace(out)
	if err != nil {
		return "", fmt.Errorf("ask it for its version: %w: %.200q", err, out)
	}
	return out, nil
}

// Run runs the agent until ctx ends, then stops its parts in order: as PID 1 the pod, of
// which Kip hears, the kubelet with kube-proxy, what offers GPUs to it, containerd. The error is
// a ReplacedError where another agent is to take over.
func (a *Agent) Run(ctx context.Context) error {
	lis, err := net.Listen("tcp", a.o.Listen)
	if err != nil {
		return fmt.Errorf("open the tunnel's port: %w", err)
	}
	a.o.Log.Info("itzo starts", "version", a.o.Version, "listen", lis.Addr().String(), "cgroup_v2", a.host.CgroupV2)

	// The parts outlive ctx, to be stopped one by one.
	background, stopAll := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	defer all.Wait()
	defer stopAll()
	if a.o.Init {
		all.Go(func() { a.reaper.Reap(background) })
	}
	failed := make(chan error, 3) // for each that is served
	serve := func(f func(context.Context) error) {
		all.Go(func() {
			if err := f(background); err != nil {
				failed <- err
			}
		})
	}
	serve(a.api.Serve)
	serve(func(ctx context.Context) error { return a.cell.Serve(ctx, lis) })
	if a.logind != nil {
		serve(a.logind.Serve)
	}

	containerdCtx, stopContainerd := context.WithCancel(background)
	defer stopContainerd()
	containerdDone := make(chan struct{})
	all.Go(func() { defer close(containerdDone); a.containerd.Run(containerdCtx) })
	all.Go(func() { a.importPause(containerdCtx) })
	all.Go(func() { a.machine.Run(background) })
	all.Go(func() { a.machine.KeepLog(background) })
	replaced := make(chan string, 1)
	all.Go(func() {
		if program := a.upgrade.Run(background); program != "" {
			replaced <- program
		}
	})
	a.watch(background, all.Go)
	stopOffering := a.startOffering(background)

	if err := a.guard(background); err != nil {
		// Tried again before anything of a pod's may start: see apply.
		a.o.Log.Error("close the firewall", "err", err)
	}
	// Once it is known what is in force: devices may have come while no agent ran.
	all.Go(func() { a.firewall.Follow(background, netlink.LinkSubscribe) })
	if err := a.begin(background); err != nil {
		// Kip sends the configuration again; what is stored is for its absence.
		a.o.Log.Error("continue with the stored configuration", "err", err)
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	case program := <-replaced:
		err = &ReplacedError{program}
	}
	// There are none before the first configuration, which is not taken while another agent is wanted.
	pods := a.o.Init && !errors.As(err, new(*ReplacedError))

	a.o.Log.Info("itzo stops")
	began := a.o.Clock.Now()
	if pods {
		a.endPods(background)
	}
	a.end()
	stopOffering()
	if pods {
		a.stopPods(background, max(leftGrace, podGrace-a.o.Clock.Since(began)))
	}
	stopContainerd()
	<-containerdDone
	return err
}

// watch starts what watches the machine's cloud and its network until ctx ends.
func (a *Agent) watch(ctx context.Context, start func(func())) {
	if a.o.Metadata != "" {
		start(func() { a.watcher().Run(ctx) })
	}
	if a.o.Keep != nil {
		start(func() { a.o.Keep(ctx) })
	}
}

// watcher is who tells Kip that the cloud takes the machine back.
func (a *Agent) watcher() *notices.Watcher {
	return notices.New(notices.Options{
		Metadata: a.o.Metadata,
		Kip:      a.cell.RoundTripper(),
		Clock:    a.o.Clock,
		Log:      a.o.Log,
	})
}

// begin makes the components' context known and starts the kubelet with the
// configuration of an earlier run, if there was one.
func (a *Agent) begin(running context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = running
	c, err := a.storedConfig()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := a.kernel.Restore(running); err != nil {
		a.o.Log.Error("set the kernel's settings anew", "err", err) // the pod runs on without
	}
	return a.apply(c)
}

// end stops the kubelet, and kube-proxy with it, for good.
func (a *Agent) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = nil
	a.kubelet.stop()
	a.kubelet = nil
}

// startKubelet starts a kubelet, with kube-proxy in its process, that runs until it
// or everything is stopped. The caller holds the lock.
func (a *Agent) startKubelet(c agentapi.Config) error {
	if err := network.Close(a.gateDir(), servicesGate); err != nil {
		return err
	}
	var env []string
	if a.logind != nil {
		env = append(env, "DBUS_SYSTEM_BUS_ADDRESS="+a.logind.Address())
	}
	p, err := a.process(supervise.Spec{
		Name:     "kubelet",
		Env:      env,
		Path:     a.o.Components,
		Args:     configs.KubeletArgs(c, a.providers.dir),
		WaitsFor: "containerd and its pause image",
		Ready: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-a.imported:
				return nil
			}
		},
	})
	if err != nil {
		return err
	}
	a.kubelet = a.startComponent(p, func(ctx context.Context) { a.openServices(ctx, serviceFamilies(c)) })
	return nil
}

// importPause loads the pause image once containerd serves. Nothing is pulled
// for it: a cell may have no way to a registry that has one.
func (a *Agent) importPause(ctx context.Context) {
	args := []string{"import-images"}
	if _, err := os.Stat(a.o.PauseArchive); err == nil {
		args = append(args, a.o.PauseArchive)
	}
	for {
		out, err := a.command(ctx, args...)
		if err == nil {
			close(a.imported)
			return
		}
		if ctx.Err() != nil {
			return
		}
		a.o.Log.Warn("import the pause image", "err", err, "output", out)
		timer := a.o.Clock.NewTimer(importRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// endPods has the kubelet end the pods of a machine that goes down, as one does that hears of it
// from systemd: hooks and graces are kept, no container starts again, and Kip hears how each ended.
// A kubelet that is down just then hears nothing, and one may hang: stopPods ends what is left.
func (a *Agent) endPods(ctx context.Context) {
	a.mu.Lock()
	runs := a.kubelet != nil
	a.mu.Unlock()
	if !runs {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, podGrace+pluginGrace+lastWords)
	defer cancel()
	left, err := a.logind.End(ctx)
	if err != nil {
		a.o.Log.Warn("wait for the kubelet to end the pods", "err", err)
		return
	}
	if left == nil {
		return
	}
	if err := a.hearEnd(ctx, left); err != nil {
		a.o.Log.Warn("wait for Kip to take how the pod ended", "err", err)
		return
	}
	select {
	case <-a.o.Clock.After(lastWords):
	case <-ctx.Done():
	}
	if err := a.pki.Answered(ctx); err != nil {
		a.o.Log.Warn("wait for Kip to fetch the pods' logs", "err", err)
	}
}

// hearEnd waits until Kip has taken that the pod ended, as long as the kubelet that ended it is there.
func (a *Agent) hearEnd(ctx context.Context, left <-chan struct{}) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-left:
			stop(errors.New("the kubelet has ended"))
		case <-ctx.Done():
		}
	}()
	return a.told(ctx)
}

// stopPods ends what the kubelet has left of the pods of a machine that goes down.
func (a *Agent) stopPods(ctx context.Context, grace time.Duration) {
	if out, err := a.command(ctx, "stop-pods", "--grace="+grace.String(), "--timeout="+(grace+killTime).String()); err != nil {
		a.o.Log.Warn("stop the pods", "err", err, "output", out)
	}
}

// command runs one of the short commands that ask containerd, which bound their own
// time, and returns the beginning of its output. It is killed when ctx ends.
func (a *Agent) command(ctx context.Context, args ...string) (string, error) {
	return a.run(ctx, commandOutput, a.o.Containerd, append([]string{"itzo"}, args...)...)
}

// loadModule has modprobe load a module. The error is what that says.
func (a *Agent) loadModule(ctx context.Context, name string) error {
	out, err := a.run(ctx, commandOutput, a.o.Modprobe, "modprobe", name)
	switch out = strings.TrimSpace(out); {
	case err == nil:
		return nil
	case errors.As(err, new(*exec.ExitError)) && out == "": // that of Kip's image
		return modules.ErrUnknown
	case out == "":
		return err
	}
	return errors.New(out)
}

// commandOutput bounds what is read of a short command's output, in bytes.
const commandOutput = 2048

// run runs a program with these arguments, its name first, and returns the first
// bytes of its output, at most limit. It is killed when ctx ends.
func (a *Agent) run(ctx context.Context, limit int64, path string, args ...string) (string, error) {
	out, err := os.CreateTemp(a.o.RunDir, "output-")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := &exec.Cmd{
		Path:        path,
		Args:        args,
		Env:         a.env(),
		Stdout:      out,
		Stderr:      out,
		Dir:         "/",
		SysProcAttr: &unix.SysProcAttr{Setpgid: true},
	}
	err = a.reaper.Run(ctx, cmd)
	text, read := io.ReadAll(io.NewSectionReader(out, 0, limit))
	return string(text), errors.Join(err, read)
}
