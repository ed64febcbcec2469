package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
	machines "github.com/elotl/kip/test/boot"
)

const (
	// turns is how many times each image is started, one after the other.
	turns = 3
	// turnLimit bounds one start, and turnDisk is the size of its disk in bytes: larger than
	// either image, so that both grow to it.
	turnLimit = 15 * time.Minute
	turnDisk  = 5 << 30
)

// contender is one of the images.
type contender struct {
	name string
	bootable
	// first is what the console says when the kernel starts the first process, root when that
	// of the root begins, network when there is one, and agent when the agent begins.
	first, root, network, agent string
	runs                        []arrival
}

// arrival is when a machine had come how far since its kernel's start.
type arrival struct{ kernel, root, network, joined time.Duration }

// afterKernel is what user space took, from the first process to the agent's configuration.
func (a arrival) afterKernel() time.Duration { return a.joined - a.kernel }

// takeTurns starts Kip's image and Debian's in turns, on the same machine of QEMU's own
// network, up to an agent that has joined and been configured.
func takeTurns(ctx context.Context, accelerator string) (err error) {
	dir, err := os.MkdirTemp("", "kip-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	kip, debian, err := contenders(ctx, dir)
	if err != nil {
		return err
	}
	note("peer: %s, of Debian's packages; machines of one CPU and 1 GiB with QEMU's own network, by %s",
		debian.version, cmp.Or(acceleratorSays[accelerator], accelerator))
	for turn := range turns {
		order := []*contender{kip, debian}
		if !kipFirst(turn) {
			slices.Reverse(order)
		}
		for _, c := range order {
			progress("starting the image of %s, %d of %d", c.name, turn+1, turns)
			a, err := c.start(ctx, filepath.Join(dir, fmt.Sprintf("%s-%d", c.name, turn)), accelerator)
			if err != nil {
				return fmt.Errorf("start the image of %s: %w", c.name, err)
			}
			c.runs = append(c.runs, a)
		}
	}
	showTurns(kip, debian)
	return nil
}

// contenders makes both images ready.
func contenders(ctx context.Context, dir string) (kip, debian *contender, err error) {
	disk, err := image()
	if err != nil {
		return nil, nil, err
	}
	kernel, err := vm.UnpackKernel(strings.TrimSuffix(disk, filepath.Ext(disk))+".efi", dir)
	if err != nil {
		return nil, nil, err
	}
	kip = &contender{
		name:     "kip",
		bootable: bootable{disk: vm.Disk{File: disk, Format: "qcow2"}, kernel: *kernel},
		first:    "the kernel has started, init begins",
		root:     "kip: mount (",
		network:  "kip: network (",
		agent:    "the agent begins",
	}
	programs := filepath.Dir(filepath.Dir(disk))
	debian = &contender{
		name:    "debian",
		first:   "Run /init as init process",
		root:    "running in system mode",
		network: "Reached target network-online.target",
		agent:   "Started itzo.service",
	}
	debian.bootable, err = debianImage(ctx, programs, filepath.Join(filepath.Dir(programs), ".kip", "bench"), dir)
	return kip, debian, err
}

// start boots a machine from a disk over the contender's, and has its agent join.
func (c *contender) start(ctx context.Context, dir, accelerator string) (a arrival, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, turnLimit, fmt.Errorf("it took over %v", turnLimit))
	defer cancel()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	disk := filepath.Join(dir, "disk")
	err = command(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", c.disk.Format, "-b", c.disk.File, disk, fmt.Sprint(turnDisk))
	if err != nil {
		return a, err
	}
	authority, err := pki.New(time.Now)
	if err != nil {
		return a, err
	}
	token := pki.NewToken()
	user := fmt.Sprintf("#cloud-config\nkip:\n  cellID: c-1\n  caHash: \"%s\"\n  token: \"%s\"\n", authority.Hash(), token.Reveal())
	userData := filepath.Join(dir, "user-data")
	if err := os.WriteFile(userData, []byte(user), 0o600); err != nil {
		return a, err
	}
	m, err := machines.Start(vm.Machine{
		Accelerator: accelerator,
		CPUs:        1,
		MemoryBytes: 1 << 30,
		Kernel:      &c.kernel,
		Disk:        vm.Disk{File: disk, Format: "qcow2"},
		Card:        &vm.Card{},
		Files:       map[string]string{vm.UserData: userData},
		Monitor:     filepath.Join(dir, "monitor"),
	})
	if err != nil {
		return a, err
	}
	defer m.Close()
	return c.follow(ctx, m, authority, token)
}

// follow sees on the console how far a machine has come, and joins its agent as Kip does. Kip
// begins to call earlier; here a call that is made too early must not delay the next.
func (c *contender) follow(ctx context.Context, m *machines.Machine, authority *pki.Authority, token pki.Token) (a arrival, err error) {
	first, err := m.Says(ctx, c.first)
	if err != nil {
		return a, err
	}
	var stamped bool
	if a.kernel, stamped = first.Stamp(); !stamped {
		return a, fmt.Errorf("the line %q has no time", first.Text)
	}
	// By this host's clock from here on, for both alike.
	since := func(seen time.Time) time.Duration { return a.kernel + seen.Sub(first.Seen) }
	for _, step := range []struct {
		says string
		to   *time.Duration
	}{{c.root, &a.root}, {c.network, &a.network}, {c.agent, new(time.Duration)}} {
		l, err := m.Says(ctx, step.says)
		if err != nil {
			return a, err
		}
		*step.to = since(l.Seen)
	}
	if err := configure(ctx, m.Agent, authority, token); err != nil {
		return a, fmt.Errorf("%w; its console:\n%s", err, m.Console())
	}
	a.joined = since(time.Now())
	return a, nil
}

// configure connects to an agent and gives it a configuration.
func configure(ctx context.Context, addr string, authority *pki.Authority, token pki.Token) error {
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	s, err := dialer.Keep(ctx, tunnel.Target{
		CellID: "c-1",
		Addr:   netip.MustParseAddrPort(addr),
		Token:  token,
	}, http.NotFoundHandler(), func(context.Context, string) error { return nil })
	if err != nil {
		return err
	}
	defer s.Close()
	select {
	case <-s.Ready():
	case <-ctx.Done():
		return fmt.Errorf("the agent has not joined: %w, %w", context.Cause(ctx), s.LastError())
	}
	agent := agentapi.Client{Conn: s.Conn()}
	for {
		_, err := agent.PutConfig(ctx, agentapi.Config{
			NodeName:            "kip-0",
			NodeIP:              netip.MustParseAddr("10.0.2.15"), // QEMU's first lease
			PodIP:               netip.MustParseAddr("10.0.2.77"),
			ClusterDomain:       "cluster.local",
			ReservedMemoryBytes: 64 << 20,
		})
		if err == nil {
			return nil
		}
		// An agent that is just beginning wants to be asked again.
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent takes no configuration: %w, %w", context.Cause(ctx), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// turnFigures are what is told of both images.
var turnFigures = []struct {
	name, ratio string // the name of the figure that compares them; none where that says nothing
	of          func(arrival) time.Duration
}{
	{name: "kernel_seconds", of: func(a arrival) time.Duration { return a.kernel }},
	{name: "root_seconds", of: func(a arrival) time.Duration { return a.root }},
	{name: "network_seconds", of: func(a arrival) time.Duration { return a.network }},
	{name: "joined_seconds", of: func(a arrival) time.Duration { return a.joined }},
	{name: "after_kernel_seconds", ratio: "boot_debian_ratio_after_kernel", of: arrival.afterKernel},
}

// showTurns prints the figures of both, and the ratio of each pair of them.
func showTurns(kip, debian *contender) {
	for _, f := range turnFigures {
		of := func(c *contender) (values []float64) {
			for _, a := range c.runs {
				values = append(values, f.of(a).Seconds())
			}
			return values
		}
		printAll("boot_kip_"+f.name, of(kip), "s")
		printAll("boot_debian_"+f.name, of(debian), "s")
		if f.ratio != "" {
			printAll(f.ratio, ratios(of(kip), of(debian)), "")
		}
	}
}
