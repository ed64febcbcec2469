package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud/host"
)

// File descriptors that a machine's first process is started with, besides
// the usual three.
const (
	specFD   = 3 // it reads the spec here
	statusFD = 4 // it writes here why it failed; closed by a successful exec
)

// spec is what a machine's first process is told. It is sent when the process
// is in its cgroups and its network device is in its namespace. If the sender
// dies before, the pipe ends and so does the process, having done nothing.
type spec struct {
	ID          string         `json:"id"`
	Dir         string         `json:"dir"`
	RootDir     string         `json:"rootDir"`
	Init        []string       `json:"init"`
	Address     netip.Prefix   `json:"address"`
	Gateway     netip.Addr     `json:"gateway"`
	AddressIPv6 netip.Prefix   `json:"addressIPv6,omitzero"`
	GatewayIPv6 netip.Addr     `json:"gatewayIPv6,omitzero"`
	Cores       int            `json:"cores"`
	MemoryBytes int64          `json:"memoryBytes"`
	Cgroups     []machineGroup `json:"cgroups"`
	PureV2      bool           `json:"pureV2"`
	// GPUs are how many stand-ins it has.
	GPUs int `json:"gpus,omitempty"`
}

// machineGroup is a machine's own directory in one hierarchy, and the
// directory's name under /sys/fs/cgroup in the machine.
type machineGroup struct {
	Host  string   `json:"host"`
	Name  string   `json:"name"`
	Links []string `json:"links,omitempty"`
}

// MachineMain is the whole program of a machine's first process until it
// becomes the machine's init. The launching binary calls it, before anything
// else, when os.Args[1] is MachineCommand; args are those after it. It does not
// return.
func MachineMain(args []string) {
	if len(args) > 0 {
		fmt.Fprintf(os.Stderr, "%s: unexpected argument %q: it takes none, and is started by Kip only\n", MachineCommand, args[0])
		os.Exit(2)
	}
	// The cgroup namespace and the capabilities belong to a thread: all must
	// happen on the one that becomes the machine's init.
	runtime.LockOSThread()
	err := keepNoFiles()
	in := os.NewFile(specFD, "spec")
	var s spec
	if err == nil {
		err = json.NewDecoder(in).Decode(&s)
	}
	in.Close()
	if err == nil {
		err = s.become()
	}
	status := os.NewFile(statusFD, "status")
	fmt.Fprint(status, err)
	os.Exit(1)
}

// keepNoFiles lets the machine's init inherit its console and nothing else,
// whatever the launching process itself was started with.
func keepNoFiles() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// become turns this process into the machine's init; it returns only errors.
func (s spec) become() error {
	if os.Getpid() != 1 {
		return errors.New("not process 1 of a PID namespace: " + MachineCommand + " is started by Kip only")
	}
	unix.Umask(0o022)
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("new cgroup namespace (Linux 4.6 or later): %w", err)
	}
	if err := unix.Sethostname([]byte(s.ID)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	if err := s.network(); err != nil {
		return err
	}
	if err := s.root(); err != nil {
		return err
	}
	if err := dropKernelCapabilities(); err != nil {
		return err
	}
	err := unix.Exec(s.Init[0], s.Init, []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		"TERM=linux",
		"container=kip", // by convention names what virtualises the machine
	})
	return fmt.Errorf("run init %s of the root in %s: %w", s.Init[0], s.RootDir, err)
}

// network brings up lo and eth0.
func (s spec) network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("look for lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("look for eth0: %w", err)
	}
	addr := &net.IPNet{IP: s.Address.Addr().AsSlice(), Mask: net.CIDRMask(s.Address.Bits(), 32)}
	if err := netlink.AddrAdd(eth, &netlink.Addr{IPNet: addr}); err != nil {
		return fmt.Errorf("give eth0 address %s: %w", addr, err)
	}
	if err := s.networkIPv6(eth); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(eth); err != nil {
		return fmt.Errorf("bring eth0 up: %w", err)
	}
	for _, gateway := range []netip.Addr{s.Gateway, s.GatewayIPv6} {
		if !gateway.IsValid() {
			continue
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("route by %s: %w", gateway, err)
		}
	}
	// Through the host's /proc still: net entries follow the reader's namespace.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0); err != nil {
		return fmt.Errorf("turn on IP forwarding: %w", err)
	}
	return nil
}

// dropKernelCapabilities gives up what acts on the shared kernel as a whole,
// and has no namespace: modules, raw I/O and the clock.
func dropKernelCapabilities() error {
	for _, c := range []uintptr{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_TIME} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %s: %w", strconv.Itoa(int(c)), err)
		}
	}
	return nil
}

// networkIPv6 gives eth0 its IPv6 address and way out, or turns IPv6 off on it.
func (s spec) networkIPv6(eth netlink.Link) error {
	on := s.AddressIPv6.IsValid()
	if on {
		// A host that is set to have none may hand that on to new namespaces, and
		// kube-proxy goes by it.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("0\n"), 0); err != nil {
			return fmt.Errorf("turn IPv6 on: %w", err)
		}
	}
	if err := host.SettleIPv6("eth0", on); err != nil || !on {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: s.AddressIPv6.Addr().AsSlice(), Mask: net.CIDRMask(s.AddressIPv6.Bits(), 128)},
		Flags: unix.IFA_F_NODAD}
	if err := netlink.AddrAdd(eth, address); err != nil {
		return fmt.Errorf("give eth0 address %s: %w", s.AddressIPv6, err)
	}
	return nil
}
