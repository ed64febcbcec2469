//go:build e2e

package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/test/namespace"
)

// identityDir is where an agent keeps its key and certificate.
const identityDir = "/var/lib/itzo/identity"

// certificate is a machine's own, with its key.
func certificate(t *testing.T, m namespace.Machine) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(m.Path(filepath.Join(identityDir, "cell.crt")), m.Path(filepath.Join(identityDir, "cell.key")))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// usurp hands what is dialled at the agent of a pod's cell to a listener of the test,
// as root on the cell can. Kip's connections to the agent break. end gives them back.
func usurp(t *testing.T, s *space, pod string) (l net.Listener, end func()) {
	t.Helper()
	m := s.machine(pod)
	nft := func(program string) error {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "nft", "-f", "-")
		cmd.Stdin = bytes.NewBufferString(program)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}
	if err := m.Inside(func() (err error) {
		if l, err = net.Listen("tcp4", ":0"); err != nil {
			return err
		}
		// What is redirected comes to input with the other port; what was open before,
		// with the agent's.
		return nft(fmt.Sprintf(`table inet hostile {
	chain dstnat {
		type nat hook prerouting priority dstnat
		tcp dport %[1]d redirect to :%[2]d
	}
	chain input {
		type filter hook input priority filter
		tcp dport %[1]d reject with tcp reset
	}
}`, agentapi.Port, l.Addr().(*net.TCPAddr).Port))
	}); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		if err := m.Inside(func() error { return nft("delete table inet hostile") }); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	// Kip tells the cell of its pod's change, and so hears that the connection is broken.
	s.Kubectl("annotate", "--overwrite", "pod", pod, "hostile="+time.Now().Format("150405.000000"))
	return l, end
}

// attacker is root on a pod's cell, who speaks in the place of the agent.
type attacker struct {
	*space
	pod  string
	cell *tunnel.Cell
	http *http.Client
}

// attack takes the place of a cell's agent. Of Kip's requests to it none is answered.
func attack(t *testing.T, s *space, pod string) *attacker {
	t.Helper()
	l, _ := usurp(t, s, pod)
	cell := newCell(t, s.machine(pod), http.NotFoundHandler())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := cell.Serve(ctx, l); !errors.Is(err, context.Canceled) {
			t.Errorf("serve in the agent's place: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-served
	})
	return &attacker{space: s, pod: pod, cell: cell, http: &http.Client{Transport: cell.RoundTripper()}}
}

// newCell is an agent's end of the tunnel, with the machine's own key.
func newCell(t *testing.T, m namespace.Machine, handler http.Handler) *tunnel.Cell {
	t.Helper()
	doc, err := os.ReadFile(m.Path(cloudinit.SeedFile))
	if err != nil {
		t.Fatal(err)
	}
	data, err := cloudinit.Parse(doc, "")
	if err != nil {
		t.Fatal(err)
	}
	cell, err := tunnel.NewCell(tunnel.CellConfig{
		UserData: data,
		StateDir: m.Path(identityDir),
		Handler:  handler,
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return cell
}

// ask sends one request to the cell API and returns the code and the beginning of the
// answer. length is what the request says of its body, -1 for nothing.
func (a *attacker) ask(ctx context.Context, method, path, contentType string, body io.Reader, length int64) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://kip"+path, body)
	if err != nil {
		return 0, "", err
	}
	req.ContentLength = length
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	begin := make([]byte, 400)
	n, err := io.ReadFull(resp.Body, begin)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return resp.StatusCode, "", err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, string(begin[:n]), err
}
