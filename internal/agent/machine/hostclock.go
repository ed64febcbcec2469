package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/modules"
)

// hostClocks are the names of clocks by which a hypervisor shows its own time to a machine, which is UTC:
// Hyper-V's (hv_utils, drivers/hv/hv_util.c), as on Azure, and KVM's (ptp_kvm). Clocks of network cards are
// others, which nobody may have set.
var hostClocks = map[string]bool{"hyperv": true, "KVM virtual PTP": true}

// loadHostClock loads the clock of KVM, which no device asks for.
func loadHostClock(load func(module string) error) error {
	err := load("ptp_kvm")
	if errors.Is(err, modules.ErrUnknown) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // another image or hypervisor, or a KVM that does not show its clock
	}
	return err
}

// hostClock returns the device of the hypervisor's clock, as the kernel shows it below sys ("/sys")
// and dev ("/dev"); "" where there is none.
func hostClock(sys, dev string) string {
	all, err := filepath.Glob(filepath.Join(sys, "class/ptp/ptp*/clock_name"))
	if err != nil {
		return ""
	}
	for _, file := range all {
		name, err := os.ReadFile(file)
		if err == nil && hostClocks[strings.TrimSpace(string(name))] {
			return filepath.Join(dev, filepath.Base(filepath.Dir(file)))
		}
	}
	return ""
}

// askHost returns by how much the machine's clock is behind that of a device.
func askHost(device string) (time.Duration, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, fmt.Errorf("ask the hypervisor for the time: %w", err)
	}
	defer f.Close()
	var before, told, after unix.Timespec
	err = errors.Join(
		unix.ClockGettime(unix.CLOCK_REALTIME, &before),
		unix.ClockGettime(unix.FdToClockID(int(f.Fd())), &told),
		unix.ClockGettime(unix.CLOCK_REALTIME, &after),
	)
	if err != nil {
		return 0, fmt.Errorf("ask the hypervisor for the time by %s: %w", device, err)
	}
	return behind(before, told, after), nil
}

// behind is by how much a clock that was read twice is behind another that was read between.
func behind(before, told, after unix.Timespec) time.Duration {
	return time.Duration(told.Nano() - before.Nano() - (after.Nano()-before.Nano())/2)
}
