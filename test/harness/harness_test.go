package harness

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// play runs a script in the place of a Kip, and returns it when it has said that it
// is up, or has ended.
func play(t *testing.T, script string) *Kip {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "kip")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := &World{kipRun: exec.Cmd{Args: []string{"kip"}}}
	k, err := w.RunKipOf(program, filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Kill(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func TestAKipThatDidNotEndAsItWasToldToIsAmiss(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   string // "" when all is well
	}{
		"it ends well":                      {"exit 0", ""},
		"it ends with an error":             {"exit 1", "exit status 1"},
		"the race detector's exit status":   {"exit 66", "exit status 66"},
		"it panics":                         {"echo 'panic: boom' >&2; exit 2", "panic: boom"},
		"it recovers from a panic":          {"echo 'level=ERROR msg=\"Observed a panic\"'; exit 0", "Observed a panic"},
		"a handler of its server panics":    {"echo '2026/01/01 http: panic serving 10.0.0.1:1: boom'; exit 0", "panic serving"},
		"the runtime gives up":              {"echo 'fatal error: concurrent map writes' >&2; exit 2", "concurrent map writes"},
		"a race on its standard error":      {"echo 'WARNING: DATA RACE' >&2; exit 0", "DATA RACE"},
		"it had an instance too many":       {"echo 'msg=\"" + Stray + "\" instance=i-1'; exit 0", "i-1"},
		"it only speaks of panic":           {"echo 'msg=\"do not panic\"'; exit 0", ""},
		"it dies of a signal of its making": {"kill -ABRT $$", "abort"},
	} {
		t.Run(name, func(t *testing.T) {
			k := play(t, c.script)
			<-k.Done()
			err := k.Amiss()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("it is amiss that %v, want %q", err, c.want)
			}
		})
	}
}

func TestAKipThatATestKillsIsNotAmissUnlessItHadDied(t *testing.T) {
	k := play(t, "exec sleep 1000")
	if err := k.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if <-k.Done(); k.Amiss() != nil {
		t.Errorf("one that the test killed: %v", k.Amiss())
	}
	k = play(t, "exec sleep 1000")
	if err := syscall.Kill(k.PID(), syscall.SIGKILL); err != nil { // nobody knows who
		t.Fatal(err)
	}
	if <-k.Done(); k.Amiss() == nil {
		t.Error("one that was killed, and not by the test, is well")
	}
	k = play(t, "exit 2")
	<-k.Process.Done()
	if err := k.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if <-k.Done(); k.Amiss() == nil {
		t.Error("one that had died before the test killed it is well")
	}
}

func TestOnlyWhatIsForgivenIsForgiven(t *testing.T) {
	goOn := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(goOn, 0o600); err != nil {
		t.Fatal(err)
	}
	k := play(t, "read x < "+goOn+"; echo 'fatal error: x'; exit 1")
	k.Forgive("exit status 1")
	k.Forgive("fatal error", "y") // of another
	if err := os.WriteFile(goOn, []byte("on\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	<-k.Done()
	if got := k.Amiss(); got == nil || strings.Contains(got.Error(), "exit status") || !strings.Contains(got.Error(), "fatal error: x") {
		t.Errorf("it is amiss that %v; want the one that is not forgiven", got)
	}
}

func TestWhatTheAPIServerRefusesKipIsFound(t *testing.T) {
	event := func(user, agent, more string, code string) string {
		return `{"stage":"ResponseComplete","requestReceivedTimestamp":"2026-01-01T00:00:01.5Z","verb":"get","requestURI":"/x","user":{"username":"` + user + `"},"userAgent":"` + agent + `",` +
			more + `"responseStatus":{"code":` + code + `}}` + "\n"
	}
	const node = `"impersonatedUser":{"username":"system:node:kip-0"},`
	own := event(kipAccount, "kip", "", "200")
	another := Rights{Account: "system:serviceaccount:kip:kip-provider", Provisioner: "p", File: "eks/kip.yaml"}
	early, late := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC), time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)
	for name, c := range map[string]struct {
		log  string
		of   Rights
		from time.Time
		want string
	}{
		"another's account":                    {event(another.Account, "kip", "", "403"), another, early, "with the rights of eks/kip.yaml Kip was refused map[get /x:1]"},
		"before the time":                      {own, Rights{}, late, "0 requests were answered"},
		"it is answered":                       {own, Rights{}, time.Time{}, ""},
		"it is refused":                        {own + event(kipAccount, "kip", "", "403"), Rights{}, time.Time{}, "get /x:1"},
		"it is refused as the node":            {own + event(kipAccount, "kip", node, "403"), Rights{}, time.Time{}, ""},
		"a test is refused":                    {own + event(kipAccount, "e2e.test/v0", "", "403"), Rights{}, time.Time{}, ""},
		"another is refused":                   {own + event("somebody", "kip", "", "403"), Rights{}, time.Time{}, ""},
		"nothing of it is in the log":          {event("somebody", "kip", "", "200"), Rights{}, time.Time{}, "0 requests were answered"},
		"it is not found, which is no refusal": {own + event(kipAccount, "kip", "", "404"), Rights{}, time.Time{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "audit.log")
			if err := os.WriteFile(file, []byte(c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			err := withinItsRights(file, c.of, c.from)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestAMissingFolderIsEmptyOnlyWhereNothingHasBeen(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "i-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if names, err := within(dir, true); err != nil || len(names) != 1 || names[0] != "i-1" {
		t.Errorf("in the folder are %q, %v; want i-1", names, err)
	}
	missing := filepath.Join(dir, "missing")
	if names, err := within(missing, false); err != nil || len(names) > 0 {
		t.Errorf("before the first machine a folder that is missing has %q, %v; want nothing", names, err)
	}
	if _, err := within(missing, true); err == nil {
		t.Error("after the first machine a folder that is missing counts as empty")
	}
}

func TestAKipThatWouldTellOfNoRaceIsRefused(t *testing.T) {
	tool, err := exec.LookPath("go") // which nobody builds with -race
	if err != nil {
		t.Fatal(err)
	}
	// Go's command may be a script, or a link.
	root, err := exec.Command(tool, "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	plain, own := filepath.Join(strings.TrimSpace(string(root)), "bin", "go"), "/proc/self/exe"
	info, err := buildinfo.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("this test is itself not built with -race, and has no program that is")
	}
	const log = "/tmp/w.race"
	for name, c := range map[string]struct {
		exe, environ string
		want         string // "" when all is well
	}{
		"it tells":                     {own, "A=b\x00GORACE=atexit_sleep_ms=0 log_path=" + log + "\x00", ""},
		"it tells elsewhere":           {own, "GORACE=atexit_sleep_ms=0 log_path=" + log + "s\x00", "want log_path"},
		"it tells on standard error":   {own, "A=GORACE=log_path=" + log + "\x00", "not set"},
		"it is not built with -race":   {plain, "GORACE=log_path=" + log + "\x00", "want -race=true"},
		"it is nothing that was built": {"/dev/null", "", "see whether"},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Symlink(c.exe, filepath.Join(proc, "exe")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, "environ"), []byte(c.environ), 0o600); err != nil {
				t.Fatal(err)
			}
			err := tellsOfRaces(proc, log)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
