package upgrade

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
)

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

const program = "the program of another agent"

// world is a machine, and a server that has agents.
type world struct {
	*testing.T
	dir, self string
	server    *httptest.Server
	tried     []string
	try       error
	out       strings.Builder
}

func newWorld(t *testing.T, serve http.HandlerFunc) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{T: t, dir: filepath.Join(dir, "agent"), self: filepath.Join(dir, "itzo"), server: httptest.NewServer(serve)}
	t.Cleanup(w.server.Close)
	if err := os.WriteFile(w.self, []byte("the agent that runs"), 0o755); err != nil {
		t.Fatal(err)
	}
	return w
}

// file serves the program for amd64 only.
func file(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/kip/itzo-v2-amd64" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, text)
	}
}

func (w *world) upgrade() *Upgrade {
	return New(Options{
		Dir:  w.dir,
		Self: w.self,
		Try: func(_ context.Context, p string) (string, error) {
			text, err := os.ReadFile(p)
			if err != nil {
				w.Error(err)
			}
			w.tried = append(w.tried, string(text))
			return "v2", w.try
		},
		Log:      slog.New(slog.NewTextHandler(&w.out, nil)),
		Arch:     "amd64",
		MaxBytes: 100,
		Limit:    time.Minute,
		Pause:    time.Millisecond,
	})
}

func (w *world) agent(digest string) agentapi.Agent {
	return agentapi.Agent{Version: "v2", URL: w.server.URL + "/kip/", SHA256: map[string]string{"amd64": digest, "arm64": sum("x")}}
}

// run runs an upgrade until it has one or done says so.
func (w *world) run(s *Upgrade, done func() bool) (program string) {
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	ended := make(chan string, 1)
	go func() { ended <- s.Run(ctx) }()
	for end := time.Now().Add(time.Minute); ; {
		select {
		case p := <-ended:
			return p
		case <-time.After(time.Millisecond):
		}
		if done() {
			cancel()
			return <-ended
		}
		if time.Now().After(end) {
			w.Fatal("never done")
		}
	}
}

// files are what is in the folder of agents.
func (w *world) files() (names []string) {
	all, err := os.ReadDir(w.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Error(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

func never() bool { return false }

func TestAnotherAgentIsFetchedVerifiedAndHandedOn(t *testing.T) {
	w := newWorld(t, file(program))
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{partial + "1", sum("an earlier one")} {
		if err := os.WriteFile(filepath.Join(w.dir, left), []byte("an earlier one"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := w.upgrade()
	for range 3 {
		if err := s.Want(w.agent(sum(program)), false); !errors.Is(err, ErrUnderWay) {
			t.Fatalf("before it is there: %v", err)
		}
	}
	got := w.run(s, never)
	text, err := os.ReadFile(got)
	if err != nil || string(text) != program || filepath.Base(got) != sum(program) || len(w.files()) != 1 {
		t.Errorf("%s has %q (%v), and there are %q", got, text, err, w.files())
	}
	if info, err := os.Stat(got); err != nil || info.Mode() != 0o500 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if len(w.tried) != 1 || w.tried[0] != program {
		t.Errorf("tried %q", w.tried)
	}
	// A later start of the machine finds it, and it finds itself.
	if kept, err := Kept(w.dir, w.self); kept != got || err != nil {
		t.Errorf("kept is %s, %v", kept, err)
	}
	if kept, err := Kept(w.dir, got); kept != "" || err != nil {
		t.Errorf("of itself kept is %s, %v", kept, err)
	}
	w.self = got
	if err := w.upgrade().Want(w.agent(sum(program)), true); err != nil {
		t.Errorf("the agent that was wanted says %v", err)
	}
}

func TestWhatIsNotTheAgentThatIsWantedIsNeverStarted(t *testing.T) {
	long := strings.Repeat("x", 101)
	for name, tc := range map[string]struct {
		serve  http.HandlerFunc
		digest string
		try    error
		tried  int
		want   string
	}{
		"another file":      {serve: file(program + "!"), want: "has the SHA-256 " + sum(program+"!") + ", and " + sum(program) + " is wanted"},
		"a part of it":      {serve: file(program[:5]), want: "has the SHA-256"},
		"no file":           {serve: http.NotFound, want: "itzo-v2-amd64: the server answered 404 Not Found"},
		"it is not allowed": {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, want: "403 Forbidden"},
		"too long, and says so": {serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "101")
			_, _ = io.WriteString(w, long)
		}, digest: sum(long), want: "has 101 bytes: an agent has 100 at most"},
		"too long, and does not": {serve: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, long[:50])
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, long[50:])
		}, digest: sum(long), want: "has more than the 100 bytes"},
		"no agent": {serve: file(program), try: errors.New("exec format error"), tried: 1,
			want: "has the right digest and is no agent for this machine: exec format error"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.serve)
			w.try = tc.try
			s := w.upgrade()
			if tc.digest == "" {
				tc.digest = sum(program)
			}
			var failed error
			got := w.run(s, func() bool {
				failed = s.Want(w.agent(tc.digest), false)
				return !errors.Is(failed, ErrUnderWay)
			})
			if got != "" || !errors.Is(failed, ErrRefused) || !strings.Contains(failed.Error(), tc.want) {
				t.Errorf("program %q, %v; want %q", got, failed, tc.want)
			}
			if len(w.tried) != tc.tried || len(w.files()) != 0 {
				t.Errorf("tried %q, left %q", w.tried, w.files())
			}
			if !strings.Contains(w.out.String(), "another agent is not started") {
				t.Errorf("the console has %s", w.out.String())
			}
		})
	}
}

// What is not synced by name is gone after a loss of power, and the agent before it comes back.
func TestAnAgentTakesOverOnlyOnceItsNameIsOnTheDisk(t *testing.T) {
	broken := errors.New("the disk is broken")
	for name, breaks := range map[string]string{"": "", "the state's": "state", "its own": "agent"} {
		t.Run("a folder that cannot be synced: "+name, func(t *testing.T) {
			w := newWorld(t, file(program))
			w.dir = filepath.Join(filepath.Dir(w.dir), "state", "agent")
			var synced []string
			s := w.upgrade()
			s.o.SyncFolder = func(path string) error {
				if len(w.tried) > 0 {
					t.Error("it was started before")
				}
				synced = append(synced, strings.Join(append([]string{filepath.Base(path)}, w.files()...), " "))
				if filepath.Base(path) == breaks {
					return broken
				}
				return syncFolder(path)
			}
			var failed error
			got := w.run(s, func() bool {
				failed = s.Want(w.agent(sum(program)), false)
				return !errors.Is(failed, ErrUnderWay)
			})
			if breaks != "" {
				if got != "" || !errors.Is(failed, ErrRefused) || !errors.Is(failed, broken) || len(w.tried) != 0 || len(w.files()) != 0 {
					t.Errorf("program %q, %v; tried %q, left %q", got, failed, w.tried, w.files())
				}
				return
			}
			if want := []string{"state", "agent " + sum(program)}; filepath.Base(got) != sum(program) || !slices.Equal(synced, want) {
				t.Errorf("program %q, synced %q, want %q", got, synced, want)
			}
		})
	}
}

func TestAServerThatIsNotWellIsAskedAgain(t *testing.T) {
	asked := 0
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		switch asked++; asked {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			w.Header().Set("Content-Length", "28")
			_, _ = io.WriteString(w, program[:3]) // and breaks
		default:
			file(program)(w, r)
		}
	})
	s := w.upgrade()
	if err := s.Want(w.agent(sum(program)), false); !errors.Is(err, ErrUnderWay) {
		t.Fatal(err)
	}
	if got := w.run(s, never); filepath.Base(got) != sum(program) || asked != 3 || len(w.files()) != 1 {
		t.Errorf("%s after %d requests, left %q", got, asked, w.files())
	}
}

func TestAnAnswerThatIsNotTheFileIsNotTakenForTheLastWord(t *testing.T) {
	for name, tc := range map[string]struct {
		bad  int // answers before the file
		want bool
	}{"of the last try but one": {badAnswers - 1, true}, "of all": {1 << 20, false}} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				switch asked++; {
				case asked > tc.bad:
					file(program)(w, r)
				case asked%3 == 0:
					http.NotFound(w, r)
				case asked%3 == 1:
					file(program+" of another day")(w, r)
				default:
					file(strings.Repeat("x", 101))(w, r)
				}
			})
			s := w.upgrade()
			var failed error
			got := w.run(s, func() bool {
				failed = s.Want(w.agent(sum(program)), false)
				return !errors.Is(failed, ErrUnderWay)
			})
			if asked != badAnswers || tc.want != (filepath.Base(got) == sum(program)) || tc.want && len(w.files()) != 1 {
				t.Errorf("%q after %d requests, left %q: %v", got, asked, w.files(), failed)
			}
			if !tc.want && (!errors.Is(failed, ErrRefused) || !strings.Contains(failed.Error(), "answers to 5 requests")) {
				t.Error(failed)
			}
		})
	}
}

func TestAServerThatDoesNotEndIsGivenUp(t *testing.T) {
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, program[:3])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	s := w.upgrade()
	s.o.Limit = 50 * time.Millisecond
	var failed error
	if got := w.run(s, func() bool {
		failed = s.Want(w.agent(sum(program)), false)
		return !errors.Is(failed, ErrUnderWay)
	}); got != "" || !errors.Is(failed, ErrRefused) || !strings.Contains(failed.Error(), "not fetched within 50ms") {
		t.Errorf("program %q, %v", got, failed)
	}
	if len(w.files()) != 0 {
		t.Errorf("left %q", w.files())
	}
}

func TestAnAgentThatThisMachineCannotHaveIsRefusedAtOnce(t *testing.T) {
	w := newWorld(t, file(program))
	for want, change := range map[string]func(*agentapi.Agent){
		"no sha256 for amd64":       func(a *agentapi.Agent) { delete(a.SHA256, "amd64") },
		"want 64 lower-case hex":    func(a *agentapi.Agent) { a.SHA256["amd64"] = strings.ToUpper(sum(program)) },
		`its url "file:///etc"`:     func(a *agentapi.Agent) { a.URL = "file:///etc" },
		`its url "itzo"`:            func(a *agentapi.Agent) { a.URL = "itzo" },
		`its version "../../v2"`:    func(a *agentapi.Agent) { a.Version = "../../v2" },
		`its version "" is not`:     func(a *agentapi.Agent) { a.Version = "" },
		"has its configuration":     func(*agentapi.Agent) {},
		"told of another one befor": func(a *agentapi.Agent) { a.SHA256["amd64"] = sum("another") },
	} {
		a, s := w.agent(sum(program)), w.upgrade()
		if strings.HasPrefix(want, "told") {
			if err := s.Want(a, false); !errors.Is(err, ErrUnderWay) {
				t.Fatal(err)
			}
			a = w.agent(sum(program))
		}
		change(&a)
		if err := s.Want(a, strings.Contains(want, "configuration")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAKeptAgentThatWasChangedIsRemovedAndNotStarted(t *testing.T) {
	w := newWorld(t, file(program))
	if kept, err := Kept(w.dir, w.self); kept != "" || err != nil {
		t.Errorf("without a folder: %s, %v", kept, err)
	}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{sum(program): program[:7], partial + "1": program} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o500); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := Kept(w.dir, w.self); kept != "" || err == nil || !strings.Contains(err.Error(), "it is removed") {
		t.Errorf("one that is torn: %s, %v", kept, err)
	}
	if left := w.files(); len(left) != 1 || left[0] != partial+"1" {
		t.Errorf("left %q", left)
	}
}

func TestARedirectLeadsNowhereThatIsLocalAndIsNotTold(t *testing.T) {
	const secret = "signature"
	asked := 0
	local := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer local.Close()
	away := strings.Replace(local.URL, "127.0.0.1", "127.0.0.2", 1) + "/?" + secret
	server := httptest.NewServer(http.RedirectHandler(away, http.StatusFound))
	defer server.Close()
	s := New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), MaxBytes: 100})
	err := s.fetch(t.Context(), job{source: server.URL, digest: sum("x")}, filepath.Join(t.TempDir(), "agent"))
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "redirect") || asked != 0 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	defer tls.Close()
	from, to := httptest.NewRequest(http.MethodGet, tls.URL, nil), httptest.NewRequest(http.MethodGet, server.URL, nil)
	if err := mayRedirect(to, []*http.Request{from}); err == nil {
		t.Error("from https to http")
	}
	if err := mayRedirect(from, []*http.Request{to}); err != nil {
		t.Error(err)
	}
}

func TestWhatAMachinesCloudTellsItIsLocal(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.2": true, "::1": true, "0.0.0.0": true, "169.254.169.254": true, "::ffff:169.254.169.254": true, "fe80::1%eth0": true,
		"fd00:ec2::254": true, "fd20:ce::254": true, "168.63.129.16": true,
		"10.0.0.1": false, "fd00::1": false, "168.63.129.17": false, "2001:db8::1": false,
	} {
		if got := isLocal(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is local: %t", address, got)
		}
	}
}
