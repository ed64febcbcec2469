//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

// otherAgent is an agent of another version than that of the cells' root, on a server that
// cells reach.
type otherAgent struct {
	version, sha256 string
	url             string
	program         []byte

	mu    sync.Mutex
	asked []string // paths, in order
}

// serveOtherAgent makes one: this build's, of which the version is changed where it stands. The
// server ends with the test.
func serveOtherAgent(t *testing.T) *otherAgent {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), world.Tool("itzo-lite"), "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(world.Tool("itzo-lite"))
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimSpace(string(out))
	a := &otherAgent{version: version[:len(version)-1] + "x"}
	a.program = bytes.ReplaceAll(program, []byte(version), []byte(a.version))
	if bytes.Equal(a.program, program) {
		t.Fatalf("the agent says version %q, and it is not in its program", version)
	}
	digest := sha256.Sum256(a.program)
	a.sha256 = hex.EncodeToString(digest[:])

	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(prefix.Masked().Addr().Next().String(), "0")) // the host's, on the bridge
	if err != nil {
		t.Fatal(err)
	}
	a.url = "http://" + l.Addr().String() + "/agents"
	server := &http.Server{Handler: a}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return a
}

func (a *otherAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, r.URL.Path)
	a.mu.Unlock()
	if r.URL.Path != a.file() {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(a.program)
}

// file is the path at which cells are to ask for it.
func (a *otherAgent) file() string { return "/agents/itzo-" + a.version + "-" + runtime.GOARCH }

// requests are the paths that were asked for.
func (a *otherAgent) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// wanted is what provider.yaml says of it, with the digest that is given.
func (a *otherAgent) wanted(digest string) map[string]any {
	return map[string]any{"itzo": map[string]any{
		"version": a.version,
		"url":     a.url,
		"sha256":  map[string]any{runtime.GOARCH: digest},
	}}
}

// Not parallel: it starts Kip with other settings.
func TestACellGoesOverToTheAgentThatKipNames(t *testing.T) {
	s := newSpace(t)
	other := serveOtherAgent(t)
	restore := reconfigure(t, other.wanted(other.sha256))
	s.Apply(sleeper("a"))
	s.WaitReady("a")
	s.Eventually("a command runs in the pod", s.ExecTrue("a"))
	m := s.machine("a")
	if got := m.cell.Status.Agent; got == nil || *got != (apiv1.Agent{Version: other.version, SHA256: other.sha256}) {
		t.Errorf("the Cell's agent is %+v, want %s with %s", got, other.version, other.sha256)
	}
	if out := s.tells(world.Socket, "why", "a"); !strings.Contains(out, other.version+", sha256 "+other.sha256) {
		t.Errorf("kipctl why prints\n%s", out)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", m.pid)); err != nil || path.Base(exe) != other.sha256 {
		t.Errorf("its first process is %s (%v)", exe, err)
	}
	if got := other.requests(); !slices.Equal(got, []string{other.file()}) {
		t.Errorf("the server was asked for %v", got)
	}

	restore()
	s.Apply(sleeper("b"))
	s.WaitReady("b")
	if got := s.cellOf("b").Status.Agent; got == nil || got.Version == other.version || got.SHA256 != "" {
		t.Errorf("without the keys the agent is %+v", got)
	}
	if got := s.cellOf("a").Name; got != m.cell.Name {
		t.Errorf("pod a moved to cell %s", got)
	}
}

// agentBadAnswers is how many files with a wrong digest a machine takes, and agentRefusals how many
// machines may have none before no other is launched.
const agentBadAnswers, agentRefusals = 5, 3

// Not parallel: it starts Kip with other settings.
func TestNoCellStartsAnAgentOfAnotherDigest(t *testing.T) {
	s := newSpace(t)
	other := serveOtherAgent(t)
	before, err := machinesOnDisk()
	if err != nil {
		t.Fatal(err)
	}
	restore := reconfigure(t, other.wanted(strings.Repeat("0", 64)))
	s.Apply(sleeper("a"))
	why := "has the SHA-256 " + other.sha256
	s.waitEvent("a", "AgentNotStarted", why)
	paused := fmt.Sprintf("%d machines could not have the agent of cells.itzo, and launches wait until that is mended", agentRefusals)
	s.Eventually("launches pause", func(ctx context.Context) error {
		list, err := nodeEvents(ctx, "AgentNotStarted")
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, paused) && strings.Contains(e.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("the node has %d such events, and the server was asked %d times", len(list.Items), len(other.requests()))
	})
	if got := len(other.requests()); got != agentRefusals*agentBadAnswers {
		t.Errorf("the server was asked %d times, want %d by each of %d machines", got, agentBadAnswers, agentRefusals)
	}
	if out := s.tells(world.Socket, "why", "a"); !strings.Contains(out, why) {
		t.Errorf("kipctl why does not say that the file %s:\n%s", why, out)
	}
	s.Eventually("no machine is left", func(context.Context) error {
		left, err := machinesOnDisk()
		if err == nil && !slices.Equal(left, before) {
			err = fmt.Errorf("there were %v, and are %v", before, left)
		}
		return err
	})
	if pod, err := s.Pod(t.Context(), "a"); err != nil || pod.Status.Phase != "Pending" {
		t.Errorf("the pod: %+v, %v", pod, err)
	}

	// Whoever runs Kip mends it.
	restore()
	s.WaitReady("a")
}
