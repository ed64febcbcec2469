//go:build e2e

// Package tutorial does what the README's first command and docs/first-pod.md tell
// a new user to do, with the commands as they stand there. It needs root, and a
// machine on which no other run has its bridge.
package tutorial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elotl/kip/test/harness"
)

// Where the run is, beside any of the user's own. It is the one thing in which the
// commands differ from those of the page.
const (
	state  = ".kip/tutorial"
	bridge = "kiptut0"
	cidr   = "10.119.0.0/16"
)

const patience = 5 * time.Minute

// step is what a block of the page is to show.
type step struct {
	begins string // the block
	// shows are expressions, each of which matches what the block prints.
	shows []string
	// fails are the commands that do, as they should.
	fails []string
	// again are the block's lines that are run until they print it: those which
	// tell of something that takes a moment.
	again string
	// rows is how many lines with a word they print in the end.
	rows map[string]int
}

var steps = []step{
	{begins: "export KUBECONFIG=", shows: []string{`(?m)^kip-0 +Ready `}},
	{begins: "kubectl apply -f - <<'END'\napiVersion: v1\nkind: Pod", shows: []string{`pod/web condition met`, `(?m)^pod/web .* Running `, `(?m)^cell\S*/cell-\S+ .*web.*micro`}},
	{begins: "kipctl why web", shows: []string{`micro`, `cell-`}},
	{
		begins: "kubectl logs web", fails: []string{`kubectl exec web -- sh -c 'exit 7'`},
		shows: []string{`(?m)^serving$`, `httpd -f -p 8080`, `(?m)^7$`, `(?m)^hello from web$`},
	},
	{begins: "kubectl apply -f - <<'END'\napiVersion: apps/v1", shows: []string{`deployment "sleepers" successfully rolled out`, `(?s)(sleepers-\S+.*){3}`, `deployment.apps/sleepers scaled`}, again: "kipctl get cells\n", rows: map[string]int{"sleepers-": 1}},
	{begins: "kubectl run huge", shows: []string{`pod/huge created`, `900Gi`, `Warning +\S+ .*kip`}, again: "kipctl why huge\nkubectl describe pod huge\n"},
	{begins: "kubectl delete pod web huge", shows: []string{`pod "web" deleted`, `pod "huge" deleted`, `deployment.apps "sleepers" deleted`}},
}

// blocks are the page's commands, in order, without their indentation.
func blocks(page string) (all []string) {
	for i, part := range strings.Split(page, "\n```") {
		if i%2 == 1 {
			_, text, _ := strings.Cut(part, "\n")
			all = append(all, text+"\n")
		}
	}
	return all
}

// TestTheTutorialDoesWhatItSays runs `make run`, and meanwhile what the page tells
// to type in a second terminal; then it presses Ctrl-C.
func TestTheTutorialDoesWhatItSays(t *testing.T) {
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "first-pod.md"))
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := blocks(string(page))
	if len(commands) != len(steps)+1 || commands[0] != "make run\n" || !bytes.Contains(readme, []byte("\nmake run ")) {
		t.Fatalf("docs/first-pod.md has %d blocks, want make run and %d more; the first is %q", len(commands), len(steps), commands[0])
	}

	out := filepath.Join(t.TempDir(), "run.log")
	run := start(t, root, out, "make", "run", fmt.Sprintf("ARGS=--state=%s --bridge=%s --cidr=%s", state, bridge, cidr))
	said := func() string {
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	wait(t, "make run is up", func() error {
		select {
		case <-run.ended:
			t.Fatalf("make run ended: %v\n%s", run.err, said())
		default:
		}
		if !strings.Contains(said(), "Kip is up.") {
			return errors.New("it is not:\n" + said())
		}
		return nil
	})
	for _, what := range []string{"seen", "placed", "launched", "joined", "ready", "bound", "running", "succeeded", "terminated", "kubectl logs hello"} {
		if !strings.Contains(said(), what) {
			t.Errorf("make run does not say %q:\n%s", what, said())
		}
	}

	moved := strings.NewReplacer("$PWD/.kip/", "$PWD/"+state+"/")
	preamble := moved.Replace(strings.Split(commands[1], "\n")[0]) + "\n"
	for i, s := range steps {
		block := moved.Replace(commands[i+1])
		if !strings.HasPrefix(commands[i+1], s.begins) {
			t.Fatalf("block %d of docs/first-pod.md begins %q, want %q", i+2, strings.SplitAfter(commands[i+1], "\n")[:1], s.begins)
		}
		text, failed := bash(t, root, preamble+block)
		t.Logf("%s\n%s", strings.SplitN(block, "\n", 2)[0], text)
		if !slices.Equal(failed, s.fails) {
			t.Errorf("commands failed: %q, want %q:\n%s", failed, s.fails, text)
		}
		if s.again != "" && !strings.Contains(block, s.again) {
			t.Fatalf("block %d of docs/first-pod.md does not have the lines %q", i+2, s.again)
		}
		latest := text
		wait(t, "what "+s.begins+" shows", func() error {
			missing := s.missing(text, latest)
			if missing == nil {
				return nil
			}
			if s.again == "" {
				t.Fatalf("%v:\n%s", missing, text)
			}
			latest, _ = bash(t, root, preamble+s.again)
			text += latest
			return fmt.Errorf("%w:\n%s", missing, text)
		})
		if t.Failed() {
			break
		}
	}

	if err := syscall.Kill(-run.pid, syscall.SIGINT); err != nil { // as a terminal sends it
		t.Fatal(err)
	}
	wait(t, "make run ends", func() error {
		select {
		case <-run.ended:
			return nil
		default:
			return errors.New("it does not:\n" + said())
		}
	})
	if !strings.Contains(said(), "stopped; nothing left behind") {
		t.Errorf("make run ended with %v and said\n%s", run.err, said())
	}
	clean := exec.Command(filepath.Join(root, "bin", "kip-dev"), "clean", "--state", state, "--bridge", bridge, "--cidr", cidr)
	clean.Dir = root
	if text, err := clean.CombinedOutput(); err != nil || strings.Contains(string(text), "removed") {
		t.Errorf("something was left: %v\n%s", err, text)
	}
}

// missing says what of a step's is not in all that was printed, or in the latest.
func (s step) missing(all, latest string) error {
	for _, want := range s.shows {
		if !regexp.MustCompile(want).MatchString(all) {
			return fmt.Errorf("it does not show %s", want)
		}
	}
	for word, want := range s.rows {
		got := 0
		for line := range strings.Lines(latest) {
			if strings.Contains(line, word) {
				got++
			}
		}
		if got != want {
			return fmt.Errorf("it shows %d lines with %s, want %d", got, word, want)
		}
	}
	return nil
}

// bash runs a script as somebody types it: a command that fails does not end it. It
// returns what is printed, and the commands that failed.
func bash(t *testing.T, root, script string) (out string, failed []string) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "failed")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", "trap 'echo \"$BASH_COMMAND\" >>"+report+"' ERR\n"+script)
	cmd.Dir = root
	cmd.WaitDelay = time.Second
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("it does not end (%v):\n%s\n%s", err, script, text)
	}
	list, err := os.ReadFile(report)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		failed = append(failed, strings.TrimSpace(line))
	}
	return string(text), failed
}

func wait(t *testing.T, what string, check func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// process is a command in a process group of its own.
type process struct {
	pid   int
	ended chan struct{}
	err   error // once it has ended
}

// start starts a command that ends with the test, at the latest.
func start(t *testing.T, dir, log string, name string, args ...string) *process {
	t.Helper()
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p := &process{ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.ended)
		runtime.LockOSThread() // the kernel sends Pdeathsig when the thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			_ = syscall.Kill(-p.pid, syscall.SIGINT) // it may have ended meanwhile
			<-p.ended
		}
	})
	return p
}
