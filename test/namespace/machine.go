package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/host"
)

// Machine is the machine of a cell, as root on the host gets at it.
type Machine struct {
	Cell apiv1.Cell
	PID  int // of its init, on the host
}

// Machine returns the machine of a cell.
func (s *Space) Machine(cell apiv1.Cell) Machine {
	s.Helper()
	side, err := host.Inspect(host.Config{StateDir: filepath.Join(s.World.State, "cloud")}, cell.Status.InstanceID)
	if err != nil {
		s.Fatal(err)
	}
	if side.PID == 0 {
		s.Fatalf("machine %s of cell %s has no process: %+v", cell.Status.InstanceID, cell.Name, side)
	}
	return Machine{Cell: cell, PID: side.PID}
}

// Path is where the host sees a file of the machine.
func (m Machine) Path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.PID), "root", name)
}

// Netns is the machine's network namespace.
func (m Machine) Netns() string { return fmt.Sprintf("/proc/%d/ns/net", m.PID) }

// Inside runs f, which starts no goroutine that outlives it in there, in the machine's
// network namespace. Sockets that it opens, and processes that it starts, stay there.
func (m Machine) Inside(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- m.inside(f) }()
	return <-done
}

// inside moves the goroutine's thread into the machine's network namespace and back.
// The thread must not just be left to die in there: had it been the one that started
// the control plane, that would get its parent-death signal.
func (m Machine) inside(f func() error) (err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	there, err := os.Open(m.Netns())
	if err != nil {
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", m.Netns(), err)
	}
	defer func() {
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("leave %s: %w", m.Netns(), back))
			return // locked: nobody else may use this thread
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// Dial dials an address from within the machine, as a process on its host network does.
func (m Machine) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	return conn, m.Inside(func() error {
		// One address: it is dialled by this goroutine itself.
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
}

// doorPort is where a machine with a door hands connections to its agent.
const doorPort = agentapi.Port + 1000

// OpenDoor returns a port by which neighbours come to the machine's agent, until the test
// ends. The host lets nobody else to the agent's own, and then what the cell itself does
// about neighbours cannot be seen.
func (m Machine) OpenDoor(t testing.TB) (port int) {
	t.Helper()
	nft := func(program string) error {
		return m.Inside(func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(program)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
	}
	if err := nft(fmt.Sprintf(`table inet door {
	chain dstnat {
		type nat hook prerouting priority dstnat
		tcp dport %d redirect to :%d
	}
}
`, doorPort, agentapi.Port)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nft("delete table inet door\n"); err != nil && !errors.Is(err, fs.ErrNotExist) { // the machine may be gone
			t.Error(err)
		}
	})
	return doorPort
}

// Kubelet is the client configuration of the machine's kubelet, which reaches what the
// kubelet reaches, by the way that the kubelet takes.
func (m Machine) Kubelet() (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(m.Path(configs.Kubeconfig))
	if err != nil {
		return nil, err
	}
	for _, c := range file.Clusters {
		c.CertificateAuthority = m.Path(c.CertificateAuthority)
	}
	for _, u := range file.AuthInfos {
		u.ClientCertificate, u.ClientKey = m.Path(u.ClientCertificate), m.Path(u.ClientKey)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*file, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	// Read now, so that nothing reads them again when the machine is gone.
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, err
	}
	cfg.Dial, cfg.Timeout = m.Dial, Patience
	cfg.QPS = -1 // the cell API's own limits hold
	return cfg, nil
}
