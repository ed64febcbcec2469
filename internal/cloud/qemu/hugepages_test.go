package qemu

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud/host"
)

const hugepagesFile = "/proc/sys/vm/nr_hugepages"

// hugepages are how many this host has.
func hugepages(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(hugepagesFile)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// withHugepages lets this host have so many more, until the test ends.
func withHugepages(t *testing.T, more int) {
	t.Helper()
	before := hugepages(t)
	set := func(n int) error { return os.WriteFile(hugepagesFile, []byte(strconv.Itoa(n)), 0) }
	t.Cleanup(func() {
		if err := set(before); err != nil {
			t.Errorf("put %s back to %d: %v", hugepagesFile, before, err)
		}
	})
	if err := set(before + more); err != nil {
		t.Skip("this host gives no hugepages: ", err)
	}
	if has := hugepages(t); has < before+more {
		t.Skipf("this host's memory is in too small pieces: %d hugepages of %d", has, before+more)
	}
}

// memoryOf is what a machine's process has of a kind of memory, in kB, by its status.
func memoryOf(t *testing.T, cfg Config, id, kind string) int {
	t.Helper()
	side, err := host.Inspect(cfg.Config, id)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(side.PID) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == kind+":" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", kind, text)
	return 0
}

func TestMemoryOfHugepagesIsTakenWholeOrTheMachineIsRefused(t *testing.T) {
	cfg := testHost(t)
	const megabytes = 512
	cfg.Catalogue[0].MemoryBytes = megabytes << 20
	cfg.Hugepages = true
	c := open(t, cfg)
	if n := hugepages(t); n < megabytes/2 {
		if _, err := c.Launch(context.Background(), request("a")).All(); err == nil || !strings.Contains(err.Error(), "memory") {
			t.Errorf("launched with %d hugepages: %v", n, err)
		}
	}
	withHugepages(t, megabytes/2)
	i := launch(t, c, "b")
	says(t, c, i.ID, "here\n")
	if got := memoryOf(t, cfg, i.ID, "HugetlbPages"); got != megabytes<<10 {
		t.Errorf("it has %d kB of hugepages, want %d", got, megabytes<<10)
	}
	if err := c.Terminate(context.Background(), i.ID).Err(); err != nil {
		t.Fatal(err)
	}
	onlyBridgeIsLeft(t, cfg)
}
