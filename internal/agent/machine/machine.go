package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/dhcp"
	"github.com/elotl/kip/internal/agent/modules"
	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/agentapi"
)

const (
	// endLimit bounds the way from the order to end to the power's end. The agent gives
	// its pods less.
	endLimit = time.Minute
	// syncLimit is how long the disks have to take what is written before that.
	syncLimit = 10 * time.Second
	// readLimit is how long a console has to be read before the power goes.
	readLimit = 2 * time.Second
	// maxHostname is Linux' HOST_NAME_MAX.
	maxHostname = 64
)

// Main runs the machine with this agent, and returns only where it is not the first
// process of one. However it ends, the machine is switched off and never started
// again: its pod has had its life. The agent is told how the machine came to it. What the machine
// does is written to out, its console, which must not block.
func Main(out io.Writer, agent func(ctx context.Context, boot agentapi.Boot) error) int {
	boot := agentapi.Boot{Kernel: began(os.Getenv(console.InitBegan)), UserSpace: console.SinceBoot()}
	c := console.New(out)
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "itzo boot is the first process of a machine, and nothing else")
		return 2
	}
	// The kernel tells init of Ctrl-Alt-Del, and does not start the machine again by itself.
	cad := unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	boundEnd(ctx, c, func() {
		c.Say("the agent has not ended after %v", endLimit)
		powerOff(c)
	})
	if cad != nil {
		c.Say("take Ctrl-Alt-Del as an order to end: %v", cad)
	}
	m := &machine{console: c, end: end, boot: boot}
	m.steps = m.itsSteps()
	err := m.run(ctx, agent)
	c.Say("the agent has ended (%v)", err)
	if ctx.Err() == nil { // nobody wished it
		time.Sleep(readLimit)
	}
	powerOff(c)
	return 1
}

// boundEnd calls off endLimit after ctx ends.
func boundEnd(ctx context.Context, c *console.Console, off func()) {
	context.AfterFunc(ctx, func() {
		// First, so that nothing that is written delays the end.
		time.AfterFunc(endLimit, off)
		c.Say("this machine ends: %v", context.Cause(ctx))
	})
}

// began is when the first init began, as it says, and 0 where it does not.
func began(said string) time.Duration {
	d, err := time.ParseDuration(said)
	if err != nil {
		return 0
	}
	return d
}

// powerOff ends every process and the machine.
func powerOff(c *console.Console) {
	// All but this one; there may be none.
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		c.Say("end all processes: %v", err)
	}
	// The server of a mount may be gone, for which the kernel waits without end.
	synced := make(chan struct{})
	go func() {
		unix.Sync()
		close(synced)
	}()
	select {
	case <-synced:
	case <-time.After(syncLimit):
		c.Say("what is written has not reached all disks after %v", syncLimit)
	}
	c.Say("power off")
	c.Say("power off: %v", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	select {} // a firmware that cannot
}

// machine is what is known of one while it boots.
type machine struct {
	console *console.Console
	// end orders the machine to end.
	end context.CancelCauseFunc
	// boot is how far it has come, and when.
	boot  agentapi.Boot
	steps steps
}

// steps are what run does to a machine. Their order is its own: a test of that has others.
type steps struct {
	mount, firstLife, settle func() error
	// ahead reads the programs that the machine starts later.
	ahead func(context.Context)
	// drivers loads those of the devices that are there, and returns what loads those of later ones.
	drivers func() (later func(context.Context), err error)
	power   func(context.Context)
	sources func() []userdata.Source
	up      func(*network, context.Context) error
	// keep and keep6 run as long as the machine has the addresses.
	keep, keep6 func(*network, context.Context)
	clock       func(userdata.Source, dhcp.Lease) timekeeper
	leave       func(userdata.Data, *network) error
	// life begins to watch for a pod, and returns what goes on with that.
	life func() (watch func(context.Context), err error)
}

// itsSteps are those of the machine that this is the init of.
func (m *machine) itsSteps() steps {
	return steps{
		mount:     mount,
		firstLife: theLife.check,
		settle:    func() error { return settle("/proc") },
		ahead:     m.readAhead,
		drivers: func() (func(context.Context), error) {
			set, coming, err := loadDrivers(m.console)
			return func(ctx context.Context) { watchDevices(ctx, m.console, coming, set) }, err
		},
		power:   m.watchPower,
		sources: userdata.Sources,
		up:      (*network).up,
		keep:    (*network).keep,
		keep6:   (*network).keep6,
		clock: func(s userdata.Source, l dhcp.Lease) timekeeper {
			host := func() string { return hostClock("/sys", "/dev") }
			return timekeeper{console: m.console, host: host, servers: servers(s, l)}
		},
		leave: func(data userdata.Data, n *network) error { return leave("/", data, n) },
		life: func() (func(context.Context), error) {
			watch, err := theLife.watch()
			return func(ctx context.Context) { watch.run(ctx, m.console) }, err
		},
	}
}

// run boots, and runs the agent until ctx ends or the agent does.
func (m *machine) run(ctx context.Context, agent func(context.Context, agentapi.Boot) error) error {
	// What runs beside the agent ends after it, with this.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	if err := m.console.Step("mount", m.steps.mount); err != nil {
		return err
	}
	if err := m.console.Step("see that this is the first life", m.steps.firstLife); err != nil {
		return err
	}
	all.Go(func() { m.steps.ahead(background) })
	if err := m.console.Step("settings of the kernel", m.steps.settle); err != nil {
		m.console.Say("a setting of the kernel: %v", err) // each by itself; the machine works without
	}
	var later func(context.Context)
	err := m.console.Step("drivers", func() (err error) { later, err = m.steps.drivers(); return err })
	if err != nil {
		return err
	}
	all.Go(func() { later(background) })
	all.Go(func() { m.steps.power(background) })

	var source userdata.Source
	choose := func() (err error) { source, err = userdata.Choose(ctx, m.steps.sources()); return err }
	if err := m.console.Step("find user data", choose); err != nil {
		return err
	}
	n := &network{console: m.console}
	up := make(chan error, 1)
	all.Go(func() { up <- m.console.Step("network", func() error { return m.steps.up(n, ctx) }) })
	var data userdata.Data
	get := func() error {
		return m.console.Step("user data of "+source.Name, func() (err error) { data, err = source.Get(ctx); return err })
	}
	if !source.Network {
		err = get()
	}
	if err := errors.Join(err, <-up); err != nil {
		return err
	}
	m.boot.Network = console.SinceBoot()
	all.Go(func() { m.steps.keep(n, background) })
	if !source.IPv4Only {
		all.Go(func() { m.steps.keep6(n, background) })
	}
	// Nobody judges a certificate before both are there.
	t := m.steps.clock(source, n.lease)
	told := make(chan bool, 1)
	all.Go(func() {
		done := t.begin(ctx)
		told <- done
		t.keep(background, done)
	})
	if source.Network {
		if err := get(); err != nil {
			return err
		}
	}
	<-told
	if err := m.console.Step("name and user data", func() error { return m.steps.leave(data, n) }); err != nil {
		return err
	}
	watch, err := m.steps.life()
	if err != nil {
		return err
	}
	all.Go(func() { watch(background) })
	if source.Ready != nil {
		all.Go(func() {
			if err := source.Ready(background); err != nil {
				m.console.Say("%v", err)
			}
		})
	}
	m.console.Say("the agent begins")
	return agent(ctx, m.boot)
}

// loadDrivers loads what the machine's devices ask for, and returns what tells of those that come
// later, however soon. One that fails is told and left.
func loadDrivers(c *console.Console) (s *modules.Set, coming *os.File, err error) {
	dir, err := modules.Dir()
	if err != nil {
		return nil, nil, err
	}
	if s, err = modules.Open(dir); err != nil {
		return nil, nil, err
	}
	if coming, err = newDevices(); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(s.LoadPresent("/sys/devices"), loadHostClock(s.Load)); err != nil {
		c.Say("a driver failed: %v", err)
	}
	return s, coming, nil
}

// leave writes what the agent and others look for below root: the user data, the
// machine's name and ID, and who answers for names.
func leave(root string, data userdata.Data, n *network) error {
	name := data.Hostname
	if name == "" {
		name = n.lease.Hostname
	}
	if name == "" || len(name) > maxHostname {
		name = "cell"
	}
	if root == "/" {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("set the name %q: %w", name, err)
		}
	}
	id, err := machineID(root)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path, content string
		mode          os.FileMode
	}{
		{"/etc/hostname", name + "\n", 0o644},
		{"/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n" + n.lease.Address.Addr().String() + " " + name + "\n", 0o644},
		{"/etc/resolv.conf", resolvConf(n.lease), 0o644},
		{"/etc/machine-id", id + "\n", 0o444},
	} {
		if err := cloudinit.Replace(filepath.Join(root, f.path), []byte(f.content), f.mode); err != nil {
			return err
		}
	}
	return cloudinit.Leave(filepath.Join(root, cloudinit.SeedFile), data.Document, data.Place)
}
