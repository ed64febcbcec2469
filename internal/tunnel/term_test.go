package tunnel

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/pki"
	"golang.org/x/net/http2"
)

// term is a Kip that leads for a term.
func (w *world) term(term uint64) *Dialer {
	w.t.Helper()
	d, err := newDialer(DialerConfig{Authority: w.authority, Term: term, Log: w.log}, w.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func certificate(t *testing.T, a *pki.Authority, term uint64) *tls.Certificate {
	t.Helper()
	cert, err := a.Client(term).Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// follow has the Kip of a term connect to a cell that has joined.
func (w *world) follow(d *Dialer, m *machine, cellAPI http.Handler) (*Session, *states) {
	w.t.Helper()
	st := newStates(w.t)
	target := w.target(m.addr)
	target.Token, target.OnState = pki.Token{}, st.note
	return w.keep(d, target, cellAPI), st
}

func TestAKipThatAnotherHasFollowedIsRefusedByTheCell(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	agent := newWatchable()
	m := w.start(dir, "", agent)
	st := newStates(t)
	target := w.target(m.addr)
	target.OnState = st.note
	old := w.keep(w.term(7), target, says("first"))
	st.next("connected", isConnected)
	// A process that was paused closes nothing itself.
	asks := kipTLS(t, w.authority, protoHTTP1)
	asks.Certificates[0] = *certificate(t, w.authority, 7)
	paused, err := tls.Dial("tcp", m.addr.String(), asks)
	if err != nil {
		t.Fatal(err)
	}
	defer paused.Close()
	if _, err := io.WriteString(paused, "GET /watch HTTP/1.1\r\nHost: kip\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(paused)
	if first, err := answers.ReadString('\n'); err != nil || !strings.Contains(first, "200") {
		t.Fatalf("the agent answers the first %q, %v", first, err)
	}

	second, _ := w.follow(w.term(8), m, says("second"))
	wait(t, "ready", second.Ready())
	// What the first has open ends, requests of its own as well, and it comes back no more.
	wait(t, "the agent to see the end of a request of the first", agent.ended)
	for n := range 3 {
		s := st.next("a refusal", isFailed)
		if s.connected {
			t.Error("the first is connected again")
		}
		refused, is := errors.AsType[*FollowedError](s.err)
		if n == 2 && (!is || refused.Term != 8 || time.Since(old.LastHeard()) > time.Minute) {
			t.Errorf("the first is told %v, and heard the cell at %s", s.err, old.LastHeard())
		}
	}
	if _, _, err := tryGet(old.Conn(), "/watch"); err == nil {
		t.Error("the agent answers the first")
	}
	if !second.Connected() {
		t.Error("the second is not connected")
	}
	if _, body := get(t, m.RoundTripper(), "/"); body != "second / over HTTP/2.0" {
		t.Errorf("the cell got %q", body)
	}
	if !strings.Contains(w.logs.String(), "term 7, and that of term 8 has connected") {
		t.Error("the cell does not log why")
	}

	// An agent that was started again has not forgotten; the first may be the first to dial.
	second.Close()
	m.stop()
	m = w.start(dir, m.addr.String(), agent)
	for range 3 {
		st.next("a refusal", isFailed)
	}
	if old.Connected() {
		t.Error("the first is connected to an agent that was started again")
	}
	again, _ := w.follow(w.term(8), m, says("second"))
	wait(t, "ready", again.Ready())
}

func TestAKipWithoutATermIsRefusedAsTheFirst(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	first := w.keep(w.term(7), w.target(m.addr), says("first"))
	wait(t, "ready", first.Ready())
	first.Close()
	without, st := w.follow(w.term(0), m, says("without"))
	st.next("a refusal", isFailed)
	if without.Connected() {
		t.Error("it is connected")
	}
}

func TestATermThatCannotBeStoredHoldsAllTheSame(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	m := w.start(dir, "", says("agent"))
	first := w.keep(w.term(7), w.target(m.addr), says("first"))
	wait(t, "ready", first.Ready())
	// A folder in the place of the file cannot be replaced by one.
	path := filepath.Join(dir, termFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	second, _ := w.follow(w.term(8), m, says("second"))
	wait(t, "ready", second.Ready())
	if strings.Contains(w.logs.String(), "refused a connection") {
		t.Error("who leads is refused for the disk of the cell")
	}
	first.Close()
	_, st := w.follow(w.term(7), m, says("first"))
	st.next("a refusal", isFailed)
	if !strings.Contains(w.logs.String(), "store the term of Kip") {
		t.Error("the agent does not log that it cannot store it")
	}
}

// A cell must not be lost for a file that only keeps out a Kip that was followed.
func TestATermThatIsDamagedOrAnotherCellsIsNone(t *testing.T) {
	w := newWorld(t)
	for what, cellID := range map[string]string{"another cell's": "c-2", "damaged": w.cellID, "short": w.cellID, "a folder": w.cellID} {
		id, err := openIdentity(t.TempDir(), w.cellID)
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		log := slog.New(slog.NewTextHandler(&said, nil))
		if newest, err := openTerms(id, log).admit(7, time.Now()); !newest || err != nil {
			t.Fatalf("the first: %t, %v", newest, err)
		}
		path := filepath.Join(id.dir, termFile)
		switch what {
		case "damaged":
			err = os.WriteFile(path, []byte("damaged"), 0o600)
		case "short":
			err = id.write(termFile, blockTerm, []byte{7})
		case "a folder":
			err = errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
		id.cellID = cellID
		if newest, err := openTerms(id, log).admit(1, time.Now()); !newest || err != nil && what != "a folder" {
			t.Errorf("%s: a lower term is the newest: %t, %v", what, newest, err)
		}
		if tells := strings.Contains(said.String(), termFile); tells != (what != "another cell's") {
			t.Errorf("%s: it logs %q", what, said.String())
		}
	}
}

// Who has stolen the key of the CA must not keep out for good the Kip that leads.
func TestATermFromFarAheadKeepsOutNobody(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) uint64 { return uint64(now.Add(d).UnixMilli()) }
	for _, far := range []uint64{math.MaxUint64, at(pki.ClockSkew + time.Millisecond)} {
		id, err := openIdentity(t.TempDir(), "c-1")
		if err != nil {
			t.Fatal(err)
		}
		terms := openTerms(id, slog.New(slog.DiscardHandler))
		admit := func(when string, term uint64, at time.Time, want, refused bool) {
			t.Helper()
			if newest, err := terms.admit(term, at); newest != want || (err != nil) != refused {
				t.Errorf("%s: term %d is the newest: %t, %v", when, term, newest, err)
			}
		}
		admit("from far ahead", far, now, false, false)
		admit("who leads", at(0), now, true, false)
		admit("from far ahead, after it", far, now, false, false)
		admit("one before", at(-1), now, false, true)
		admit("the next, whose clock is ahead", at(pki.ClockSkew), now, true, false)
		admit("who led until then", at(0), now, false, true)

		// What an agent has stored whose clock was ahead.
		if err := id.write(termFile, blockTerm, binary.BigEndian.AppendUint64(nil, far)); err != nil {
			t.Fatal(err)
		}
		terms = openTerms(id, slog.New(slog.DiscardHandler))
		admit("after a term from far ahead", at(0), now, true, false)
	}
}

func TestWhatACellBeginsWithIsItsPrefaceOrARefusal(t *testing.T) {
	for text, want := range map[string]string{
		http2.ClientPreface:                           "",
		fmt.Sprintf(followed, uint64(math.MaxUint64)): "18446744073709551615",
		fmt.Sprintf(followed, 8):                      "term 8 ",
		fmt.Sprintf(followed, 7):                      "cannot be", // its own
		fmt.Sprintf(followed, 0):                      "cannot be",
		"KIPTERM:-000000000000008":                    "preface",
		"KIPTERM:00000000000000xx":                    "preface",
		"HTTP/1.1 400 Bad Request":                    "preface",
	} {
		if len(text) != len(http2.ClientPreface) {
			t.Errorf("%q has %d bytes, the preface %d", text, len(text), len(http2.ClientPreface))
		}
		err := begins([]byte(text), 7)
		if _, is := errors.AsType[*FollowedError](err); is && want == "cannot be" {
			t.Errorf("%q is believed", text)
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
