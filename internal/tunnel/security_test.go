package tunnel

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/sources"
	"github.com/elotl/kip/test/journal"
)

// selfSigned is a certificate that anybody can make.
func selfSigned(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	template.NotBefore, template.NotAfter = time.Unix(0, 0), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// asksInVain dials with cfg and says what stood in the way of an answer; nil if
// nothing did. Before TLS 1.3's client hears that its certificate is refused it
// has finished its handshake, so it asks, and reads. For a join it makes the
// very offer that Kip would.
func (w *world) asksInVain(addr netip.AddrPort, cfg *tls.Config) error {
	t := w.t
	t.Helper()
	d := &net.Dialer{Timeout: testPatience}
	c, err := tls.DialWithDialer(d, "tcp", addr.String(), cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testPatience)); err != nil {
		t.Fatal(err)
	}
	if state := c.ConnectionState(); state.NegotiatedProtocol == protoJoin {
		ch, err := channel(&state)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeMessage(c, message{Kind: kindOffer, CellID: w.cellID, Proof: prove(w.token, roleKip, w.cellID, ch, nil)}); err != nil {
			return err
		}
	} else if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatal("the cell neither answers nor refuses")
	}
	return err
}

func TestCellRefusesAllButKip(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	m := w.start(t.TempDir(), "", handler)
	fresh := w.start(t.TempDir(), "", handler)

	// Before the join: nothing but the join, not even for Kip itself.
	for _, proto := range []string{protoHTTP1, protoHTTP2, protoCellAPI} {
		if err := w.asksInVain(fresh.addr, kipTLS(t, w.authority, proto)); err == nil {
			t.Errorf("a cell that has not joined speaks %s", proto)
		}
	}

	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
	for proto, at := range map[string]netip.AddrPort{protoHTTP1: m.addr, protoJoin: fresh.addr} {
		if err := w.asksInVain(at, kipTLS(t, w.authority, proto)); err != nil {
			t.Fatalf("Kip itself is refused %s, so this test shows nothing: %v", proto, err)
		}
	}
	asked.Store(0)

	other, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	old, err := pki.New(func() time.Time { return time.Now().Add(-48 * time.Hour) })
	if err != nil {
		t.Fatal(err)
	}
	oldCell := w.startWith(w.userDataWith(func(ud *agentapi.UserData) { ud.CAHash = old.Hash() }), t.TempDir(), "", handler)
	with := func(cert tls.Certificate, protos ...string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: protos, Certificates: []tls.Certificate{cert}}
	}
	client := &x509.Certificate{Subject: pkix.Name{CommonName: "kip"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	// The other authority's leaf, and ours added to the chain, for a lazy verifier.
	mixed := kipTLS(t, other, protoHTTP1)
	mixed.Certificates[0].Certificate = append(mixed.Certificates[0].Certificate, w.authority.Certificate().Raw)
	tls12 := kipTLS(t, w.authority, protoHTTP1)
	tls12.MinVersion, tls12.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	cell := *m.id.certificate()
	cell.Certificate = append([][]byte{}, cell.Certificate[0], w.authority.Certificate().Raw)
	neighbour := cellCertificate(t, w.authority, "c-2")
	neighbour.Certificate = append(neighbour.Certificate, w.authority.Certificate().Raw)
	for name, tc := range map[string]struct {
		at  netip.AddrPort
		cfg *tls.Config
	}{
		"no certificate":                {m.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoHTTP1}}},
		"no certificate, for a join":    {fresh.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoJoin}}},
		"self-signed":                   {m.addr, with(selfSigned(t, client), protoHTTP1)},
		"self-signed, for a join":       {fresh.addr, with(selfSigned(t, client), protoJoin)},
		"another authority":             {m.addr, kipTLS(t, other, protoHTTP1)},
		"another authority, for a join": {fresh.addr, kipTLS(t, other, protoJoin)},
		"another authority, for HTTP/2": {m.addr, kipTLS(t, other, protoHTTP2)},
		"another authority, reverse":    {m.addr, kipTLS(t, other, protoCellAPI)},
		"another authority and ours":    {m.addr, mixed},
		"an expired certificate":        {oldCell.addr, kipTLS(t, old, protoJoin)},
		"a cell's own certificate":      {m.addr, with(cell, protoHTTP1)},
		"another cell's certificate":    {m.addr, with(neighbour, protoHTTP1)},
		"TLS 1.2":                       {m.addr, tls12},
		"no protocol":                   {m.addr, kipTLS(t, w.authority)},
		"two protocols":                 {m.addr, kipTLS(t, w.authority, protoHTTP1, protoJoin)},
		"two protocols, for a join":     {fresh.addr, kipTLS(t, w.authority, protoJoin, protoHTTP1)},
		"an unknown protocol":           {m.addr, kipTLS(t, w.authority, "http/0.9")},
		"a join, of a joined cell":      {m.addr, kipTLS(t, w.authority, protoJoin)},
		"reverse without a certificate": {m.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoCellAPI}}},
	} {
		if err := w.asksInVain(tc.at, tc.cfg); err == nil {
			t.Errorf("%s: answered", name)
		}
	}
	// No TLS at all.
	c, err := net.Dial("tcp", m.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testPatience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if answer, err := io.ReadAll(c); err != nil || bytes.Contains(answer, []byte("200")) {
		t.Errorf("no TLS: answered %q, %v", answer, err)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests reached the handler", n)
	}
	if !s.Connected() {
		t.Error("the attempts broke Kip's own connection")
	}
	if status, _ := get(t, s.Conn(), "/"); status != 200 {
		t.Error("Kip gets no answer any more")
	}
}

// impostor listens with a TLS configuration and does f with each connection.
func impostor(t *testing.T, cfg *tls.Config, f func(*tls.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(testPatience))
				tc := tls.Server(c, cfg)
				if tc.Handshake() == nil && f != nil {
					f(tc)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// cellCertificate is one that Kip's authority issued to a cell.
func cellCertificate(t *testing.T, a *pki.Authority, cellID string) tls.Certificate {
	t.Helper()
	id, err := openIdentity(t.TempDir(), cellID)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := id.request()
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.SignCell(csr, cellID)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: id.key}
}

func TestKipRefusesAllButTheCell(t *testing.T) {
	w := newWorld(t)
	other, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{protoJoin, protoCellAPI, protoHTTP2, protoHTTP1}
	server := func(cert tls.Certificate) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: all, ClientAuth: tls.RequestClientCert}
	}
	anybody := selfSigned(t, &x509.Certificate{})
	tls12 := server(cellCertificate(t, w.authority, "c-1"))
	tls12.MaxVersion = tls.VersionTLS12
	noProto := server(cellCertificate(t, w.authority, "c-1"))
	noProto.NextProtos = nil
	write := func(b []byte) func(*tls.Conn) {
		return func(c *tls.Conn) {
			_, _ = c.Write(b)
			_, _ = io.Copy(io.Discard, c) // until Kip hangs up
		}
	}
	request := func(m message) []byte {
		var b bytes.Buffer
		if err := writeMessage(&b, m); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	// All that a cell says before Kip takes it to be connected.
	speaks := write(append([]byte(http2.ClientPreface), 0, 0, 0, byte(http2.FrameSettings), 0, 0, 0, 0, 0))
	foreign, err := openIdentity(t.TempDir(), "c-1")
	if err != nil {
		t.Fatal(err)
	}
	csr, err := foreign.request()
	if err != nil {
		t.Fatal(err)
	}
	// Who has the key of the request: only a proof of the token is missing.
	own := server(*foreign.unsigned)
	const unproven = "does not prove that it knows the token"
	for name, tc := range map[string]struct {
		cfg    *tls.Config
		serve  func(*tls.Conn)
		joined bool // Kip believes that the cell has joined
		says   string
	}{
		"self-signed":                     {cfg: server(anybody), joined: true},
		"another cell's certificate":      {cfg: server(cellCertificate(t, w.authority, "c-2")), joined: true},
		"another authority's certificate": {cfg: server(cellCertificate(t, other, "c-1")), joined: true},
		"Kip's own certificate":           {cfg: server(kipTLS(t, w.authority).Certificates[0]), joined: true},
		"TLS 1.2":                         {cfg: tls12, joined: true},
		"no protocol":                     {cfg: noProto, joined: true},
		"a join: nothing proven": {cfg: own, serve: write(request(message{Kind: kindRequest, CellID: "c-1", Request: csr})),
			says: unproven},
		"a join: no JSON":            {cfg: server(anybody), serve: write(append([]byte{0, 0, 0, 3}, "abc"...))},
		"a join: an endless message": {cfg: server(anybody), serve: write(append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 64<<10)...))},
		"a join: another message":    {cfg: server(anybody), serve: write(request(message{Kind: kindDone}))},
		"a join: a refusal":          {cfg: server(anybody), serve: write(request(message{Kind: kindRefusal, Reason: "\x1b[31mno"}))},
		"a join: reads and hangs up": {cfg: server(anybody), serve: func(c *tls.Conn) { _, _ = c.Read(make([]byte, 1)) }},
		"a join: the offer mirrored": {cfg: own, serve: func(c *tls.Conn) { mirror(t, c, csr) }, says: unproven},
		"a join: proves with wrong token": {cfg: own, serve: func(c *tls.Conn) { proveWith(t, c, pki.NewToken(), roleCell, csr) },
			says: unproven},
		"a join: a key not the connection": {
			cfg:   server(anybody),
			serve: func(c *tls.Conn) { proveWith(t, c, w.token, roleCell, csr) },
			says:  "for another key than the one of the connection",
		},
		"a join: proof of the wrong role": {cfg: own, serve: func(c *tls.Conn) { proveWith(t, c, w.token, roleKip, csr) }, says: unproven},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStates(t)
			target := Target{CellID: "c-1", OnState: st.note}
			if !tc.joined {
				target.Token = w.token
			}
			if tc.serve == nil {
				tc.serve = speaks
			}
			target.Addr = impostor(t, tc.cfg, tc.serve)
			var asked atomic.Int32
			s := w.keep(w.dialer(w.authority), target, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
			err := st.next("a refusal", func(state) bool { return true }).err
			s.Close()
			if err == nil || errors.Is(err, ErrClosed) || s.Connected() || asked.Load() != 0 {
				t.Errorf("Kip took it for the cell: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("it was refused for another reason: %v, want %q", err, tc.says)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("the error is not one clean line: %q", err)
			}
		})
	}
	if w.spentOn() != "" {
		t.Error("the token was spent on one of them")
	}
	// The same impostor is believed if it has the certificate.
	s := w.keep(w.dialer(w.authority), Target{
		CellID: "c-1", Addr: impostor(t, server(cellCertificate(t, w.authority, "c-1")), speaks),
	}, nil)
	wait(t, "ready", s.Ready())
	s.Close()
}

// mirror sends Kip's own proof back to it.
func mirror(t *testing.T, c *tls.Conn, csr []byte) {
	m, err := readMessage(c, kindOffer)
	if err != nil {
		return
	}
	if err := writeMessage(c, message{Kind: kindRequest, CellID: m.CellID, Proof: m.Proof, Request: csr}); err != nil {
		t.Error(err)
	}
	_, _ = io.Copy(io.Discard, c)
}

// proveWith answers an offer as a cell does, with a token and role of choice.
func proveWith(t *testing.T, c *tls.Conn, token pki.Token, role string, csr []byte) {
	m, err := readMessage(c, kindOffer)
	if err != nil {
		return // it was another attempt than a join
	}
	state := c.ConnectionState()
	ch, err := channel(&state)
	if err != nil {
		t.Error(err)
		return
	}
	if err := writeMessage(c, message{Kind: kindRequest, CellID: m.CellID, Request: csr,
		Proof: prove(token, role, m.CellID, ch, csr)}); err != nil {
		t.Error(err)
	}
	_, _ = io.Copy(io.Discard, c)
}

func TestWrongTokenOrCellIsRefusedByTheCell(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	for name, tc := range map[string]struct {
		change func(*Target)
		says   string
	}{
		"token": {func(t *Target) { t.Token = pki.NewToken() }, "token"},
		"cell":  {func(t *Target) { t.CellID = "c-9" }, "this is cell c-1"},
	} {
		st := newStates(t)
		target := w.target(m.addr)
		target.OnState = st.note
		tc.change(&target)
		s := w.keep(w.dialer(w.authority), target, nil)
		err := st.next("a refusal", isFailed).err
		s.Close()
		if !strings.Contains(err.Error(), tc.says) {
			t.Errorf("wrong %s: Kip is told %v", name, err)
		}
	}
	select {
	case <-m.Joined():
		t.Error("the cell joined")
	default:
	}
	if w.spentOn() != "" {
		t.Error("the token was spent")
	}
	// And none of it has hurt.
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
}

func TestSpentTokenJoinsNoOtherMachine(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
	s.Close()
	spent := w.spentOn()
	// Another machine has read the user data, and has the address now.
	thief := w.start(t.TempDir(), "", says("thief"))
	for name, target := range map[string]Target{
		"Kip knows the key":                      w.target(thief.addr),
		"only the store knows that it was spent": {CellID: w.cellID, Addr: thief.addr, Token: w.token},
	} {
		st := newStates(t)
		target.OnState = st.note
		s := w.keep(w.dialer(w.authority), target, nil)
		err := st.next("a refusal", isFailed).err
		s.Close()
		if !errors.Is(err, ErrKeyChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	select {
	case <-thief.Joined():
		t.Error("the thief joined")
	default:
	}
	if w.spentOn() != spent {
		t.Error("the token is spent on another key")
	}
}

// A Kip with a CA of its own that knows all that is in the user data, and more, neither
// connects to a cell that has joined nor disturbs it.
func TestAForeignKipIsRefusedByAJoinedCell(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	own := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", own.Ready())
	other, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	key, calls := w.spentOn(), w.spendCalls()
	for name, target := range map[string]Target{
		"with the spent token":                     {Token: w.token},
		"with the spent token and the cell's key":  {Token: w.token, KeyHash: key},
		"with another token":                       {Token: pki.NewToken()},
		"without a token, but with the cell's key": {KeyHash: key},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStates(t)
			target.CellID, target.Addr, target.OnState = w.cellID, m.addr, st.note
			var asked atomic.Int32
			s := w.keep(w.dialer(other), target, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
			err := st.next("a refusal", isFailed).err
			s.Close()
			if s.Connected() || asked.Load() != 0 {
				t.Errorf("it was connected, and was asked %d times", asked.Load())
			}
			// Nor would this Kip take the cell for its own, but by the key that joined: then the cell refuses it.
			if unknown := (x509.UnknownAuthorityError{}); target.KeyHash == "" && !errors.As(err, &unknown) {
				t.Errorf("it ended with %v; want that the cell's certificate is of an unknown authority", err)
			} else if target.KeyHash != "" && !isRotated(err) {
				t.Errorf("it ended with %v; want that the cell refuses it", err)
			}
		})
	}
	if n := w.spendCalls(); n != calls {
		t.Errorf("a certificate was asked for %d times", n-calls)
	}
	if status, body := get(t, own.Conn(), "/"); status != http.StatusOK || !own.Connected() {
		t.Errorf("Kip itself is answered %d %q", status, body)
	}
}

func TestKipKnowsTheKeyEvenOfAValidCertificate(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
	s.Close()
	// A certificate for the same cell, by the same authority, on another key.
	addr := impostor(t, &tls.Config{
		Certificates: []tls.Certificate{cellCertificate(t, w.authority, w.cellID)},
		NextProtos:   []string{protoCellAPI}, ClientAuth: tls.RequestClientCert,
	}, nil)
	st := newStates(t)
	target := w.target(addr)
	target.OnState = st.note
	w.keep(w.dialer(w.authority), target, nil)
	if err := st.next("a refusal", isFailed).err; !errors.Is(err, ErrKeyChanged) {
		t.Errorf("it says %v", err)
	}
}

// TestCrashInAJoinIsMadeGood breaks a join at each of its steps, with Kip's record of it
// written or not, and then starts Kip again.
func TestCrashInAJoinIsMadeGood(t *testing.T) {
	for _, tc := range []struct {
		name  string
		until func(w *world, tc *tls.Conn) error // Kip's half, up to its crash
	}{
		{"before the offer", func(*world, *tls.Conn) error { return nil }},
		{"before the record", func(w *world, tc *tls.Conn) error {
			return w.half(tc, func(string) error { return errors.New("crash") }, true)
		}},
		{"after the record, before the certificate left", func(w *world, tc *tls.Conn) error {
			return w.half(tc, func(h string) error { return errors.Join(w.spend(w.t.Context(), h), errors.New("crash")) }, true)
		}},
		{"after the certificate left", func(w *world, tc *tls.Conn) error {
			return w.half(tc, func(h string) error { return w.spend(w.t.Context(), h) }, false)
		}},
		{"after the certificate left, and the record lost", func(w *world, tc *tls.Conn) error {
			return w.half(tc, func(string) error { return nil }, false)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			m := w.start(t.TempDir(), "", says("agent"))
			c, err := tls.Dial("tcp", m.addr.String(), kipTLS(t, w.authority, protoJoin))
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.until(w, c); err != nil {
				t.Fatal(err)
			}
			c.Close()
			s := w.keep(w.dialer(w.authority), w.target(m.addr), says("cell API"))
			wait(t, "ready", s.Ready())
			if _, body := get(t, m.RoundTripper(), "/"); !strings.HasPrefix(body, "cell API") {
				t.Errorf("the cell got %q", body)
			}
			want, err := pki.KeyHash(m.id.key.Public())
			if err != nil {
				t.Fatal(err)
			}
			if w.spentOn() != want {
				t.Errorf("spent on %q, the cell's key is %q", w.spentOn(), want)
			}
		})
	}
}

// half does Kip's half of a join until it crashes: in spend, or else after the
// certificate left.
func (w *world) half(tc *tls.Conn, spend func(string) error, inSpend bool) error {
	g := &granter{authority: w.authority, cellID: w.cellID, token: w.token, spend: spend}
	state := tc.ConnectionState()
	err := g.run(tc, &state)
	if (err != nil) != inSpend {
		return fmt.Errorf("the join ended with %w", err)
	}
	return nil
}

// relay stands between Kip and a cell, and ends TLS on both sides.
func relay(t *testing.T, to netip.AddrPort, toKip tls.Certificate, toCell *tls.Config) (netip.AddrPort, *journal.Log) {
	seen := &journal.Log{}
	return impostor(t, &tls.Config{
		Certificates: []tls.Certificate{toKip}, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{protoJoin, protoCellAPI},
	}, func(kip *tls.Conn) {
		cfg := toCell.Clone()
		cfg.NextProtos = []string{kip.ConnectionState().NegotiatedProtocol}
		cell, err := tls.Dial("tcp", to.String(), cfg)
		if err != nil {
			return
		}
		defer cell.Close()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.Copy(io.MultiWriter(cell, seen), kip)
			cell.Close()
		})
		_, _ = io.Copy(io.MultiWriter(kip, seen), cell)
		kip.Close()
		wg.Wait()
	}), seen
}

func TestManInTheMiddleIsRefused(t *testing.T) {
	// Even with Kip's own certificate, which he never has: then it is the
	// binding of the proofs to the channel that stops him.
	for _, stolen := range []bool{false, true} {
		t.Run(fmt.Sprintf("stolen certificate %v", stolen), func(t *testing.T) {
			w := newWorld(t)
			m := w.start(t.TempDir(), "", says("agent"))
			toCell := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{selfSigned(t,
				&x509.Certificate{Subject: pkix.Name{CommonName: "kip"}})}}
			if stolen {
				toCell = kipTLS(t, w.authority)
			}
			addr, seen := relay(t, m.addr, selfSigned(t, &x509.Certificate{}), toCell)
			st := newStates(t)
			target := w.target(addr)
			target.OnState = st.note
			s := w.keep(w.dialer(w.authority), target, says("cell API"))
			err := st.next("a refusal", func(state) bool { return true }).err
			s.Close()
			if err == nil {
				t.Fatal("Kip connected through him")
			}
			if stolen && !strings.Contains(err.Error(), "token") {
				t.Errorf("it was not the proof that stopped him: %v", err)
			}
			select {
			case <-m.Joined():
				t.Error("the cell joined through him")
			default:
			}
			if w.spentOn() != "" {
				t.Error("the token was spent")
			}
			if strings.Contains(seen.String(), w.token.Reveal()) {
				t.Error("he saw the token")
			}
		})
	}
}

func TestReplayedOfferIsRefused(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	// Kip offers to somebody who listens and keeps it.
	offers := make(chan message, 1)
	addr := impostor(t, &tls.Config{
		Certificates: []tls.Certificate{selfSigned(t, &x509.Certificate{})},
		NextProtos:   []string{protoJoin}, ClientAuth: tls.RequestClientCert,
	}, func(c *tls.Conn) {
		if o, err := readMessage(c, kindOffer); err == nil {
			select {
			case offers <- o:
			default:
			}
		}
	})
	s := w.keep(w.dialer(w.authority), w.target(addr), nil)
	offer := wait(t, "an offer", offers)
	s.Close()
	c, err := tls.Dial("tcp", m.addr.String(), kipTLS(t, w.authority, protoJoin))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := writeMessage(c, offer); err != nil {
		t.Fatal(err)
	}
	var refused *refusedError
	if _, err := readMessage(c, kindRequest); !errors.As(err, &refused) {
		t.Errorf("the cell answers a replayed offer: %v", err)
	}
}

func TestCellAcceptsNoCertificateButItsOwn(t *testing.T) {
	w := newWorld(t)
	other, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for name, grant := range map[string]func(csr []byte) ([]byte, error){
		"another authority's": func(csr []byte) ([]byte, error) { return other.SignCell(csr, "c-1") },
		"another cell's":      func(csr []byte) ([]byte, error) { return w.authority.SignCell(csr, "c-2") },
		"for another key": func([]byte) ([]byte, error) {
			return cellCertificate(t, w.authority, "c-1").Certificate[0], nil
		},
		"none": func([]byte) ([]byte, error) { return nil, nil },
	} {
		m := w.start(t.TempDir(), "", says("agent"))
		c, err := tls.Dial("tcp", m.addr.String(), kipTLS(t, w.authority, protoJoin))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		state := c.ConnectionState()
		ch, err := channel(&state)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeMessage(c, message{Kind: kindOffer, CellID: "c-1", Proof: prove(w.token, roleKip, "c-1", ch, nil)}); err != nil {
			t.Fatal(err)
		}
		req, err := readMessage(c, kindRequest)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := grant(req.Request)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeMessage(c, message{Kind: kindGrant, Certificate: cert}); err != nil {
			t.Fatal(err)
		}
		var refused *refusedError
		if _, err := readMessage(c, kindDone); !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-m.Joined():
			t.Errorf("%s: accepted", name)
		default:
		}
	}
}

func TestConnectionsThatSayNothingKeepNobodyOut(t *testing.T) {
	w := newWorld(t)
	w.limits.handshake = time.Hour // it is not the deadline that helps here
	m := w.start(t.TempDir(), "", says("agent"))
	var idle []net.Conn
	for range 4 * w.limits.pending {
		c, err := net.Dial("tcp", m.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	// The oldest had to go.
	for _, c := range idle[:3*w.limits.pending] {
		if err := c.SetDeadline(time.Now().Add(testPatience)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Fatalf("one of too many was kept: %v", err)
		}
	}
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
	// And who has proven to be Kip does not go, however many come.
	for range 2 * w.limits.pending {
		c, err := net.Dial("tcp", m.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if status, _ := get(t, s.Conn(), "/"); status != 200 || !s.Connected() {
		t.Error("Kip was turned away")
	}
}

// A flood from one address, or from many, turns away nobody else's connection.
func TestAFloodTurnsAwayOnlyItself(t *testing.T) {
	w := newWorld(t)
	w.limits.handshake = time.Hour // it is not the deadline that helps here
	m := w.start(t.TempDir(), "", says("agent"))
	from := func(ip string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: testPatience}
		c, err := d.Dial("tcp", m.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// It returns when all but those that may stay have been turned away.
	flood := func(n int, ip func(i int) string) {
		t.Helper()
		closed := make(chan struct{}, n)
		for i := range n {
			c := from(ip(i))
			go func() {
				_, _ = io.Copy(io.Discard, c)
				closed <- struct{}{}
			}()
		}
		for range n - w.limits.pending {
			wait(t, "a connection of the flood to be closed", closed)
		}
	}
	// Kip's handshake begins, then comes the flood, then Kip goes on.
	proves := func(what string, c net.Conn, proto string) {
		t.Helper()
		tc := tls.Client(c, kipTLS(t, w.authority, proto))
		ctx, cancel := context.WithTimeout(context.Background(), testPatience)
		defer cancel()
		if err := tc.HandshakeContext(ctx); err != nil {
			t.Errorf("%s: Kip's connection was turned away: %v", what, err)
			return
		}
		// In TLS 1.3 the cell answers later: a connection that it closes says so here.
		if err := c.SetReadDeadline(time.Now().Add(testPatience)); err != nil {
			t.Fatal(err)
		}
		if proto == protoCellAPI {
			if _, err := io.ReadFull(tc, make([]byte, len(http2.ClientPreface))); err != nil {
				t.Errorf("%s: Kip's connection was closed: %v", what, err)
			}
		}
	}
	joining := from("127.0.0.3")
	flood(400, func(int) string { return "127.0.0.2" })
	proves("one address", joining, protoJoin)

	s, err := w.dialer(w.authority).Keep(t.Context(), w.target(m.addr), http.NotFoundHandler(), w.spend)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "ready", s.Ready())
	s.Close()

	// Whoever comes from everywhere has no place that Kip's last address needs.
	before := from("127.0.0.3")
	proves("to be known", before, protoCellAPI)
	next := from("127.0.0.3")
	flood(100, func(i int) string { return fmt.Sprintf("127.0.1.%d", i+1) })
	proves("a hundred addresses", next, protoCellAPI)

	// Who comes from where Kip came last is not metered.
	for range 3 {
		next = from("127.0.0.3")
		flood(w.limits.arrivalBurst, func(int) string { return "127.0.0.2" })
		proves("many times", next, protoCellAPI)
	}
}

// Arrivals are metered by source, in bounded memory.
func TestArrivalsAreMeteredBySource(t *testing.T) {
	at := sources.Of
	p := pending{max: 16, arrivals: keyed.Rates[sources.Source]{Every: time.Second, Burst: 3, Keys: maxSources}}
	now := time.Unix(1000, 0)
	admitted := func(n int, from string) (yes int) {
		for range n {
			if p.admits(at(from), now) {
				yes++
			}
		}
		return yes
	}
	if a, b := admitted(100, "10.0.0.1:1"), admitted(100, "10.0.0.2:1"); a != 3 || b != 3 {
		t.Errorf("%d and %d were admitted, want 3 each", a, b)
	}
	if a, b := admitted(2, "[2001:db8::1]:1"), admitted(2, "[2001:db8::2]:9"); a+b != 3 {
		t.Errorf("%d of one network were admitted, want 3", a+b)
	}
	if a := admitted(3, "[::ffff:10.0.0.2]:1"); a != 0 {
		t.Errorf("%d of an address in another form were admitted", a)
	}
	now = now.Add(2 * time.Second)
	if a := admitted(100, "10.0.0.1:7"); a != 2 {
		t.Errorf("%d were admitted two seconds later, want 2", a)
	}
	p.proved(at("10.0.0.1:7"))
	if a := admitted(100, "10.0.0.1:8"); a != 100 {
		t.Errorf("%d of Kip's were admitted", a)
	}
	for i := range 2 * maxSources {
		admitted(1, fmt.Sprintf("10.1.%d.%d:1", i/256, i%256))
	}
	if p.arrivals.Len() > maxSources {
		t.Errorf("%d sources are held", p.arrivals.Len())
	}
	if a := admitted(100, "10.0.0.2:1"); a != 2 {
		t.Errorf("%d of a source that is known were admitted, want 2", a)
	}
	now = now.Add(time.Hour)
	if a := admitted(100, "10.2.0.1:1"); a != 3 || p.arrivals.Len() != 1 {
		t.Errorf("%d of a new source were admitted an hour later, %d sources are held", a, p.arrivals.Len())
	}
}

func TestSlowConnectionsAreClosed(t *testing.T) {
	dial := func(addr netip.AddrPort) (net.Conn, error) { return net.Dial("tcp", addr.String()) }
	// The limit that is not tried is long, or a slow machine would meet that one.
	for name, c := range map[string]struct {
		handshake, join time.Duration
		dial            func(*world, netip.AddrPort) (net.Conn, error)
	}{
		"says nothing": {50 * time.Millisecond, time.Hour, func(_ *world, addr netip.AddrPort) (net.Conn, error) { return dial(addr) }},
		"says half of a hello": {50 * time.Millisecond, time.Hour, func(_ *world, addr netip.AddrPort) (net.Conn, error) {
			c, err := dial(addr)
			if err == nil {
				_, err = c.Write([]byte{22, 3, 1, 0, 200, 1})
			}
			return c, err
		}},
		"is Kip, and offers nothing": {time.Hour, 50 * time.Millisecond, func(w *world, addr netip.AddrPort) (net.Conn, error) {
			return tls.Dial("tcp", addr.String(), kipTLS(t, w.authority, protoJoin))
		}},
	} {
		w := newWorld(t)
		w.limits.handshake, w.limits.join = c.handshake, c.join
		m := w.start(t.TempDir(), "", says("agent"))
		conn, err := c.dial(w, m.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(testPatience)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("one that %s is kept: %v", name, err)
		}
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestKipGivesUpOnACellThatSaysNothing(t *testing.T) {
	w := newWorld(t)
	w.limits.handshake = 20 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its queue, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st := newStates(t)
	target := w.target(netip.MustParseAddrPort(l.Addr().String()))
	target.OnState = st.note
	w.keep(w.dialer(w.authority), target, nil)
	st.next("a first failure", isFailed)
	st.next("a second failure", isFailed)
}

func TestRefusalsAreLoggedNowAndThen(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	for range 100 {
		if err := w.asksInVain(m.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoJoin}}); err == nil {
			t.Fatal("not refused")
		}
	}
	m.stop()
	n, logged := m.refusals.Load(), strings.Count(w.logs.String(), "refused a connection")
	// The last few may have been refused by the cell's end.
	if n < 90 || logged == 0 || logged > 50 {
		t.Errorf("of 100 refusals %d were counted, and %d are in the log", n, logged)
	}
}

// What comes before a cell's request is charged to it is small: its header.
func TestTheHeaderOfACellsRequestIsBounded(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", http.NotFoundHandler())
	s := w.keep(w.dialer(w.authority), w.target(m.addr), says("kip"))
	wait(t, "the session", s.Ready())
	for length, fits := range map[int]bool{maxAskedHeader / 2: true, maxAskedHeader + 1<<10: false} {
		code, _, err := tryGet(m.RoundTripper(), "/api/v1/services?labelSelector="+strings.Repeat("x", length))
		if (err == nil && code == http.StatusOK) != fits {
			t.Errorf("%d bytes: %d, an error: %t", length, code, err != nil)
		}
	}
}

// An agent that is not its own any more answers with what it likes: Kip reads so much
// of it, also where it upgrades.
func TestTheHeaderOfAnAgentsAnswerIsBounded(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		size := maxAnswerHeader / 2
		if r.URL.Path == "/large" {
			size = 2 * maxAnswerHeader
		}
		for n := 0; size > 0; n, size = n+1, size-1<<10 {
			rw.Header().Set(fmt.Sprintf("X-%d", n), strings.Repeat("x", 1<<10-48))
		}
	}))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "the session", s.Ready())
	for path, fits := range map[string]bool{"/": true, "/large": false} {
		for _, upgrade := range []string{"", "Upgrade"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://cell"+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if upgrade != "" {
				req.Header.Set("Connection", upgrade)
				req.Header.Set("Upgrade", "websocket")
			}
			resp, err := s.Conn().RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != fits {
				t.Errorf("%s %q: %v", path, upgrade, err)
			}
		}
	}
}

// However often a cell makes and breaks its connections, the log says it now and then.
func TestAFlappingTunnelIsLoggedNowAndThen(t *testing.T) {
	var log journal.Log
	s := &Session{ctx: t.Context(), ready: make(chan struct{}), told: rate.NewLimiter(toldRate, toldBurst),
		log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 100 {
		s.state(true, nil)
		s.state(false, io.ErrUnexpectedEOF)
	}
	if n := strings.Count(log.String(), "\n"); n != toldBurst {
		t.Errorf("%d lines, want %d", n, toldBurst)
	}
}
