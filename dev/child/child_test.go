package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

// TestMain lets this binary play the children, and a parent that is killed.
func TestMain(m *testing.M) {
	switch os.Getenv("CHILD_TEST_ROLE") {
	case "sleeper": // says that it runs, then waits for a signal
		fmt.Println("running")
		time.Sleep(time.Hour) // not select {}, which Go calls a deadlock
	case "failing": // dies by itself, with a status of its own
		os.Exit(66)
	case "parent": // starts a sleeper, names it, and waits to be killed
		dir := os.Getenv("CHILD_TEST_DIR")
		p, err := Start(Spec{Path: os.Args[0], Env: []string{"CHILD_TEST_ROLE=sleeper"}, LogFile: filepath.Join(dir, "log"),
			Record: filepath.Join(dir, "record")})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		time.Sleep(time.Hour) // not select {}, which Go calls a deadlock
	}
	os.Exit(m.Run())
}

func start(t *testing.T, env ...string) (*Process, Spec) {
	t.Helper()
	dir := t.TempDir()
	s := Spec{Path: os.Args[0], Env: append(env, "CHILD_TEST_ROLE=sleeper"), LogFile: filepath.Join(dir, "log"),
		Record: filepath.Join(dir, "record")}
	p, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p, s
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// ended waits until the process that fd stands for is no more.
func ended(t *testing.T, fd int) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(end).Milliseconds()))
		switch {
		case n == 1:
			return
		case errors.Is(err, unix.EINTR) && time.Now().Before(end): // such as the signal of a child's end
		default:
			t.Fatalf("the process still runs: %v", err)
		}
	}
}

func noRecord(t *testing.T, s Spec) {
	t.Helper()
	if _, err := os.Stat(s.Record); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is still there: %v", err)
	}
}

func TestStopEndsTheProcessAndItsRecord(t *testing.T) {
	p, s := start(t)
	if pids, err := Of(os.Getpid()); err != nil || !slices.Contains(pids, p.PID()) {
		t.Errorf("our processes are %v, %v; want %d among them", pids, err, p.PID())
	}
	if r, err := readRecord(s.Record); err != nil || r == nil || r.PID != p.PID() {
		t.Errorf("record is %v, %v, want process %d", r, err, p.PID())
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if alive(p.PID()) {
		t.Error("the process still runs")
	}
	var exit *exec.ExitError
	if !errors.As(p.Err(), &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v, want SIGTERM", p.Err())
	}
	noRecord(t, s)
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestOnlyTheEndThatWasAskedForIsAGoodEnd(t *testing.T) {
	killed, _ := start(t)
	if err := killed.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := killed.Unasked(); err != nil {
		t.Errorf("one that was killed: %v", err)
	}
	foreign, _ := start(t)
	if err := syscall.Kill(foreign.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-foreign.Done()
	if foreign.Unasked() == nil {
		t.Error("one that somebody else has killed ended as if it had been asked to")
	}
	dir := t.TempDir()
	failed, err := Start(Spec{Path: os.Args[0], Env: []string{"CHILD_TEST_ROLE=failing"}, LogFile: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	<-failed.Done()
	if err := failed.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := failed.Unasked(); !errors.As(err, &exit) || exit.ExitCode() != 66 {
		t.Errorf("one that had died before it was killed: %v, want exit status 66", err)
	}
}

func TestStartSaysWhatCannotBeRun(t *testing.T) {
	dir := t.TempDir()
	_, err := Start(Spec{Path: filepath.Join(dir, "missing"), LogFile: filepath.Join(dir, "log"), Record: filepath.Join(dir, "record")})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v, want that the program does not exist", err)
	}
}

func TestTheChildOfAKilledParentDies(t *testing.T) {
	// The orphan comes to us, so that it is reaped wherever the test runs.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	dir := t.TempDir()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "CHILD_TEST_ROLE=parent", "CHILD_TEST_DIR="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("the parent said %q", line)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("the child does not run: %v", err)
	}
	defer unix.Close(fd)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	ended(t, fd)
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		t.Error(err)
	}
}

func TestKillRecordedEndsWhatAnEarlierRunLeft(t *testing.T) {
	p, s := start(t)
	if err := KillRecorded(t.Context(), s.Record); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	noRecord(t, s)
	if err := KillRecorded(t.Context(), s.Record); err != nil {
		t.Errorf("without a record: %v", err)
	}
}

func TestKillRecordedSparesAnotherProcessOfThatNumber(t *testing.T) {
	p, s := start(t)
	r, err := readRecord(s.Record)
	if err != nil {
		t.Fatal(err)
	}
	r.Start++
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Record, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := KillRecorded(t.Context(), s.Record); err != nil {
		t.Fatal(err)
	}
	if !alive(p.PID()) {
		t.Error("a process was killed that the record does not name")
	}
	noRecord(t, s)
}

func TestMarkedFindsProcessesByTheirEnvironment(t *testing.T) {
	mark := "CHILD_TEST_MARK=" + t.TempDir()
	p, _ := start(t, mark)
	pids, err := Marked(mark)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(pids, []int{p.PID()}) {
		t.Errorf("marked are %v, want [%d]", pids, p.PID())
	}
	if err := p.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if pids, err = Marked(mark); err != nil || len(pids) != 0 {
		t.Errorf("after the end, marked are %v, %v", pids, err)
	}
}
