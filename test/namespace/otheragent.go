package namespace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/elotl/kip/test/harness"
)

// OtherAgent is an agent of another version than that of the cells' root, on a server that
// cells reach.
type OtherAgent struct {
	Version, SHA256 string
	url             string
	program         []byte

	mu    sync.Mutex
	asked []string // paths, in order
}

// ServeOtherAgent makes one: this build's, of which the version is changed where it stands. The
// server ends with the test.
func ServeOtherAgent(t *testing.T, world *harness.World, cells netip.Prefix) *OtherAgent {
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
	a := &OtherAgent{Version: version[:len(version)-1] + "x"}
	a.program = bytes.ReplaceAll(program, []byte(version), []byte(a.Version))
	if bytes.Equal(a.program, program) {
		t.Fatalf("the agent says version %q, and it is not in its program", version)
	}
	digest := sha256.Sum256(a.program)
	a.SHA256 = hex.EncodeToString(digest[:])

	l, err := net.Listen("tcp", net.JoinHostPort(cells.Masked().Addr().Next().String(), "0")) // the host's, on the bridge
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

func (a *OtherAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, r.URL.Path)
	a.mu.Unlock()
	if r.URL.Path != a.File() {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(a.program)
}

// File is the path at which cells are to ask for it.
func (a *OtherAgent) File() string { return "/agents/itzo-" + a.Version + "-" + runtime.GOARCH }

// Requests are the paths that were asked for.
func (a *OtherAgent) Requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// Wanted is what provider.yaml says of it, with the digest that is given.
func (a *OtherAgent) Wanted(digest string) map[string]any {
	return map[string]any{"itzo": map[string]any{
		"version": a.Version,
		"url":     a.url,
		"sha256":  map[string]any{runtime.GOARCH: digest},
	}}
}
