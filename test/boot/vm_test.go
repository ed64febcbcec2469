//go:build e2e

package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
)

// limit bounds one boot. Emulated on a busy host, beside others, it takes minutes.
const limit = 15 * time.Minute

// diskBytes is the size of a machine's disk, larger than the image.
const diskBytes = 3 << 30

// image is where what make image built is, without a suffix, for this host's architecture.
func image(t *testing.T) string {
	t.Helper()
	return imageFor(t, runtime.GOARCH)
}

func imageFor(t *testing.T, arch string) string {
	t.Helper()
	bin, err := filepath.Abs(cmp.Or(os.Getenv("KIP_BIN"), "../../bin"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, "image", "kip-cell-"+arch)
}

// newDisk makes a machine's disk of the image.
func newDisk(t *testing.T) string {
	t.Helper()
	return diskOf(t, image(t))
}

func diskOf(t *testing.T, image string) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk.raw")
	if out, err := exec.Command("cp", "--sparse=always", image+".raw", disk).CombinedOutput(); err != nil {
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
	// Always emulated, so that it is the same machine wherever the test runs.
	what := vm.Machine{
		Accelerator: vm.TCG,
		CPUs:        1,
		MemoryBytes: 1 << 30,
		Variables:   variables(t, dir, vm.FirmwareVariables),
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

// variables is a machine's own copy of the variables of UEFI.
func variables(t *testing.T, dir, of string) string {
	t.Helper()
	file := filepath.Join(dir, "vars")
	if out, err := exec.Command("cp", "--sparse=always", of, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s (Debian's packages ovmf and qemu-efi-aarch64 have it)", err, out)
	}
	return file
}

// kip is who launches a test's machine, as the cell c-1, and connects to its agent.
type kip struct {
	t         *testing.T
	authority *pki.Authority
	dialer    *tunnel.Dialer
	token     pki.Token
	keyHash   string // of the agent that has joined
}

func newKip(t *testing.T) *kip {
	t.Helper()
	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return &kip{t: t, authority: authority, dialer: dialer, token: pki.NewToken()}
}

// userData is what the machine is launched with.
func (k *kip) userData() string {
	return fmt.Sprintf("#cloud-config\nkip:\n  cellID: c-1\n  caHash: \"%s\"\n  token: \"%s\"\n", k.authority.Hash(), k.token.Reveal())
}

// join connects to the agent, which has joined before where the token is empty.
func (k *kip) join(m machine, token pki.Token) (agent agentapi.Client, leave func()) {
	k.t.Helper()
	ctx := within(k.t)
	s, err := k.dialer.Keep(ctx, tunnel.Target{
		CellID:  "c-1",
		Addr:    netip.MustParseAddrPort(m.Agent),
		Token:   token,
		KeyHash: k.keyHash,
	}, http.NotFoundHandler(), func(_ context.Context, hash string) error { k.keyHash = hash; return nil })
	if err != nil {
		k.t.Fatal(err)
	}
	select {
	case <-s.Ready():
	case <-ctx.Done():
		k.t.Fatalf("the agent has not joined: %v\n%s", s.LastError(), m.Console())
	}
	return agentapi.Client{Conn: s.Conn()}, s.Close
}

// runs has the agent begin to carry out a cloud-init file, by which the machine ends.
func (k *kip) runs(m machine, document string) {
	k.t.Helper()
	agent, leave := k.join(m, k.token)
	defer leave()
	for {
		_, err := agent.PutCloudInit(within(k.t), []byte("#cloud-config\n"+document))
		var said *agentapi.StatusError
		if errors.As(err, &said) && !errors.Is(err, agentapi.ErrNotYet) {
			k.t.Fatalf("the agent refuses it: %v", err)
		}
		if !errors.Is(err, agentapi.ErrNotYet) {
			return
		}
		select {
		case <-m.Ended():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
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
	monitor, err := vm.Dial(within(m.t), m.monitor, vm.AnswerLimit)
	for errors.Is(err, fs.ErrNotExist) { // QEMU makes it when it has begun
		select {
		case <-m.Ended():
			m.t.Fatalf("QEMU has ended: %s", m.Console())
		case <-time.After(20 * time.Millisecond):
		}
		monitor, err = vm.Dial(within(m.t), m.monitor, vm.AnswerLimit)
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
