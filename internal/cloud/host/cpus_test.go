package host

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
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
