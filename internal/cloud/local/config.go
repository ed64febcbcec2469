package local

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local/sizes"
)

// MachineCommand is the first argument with which the launching binary is run
// again to become a machine; see MachineMain.
const MachineCommand = "local-machine"

// Config says where machines live and what they are made of. StateDir has no
// default; New also needs RootDir, and a StateDir that is not on an overlay file
// system. Destroy and Leftovers look at what host's do.
type Config struct {
	// Config is where machines live. Catalogue's default: those of sizes.Types and sizes.WithGPUs
	// that have no more CPUs than this host.
	host.Config
	// Zones are the names of zones, all on this host. Optional: the one of sizes.Zone.
	Zones []string
	// GPUs are how many stand-ins for GPUs the machines of sizes.WithGPUs have; 0 for no
	// such type in the default Catalogue.
	GPUs int
	// RootDir is the read-only tree that every machine's root starts from.
	RootDir string
	// Init is the command, inside the machine, that becomes its process 1.
	// Default: /bin/itzo cell.
	Init []string
	// Nameservers are written into the machines' resolv.conf. With none,
	// a look-up in a machine fails at once rather than after a time-out.
	Nameservers []netip.Addr
	// LauncherPath and LauncherArgs are the command that calls MachineMain.
	// Default: this very binary, with MachineCommand as its argument.
	LauncherPath string
	LauncherArgs []string
}

// possible leaves out the types with more CPUs than the host has: a kubelet that
// is shown them cannot write them into a cpuset. Memory can be promised beyond
// what the host has; it is a limit.
func possible(types []catalog.InstanceType, cpus int) []catalog.InstanceType {
	return slices.DeleteFunc(types, func(t catalog.InstanceType) bool { return t.MilliCPU > int64(cpus)*1000 })
}

// withDefaults fills in what is left open and refuses what cannot work.
func (c Config) withDefaults() (Config, error) {
	if len(c.Init) == 0 {
		c.Init = []string{"/bin/itzo", "cell"}
	}
	if !filepath.IsAbs(c.Init[0]) {
		return c, fmt.Errorf("init %q: want an absolute path inside the machine", c.Init[0])
	}
	if c.LauncherPath == "" {
		// Not the link's target: the running binary's own file stays reachable
		// here even after an upgrade replaced it on disk.
		c.LauncherPath = "/proc/self/exe"
	}
	if len(c.LauncherArgs) == 0 {
		c.LauncherArgs = []string{MachineCommand}
	}
	if len(c.Catalogue) == 0 {
		types := append(sizes.Types(runtime.GOARCH, c.Zones...), sizes.WithGPUs(runtime.GOARCH, c.GPUs, c.Zones...)...)
		c.Catalogue = possible(types, host.CPUs())
	}
	c.SharedKernel = true
	var err error
	c.Config, err = c.Config.WithDefaults()
	return c, err
}
