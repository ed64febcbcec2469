package qemu

import (
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// Auto is an accelerator that Config can ask for; vm.KVM and vm.TCG are the others.
const Auto = "auto"

const (
	// leastMemory is what a machine has at least, in bytes: kernel, containerd and kubelet
	// take 165 MiB of 1 GiB.
	leastMemory = 512 << 20
	// bootEmulated is a type's BootTimeout where machines are emulated. A boot takes 15
	// seconds alone on two cores, and two minutes among ten others.
	bootEmulated = 15 * time.Minute
	// shutLimit is how long a machine has to end by itself: the agent takes a minute at most.
	shutLimit = 90 * time.Second
)

// Config says where machines live and what they boot. StateDir and Image have no defaults.
// Destroy and Leftovers look at what host's do.
type Config struct {
	// Config is where machines live. Of its Catalogue those types are offered that have no
	// more CPUs than this host, and half a GiB of memory or more: a machine cannot boot in
	// less. Of a type with a part of a CPU a machine has whole ones, of which it gets that
	// part of the time.
	host.Config
	// Image is the disk that machines start from, of form qcow2 or raw, as kip-image makes
	// it: its EFI program and its manifest are beside it.
	Image string
	// Version is Kip's own, of which the image is to be, too. Optional: they are not compared.
	Version string
	// Nameservers are the machines'. With none, a look-up in a machine fails at once rather
	// than after a time-out.
	Nameservers []netip.Addr
	// Accelerator is vm.KVM, vm.TCG or Auto, which is KVM where it works. Default: Auto.
	Accelerator string
	// Hugepages says that machines' memory is taken from the host's hugepages.
	Hugepages bool
	// Vendor has machines be like those of the cloud whose SMBIOS vendor this is: UEFI boots their
	// disk, an NVMe device, and they are told nothing. They ask for their address by DHCP, and for their user data
	// where that cloud has it; somebody is to answer on the bridge. When empty, the kernel is booted
	// directly and finds both in the machine's firmware configuration.
	Vendor string
	// More are further arguments, as vm.Machine has them. Optional.
	More []string
	// ShutLimit is how long a machine that is stopped has to end by itself. Default: 90 s.
	ShutLimit time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.Accelerator == "" {
		c.Accelerator = Auto
	}
	if all := []string{Auto, vm.KVM, vm.TCG}; !slices.Contains(all, c.Accelerator) {
		return c, fmt.Errorf("accelerator %q: want one of %q", c.Accelerator, all)
	}
	if c.ShutLimit == 0 {
		c.ShutLimit = shutLimit
	}
	var err error
	c.Config, err = c.Config.WithDefaults()
	return c, err
}

// checkHost refuses hosts on which no machine can be made, with the reason.
func checkHost() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("virtual machines are of amd64 only, and this host is of %s: want the local cloud there", runtime.GOARCH)
	}
	for program, pkg := range map[string]string{vm.Program: "qemu-system-x86", "qemu-img": "qemu-utils"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: install QEMU (Debian's package %s)", err, pkg)
		}
	}
	return nil
}

// possible leaves out the types that no machine of this host can be of, and says what a
// machine's kernel sees of their memory, and how long they take to boot.
func possible(types []catalog.InstanceType, cpus int, accelerator string) []catalog.InstanceType {
	types = slices.DeleteFunc(slices.Clone(types), func(t catalog.InstanceType) bool {
		return t.MilliCPU > int64(cpus)*1000 || t.MemoryBytes < leastMemory
	})
	for n := range types {
		types[n].UsableBytes = catalog.KernelSees(types[n].MemoryBytes)
		if accelerator != vm.KVM {
			types[n].BootTimeout = bootEmulated
		}
	}
	return types
}
