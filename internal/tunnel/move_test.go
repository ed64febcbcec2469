package tunnel

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
)

// rotated are the world's authority and a new one that signs.
func (w *world) rotated() pki.Authorities {
	w.t.Helper()
	a, err := pki.Authorities{Signing: w.authority}.Rotated()
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// kipOf is a Kip that goes by these authorities.
func (w *world) kipOf(a pki.Authorities) *Dialer {
	w.t.Helper()
	d, err := newDialer(DialerConfig{Authority: a.Signing, Before: a.Before, Log: w.log}, w.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// joined is a target of a cell that has joined, and that knows Kip by an authority.
func (w *world) joined(m *machine, ca string) Target {
	t := w.target(m.addr)
	t.Token, t.CA = pki.Token{}, ca
	return t
}

// ready waits until both ends know of a session, and returns what the agent answers on it.
func ready(t *testing.T, m *machine, s *Session) string {
	t.Helper()
	wait(t, "ready", s.Ready())
	get(t, m.RoundTripper(), "/")
	_, body := get(t, s.Conn(), "/")
	return body
}

// rotating is a Kip that has begun to rotate its CA, and a cell that it has joined meanwhile
// and told nothing of that.
func (w *world) rotating(dir string) (*machine, pki.Authorities, *Session) {
	w.t.Helper()
	m := w.start(dir, "", says("agent"))
	both := w.rotated()
	s := w.keep(w.kipOf(both), w.target(m.addr), nil)
	ready(w.t, m, s)
	return m, both, s
}

func (w *world) trust(s *Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	return s.Trust(ctx)
}

// refuses says whether a cell refuses a Kip of an authority.
func (w *world) refuses(m *machine, a *pki.Authority) bool {
	w.t.Helper()
	tc, err := tls.Dial("tcp", m.addr.String(), kipTLS(w.t, a, protoHTTP1))
	if err != nil {
		w.t.Fatal(err)
	}
	defer tc.Close()
	_, _ = io.WriteString(tc, "GET / HTTP/1.1\r\nHost: kip\r\n\r\n")
	_, err = tc.Read(make([]byte, 1))
	return err != nil
}

// shows is whether a cell shows a certificate of an authority.
func (w *world) shows(m *machine, a *pki.Authority) bool {
	w.t.Helper()
	tc, err := tls.Dial("tcp", m.addr.String(), kipTLS(w.t, a, protoHTTP1))
	if err != nil {
		w.t.Fatal(err)
	}
	defer tc.Close()
	return a.VerifyCell(tc.ConnectionState().PeerCertificates, w.cellID) == nil
}

func TestACellIsMovedToAnotherCAAndThenTrustsTheOldOneNoMore(t *testing.T) {
	w := newWorld(t)
	dir, agent := t.TempDir(), says("agent")
	m := w.start(dir, "", agent)
	first := w.keep(w.dialer(w.authority), w.target(m.addr), says("cell API"))
	ready(t, m, first)
	first.Close()

	// Kip has a new CA, and the cell's record says none.
	both := w.rotated()
	if !w.refuses(m, both.Signing) {
		t.Error("a cell that was told nothing accepts a Kip of the new CA")
	}
	st := newStates(t)
	target := w.joined(m, "")
	target.OnState = st.note
	second := w.keep(w.kipOf(both), target, says("cell API"))
	ready(t, m, second)
	st.next("connected", isConnected)
	if err := w.trust(second); err != nil {
		t.Fatal(err)
	}
	if second.credentials().authority != both.Signing {
		t.Error("the session dials by the old CA")
	}
	if w.refuses(m, both.Before) || w.refuses(m, both.Signing) || !w.shows(m, both.Signing) {
		t.Error("the cell does not trust both, or shows no certificate of the new CA")
	}
	// The move is no break: what the cell asks goes on, and what Kip asks goes by the new CA.
	if _, body := get(t, m.RoundTripper(), "/"); body != "cell API / over HTTP/2.0" || ready(t, m, second) != "agent / over HTTP/2.0" {
		t.Errorf("the cell got %q", body)
	}
	if len(st.c) != 0 {
		t.Errorf("the connection to the cell broke: %v", <-st.c)
	}
	if err := w.trust(second); err != nil {
		t.Errorf("told again: %v", err)
	}

	second.Close()

	// Killed before it was recorded: the next Kip dials by the old CA.
	again := w.keep(w.kipOf(both), w.joined(m, both.Before.Hash()), says("cell API"))
	ready(t, m, again)
	if err := w.trust(again); err != nil {
		t.Errorf("told anew by the next Kip: %v", err)
	}
	again.Close()

	// The old CA is dropped. A connection of it ends, whoever has it.
	stranger, err := tls.Dial("tcp", m.addr.String(), kipTLS(t, both.Before, protoHTTP1))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	_, _ = io.WriteString(stranger, "GET / HTTP/1.1\r\nHost: kip\r\n\r\n")
	if _, err := stranger.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	last := w.keep(w.kipOf(pki.Authorities{Signing: both.Signing}), w.joined(m, both.Signing.Hash()), says("cell API"))
	ready(t, m, last)
	if err := w.trust(last); err != nil {
		t.Fatal(err)
	}
	if err := stranger.SetReadDeadline(time.Now().Add(testPatience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stranger); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("who has connected by the old CA stays connected")
	}
	if !w.refuses(m, both.Before) || w.refuses(m, both.Signing) {
		t.Error("the cell trusts the old CA yet, or the new one no more")
	}

	// So it is after a restart of the agent.
	m.stop()
	m = w.start(dir, m.addr.String(), agent)
	if !w.refuses(m, both.Before) || w.refuses(m, both.Signing) || !w.shows(m, both.Signing) {
		t.Error("an agent that was started again has forgotten whom to trust")
	}
}

func TestAKipWhoseRecordIsOlderThanTheMoveFindsTheCell(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	both := w.rotated()
	first := w.keep(w.kipOf(both), w.target(m.addr), nil)
	ready(t, m, first)
	// The cell joined by the old CA: its user data has that.
	if first.credentials().authority != both.Before {
		t.Error("a cell whose record says no CA is not dialled by the old one")
	}
	if err := w.trust(first); err != nil {
		t.Fatal(err)
	}
	first.Close()

	// From before the rotation, while the cell trusts both: the key is the one that joined.
	older := w.keep(w.dialer(w.authority), w.joined(m, ""), nil)
	ready(t, m, older)
	older.Close()

	// In the rotation, the record one step behind, and the cell a step ahead.
	last := w.keep(w.kipOf(pki.Authorities{Signing: both.Signing}), w.joined(m, both.Signing.Hash()), nil)
	ready(t, m, last)
	if err := w.trust(last); err != nil {
		t.Fatal(err)
	}
	last.Close()
	behind := w.keep(w.kipOf(both), w.joined(m, both.Before.Hash()), nil)
	ready(t, m, behind)
	behind.Close()

	// From before the rotation, when the old CA is dropped: nothing is to be done, and it
	// is not taken for the cell's death.
	st := newStates(t)
	target := w.joined(m, "")
	target.OnState = st.note
	lost := w.keep(w.dialer(w.authority), target, nil)
	if err := st.next("a refusal", isFailed).err; !isRotated(err) {
		t.Errorf("the cell that trusts another CA refuses with %v, want a RotatedError", err)
	}
	lost.Close()

	// One that shows another key is not believed to be that cell.
	w.mu.Lock()
	w.spent = "another"
	w.mu.Unlock()
	st = newStates(t)
	target = w.joined(m, "")
	target.OnState = st.note
	w.keep(w.dialer(w.authority), target, nil)
	if err := st.next("a refusal", isFailed).err; isRotated(err) || !errors.Is(err, ErrKeyChanged) {
		t.Errorf("a machine with another key is answered with %v", err)
	}
}

func isRotated(err error) bool {
	_, is := errors.AsType[*RotatedError](err)
	return is
}

func TestACellThatOnlySaysThatItTrustsTheNewCAStaysWithTheOld(t *testing.T) {
	w := newWorld(t)
	for what, answer := range map[string]http.HandlerFunc{
		"an agent before this":  http.NotFound,
		"an agent that lies":    func(http.ResponseWriter, *http.Request) {},
		"an agent that refuses": func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "no", http.StatusInternalServerError) },
	} {
		w := &world{t: t, authority: w.authority, token: w.token, cellID: w.cellID, log: w.log, logs: w.logs, limits: w.limits}
		m := w.startWith(w.userData(), t.TempDir(), "", answer, func(c *Cell) { c.serves = answer })
		both := w.rotated()
		s := w.keep(w.kipOf(both), w.target(m.addr), nil)
		wait(t, "ready", s.Ready())
		err := w.trust(s)
		if err == nil {
			t.Errorf("%s: it counts as moved", what)
		}
		refused, is := errors.AsType[*agentapi.StatusError](err)
		if what == "an agent before this" && (!is || refused.Code != http.StatusNotFound) {
			t.Errorf("%s: %v", what, err)
		}
		if s.credentials().authority != both.Before || !s.Connected() {
			t.Errorf("%s: it is not dialled by the CA that it knows", what)
		}
		if _, _, err := tryGet(s.Conn(), "/"); err != nil {
			t.Errorf("%s: it is not asked any more: %v", what, err)
		}
		s.Close()
		m.stop()
	}
}

func TestACellIsToldOfNoAuthoritiesThatWouldShutKipOut(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	m := w.start(dir, "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	ready(t, m, s)
	other, err := pki.New(w.authority.Now)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(by *pki.Authority, id string) []byte {
		der, err := by.RenewCell(m.id.key.Public(), id)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	foreign, err := openIdentity(t.TempDir(), w.cellID)
	if err != nil {
		t.Fatal(err)
	}
	othersKey, err := other.RenewCell(foreign.key.Public(), w.cellID)
	if err != nil {
		t.Fatal(err)
	}
	both := []string{other.Hash(), w.authority.Hash()}
	good := agentapi.Authorities{Trusted: both, Certificate: signed(other, w.cellID), CA: other.Certificate().Raw}
	for what, change := range map[string]func(*agentapi.Authorities){
		"nobody is trusted":                 func(a *agentapi.Authorities) { a.Trusted = nil },
		"the Kip that asks is not trusted":  func(a *agentapi.Authorities) { a.Trusted = both[:1] },
		"more than two":                     func(a *agentapi.Authorities) { a.Trusted = append(slices.Clone(both), strings.Repeat("0", 64)) },
		"no hash":                           func(a *agentapi.Authorities) { a.Trusted = append(slices.Clone(both[1:]), "x") },
		"a certificate of a third":          func(a *agentapi.Authorities) { a.Trusted = both[1:] },
		"another cell's certificate":        func(a *agentapi.Authorities) { a.Certificate = signed(other, "c-2") },
		"a certificate for another key":     func(a *agentapi.Authorities) { a.Certificate = othersKey },
		"a certificate by another":          func(a *agentapi.Authorities) { a.Certificate = signed(w.authority, w.cellID) },
		"no certificate":                    func(a *agentapi.Authorities) { a.Certificate = nil },
		"no authority's certificate":        func(a *agentapi.Authorities) { a.CA = []byte("x") },
		"more than a request of Kip's has":  func(a *agentapi.Authorities) { a.CA = make([]byte, maxTrustBytes) },
		"an authority's of no such message": func(a *agentapi.Authorities) { *a = agentapi.Authorities{} },
	} {
		asked := good
		change(&asked)
		err := agentapi.Client{Conn: s.Conn()}.PutAuthorities(t.Context(), asked)
		if refused, is := errors.AsType[*agentapi.StatusError](err); !is || refused.Code != http.StatusBadRequest {
			t.Errorf("%s: %v, want that it is refused", what, err)
		}
	}
	if got := m.trust.now(); !slices.Equal(got, both[1:]) {
		t.Errorf("it trusts %v now", got)
	}
	if _, err := os.Stat(filepath.Join(dir, trustFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has stored what it refused: %v", err)
	}
	if err := (agentapi.Client{Conn: s.Conn()}).PutAuthorities(t.Context(), good); err != nil {
		t.Error(err)
	}
}

// A crash between two writes, or a disk that fails, leaves a cell that Kip reaches.
func TestACellWhoseMoveIsCutOffIsReachedAllTheSame(t *testing.T) {
	for what, file := range map[string]string{"nothing is written": trustFile, "only whom to trust is": certificateFile} {
		w := newWorld(t)
		dir := t.TempDir()
		m, both, s := w.rotating(dir)
		unwritable(t, dir, file)
		if err := w.trust(s); err == nil {
			t.Errorf("%s: the agent does not tell of it", what)
		}
		s.Close()
		m.stop()
		for _, name := range []string{trustFile, certificateFile} {
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.IsDir() {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
				if saved, err := os.ReadFile(filepath.Join(dir, name+saved)); err == nil {
					if err := os.WriteFile(filepath.Join(dir, name), saved, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		m = w.start(dir, m.addr.String(), says("agent"))
		again := w.keep(w.kipOf(both), w.joined(m, both.Before.Hash()), nil)
		ready(t, m, again)
		if err := w.trust(again); err != nil {
			t.Errorf("%s: the next move: %v", what, err)
		}
		if w.refuses(m, both.Signing) || !w.shows(m, both.Signing) {
			t.Errorf("%s: it is not moved by the next", what)
		}
	}
}

// Its record says the new CA by then: it is found by the old one, which the session says.
func TestACellThatHasForgottenTheNewCAIsFoundByTheOld(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	m, both, s := w.rotating(dir)
	if got := s.CA(); got != both.Before.Hash() {
		t.Errorf("before the move it is dialled by %s", got)
	}
	if err := w.trust(s); err != nil {
		t.Fatal(err)
	}
	s.Close()
	m.stop()
	if err := os.Remove(filepath.Join(dir, trustFile)); err != nil {
		t.Fatal(err)
	}
	m = w.start(dir, m.addr.String(), says("agent"))
	again := w.keep(w.kipOf(both), w.joined(m, both.Signing.Hash()), nil)
	ready(t, m, again)
	if got := again.CA(); got != both.Before.Hash() {
		t.Errorf("a cell that has forgotten is dialled by %s", got)
	}
	if err := w.trust(again); err != nil {
		t.Fatal(err)
	}
	if got := again.CA(); got != both.Signing.Hash() || w.refuses(m, both.Signing) {
		t.Errorf("a cell that was told again is dialled by %s", got)
	}
}

// The authority of its user data may have been dropped, and others may have its key.
func TestACellThatCannotReadWhomItTrustsTrustsNobody(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	m, both, first := w.rotating(dir)
	if err := w.trust(first); err != nil {
		t.Fatal(err)
	}
	first.Close()
	last := w.keep(w.kipOf(pki.Authorities{Signing: both.Signing}), w.joined(m, both.Signing.Hash()), nil)
	ready(t, m, last)
	if err := w.trust(last); err != nil {
		t.Fatal(err)
	}
	last.Close()
	m.stop()
	path := filepath.Join(dir, trustFile)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(file)
	is := func(list string) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: block.Type, Headers: block.Headers, Bytes: []byte(list)})
	}
	for what, data := range map[string][]byte{
		"damaged":     []byte("x"),
		"empty":       {},
		"cut off":     file[:len(file)/2],
		"no list":     is("{"),
		"of nobody":   is("[]"),
		"of no hash":  is(`["x"]`),
		"of too many": is(fmt.Sprintf("[%q, %[1]q, %[1]q]", both.Before.Hash())),
		"a folder":    nil,
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if data == nil {
			err = os.Mkdir(path, 0o700)
		} else {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		cell, err := newCell(CellConfig{UserData: w.userData(), StateDir: dir, Handler: says("agent"), Log: w.log}, w.limits)
		if err == nil {
			t.Errorf("%s: it trusts %v, and what was dropped is %s", what, cell.trust.now(), both.Before.Hash())
		} else if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "delete its pod") {
			t.Errorf("%s: %v: it does not say where, or what to do", what, err)
		}
	}
	// It was none of the above that opened it.
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, file, 0o600)); err != nil {
		t.Fatal(err)
	}
	m = w.start(dir, m.addr.String(), says("agent"))
	if !w.refuses(m, both.Before) || w.refuses(m, both.Signing) {
		t.Error("with the file as it was it does not trust the new CA alone")
	}
}

// saved is where unwritable keeps a file's content.
const saved = ".saved"

// unwritable puts a folder in the place of a file: a rename to it fails.
func unwritable(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.Rename(path, path+saved); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
}
