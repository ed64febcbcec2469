//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/http2"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/tunnel"

	"github.com/elotl/kip/test/namespace"
)

// What a connection to an agent is for, by ALPN: see the documentation of package
// tunnel.
const (
	alpnJoin    = "kip-join/1"
	alpnCellAPI = "kip-cell-api/1"
	alpnHTTP2   = "h2"
	alpnHTTP1   = "http/1.1"
)

var allALPN = []string{alpnJoin, alpnCellAPI, alpnHTTP2, alpnHTTP1}

// identityDir is where an agent keeps its key and certificate.
const identityDir = "/var/lib/itzo/identity"

// agentAddress is where the machine's agent listens.
func (m machine) agentAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	ip, err := netip.ParseAddr(m.cell.Status.ManagementIP)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(ip, agentapi.Port)
}

// userData is what the machine was launched with.
func (m machine) userData(t *testing.T) (agentapi.UserData, []byte) {
	t.Helper()
	doc, err := os.ReadFile(m.path(cloudinit.SeedFile))
	if err != nil {
		t.Fatal(err)
	}
	ud, err := cloudinit.Parse(doc, "")
	if err != nil {
		t.Fatal(err)
	}
	return ud, doc
}

// token is the one that the machine's agent has joined with.
func (m machine) token(t *testing.T) pki.Token {
	t.Helper()
	ud, _ := m.userData(t)
	token, err := pki.ParseToken(ud.Token)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// certificate is the one that the agent has from Kip, with its key: what who has
// broken out of a pod could steal.
func (m machine) certificate(t *testing.T) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(m.path(filepath.Join(identityDir, "cell.crt")), m.path(filepath.Join(identityDir, "cell.key")))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (m machine) keyHash(t *testing.T) string {
	t.Helper()
	hash, err := pki.KeyHash(m.certificate(t).Leaf.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// foreignAuthority is a CA like Kip's, but not Kip's.
func foreignAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// cellCertificate is a certificate of an authority for a cell, on a new key.
func cellCertificate(t *testing.T, a *pki.Authority, cellID string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.SignCell(csr, cellID)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, a.Certificate().Raw}, PrivateKey: key}
}

// asKip is how Kip dials with an authority.
func asKip(a *pki.Authority, alpn string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{alpn},
		GetClientCertificate: a.Client(0).GetClientCertificate, InsecureSkipVerify: true,
	}
}

// asks dials a machine's agent from the host, as Kip does, and returns how it
// answers a request for its status.
func (m machine) asks(t *testing.T, cfg *tls.Config) (int, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", m.agentAddress(t).String())
	if err != nil {
		t.Fatalf("the agent cannot be reached, so that it refuses shows nothing: %v", err)
	}
	return status(t.Context(), conn, agentapi.PathStatus, cfg)
}

func TestUserDataHoldsNoKey(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(sleeper("a"))
	s.WaitReady("a")
	m := s.machine("a")
	ud, doc := m.userData(t)
	if ud.CellID != m.cell.Name {
		t.Errorf("user data is for cell %s, the machine is cell %s", ud.CellID, m.cell.Name)
	}
	var all map[string]map[string]string
	if err := yaml.UnmarshalStrict(doc, &all); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{"kip": {"cellID": ud.CellID, "caHash": ud.CAHash, "token": ud.Token}}
	if len(all) != 1 || len(all["kip"]) != 3 || fmt.Sprint(all) != fmt.Sprint(want) {
		t.Error("user data holds more than kip.cellID, kip.caHash and kip.token")
	}
	if info, err := os.Stat(m.path(cloudinit.SeedFile)); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others than root may read the machine's user data: %v, %v", info, err)
	}

	// The key was made on the machine, and is there only.
	key := read(t, m.path(filepath.Join(identityDir, "cell.key")))
	if info, err := os.Stat(m.path(filepath.Join(identityDir, "cell.key"))); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the cell's key: %v, %v; want mode 0600", info, err)
	}
	cert := m.certificate(t).Leaf
	if uri := pki.CellURI(m.cell.Name).String(); len(cert.URIs) != 1 || cert.URIs[0].String() != uri {
		t.Errorf("the cell's certificate is for %v, want %s", cert.URIs, uri)
	}
	// Neither is in what Kip says and shows.
	for _, secret := range []string{ud.Token, strings.Split(key, "\n")[4]} {
		if len(secret) < 20 {
			t.Fatalf("a secret of %d characters is none", len(secret))
		}
		for name, text := range map[string]string{
			"the Cell resource": s.Kubectl("get", "cells", m.cell.Name, "-o", "json"),
			"the pod":           s.Kubectl("get", "pod", "a", "-o", "json"),
			"its events":        s.Kubectl("get", "events", "-o", "json"),
			"Kip's log":         read(t, filepath.Join(world.State, "kip.log")),
			"the console":       read(t, filepath.Join(world.State, "cloud", "machines", m.cell.Status.InstanceID, "console.log")),
			"an argument":       arguments(t),
		} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds the token or the key", name)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// arguments are those of every process on this host and its machines.
func arguments(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatalf("list processes: %v", err)
	}
	var all strings.Builder
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil { // or it has ended
			all.Write(append(data, '\n'))
		}
	}
	return all.String()
}

// Somebody with a CA of their own who knows all that is in the user data, the
// spent token included, and dials the agent as Kip does.
// Not parallel: Kip is killed in the end, so that its store can be read: with its
// CA the same dialling is let in.
func TestAForeignKipIsRefusedByARunningCell(t *testing.T) {
	s := newSpace(t)
	s.Apply(sleeper("a"))
	before := s.WaitReady("a")
	m := s.machine("a")
	foreign := foreignAuthority(t)
	for name, target := range map[string]tunnel.Target{
		"with the spent token":                     {Token: m.token(t)},
		"with the spent token and the cell's key":  {Token: m.token(t), KeyHash: m.keyHash(t)},
		"with another token":                       {Token: pki.NewToken()},
		"without a token, but with the cell's key": {KeyHash: m.keyHash(t)},
	} {
		t.Run(name, func(t *testing.T) {
			target.CellID, target.Addr = m.cell.Name, m.agentAddress(t)
			refusal := newAttempts(&target)
			session := refusal.keep(t, foreign, target)
			err := refusal.first(t)
			session.Close()
			refusal.wasInVain(t, session)
			// Nor would this Kip take the cell for its own, but by the key that joined: then
			// the cell refuses it.
			_, refused := errors.AsType[*tunnel.RotatedError](err)
			if unknown := (x509.UnknownAuthorityError{}); target.KeyHash == "" && !errors.As(err, &unknown) {
				t.Errorf("it ended with %v; want that the cell's certificate is of an unknown authority", err)
			} else if target.KeyHash != "" && !refused {
				t.Errorf("it ended with %v; want that the cell refuses it", err)
			}
		})
	}
	// That Kip has looked at the cell and gone. One that does not look is for the cell
	// to refuse.
	for _, proto := range allALPN {
		if answer, err := m.hears(t, foreign, proto); !isRefusal(err) {
			t.Errorf("a foreign Kip that dials for %s hears %q, %v; want a refusal", proto, answer, err)
		}
	}
	// No machine was disturbed, nor the tunnel.
	if got := s.Kubectl("exec", "a", "--", "echo", "well"); got != "well\n" {
		t.Errorf("exec says %q", got)
	}
	unmoved(s, before.Status.ContainerStatuses[0].ContainerID, "a")

	killKip(t)
	kip := storedAuthority(t, m.cell.Status.ControllerID)
	for _, proto := range allALPN {
		answer, err := m.hears(t, kip, proto)
		if proto == alpnJoin {
			// It is not the authority that is refused: who has joined joins no more.
			if !isRefusal(err) {
				t.Errorf("Kip, which dials for %s, hears %q, %v; want a refusal", proto, answer, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("Kip, which dials for %s: %v; the refusals above show nothing", proto, err)
		}
	}
	startKip(t)
	unmoved(s, before.Status.ContainerStatuses[0].ContainerID, "a")
}

// hears dials a machine's agent as Kip does with an authority, says what Kip says
// first, and returns what the agent says first.
func (m machine) hears(t *testing.T, authority *pki.Authority, proto string) ([]byte, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", m.agentAddress(t).String())
	if err != nil {
		t.Fatalf("the agent cannot be reached, so that it refuses shows nothing: %v", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(conn, asKip(authority, proto))
	if err := tc.HandshakeContext(t.Context()); err != nil {
		return nil, &handshakeError{err}
	}
	var first string // for the others the agent speaks first
	switch proto {
	case alpnHTTP1:
		first = "GET " + agentapi.PathStatus + " HTTP/1.1\r\nHost: cell\r\n\r\n"
	case alpnHTTP2:
		first = http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // and no settings
	}
	if _, err := tc.Write([]byte(first)); err != nil {
		return nil, &handshakeError{err}
	}
	answer := make([]byte, 64)
	n, err := tc.Read(answer)
	if err != nil {
		return nil, &handshakeError{err}
	}
	return answer[:n], nil
}

// unmoved proves that a pod still runs, in the container that it had.
func unmoved(s *space, containerID, name string) {
	s.Helper()
	s.Eventually("exec in pod "+name, s.ExecTrue(name))
	after := s.WaitReady(name)
	if c := after.Status.ContainerStatuses[0]; c.ContainerID != containerID || c.RestartCount != 0 {
		s.Errorf("pod %s noticed: it was %s, it is %s", name, containerID, namespace.States(after))
	}
}

// attempts are what came of a session's attempts to connect.
type attempts struct {
	failed       chan error // the first failures
	connected    atomic.Bool
	spent, asked atomic.Int32
}

func newAttempts(target *tunnel.Target) *attempts {
	a := &attempts{failed: make(chan error, 1)}
	target.OnState = func(connected bool, err error) {
		if connected {
			a.connected.Store(true)
			return
		}
		select {
		case a.failed <- err:
		default:
		}
	}
	return a
}

// keep opens a session of a Kip with an authority.
func (a *attempts) keep(t *testing.T, authority *pki.Authority, target tunnel.Target) *tunnel.Session {
	t.Helper()
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	session, err := dialer.Keep(t.Context(), target, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.asked.Add(1)
		http.Error(w, "not now", http.StatusServiceUnavailable)
	}), func(context.Context, string) error { a.spent.Add(1); return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

// first is the first failure.
func (a *attempts) first(t *testing.T) error {
	t.Helper()
	select {
	case err := <-a.failed:
		return err
	case <-time.After(patience):
		t.Fatal("the attempt neither failed nor ended")
		return nil
	}
}

func (a *attempts) wasInVain(t *testing.T, session *tunnel.Session) {
	t.Helper()
	if a.connected.Load() || session.Connected() {
		t.Error("it was connected")
	}
	if n := a.spent.Load(); n != 0 {
		t.Errorf("a certificate was asked for %d times", n)
	}
	if n := a.asked.Load(); n != 0 {
		t.Errorf("the cell made %d requests", n)
	}
}

// Not parallel: Kip is killed, so that its store can be read: only with its very
// CA in hand can it be told apart what opens a cell, and what does not.
func TestASpentTokenOpensNothingEvenToItsCA(t *testing.T) {
	s := newSpace(t)
	s.Apply(sleeper("a"))
	s.Apply(sleeper("b"))
	before := s.WaitReady("a")
	s.WaitReady("b")
	m, neighbour := s.machine("a"), s.machine("b")
	killKip(t)
	kip := storedAuthority(t, m.cell.Status.ControllerID)
	ud, _ := m.userData(t)
	if kip.Hash() != ud.CAHash {
		t.Fatalf("the stored CA is %s, user data names %s", kip.Hash(), ud.CAHash)
	}

	// Its certificate opens the agent: the port is there, and is the agent's.
	var shown *x509.Certificate
	opens := asKip(kip, alpnHTTP1)
	opens.VerifyConnection = func(state tls.ConnectionState) error {
		shown = state.PeerCertificates[0]
		return kip.VerifyCell(state.PeerCertificates, m.cell.Name)
	}
	if code, err := m.asks(t, opens); err != nil || code != http.StatusOK {
		t.Fatalf("Kip's own certificate: %d, %v; want 200, or the refusals below show nothing", code, err)
	}
	if !shown.Equal(m.certificate(t).Leaf) {
		t.Error("the agent shows another certificate than the one that it keeps")
	}

	// Nothing else does.
	foreign := foreignAuthority(t)
	lazy, err := foreign.Client(0).Certificate()
	if err != nil {
		t.Fatal(err)
	}
	stolen := neighbour.certificate(t)
	own := m.certificate(t)
	for name, cfg := range map[string]*tls.Config{
		"no certificate": {},
		"a foreign CA":   {GetClientCertificate: foreign.Client(0).GetClientCertificate},
		"a foreign CA, with Kip's in the chain": {Certificates: []tls.Certificate{{Certificate: [][]byte{lazy.Certificate[0],
			kip.Certificate().Raw}, PrivateKey: lazy.PrivateKey}}},
		"another cell's certificate": {Certificates: []tls.Certificate{{Certificate: [][]byte{stolen.Certificate[0],
			kip.Certificate().Raw}, PrivateKey: stolen.PrivateKey}}},
		"the cell's own certificate": {Certificates: []tls.Certificate{{Certificate: [][]byte{own.Certificate[0],
			kip.Certificate().Raw}, PrivateKey: own.PrivateKey}}},
		"TLS 1.2":                                {GetClientCertificate: kip.Client(0).GetClientCertificate, MaxVersion: tls.VersionTLS12},
		"Kip's certificate and no protocol":      {GetClientCertificate: kip.Client(0).GetClientCertificate, NextProtos: []string{}},
		"Kip's certificate and another protocol": {GetClientCertificate: kip.Client(0).GetClientCertificate, NextProtos: []string{"http/0.9"}},
		"Kip's certificate and all protocols":    {GetClientCertificate: kip.Client(0).GetClientCertificate, NextProtos: allALPN},
		// The very Kip: who joined once joins no more.
		"Kip's certificate and a join": {GetClientCertificate: kip.Client(0).GetClientCertificate, NextProtos: []string{alpnJoin}},
	} {
		protocols := allALPN
		if cfg.NextProtos != nil {
			protocols = []string{"as given"}
		}
		for _, proto := range protocols {
			try := cfg.Clone()
			try.InsecureSkipVerify = true
			if cfg.NextProtos == nil {
				try.NextProtos = []string{proto}
			}
			if code, err := m.asks(t, try); !isRefusal(err) {
				t.Errorf("%s, %s: the agent answers %d, %v; want a refusal", name, proto, code, err)
			}
		}
	}
	plain, err := new(net.Dialer).DialContext(t.Context(), "tcp", m.agentAddress(t).String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return plain, nil },
	}}).Get("http://cell" + agentapi.PathStatus)
	if err == nil {
		resp.Body.Close()
		t.Errorf("without TLS the agent answers %s", resp.Status)
	}

	// Another machine with the same user data makes its own key. Kip has the hash
	// of the first one's, and lets it not join.
	second, address := secondMachine(t, ud)
	target := tunnel.Target{CellID: m.cell.Name, Addr: address, Token: m.token(t), KeyHash: m.keyHash(t)}
	late := newAttempts(&target)
	session := late.keep(t, kip, target)
	if err := late.first(t); !errors.Is(err, tunnel.ErrKeyChanged) {
		t.Errorf("a second machine with the spent token: %v, want that its key is another", err)
	}
	session.Close()
	late.wasInVain(t, session)
	select {
	case <-second.Joined():
		t.Error("a second machine has joined with the spent token")
	default:
	}
	// It is that record that keeps it out, and nothing else: the token is right.
	target.KeyHash = ""
	unspent := newAttempts(&target)
	session = unspent.keep(t, kip, target)
	select {
	case <-session.Ready():
	case <-time.After(patience):
		t.Errorf("with an unspent token the machine does not join, so the above shows nothing: %v", session.LastError())
	}
	session.Close()
	if unspent.spent.Load() == 0 {
		t.Error("a machine joined and its token was not spent")
	}

	startKip(t)
	unmoved(s, before.Status.ContainerStatuses[0].ContainerID, "a")
}

// storedAuthority is the CA of a Kip that is dead, from a copy of its store.
func storedAuthority(t *testing.T, controllerID string) *pki.Authority {
	t.Helper()
	dir, err := os.MkdirTemp("", "kip-store-") // short: there will be a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.CopyFS(filepath.Join(dir, "etcd"), os.DirFS(filepath.Join(world.State, "kip", "etcd"))); err != nil {
		t.Fatal(err)
	}
	st, err := store.OpenEmbedded(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	var stored []byte
	own := st.Within(controllerID + "/")
	if revision, err := own.Get(t.Context(), "ca", &stored); err != nil || revision == 0 {
		t.Fatalf("the store has no CA at revision %d: %v", revision, err)
	}
	// Nor is a token kept that is spent.
	bound := 0
	if err := own.List(t.Context(), "cells/", func(key string, data []byte, _ int64) error {
		var cell struct{ Phase, Token, KeyHash string }
		if err := json.Unmarshal(data, &cell); err != nil {
			return err
		}
		if cell.Phase == string(apiv1.Bound) {
			bound++
			if cell.Token != "" || cell.KeyHash == "" {
				t.Errorf("%s is bound; it has a token: %t, the hash of its key: %t", key, cell.Token != "", cell.KeyHash != "")
			}
		}
		return nil
	}); err != nil || bound == 0 {
		t.Fatalf("the store has %d bound cells: %v", bound, err)
	}
	authority, err := pki.Decode(stored, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// secondMachine is an agent with user data of another, on loopback.
func secondMachine(t *testing.T, ud agentapi.UserData) (*tunnel.Cell, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveSecond(t, ud, l), netip.MustParseAddrPort(l.Addr().String())
}

func serveSecond(t *testing.T, ud agentapi.UserData, l net.Listener) *tunnel.Cell {
	t.Helper()
	cell, err := tunnel.NewCell(tunnel.CellConfig{
		UserData: ud, StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("a second machine is asked %s", r.URL) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = cell.Serve(ctx, l) }() // ends with ctx, whose error it returns
	t.Cleanup(func() { cancel(); <-done })
	return cell
}

// The cell's address is taken over on the network between Kip, the real one, and
// the agent: by machines that know what is in the cell's user data, and pass what
// they hear on to it.
func TestAManInTheMiddleIsRefusedOnBothSides(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(sleeper("a"))
	s.Apply(sleeper("b"))
	before := s.WaitReady("a")
	s.WaitReady("b")
	m, neighbour := s.machine("a"), s.machine("b")
	ud, _ := m.userData(t)
	foreign := foreignAuthority(t)
	if err := s.ExecTrue("a")(t.Context()); err != nil {
		t.Fatalf("exec, with nobody in the middle: %v", err)
	}

	letGo := takeOver(t, m)
	for name, cert := range map[string]tls.Certificate{
		"a certificate of its own CA":            cellCertificate(t, foreign, m.cell.Name),
		"the certificate of a cell that it owns": neighbour.certificate(t),
	} {
		t.Run(name, func(t *testing.T) {
			s := &space{s.For(t)}
			middle := &middle{machine: m, cert: cert}
			middle.listen(t)
			if s.ExecTrue("a")(t.Context()) == nil {
				t.Error("exec works by way of who is in the middle")
			}
			s.Eventually("Kip dials who is in the middle for its own connection", func(context.Context) error {
				if seen := middle.protocols(); !slices.Contains(seen, alpnCellAPI) {
					return fmt.Errorf("it dialled for %v", seen)
				}
				return nil
			})
			middle.check(t)
		})
	}
	t.Run("a machine with the same user data", func(t *testing.T) {
		s := &space{s.For(t)}
		l := &counter{Listener: listenAt(t, m), accepted: make(chan struct{}, 64)}
		second := serveSecond(t, ud, l)
		for range 3 { // Kip's attempts: it dials once in each
			select {
			case <-l.accepted:
			case <-time.After(patience):
				t.Fatal("Kip does not dial it")
			}
		}
		if s.ExecTrue("a")(t.Context()) == nil {
			t.Error("exec works on a second machine")
		}
		select {
		case <-second.Joined():
			t.Error("it has joined with the spent token")
		default:
		}
	})

	letGo()
	unmoved(s, before.Status.ContainerStatuses[0].ContainerID, "a")
	unmoved(s, before.Status.ContainerStatuses[0].ContainerID, "a")
}

// takeOver makes this host answer for a machine's address, until the function
// that it returns is called or the test ends.
func takeOver(t *testing.T, m machine) (letGo func()) {
	t.Helper()
	// On the bridge, so that it goes with that in any case.
	bridge, err := netlink.LinkByName(world.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	ip := net.IP(m.agentAddress(t).Addr().AsSlice())
	address := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrAdd(bridge, address); err != nil {
		t.Fatal(err)
	}
	letGo = sync.OnceFunc(func() {
		if err := netlink.AddrDel(bridge, address); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(letGo)
	return letGo
}

// listenAt listens where a machine's agent does, at an address that was taken over.
func listenAt(t *testing.T, m machine) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", m.agentAddress(t).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // who serves it may have closed it
	return l
}

// counter says when a connection was accepted, as long as somebody listens to it.
type counter struct {
	net.Listener
	accepted chan struct{}
}

func (c *counter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		select {
		case c.accepted <- struct{}{}:
		default:
		}
	}
	return conn, err
}

// middle ends the TLS of who takes it for the machine, and asks the machine for
// the same as Kip would.
type middle struct {
	machine machine
	cert    tls.Certificate

	mu   sync.Mutex
	seen []meeting
}

// meeting is one connection: what it was for, and what each side said to it.
type meeting struct {
	protocols    []string
	byKip, byThe error
}

// listen serves until the test ends.
func (d *middle) listen(t *testing.T) {
	t.Helper()
	l := listenAt(t, d.machine)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { d.meet(t.Context(), conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // ends the loop
		all.Wait()
	})
}

func (d *middle) meet(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	if conn.SetDeadline(time.Now().Add(patience)) != nil {
		return
	}
	var now meeting
	tc := tls.Server(conn, &tls.Config{
		Certificates: []tls.Certificate{d.cert},
		ClientAuth:   tls.RequestClientCert,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			now.protocols = hello.SupportedProtos
			return &tls.Config{Certificates: []tls.Certificate{d.cert}, ClientAuth: tls.RequestClientCert, NextProtos: hello.SupportedProtos}, nil
		},
	})
	// Kip is heard out: it refuses before its Finished, and else it would speak.
	now.byKip = tc.HandshakeContext(ctx)
	if now.protocols == nil {
		return // it was not even begun
	}
	onward, err := d.machine.dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", agentapi.Port))
	if err == nil {
		_, err = status(ctx, onward, agentapi.PathStatus, &tls.Config{
			NextProtos: now.protocols, Certificates: []tls.Certificate{d.cert}, InsecureSkipVerify: true,
		})
	}
	now.byThe = err
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, now)
}

func (d *middle) meetings() []meeting {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.seen)
}

// protocols are those of all meetings so far.
func (d *middle) protocols() (all []string) {
	for _, m := range d.meetings() {
		all = append(all, m.protocols...)
	}
	return all
}

// check proves that nobody took it for the other.
func (d *middle) check(t *testing.T) {
	t.Helper()
	for _, m := range d.meetings() {
		// The Op by which crypto/tls marks an alert of the other end.
		if alert := new(net.OpError); !errors.As(m.byKip, &alert) || alert.Op != "remote error" {
			t.Errorf("Kip, for %v: %v; want a TLS alert", m.protocols, m.byKip)
		}
		if !isRefusal(m.byThe) {
			t.Errorf("the agent, for %v: %v; want a refusal", m.protocols, m.byThe)
		}
		// The token is spent: Kip proves to nobody any more that it knows it.
		if slices.Contains(m.protocols, alpnJoin) {
			t.Error("Kip wants the cell to join again")
		}
	}
}
