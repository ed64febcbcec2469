package host

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/catalog"
)

// Config says where machines live. StateDir has no default. Destroy, Leftovers,
// Interrupt, Inspect and EnsureBridge look at StateDir, Bridge, Group, CIDR and
// IPv6CIDR only.
type Config struct {
	// StateDir is the folder that holds all records and the machines' disks.
	// It is made if missing. It must not lie on an overlay file system.
	StateDir string
	// Bridge is the network device that joins host and machines; at most 15
	// characters. Default: kip0.
	Bridge string
	// Group names what all machines share on the host, such as a cgroup, so two
	// clouds on one host need two names. Default: that of Bridge. A cloud with another name is a guest on
	// the bridge of a cloud with the same CIDR: it neither makes nor removes
	// the bridge, and its machines have addresses that the other's never get.
	Group string
	// CIDR is the IPv4 network of the bridge, between /8 and /28. Its first
	// address is the host's; the lower half is for management addresses, the
	// upper half for pods. The last sixteenth of each half is left to a guest.
	// Default: 10.110.0.0/16.
	CIDR netip.Prefix
	// IPv6CIDR is the IPv6 network of the bridge, between /16 and /96. Each machine,
	// pod and the host has the same place in it as in CIDR. Default: none, and
	// IPv6 is turned off on the bridge and in the machines.
	IPv6CIDR netip.Prefix
	// AgentSources are networks that reach the agents of machines, besides this host: where Kip runs as a pod. None by default.
	AgentSources []netip.Prefix
	// SharedKernel says that machines run on the host's kernel.
	SharedKernel bool
	// Catalogue is what can be launched.
	Catalogue []catalog.InstanceType
	// Log defaults to slog.Default().
	Log *slog.Logger
	// Clock defaults to the real one.
	Clock clock.Clock

	// Reached is told each named step of a launch, an end, or what is done with a
	// disk; tests use it to die there.
	Reached func(step string)
	disks   *disks
}

var (
	bridgeName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]{0,14}$`)
	groupName  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]{0,31}$`)
	instanceID = regexp.MustCompile(`^i-[0-9a-f]{16}$`)
)

// WithDefaults fills in what is left open and refuses what cannot work.
func (c Config) WithDefaults() (Config, error) {
	if c.Bridge == "" {
		c.Bridge = "kip0"
	}
	if !bridgeName.MatchString(c.Bridge) {
		return c, fmt.Errorf("bridge %q: want a letter followed by at most 14 letters, digits, - or _", c.Bridge)
	}
	if c.Group == "" {
		c.Group = c.Bridge
	}
	if !groupName.MatchString(c.Group) {
		return c, fmt.Errorf("group %q: want a letter followed by at most 31 letters, digits, - or _", c.Group)
	}
	if !c.CIDR.IsValid() {
		c.CIDR = netip.MustParsePrefix("10.110.0.0/16")
	}
	if !c.CIDR.Addr().Is4() || c.CIDR.Bits() < 8 || c.CIDR.Bits() > 28 || c.CIDR != c.CIDR.Masked() {
		return c, fmt.Errorf("cidr %q: want an IPv4 network between /8 and /28 with no host bits set, such as 10.110.0.0/16", c.CIDR)
	}
	if err := c.checkIPv6(); err != nil {
		return c, err
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.disks == nil {
		c.disks = &disks{busy: map[string]chan struct{}{}}
	}
	if c.Reached == nil {
		c.Reached = func(string) {}
	}
	var err error
	if c.StateDir, err = UsablePath("stateDir", c.StateDir); err != nil {
		return c, err
	}
	// The kernel's limit for a device's alias, less its final zero byte.
	if n := len(c.alias()); n > 255 {
		return c, fmt.Errorf("stateDir %q is %d characters too long", c.StateDir, n-255)
	}
	return c, nil
}

// UsablePath returns p, the value of a field, made absolute. Overlay mounts take paths in a
// comma-and-colon-separated list, so those characters cannot be used.
func UsablePath(field, p string) (string, error) {
	if p == "" {
		return "", fmt.Errorf("%s is empty: want a folder", field)
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", fmt.Errorf("%s %q: %w", field, p, err)
	}
	if strings.ContainsAny(abs, ",:\\") {
		return "", fmt.Errorf("%s %q: want a path without comma, colon and backslash", field, abs)
	}
	return abs, nil
}

// guest says that the bridge is another cloud's.
func (c Config) guest() bool { return c.Group != c.Bridge }

// GuestAddress is the address of the n-th machine, from 0, that a guest launches
// on this bridge, in an empty state folder.
func (c Config) GuestAddress(n int) (netip.Addr, error) {
	c, err := c.WithDefaults()
	if err != nil {
		return netip.Addr{}, err
	}
	first, count := network{c.CIDR}.slots(true)
	if n < 0 || n >= int(count) {
		return netip.Addr{}, fmt.Errorf("cidr %s has room for %d machines of a guest, and not for number %d", c.CIDR, count, n+1)
	}
	return network{c.CIDR}.management(first + uint32(n)), nil
}

// GuestPods is the part of the bridge's network that is for what is in a guest's
// machines.
func (c Config) GuestPods() (netip.Prefix, error) {
	c, err := c.WithDefaults()
	if err != nil {
		return netip.Prefix{}, err
	}
	n := network{c.CIDR}
	if n.reserve() == 0 {
		return netip.Prefix{}, fmt.Errorf("cidr %s has no room for a guest: want a larger network, such as 10.110.0.0/16", c.CIDR)
	}
	return netip.PrefixFrom(n.pod(n.half()-n.reserve()), c.CIDR.Bits()+5), nil
}

func (c Config) interruptionsDir() string     { return filepath.Join(c.StateDir, "interruptions") }
func (c Config) outagesDir() string           { return filepath.Join(c.StateDir, "outages") }
func (c Config) machinesDir() string          { return filepath.Join(c.StateDir, "machines") }
func (c Config) consolePath(id string) string { return filepath.Join(c.MachineDir(id), "console.log") }

// MachineDir is the folder of a machine.
func (c Config) MachineDir(id string) string { return filepath.Join(c.machinesDir(), id) }

func (c Config) instanceType(name string) (catalog.InstanceType, bool) {
	for _, t := range c.Catalogue {
		if t.Name == name {
			return t, true
		}
	}
	return catalog.InstanceType{}, false
}
