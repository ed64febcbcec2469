package host

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
)

func TestCPUsAreThoseOfTheHost(t *testing.T) {
	if CPUs() < runtime.NumCPU() {
		t.Errorf("the host has %d processors, and this process may run on %d", CPUs(), runtime.NumCPU())
	}
	out, err := exec.Command("getconf", "_NPROCESSORS_ONLN").Output()
	if err != nil {
		t.Skip("no getconf, of libc-bin, says how many processors are online")
	}
	if want, err := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || CPUs() != want {
		t.Errorf("it counts %d processors, and getconf %q (%v)", CPUs(), out, err)
	}
}

func TestTheBoundsOfMachinesAreWhatTheHostHas(t *testing.T) {
	c := &Cloud{cfg: Config{Catalogue: []catalog.InstanceType{{Name: "a"}, {Name: "b", Family: "other"}}}}
	b, err := c.Bounds(t.Context(), "me")
	if err != nil || b.MemoryBytes < 64<<20 || len(b.Machines) > 0 || len(b.MilliCPU) != 2 {
		t.Errorf("the bounds are %+v, %v", b, err)
	}
	for class, milliCPU := range b.MilliCPU {
		if milliCPU != int64(CPUs())*1000 || class.Spot {
			t.Errorf("%+v may have %d thousandths of a CPU", class, milliCPU)
		}
	}
}
