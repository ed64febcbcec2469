package supervise

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"
)

var quiet = slog.New(slog.DiscardHandler)

// patience is how long a test waits for a real process before it fails.
const patience = time.Minute

// eventually polls until ok: the processes are real and tell nobody.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

type rig struct {
	*Process
	clock *clocktesting.FakeClock
	dir   string
	stop  func() // ends Run and waits for it
}

// start runs a shell script as a component; $DIR is a folder of the test's.
func start(t *testing.T, script string, change func(*Spec)) *rig {
	t.Helper()
	dir := t.TempDir()
	log, err := OpenLog(filepath.Join(dir, "log"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	spec := Spec{
		Name: "part", Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"DIR=" + dir, "PATH=/usr/bin:/bin"},
		StopTimeout: time.Minute, Log: log,
	}
	if change != nil {
		change(&spec)
	}
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	r := &rig{clock: clk, dir: dir, Process: New(spec, Options{
		Reaper: NewReaper(quiet), Clock: clk, Random: func() float64 { return 1 }, Log: quiet,
	})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *rig) lines(file string) int {
	b, _ := os.ReadFile(filepath.Join(r.dir, file))
	return strings.Count(string(b), "\n")
}

func TestAnEndedComponentIsStartedAgainAfterTheBackOffAndNotBefore(t *testing.T) {
	r := start(t, "echo boom >&2; echo >>$DIR/starts; exit 3", nil)
	for n, delay := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second} {
		eventually(t, "waiting after its end", func() bool { return r.clock.HasWaiters() && r.Status().PID == 0 })
		if got := r.lines("starts"); got != n+1 {
			t.Fatalf("%d starts, want %d", got, n+1)
		}
		s := r.Status()
		for _, want := range []string{"exit status 3", delay.String(), "boom"} {
			if !strings.Contains(s.Waiting, want) {
				t.Errorf("waiting %q does not say %q", s.Waiting, want)
			}
		}
		if s.Restarts != n {
			t.Errorf("%d restarts, want %d", s.Restarts, n)
		}
		r.clock.Step(delay - time.Millisecond)
		if !r.clock.HasWaiters() {
			t.Fatalf("started again before %s", delay)
		}
		r.clock.Step(time.Millisecond)
		eventually(t, "another start", func() bool { return r.lines("starts") == n+2 })
	}
}

func TestTheBackOffStartsAfreshOnceTheComponentRanStably(t *testing.T) {
	r := start(t, "echo >>$DIR/starts; n=$(wc -l <$DIR/starts); [ $n -lt 4 ] && exit 1; until [ -e $DIR/go ]; do sleep 0.01; done; exit 1",
		nil)
	for range 3 {
		eventually(t, "waiting", func() bool { return r.clock.HasWaiters() && r.Status().PID == 0 })
		r.clock.Step(maxDelay)
	}
	eventually(t, "the fourth start", func() bool { return r.lines("starts") == 4 && r.Status().PID != 0 })
	r.clock.Step(stableAfter)
	if err := os.WriteFile(filepath.Join(r.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first delay again", func() bool { return strings.Contains(r.Status().Waiting, firstDelay.String()) })
}

func TestStoppingSendsSIGTERMAndWaits(t *testing.T) {
	r := start(t, "trap 'echo >$DIR/term; exit 0' TERM; echo >$DIR/up; while :; do sleep 0.01; done", nil)
	eventually(t, "up", func() bool { return r.lines("up") == 1 })
	r.stop()
	if r.lines("term") != 1 {
		t.Error("the component did not get SIGTERM, or was not waited for")
	}
	if s := r.Status(); s.PID != 0 || s.Waiting != "stopped" {
		t.Errorf("status %+v", s)
	}
}

func TestAComponentThatIgnoresSIGTERMIsKilledAfterItsTimeout(t *testing.T) {
	r := start(t, "trap '' TERM; echo >$DIR/up; while :; do sleep 0.01; done", nil)
	eventually(t, "up", func() bool { return r.lines("up") == 1 })
	pid := r.Status().PID
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	eventually(t, "the timer of the stop", r.clock.HasWaiters)
	if err := unix.Kill(pid, 0); err != nil {
		t.Fatalf("it ended before its time: %v", err)
	}
	r.clock.Step(time.Minute)
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("it was not killed")
	}
}

func TestNothingStartsBeforeItIsReady(t *testing.T) {
	ready := make(chan struct{})
	r := start(t, "echo >$DIR/up; while :; do sleep 0.01; done", func(s *Spec) {
		s.WaitsFor = "the tide"
		s.Ready = func(ctx context.Context) error {
			select {
			case <-ready:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	eventually(t, "saying what it waits for", func() bool { return r.Status().Waiting == "waiting for the tide" })
	if r.lines("up") != 0 {
		t.Fatal("it started")
	}
	close(ready)
	eventually(t, "up", func() bool { return r.lines("up") == 1 && r.Status().Waiting == "" })
}

func TestAChildThatHoldsTheOutputDoesNotHoldTheSupervisor(t *testing.T) {
	r := start(t, "sleep 300 & echo $! >$DIR/child; exit 1", nil)
	eventually(t, "waiting after its end", func() bool { return r.Status().PID == 0 && r.clock.HasWaiters() })
	b, err := os.ReadFile(filepath.Join(r.dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Errorf("the child was not there any more: %v", err)
	}
}

func TestAMissingProgramIsReportedAndTriedAgain(t *testing.T) {
	r := start(t, "", func(s *Spec) { s.Path = "/no/such/program" })
	eventually(t, "saying so", func() bool { return strings.Contains(r.Status().Waiting, "/no/such/program") })
	eventually(t, "a back-off", r.clock.HasWaiters)
}

func TestOrphansAreReapedAndOwnChildrenAreNot(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Skipf("cannot become a subreaper: %v", err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	r := NewReaper(quiet)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Reap(ctx) }()
	defer func() { cancel(); <-done }()

	orphan := filepath.Join(t.TempDir(), "orphan")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			// Each leaves an orphan that ends at once, and has a status of its own.
			cmd := exec.Command("/bin/sh", "-c", "(sh -c 'echo $$ >>"+orphan+"' &) ; exit "+strconv.Itoa(i))
			err := r.Run(t.Context(), cmd)
			code := 0
			if exit, ok := err.(*exec.ExitError); ok {
				code = exit.ExitCode()
			} else if err != nil {
				t.Error(err)
			}
			if code != i {
				t.Errorf("exit code %d, want %d", code, i)
			}
		})
	}
	wg.Wait()
	var pids []string
	eventually(t, "all orphans have run", func() bool {
		b, _ := os.ReadFile(orphan)
		pids = strings.Fields(string(b))
		return len(pids) == 20
	})
	for _, p := range pids {
		eventually(t, "orphan "+p+" is reaped", func() bool {
			_, err := os.Stat("/proc/" + p)
			return os.IsNotExist(err)
		})
	}
}

func TestACommandIsKilledWithItsChildrenWhenItsTimeIsOver(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.Command("/bin/sh", "-c", "sleep 300 & echo $! $$ >"+pids+"; wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	ended := make(chan error, 1)
	go func() { ended <- NewReaper(quiet).Run(ctx, cmd) }()
	var both []string
	eventually(t, "it runs", func() bool {
		b, _ := os.ReadFile(pids)
		both = strings.Fields(string(b))
		return len(both) == 2
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for _, pid := range both {
		eventually(t, pid+" is dead", func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
}

// A pod that has the folder by hostPath may put a link in it.
func TestALogIsNoLink(t *testing.T) {
	dir := t.TempDir()
	program, path := filepath.Join(dir, "program"), filepath.Join(dir, "log")
	if err := os.WriteFile(program, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, path); err != nil {
		t.Fatal(err)
	}
	if l, err := OpenLog(path, 1000); !errors.Is(err, unix.ELOOP) {
		t.Errorf("it is opened: %v (%v)", l, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLog(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if _, err := l.Write(make([]byte, 900)); err != nil {
		t.Fatal(err)
	}
	// In the place of that to come, when this one is full.
	if err := errors.Join(os.Remove(path), os.Symlink(program, path)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := l.Write(make([]byte, 900)); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(program); err != nil || string(data) != "x" {
		t.Errorf("what the link leads to was written: %d bytes (%v)", len(data), err)
	}
}

func TestTheLogIsBoundedAndItsEndIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := OpenLog(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if _, err := l.Write([]byte("line " + strconv.Itoa(i) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := l.LastLines(2), "line 998\nline 999"; got != want {
		t.Errorf("last lines %q, want %q", got, want)
	}
	if got := strings.Count(l.LastLines(1<<20), "\n"); got < 100 {
		t.Errorf("only %d lines are kept in memory", got)
	}
	for _, line := range strings.Split(l.LastLines(1<<20), "\n") {
		if !strings.HasPrefix(line, "line ") {
			t.Errorf("a cut line %q", line)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, path + ".1"} {
		info, err := os.Stat(p)
		if err != nil || info.Size() == 0 || info.Size() > 1000 {
			t.Errorf("%s: %v, %v", p, info, err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(string(b), "line 999\n") {
		t.Errorf("the file ends with %q, %v", b[max(0, len(b)-20):], err)
	}
	// What was there is kept by the next run.
	if l, err = OpenLog(path, 1000); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Write([]byte("next\n")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(b)+"next\n" {
		t.Errorf("appended: %q, %v", after, err)
	}
}
