package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/dev/progress"
	"github.com/elotl/kip/dev/stack"
)

// UpOptions say what Up starts.
type UpOptions struct {
	Stack stack.Options
	// Parts that are not started.
	NoKip, ClusterOnly bool
	// ReadyFile gets the ready line too, if it is set.
	ReadyFile string
	Out       io.Writer
	// Kill ends Kip as a crash would, StartKip starts it again: the signals of
	// a test.
	Kill, StartKip <-chan os.Signal
}

// Up starts a stack without the example, says so in one line, and keeps it
// until ctx ends. It leaves nothing on the machine. The line is
//
//	READY kubeconfig=… kip-kubeconfig=… registry=… kip=… ec2=…
//
// where kip is the file that names Kip's process while it runs, and ec2 and what follows are URLs of the model of EC2.
func Up(ctx context.Context, o UpOptions) (err error) {
	r := &run{Options: Options{Stack: o.Stack, Out: o.Out}, progress: progress.Line{Out: o.Out, Clock: clock.RealClock{}}}
	if r.stack, err = stack.Open(o.Stack); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stack.Close()) }()
	began := time.Now()
	err = r.up(ctx, o)
	if err == nil {
		err = r.ready(o, time.Since(began))
	}
	if err == nil {
		err = r.keep(ctx, o)
	}
	if err != nil && ctx.Err() == nil {
		r.showLogs()
	}
	if ctx.Err() != nil {
		err = nil // somebody asked for the end
	}
	return errors.Join(err, r.stop(ctx))
}

func (r *run) up(ctx context.Context, o UpOptions) error {
	if !o.ClusterOnly && !o.NoKip {
		return r.start(ctx)
	}
	for _, step := range r.steps(o) {
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		err := step(ctx)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// steps are what up does without Kip.
func (r *run) steps(o UpOptions) []func(context.Context) error {
	s := r.stack
	if o.ClusterOnly && o.Stack.Nodes == 0 {
		return []func(context.Context) error{r.clean, s.ControlPlane.StartCluster, s.ControlPlane.DNSReady}
	}
	steps := []func(context.Context) error{r.clean, s.ControlPlane.StartCluster, s.Images.StartRegistry}
	if !o.ClusterOnly || o.Stack.EKS {
		steps = append(steps, s.Roots.BuildCellRoot, s.Model.StartCloud)
	}
	if !o.ClusterOnly {
		steps = append(steps, func(context.Context) error {
			_, err := s.Processes.WriteProviderConfig()
			return err
		})
	}
	return append(steps, s.Roots.BuildNodeRoot, s.Nodes.StartNodes, s.Nodes.NodesReady, s.ControlPlane.DNSReady)
}

func (r *run) ready(o UpOptions, took time.Duration) error {
	cluster := r.stack.ControlPlane.Cluster
	line := fmt.Sprintf("READY kubeconfig=%s kip-kubeconfig=%s", cluster.AdminKubeconfig(), cluster.KipKubeconfig())
	if r.stack.Images.Registry != nil {
		line += " registry=" + r.stack.Images.Registry.Address()
	}
	if r.stack.Processes.Kip != nil {
		line += " kip=" + r.stack.KipRecord()
	}
	for _, endpoint := range r.stack.Model.Endpoints() {
		line += " " + endpoint
	}
	fmt.Fprintf(o.Out, "%s\n", line)
	o.Stack.Log.Info("ready", "after", took)
	if o.ReadyFile == "" {
		return nil
	}
	// Renamed, so that whoever waits for the file finds it whole.
	if err := os.WriteFile(o.ReadyFile+".new", []byte(line+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the ready file: %w", err)
	}
	if err := os.Rename(o.ReadyFile+".new", o.ReadyFile); err != nil {
		return fmt.Errorf("write the ready file: %w", err)
	}
	return nil
}

// keep waits for the end and serves a test's signals until then.
func (r *run) keep(ctx context.Context, o UpOptions) error {
	for ctx.Err() == nil {
		watch, stop := context.WithCancel(ctx)
		failed := make(chan error, 1)
		go func() { failed <- r.stack.Failed(watch) }()
		var err error
		select {
		case err = <-failed:
		case <-o.Kill:
			stop()
			<-failed // what follows is no failure
			err = r.stack.Processes.KillKip()
		case <-o.StartKip:
			stop()
			<-failed
			if r.stack.Processes.Kip == nil {
				err = r.stack.Processes.StartKip()
			}
		}
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// Clean removes what a killed run left on this machine, and says what it was.
func Clean(ctx context.Context, o stack.Options, out io.Writer) (err error) {
	r := &run{Options: Options{Stack: o, Out: out}}
	if r.stack, err = stack.Open(o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stack.Close()) }()
	return r.clean(ctx)
}
