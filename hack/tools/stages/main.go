// Command stages runs the stages of `make test`, or the shards of `make
// test-all`, one after the other. Each stage is a target of the Makefile. A
// stage that fails stops none after it, and the run ends with a summary of all.
//
// Command stages knows nothing about the stages but their names: what a stage
// does stands in the Makefile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// grace is how long a stage may take to end after an interrupt. What machines it
// leaves, the next test that claims their network removes.
const grace = 90 * time.Second

func main() {
	if err := command(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

func command(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("stages", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "stages [FLAG...] TARGET... runs each target of the Makefile")
		fs.PrintDefaults()
	}
	deadline := fs.Duration("deadline", 0, "end the run after this `duration`, and say what did not finish; 0 sets no deadline")
	resume := fs.Bool("resume", false, "skip a target that passed before on exactly these files, with the same settings")
	logs := fs.String("logs", ".kip/stages", "`folder` for the log and the test events of each stage")
	settings := fs.String("settings", "",
		"`names` of environment variables that change what a target tests: a pass counts only for the same values")
	run := fs.String("make", "make", "the `command` that runs a target")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		fs.Usage()
		return errors.New("stages: no targets")
	}
	r := runner{make: *run, logs: *logs, out: out, deadline: *deadline, resume: *resume}
	r.passed = passed{folder: filepath.Join(filepath.Dir(*logs), "done"), settings: strings.Fields(*settings)}
	if *resume {
		if _, err := treeHash(); err != nil {
			fmt.Fprintf(out, "nothing is skipped, since git does not hash the files of the tree: %v\n", err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return r.all(ctx, fs.Args())
}

// runner runs stages.
type runner struct {
	make, logs string
	out        io.Writer
	deadline   time.Duration // of the run; 0 is none
	resume     bool          // skip what has passed
	passed     passed
}

// all runs the targets and prints the summary. It returns an error unless every
// target has passed.
func (r *runner) all(ctx context.Context, targets []string) error {
	began := time.Now()
	if r.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.deadline, fmt.Errorf("the run reached its deadline of %s", r.deadline))
		defer cancel()
	}
	var stages []stage
	for _, target := range targets {
		stages = append(stages, r.one(ctx, target))
	}
	return summarize(r.out, stages, time.Since(began))
}

// one runs a target, shows what it prints and keeps that in a log.
func (r *runner) one(ctx context.Context, target string) stage {
	s := stage{target: target, log: filepath.Join(r.logs, target+".log"), events: filepath.Join(r.logs, target)}
	switch {
	case ctx.Err() != nil:
		s.result, s.err = notRun, context.Cause(ctx)
		return s
	case r.resume && r.passed.has(target):
		s.result = passedBefore
		return s
	}
	before, err := r.passed.begin(target)
	if err != nil {
		s.result, s.err = failed, err
		return s
	}
	fmt.Fprintf(r.out, "\n##### make %s\n", target)
	began := time.Now()
	used, err := r.run(ctx, &s)
	s.took, s.cpu, s.err = time.Since(began), used, err
	var readErr error
	s.tests, readErr = readTests(s.events)
	switch {
	case ctx.Err() != nil && err != nil:
		s.result, s.err = unfinished, context.Cause(ctx)
	case err == nil && readErr == nil && len(s.tests.failed) == 0:
		s.result = ok
		s.err = r.passed.add(target, before)
	case err == nil && readErr == nil:
		s.result, s.err = failed, errors.New("it ended well, but tests of it have failed")
	default:
		s.result, s.err = failed, errors.Join(err, readErr)
	}
	return s
}

// run makes a target in a process group of its own, so that the end of a run
// reaches all that the target has started. It returns the CPU time that the
// target used.
func (r *runner) run(ctx context.Context, s *stage) (time.Duration, error) {
	// Another run in this folder may use the others.
	if err := errors.Join(os.RemoveAll(s.events), os.MkdirAll(s.events, 0o755)); err != nil {
		return 0, err
	}
	events, err := filepath.Abs(s.events)
	if err != nil {
		return 0, err
	}
	log, err := os.Create(s.log)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, r.make, "--no-print-directory", s.target)
	// What the outer make was told, such as to ignore failures, is not for a stage.
	cmd.Env = append(os.Environ(), "EVENTS="+events, "MAKEFLAGS=", "MFLAGS=", "GNUMAKEFLAGS=", "MAKELEVEL=")
	from, to, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer from.Close()
	cmd.Stdout, cmd.Stderr = to, to
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return 0, errors.Join(err, to.Close())
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(r.out, log), from)
		copied <- err
	}()
	err = errors.Join(cmd.Wait(), to.Close())
	// A process that the stage left would disturb the stages after it, and holds the pipe open.
	if killErr := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); killErr != nil && !errors.Is(killErr, syscall.ESRCH) {
		err = errors.Join(err, fmt.Errorf("kill what make %s left: %w", s.target, killErr))
	}
	select {
	case copyErr := <-copied:
		err = errors.Join(err, copyErr)
	case <-time.After(grace): // a daemon of another process group
		err = errors.Join(err, fmt.Errorf("make %s left a process that holds its output open", s.target))
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}
