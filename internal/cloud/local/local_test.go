package local

import (
	"reflect"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/host"
)

func TestConfigOfMachinesHasDefaultsAndErrorsThatNameTheField(t *testing.T) {
	c, err := Config{Config: host.Config{StateDir: "/var/lib/kip"}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.Bridge != "kip0" || !reflect.DeepEqual(c.Init, []string{"/bin/itzo", "cell"}) || len(c.Catalogue) == 0 {
		t.Errorf("defaults: %+v", c)
	}
	c.Init = []string{"itzo"}
	if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), `init "itzo": want an absolute path`) {
		t.Errorf("error is %v", err)
	}
	if _, err := (Config{}).withDefaults(); err == nil || !strings.Contains(err.Error(), "stateDir is empty") {
		t.Errorf("error is %v", err)
	}
}

func TestCPUInfoHasOneBlockACore(t *testing.T) {
	host := "processor\t: 0\nmodel name\t: X: 1\nphysical id\t: 3\nsiblings\t: 64\ncore id\t\t: 9\ncpu cores\t: 32\npower management:\n\nprocessor\t: 1\nmodel name\t: X\n\n"
	want := "processor\t: 0\nmodel name\t: X: 1\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 0\ncpu cores\t: 2\npower management:\n\n" +
		"processor\t: 1\nmodel name\t: X: 1\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 1\ncpu cores\t: 2\npower management:\n\n"
	if got := cpuinfo(host, 2); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestMeminfoIsTheTypes(t *testing.T) {
	got := meminfo(512 << 20)
	for _, want := range []string{"MemTotal:         524288 kB\n", "MemAvailable:     524288 kB\n", "SwapTotal:             0 kB\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

func TestCoresAreRoundedUp(t *testing.T) {
	for milli, want := range map[int64]int{0: 1, 250: 1, 1000: 1, 1001: 2, 8000: 8} {
		if got := cores(catalog.InstanceType{MilliCPU: milli}); got != want {
			t.Errorf("%d milliCPU: %d cores, want %d", milli, got, want)
		}
	}
}
