//go:build e2e

package boot

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// limit bounds one boot. Emulated on a busy host it takes a minute.
const limit = 5 * time.Minute

// diskBytes is the size of a machine's disk, larger than the image.
const diskBytes = 3 << 30

// image is the folder of what make image built.
func image(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs(cmp.Or(os.Getenv("KIP_BIN"), "../../bin"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, "image", "kip-cell-"+runtime.GOARCH)
}

// newDisk makes a machine's disk of the image.
func newDisk(t *testing.T) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk.raw")
	if out, err := exec.Command("cp", "--sparse=always", image(t)+".raw", disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s (make image builds it)", err, out)
	}
	if err := os.Truncate(disk, diskBytes); err != nil {
		t.Fatal(err)
	}
	return disk
}

// machine is one that runs, for a test.
type machine struct {
	t *testing.T
	*Machine
}

// start boots a disk with this user data, "" for none, and with or without a network
// card.
func start(t *testing.T, disk, userData string, card bool) machine {
	t.Helper()
	return run(t, describe(t, disk, userData, card))
}

// run boots a machine as it is described.
func run(t *testing.T, what vm.Machine) machine {
	t.Helper()
	m, err := Start(what)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return machine{t, m}
}

// describe says what machine start boots: of emulated virtio devices, with UEFI.
func describe(t *testing.T, disk, userData string, card bool) vm.Machine {
	t.Helper()
	dir := t.TempDir()
	vars, err := os.ReadFile(vm.FirmwareVariables)
	if err != nil {
		t.Fatalf("%v (Debian's package ovmf has it)", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "vars"), vars, 0o600); err != nil {
		t.Fatal(err)
	}
	// Always emulated, so that it is the same machine wherever the test runs.
	what := vm.Machine{
		Accelerator: vm.TCG,
		CPUs:        1,
		MemoryBytes: 1 << 30,
		Variables:   filepath.Join(dir, "vars"),
		Disk:        vm.Disk{File: disk, Format: "raw"},
		Monitor:     filepath.Join(dir, "monitor"),
		Files:       map[string]string{},
	}
	if card {
		what.Card = &vm.Card{}
	}
	if userData != "" {
		file := filepath.Join(dir, "user-data")
		if err := os.WriteFile(file, []byte(userData), 0o600); err != nil {
			t.Fatal(err)
		}
		what.Files[vm.UserData] = file
	}
	return what
}

// says waits for a line with this on the console, and returns it.
func (m machine) says(want string) Line {
	m.t.Helper()
	l, err := m.Says(within(m.t), want)
	if err != nil {
		m.t.Fatal(err)
	}
	return l
}

// ends waits until the machine is off.
func (m machine) ends() {
	m.t.Helper()
	if err := m.Ends(within(m.t)); err != nil {
		m.t.Fatal(err)
	}
}

// do gives the machine's hypervisor an order.
func (m machine) do(command string, arguments any) {
	m.t.Helper()
	monitor, err := vm.Dial(within(m.t), m.monitor)
	for errors.Is(err, fs.ErrNotExist) { // QEMU makes it when it has begun
		select {
		case <-m.Ended():
			m.t.Fatalf("QEMU has ended: %s", m.Console())
		case <-time.After(20 * time.Millisecond):
		}
		monitor, err = vm.Dial(within(m.t), m.monitor)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	defer monitor.Close()
	if err := monitor.Do(within(m.t), command, arguments, nil); err != nil {
		m.t.Fatal(err)
	}
}

// press presses the power button.
func (m machine) press() {
	m.t.Helper()
	if err := m.Press(within(m.t)); err != nil {
		m.t.Fatal(err)
	}
}

// at returns when a line was said, in seconds since the kernel started.
func at(t *testing.T, line Line) float64 {
	t.Helper()
	d, ok := line.Stamp()
	if !ok {
		t.Fatalf("the line %q has no time", line.Text)
	}
	return d.Seconds()
}

// within is a context that ends with the limit.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}
