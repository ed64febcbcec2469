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
// one may have 128 KiB. The names of some begin with another's.
func focusArguments(specs []string) []string {
	var args, group []string
	size := 0
	flush := func() {
		if len(group) > 0 {
			args = append(args, "--focus=(?:"+strings.Join(group, "|")+")$")
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
		"--dump-logs-on-failure="+strconv.FormatBool(s.dump), "--disable-log-dump=true", "--allowed-not-ready-nodes=0", "--minStartupPods=0",
		// Of several processes only the first one would count them, and specs that need two leave themselves out in the others.
		"--num-nodes=2")
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
	r := &running{suite: s, tell: tell, cmd: s.command(specs)}
	read, err := r.start()
	if err != nil {
		return err
	}
	defer read.Close()
	all := make(chan news)
	go s.follow(read, log, specs, all)
	exit := r.attend(ctx, all)
	why := r.why
	if why == nil {
		why = s.judge(exit, r.told, r.bad)
	}
	if why != nil && ctx.Err() == nil {
		for _, spec := range r.underWay {
			tell(outcome{spec, Attempt{State: interrupted, Failure: why.Error()}})
		}
	}
	return why
}

// news are what is read of a suite's output.
type news struct {
	outcome  outcome
	underWay []string // at its end
	err      error
}

// follow reads what ginkgo prints to its end, keeps it in log, and closes all then.
func (s suite) follow(read io.ReadCloser, log io.Writer, specs []string, all chan<- news) {
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
}

// running is a ginkgo that runs, and what it has told until now.
type running struct {
	suite
	tell func(outcome)
	cmd  *exec.Cmd

	kill      <-chan time.Time // when it is killed
	why       error            // it does not run to its end
	told, bad int              // specs that have ended, and those of them that did badly
	underWay  []string
}

// start returns what it prints.
func (r *running) start() (io.ReadCloser, error) {
	// A group of its own, so that ginkgo's own processes end with it; and an end when
	// this process is killed.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r.cmd.Stdout, r.cmd.Stderr = write, write
	err = r.cmd.Start()
	write.Close()
	if err != nil {
		read.Close()
		return nil, fmt.Errorf("start ginkgo (is it built? `make conformance`): %w", err)
	}
	return read, nil
}

func (r *running) signal(sig syscall.Signal) { _ = syscall.Kill(-r.cmd.Process.Pid, sig) } // it may have ended

// interrupt asks it to end, and kills it if it has not ended after a while.
func (r *running) interrupt(after time.Duration) {
	r.signal(syscall.SIGINT)
	r.kill = time.After(after)
}

// attend takes the news until all are told, and returns how ginkgo exited. It interrupts
// one whose run is to end.
func (r *running) attend(ctx context.Context, all <-chan news) (exit error) {
	hang := time.NewTimer(quiet)
	defer hang.Stop()
	exited := make(chan error, 1)
	go func() { exited <- r.cmd.Wait() }()
	done, crashed := ctx.Done(), r.crashed
	for open := true; open; {
		var n news
		select {
		case n, open = <-all:
			// What this run interrupts to end itself has no result.
			if n.outcome.spec != "" && (ctx.Err() == nil || n.outcome.State != interrupted) {
				r.count(n.outcome)
				hang.Reset(quiet)
			}
			r.underWay = append(r.underWay, n.underWay...)
			if r.why = errors.Join(r.why, n.err); n.err != nil {
				// Nobody reads what it prints any more, and it would wait for that.
				r.interrupt(unread)
			}
		case <-done:
			done, r.why = nil, context.Cause(ctx)
			r.interrupt(farewell)
		case <-hang.C:
			r.why = errQuiet
			r.interrupt(farewell)
		case <-crashed:
			crashed, r.why = nil, errCrashed
			if r.procs == 1 { // it has said so
				r.signal(syscall.SIGKILL)
				continue
			}
			ask(r.cmd.Process.Pid)
			r.kill = time.After(lastWords)
		case exit = <-exited:
			// What a spec left, such as a kubectl, may hold the pipe open.
			exited, r.kill = nil, time.After(time.Second)
		case <-r.kill:
			r.signal(syscall.SIGKILL)
		}
	}
	if exited != nil {
		exit = <-exited
	}
	return exit
}

// count takes the outcome of a spec that has ended, and passes it on.
func (r *running) count(o outcome) {
	r.told++
	if o.State != passed && o.State != skipped {
		r.bad++
	}
	r.tell(o)
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
