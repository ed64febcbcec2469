//go:build e2e

// Package boot boots the image that make image built on emulated machines, and sees on
// their consoles, and from their agents, that it does what a cloud's machine must. It
// needs QEMU and OVMF, and neither root nor KVM.
package boot

import (
	"bufio"
	"cmp"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
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

// machine is one that runs.
type machine struct {
	t       *testing.T
	cmd     *exec.Cmd
	monitor string
	// agent is where its agent's port is on this host.
	agent string

	mu    sync.Mutex
	lines []string
	// grew is closed and replaced at each line; ended is closed with the machine.
	grew  chan struct{}
	ended chan struct{}
}

// start boots a disk with this user data, "" for none, and with or without a network
// card.
func start(t *testing.T, disk, userData string, card bool) *machine {
	t.Helper()
	dir := t.TempDir()
	vars, err := os.ReadFile(vm.FirmwareVariables)
	if err != nil {
		t.Fatalf("%v (Debian's package ovmf has it)", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "vars"), vars, 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{
		t:       t,
		monitor: filepath.Join(dir, "monitor"),
		agent:   free.Addr().String(),
		grew:    make(chan struct{}),
		ended:   make(chan struct{}),
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	// Always emulated, so that it is the same machine wherever the test runs.
	what := vm.Machine{
		Accelerator: vm.TCG,
		CPUs:        1,
		MemoryBytes: 1 << 30,
		Variables:   filepath.Join(dir, "vars"),
		Disk:        vm.Disk{File: disk, Format: "raw"},
		Monitor:     m.monitor,
		Files:       map[string]string{},
	}
	if card {
		what.Card = &vm.Card{User: "hostfwd=tcp:" + m.agent + "-:6421"}
	}
	if userData != "" {
		file := filepath.Join(dir, "user-data")
		if err := os.WriteFile(file, []byte(userData), 0o600); err != nil {
			t.Fatal(err)
		}
		what.Files[vm.UserData] = file
	}
	m.cmd = exec.Command(vm.Program, what.Args()...)
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.cmd.Stderr = m.cmd.Stdout
	if err := m.cmd.Start(); err != nil {
		t.Fatalf("%v (Debian's package qemu-system-x86 has it)", err)
	}
	go m.read(bufio.NewScanner(out))
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill() // it has ended, or is to
		<-m.ended
	})
	return m
}

// escapes are what firmware writes to move on a screen.
var escapes = regexp.MustCompile(`\x1b\[[0-9;=?]*[a-zA-Z]`)

func (m *machine) read(s *bufio.Scanner) {
	for s.Scan() {
		m.mu.Lock()
		m.lines = append(m.lines, strings.TrimSpace(escapes.ReplaceAllString(s.Text(), "")))
		close(m.grew)
		m.grew = make(chan struct{})
		m.mu.Unlock()
	}
	_ = m.cmd.Wait() // however it ended, the console says why
	close(m.ended)
}

// console is what the machine has said.
func (m *machine) console() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.lines, "\n")
}

// says waits for a line with this on the console, and returns it.
func (m *machine) says(want string) string {
	m.t.Helper()
	timeout := time.After(limit)
	for from := 0; ; {
		m.mu.Lock()
		lines, grew := m.lines, m.grew
		m.mu.Unlock()
		for ; from < len(lines); from++ {
			if strings.Contains(lines[from], want) {
				return lines[from]
			}
		}
		select {
		case <-grew:
			continue
		case <-timeout:
			m.t.Fatalf("the console never said %q:\n%s", want, m.console())
		case <-m.ended:
		}
		if m.mu.Lock(); from == len(m.lines) {
			m.mu.Unlock()
			m.t.Fatalf("the machine has ended, and its console never said %q:\n%s", want, m.console())
		}
		m.mu.Unlock()
	}
}

// ends waits until the machine is off.
func (m *machine) ends() {
	m.t.Helper()
	select {
	case <-m.ended:
	case <-time.After(limit):
		m.t.Fatalf("the machine is not off:\n%s", m.console())
	}
}

// press presses the power button.
func (m *machine) press() {
	m.t.Helper()
	monitor, err := vm.Dial(within(m.t), m.monitor)
	if err != nil {
		m.t.Fatal(err)
	}
	defer monitor.Close()
	if err := monitor.Do(within(m.t), "system_powerdown", nil, nil); err != nil {
		m.t.Fatal(err)
	}
}

// at returns when a line was said, in seconds since the kernel started.
func at(t *testing.T, line string) float64 {
	t.Helper()
	text, _, _ := strings.Cut(strings.TrimPrefix(line, "["), "]")
	seconds, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		t.Fatalf("the line %q has no time: %v", line, err)
	}
	return seconds
}

// within is a context that ends with the limit.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}
