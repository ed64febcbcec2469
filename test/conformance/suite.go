package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// quiet is how long no spec may end before the suite is taken to hang: no spec of
// conformance has a time limit so long.
const quiet = 25 * time.Minute

// farewell is how long an interrupted suite may clean up.
const farewell = 3 * time.Minute

// unread is how long a suite may take to end whose output cannot be read or kept.
const unread = 5 * time.Second

// lastWords is how long a suite may take to say which specs are under way.
const lastWords = 2 * time.Second

var (
	errQuiet   = fmt.Errorf("no spec has ended for %s", quiet)
	errCrashed = errors.New("the cluster crashed")
	errLimit   = errors.New("the run took longer than -limit lets it")
)

// suite is one run of e2e.test over some specs.
type suite struct {
	tools      string // folder of ginkgo and e2e.test
	kubeconfig string
	kubectl    string
	procs      int
	dump       bool   // much is said of the cluster where a spec fails
	log        string // file that gets all that ginkgo prints
	// crashed is closed when the cluster or a Kip is gone, which ends the suite at once.
	crashed <-chan struct{}
}

// focusArguments names exactly these specs, in arguments that the kernel takes:
// one may have 128 KiB.
func focusArguments(specs []string) []string {
	var args, group []string
	size := 0
	flush := func() {
		if len(group) > 0 {
			args = append(args, "--focus=(?:"+strings.Join(group, "|")+")")
		}
		group, size = nil, 0
	}
	for _, s := range specs {
		quoted := regexp.QuoteMeta(s)
		if size+len(quoted) > 64<<10 {
			flush()
		}
		group = append(group, quoted)
		size += len(quoted) + 1
	}
	flush()
	return args
}

// command is the ginkgo that runs the specs.
func (s suite) command(specs []string) *exec.Cmd {
	args := []string{"-v", "--no-color", "--timeout=24h", "--keep-going", "--procs=" + strconv.Itoa(s.procs)}
	args = append(args, focusArguments(specs)...)
	args = append(args, filepath.Join(s.tools, "e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig="+s.kubeconfig, "--kubectl-path="+s.kubectl,
		"--dump-logs-on-failure="+strconv.FormatBool(s.dump), "--disable-log-dump=true", "--allowed-not-ready-nodes=0", "--minStartupPods=0")
	return exec.Command(filepath.Join(s.tools, "ginkgo"), args...)
}

// ask asks the processes of ginkgo which spec each of them runs. Not ginkgo itself, which
// does not know the signal.
func ask(ginkgo int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", ginkgo)) // none of a process that is gone
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for pid := range strings.FieldsSeq(string(children)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGUSR1) // it may have ended
			}
		}
	}
}

// run runs the specs and tells how each ended, as it ends. What had begun when the
// suite ended was interrupted, unless somebody wanted that end. That specs fail is no
// error of run; it fails when the suite could not run to its end.
func (s suite) run(ctx context.Context, specs []string, tell func(outcome)) error {
	if err := os.MkdirAll(filepath.Dir(s.log), 0o755); err != nil {
		return err
	}
	log, err := os.Create(s.log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.command(specs)
	// A group of its own, so that ginkgo's own processes end with it; and an end when
	// this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	write.Close()
	if err != nil {
		return fmt.Errorf("start ginkgo (is it built? `make conformance`): %w", err)
	}

	type news struct {
		outcome  outcome
		underWay []string // at its end
		err      error
	}
	all := make(chan news)
	go func() {
		defer close(all)
		r := &reader{known: specs, tell: func(o outcome) { all <- news{outcome: o} }}
		in := bufio.NewReader(io.TeeReader(read, log))
		for {
			line, err := in.ReadString('\n')
			if err == nil {
				r.line(line)
				continue
			}
			// A line without an end was cut off, and is not to be believed.
			r.end()
			all <- news{underWay: r.underWay}
			if !errors.Is(err, io.EOF) {
				read.Close()
				all <- news{err: fmt.Errorf("read what ginkgo prints, and keep it in %s: %w", s.log, err)}
			}
			return
		}
	}()

	signal := func(sig syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig) } // it may have ended
	hang := time.NewTimer(quiet)
	defer hang.Stop()
	var kill <-chan time.Time
	var why error
	var underWay []string
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	var exit error
	done, crashed, told, bad := ctx.Done(), s.crashed, 0, 0
	for open := true; open; {
		var n news
		select {
		case n, open = <-all:
			// What this run interrupts to end itself has no result.
			if n.outcome.spec != "" && (ctx.Err() == nil || n.outcome.State != interrupted) {
				told++
				if n.outcome.State != passed && n.outcome.State != skipped {
					bad++
				}
				tell(n.outcome)
				hang.Reset(quiet)
			}
			underWay = append(underWay, n.underWay...)
			if why = errors.Join(why, n.err); n.err != nil {
				// Nobody reads what it prints any more, and it would wait for that.
				signal(syscall.SIGINT)
				kill = time.After(unread)
			}
		case <-done:
			done, why = nil, context.Cause(ctx)
			signal(syscall.SIGINT)
			kill = time.After(farewell)
		case <-hang.C:
			why = errQuiet
			signal(syscall.SIGINT)
			kill = time.After(farewell)
		case <-crashed:
			crashed, why = nil, errCrashed
			if s.procs == 1 { // it has said so
				signal(syscall.SIGKILL)
				continue
			}
			ask(cmd.Process.Pid)
			kill = time.After(lastWords)
		case exit = <-exited:
			// What a spec left, such as a kubectl, may hold the pipe open.
			exited, kill = nil, time.After(time.Second)
		case <-kill:
			signal(syscall.SIGKILL)
		}
	}
	if exited != nil {
		exit = <-exited
	}
	if why == nil {
		why = s.judge(exit, told, bad)
	}
	if why != nil && ctx.Err() == nil {
		for _, spec := range underWay {
			tell(outcome{spec, Attempt{State: interrupted, Failure: shortened(why.Error())}})
		}
	}
	return why
}

func status(exit error) string {
	if exit == nil {
		return "exit status 0"
	}
	return exit.Error()
}

// judge fails when ginkgo's exit status is not what the specs explain that it told of:
// 1 when some did badly, 0 when none did. So do those of a suite whose own set-up or end
// fails, that dies, or that does not find what it is to run.
func (s suite) judge(exit error, told, bad int) error {
	var code *exec.ExitError
	switch {
	case told == 0:
		return fmt.Errorf("ginkgo ended and no spec had run: %s; see %s", status(exit), s.log)
	case exit == nil && bad > 0:
		return fmt.Errorf("ginkgo ended well though it told of %d specs that did not pass; see %s", bad, s.log)
	case exit == nil || bad > 0 && errors.As(exit, &code) && code.ExitCode() == 1:
		return nil
	}
	return fmt.Errorf("ginkgo ended with %w, which the %d specs of %d that did not pass do not explain; see %s", exit, bad, told, s.log)
}
