package access

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/supervise"
	"github.com/elotl/kip/internal/agentapi"
)

// patience only tells a hang from a slow machine.
const patience = 5 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves an Access, whose logs are in dir.
func serve(t *testing.T, dir string) (address string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	a := New(Options{
		Env:    []string{"PATH=/usr/bin:/bin", "HOME=/"},
		Reaper: supervise.NewReaper(log),
		Logs: map[string]string{
			"kubelet": filepath.Join(dir, "kubelet.log"),
			"link":    filepath.Join(dir, "link"),
			"fifo":    filepath.Join(dir, "fifo"),
		},
		Log: log,
	})
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+agentapi.PathExec, a.Exec)
	mux.HandleFunc("GET "+agentapi.PathLogs+"/{log}", a.Logs)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// session is a command that somebody runs.
type session struct {
	*testing.T
	conn   net.Conn
	in     *bufio.Reader
	frames *agentapi.Frames
	out    map[agentapi.FrameKind]string
}

// run starts a command; the text is what is said where that cannot be.
func run(t *testing.T, address string, e agentapi.Exec) (s *session, code int, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s?%s HTTP/1.1\r\nHost: cell\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", agentapi.PathExec, e.Query().Encode(),
		agentapi.ExecProtocol)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		return nil, resp.StatusCode, string(body)
	}
	return &session{T: t, conn: conn, in: in, frames: agentapi.NewFrames(conn), out: map[agentapi.FrameKind]string{}}, resp.StatusCode, ""
}

func (s *session) send(kind agentapi.FrameKind, text string) {
	s.Helper()
	if err := s.frames.Send(kind, []byte(text)); err != nil {
		s.Fatal(err)
	}
}

// until reads until the output has a text, or the command has ended for "".
func (s *session) until(text string) (status int) {
	s.Helper()
	for {
		kind, p, err := agentapi.ReadFrame(s.in, make([]byte, agentapi.MaxFrame))
		if err != nil {
			s.Fatalf("%v after %q", err, s.out)
		}
		if kind == agentapi.FrameExit {
			if status, err = agentapi.ExitOf(p); err != nil || text != "" {
				s.Fatalf("it ended with %d (%v) and %q, want %q", status, err, s.out, text)
			}
			return status
		}
		s.out[kind] += string(p)
		if text != "" && strings.Contains(s.out[kind], text) {
			return 0
		}
	}
}

func TestACommandGetsItsInputAndTellsItsOutputsAndItsStatus(t *testing.T) {
	address := serve(t, t.TempDir())
	s, _, text := run(t, address, agentapi.Exec{Command: []string{"sh", "-c", `cat; echo "to $1" >&2; exit 3`, "sh", "a word"}})
	if s == nil {
		t.Fatal(text)
	}
	s.send(agentapi.FrameStdin, "one ")
	s.send(agentapi.FrameStdin, "two")
	s.send(agentapi.FrameStdin, "")
	if status := s.until(""); status != 3 || s.out[agentapi.FrameStdout] != "one two" || s.out[agentapi.FrameStderr] != "to a word\n" {
		t.Errorf("%d %q", status, s.out)
	}
}

func TestAShellHasATerminalOfItsSize(t *testing.T) {
	s, _, text := run(t, serve(t, t.TempDir()), agentapi.Exec{TTY: true, Term: "xterm-256color"})
	if s == nil {
		t.Fatal(text)
	}
	if err := s.frames.SendSize(33, 77); err != nil {
		t.Fatal(err)
	}
	s.send(agentapi.FrameStdin, "stty size; echo $TERM; tty; exit 4\n")
	status := s.until("")
	out := s.out[agentapi.FrameStdout]
	if status != 4 || !strings.Contains(out, "33 77") || !strings.Contains(out, "xterm-256color") || !strings.Contains(out, "/dev/pts/") {
		t.Errorf("%d %q", status, s.out)
	}
}

func TestACommandEndsWithItsConnection(t *testing.T) {
	dir := t.TempDir()
	address := serve(t, dir)
	pids := filepath.Join(dir, "pids")
	begin := `echo $$ > ` + pids + `; echo ready; `
	for name, script := range map[string]string{
		"one that reads nothing":      begin + `exec sleep 1000`,
		"one that ignores a hang-up":  `trap "" HUP; ` + begin + `while :; do sleep 0.1; done`,
		"one with a terminal":         begin + `exec sleep 1000`,
		"one that is sent much":       begin + `exec sleep 1000`,
		"one whose output nobody has": begin + `exec yes`,
	} {
		s, _, text := run(t, address, agentapi.Exec{TTY: name == "one with a terminal", Command: []string{"sh", "-c", script}})
		if s == nil {
			t.Fatalf("%s: %s", name, text)
		}
		s.until("ready")
		b, err := os.ReadFile(pids)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if name == "one that is sent much" {
			s.send(agentapi.FrameStdin, strings.Repeat("x", agentapi.MaxFrame))
			s.send(agentapi.FrameStdin, strings.Repeat("x", agentapi.MaxFrame))
			s.send(agentapi.FrameStdin, strings.Repeat("x", agentapi.MaxFrame)) // more than a pipe has
		}
		s.conn.Close()
		for end := time.Now().Add(patience); unix.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s runs on", name)
			}
		}
	}
}

func TestACommandThatCannotRunIsRefused(t *testing.T) {
	address := serve(t, t.TempDir())
	for name, c := range map[string]struct {
		e    agentapi.Exec
		says string
	}{
		"no program": {agentapi.Exec{Command: []string{"no-such-program"}}, `"no-such-program" is not a program`},
		"no file":    {agentapi.Exec{Command: []string{"/none"}}, "no such file"},
		"no name":    {agentapi.Exec{Command: []string{""}}, "has no name"},
	} {
		s, code, text := run(t, address, c.e)
		if s != nil || code != http.StatusBadRequest || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %q, want %q", name, code, text, c.says)
		}
	}
	resp, err := http.PostForm("http://"+address+agentapi.PathExec, url.Values{})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without an upgrade: %d", resp.StatusCode)
	}
	var all []*session
	for range commandsAtOnce {
		s, _, text := run(t, address, agentapi.Exec{Command: []string{"sleep", "1000"}})
		if s == nil {
			t.Fatal(text)
		}
		all = append(all, s)
	}
	if s, code, _ := run(t, address, agentapi.Exec{Command: []string{"sleep", "1000"}}); s != nil || code != http.StatusTooManyRequests {
		t.Errorf("one command more than may run: %d", code)
	}
	for _, s := range all {
		s.conn.Close()
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if s, _, _ := run(t, address, agentapi.Exec{Command: []string{"true"}}); s != nil {
			s.until("")
			break
		}
		if time.Now().After(end) {
			t.Fatal("no place comes free")
		}
	}
}

func TestTheEndOfALogIsTold(t *testing.T) {
	dir := t.TempDir()
	address := serve(t, dir)
	file := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	get := func(query string) (int, string) {
		resp, err := http.Get("http://" + address + agentapi.PathLogs + query)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	defer http.DefaultClient.CloseIdleConnections()
	if code, text := get("/kubelet"); code != http.StatusNotFound || !strings.Contains(text, "no log of kubelet") {
		t.Errorf("one that is not there: %d %s", code, text)
	}
	file("kubelet.log.1", "1\n2\n3\n")
	file("kubelet.log", "4\n5\n6")
	file("secret", "no log")
	if err := os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]struct {
		code int
		text string
	}{
		"/kubelet":         {200, "1\n2\n3\n4\n5\n6"},
		"/kubelet?tail=2":  {200, "5\n6"},
		"/kubelet?tail=4":  {200, "3\n4\n5\n6"},
		"/kubelet?tail=0":  {400, "want a number of lines"},
		"/kubelet?tail=no": {400, "want a number of lines"},
		"/other":           {404, "want one of fifo, kubelet, link"},
		"/link":            {500, "too many levels"},
		"/fifo":            {500, "is not a file"},
	} {
		code, text := get(query)
		if code != want.code || code == 200 && text != want.text || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %q, want %d %q", query, code, text, want.code, want.text)
		}
	}
	long := strings.Repeat("a line\n", maxLog/7+100)
	file("kubelet.log", long)
	if code, text := get("/kubelet?tail=100000"); code != 200 || text != strings.Repeat("a line\n", 100_000) {
		t.Errorf("a long one: %d, %d bytes", code, len(text))
	}
}
