package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/leftovers"
	"github.com/elotl/kip/dev/manifest"
	"github.com/elotl/kip/dev/progress"
	"github.com/elotl/kip/dev/stack"
	"github.com/elotl/kip/dev/story"
	"github.com/elotl/kip/examples"
)

const (
	// startTimeout bounds each phase of the start; it takes seconds.
	startTimeout = 2 * time.Minute
	// stopTimeout bounds an orderly stop; a healthy one takes two or three
	// seconds.
	stopTimeout = time.Minute
	// exampleTimeout bounds the example; it takes seconds. On a virtual machine that is
	// emulated, among others, it takes minutes.
	exampleTimeout, exampleEmulated = 5 * time.Minute, 20 * time.Minute
	// logTimeout bounds the question for the log of a Kip that is a pod.
	logTimeout = 10 * time.Second
	// logLines of a part that failed are shown.
	logLines = 20
)

// The example's Job, in examples/hello.yaml.
const exampleNamespace, exampleJob = "default", "hello"

// Options say what is run.
type Options struct {
	Stack stack.Options
	// Once ends the run when the example's cell is gone.
	Once bool
	Out  io.Writer
}

// Example starts everything, runs the example and shows its steps, and stays up
// until ctx ends; with Once, it ends after the example. It leaves nothing on
// the machine, and returns an error when anything of that is not so.
func Example(ctx context.Context, o Options) (err error) {
	r := &run{Options: o, progress: progress.Line{Out: o.Out, Clock: clock.RealClock{}}}
	if r.stack, err = stack.Open(o.Stack); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stack.Close()) }()

	began := time.Time{}
	var outcome story.Outcome
	err = r.start(ctx)
	if err == nil {
		began = time.Now()
		outcome, err = r.example(ctx, began)
	}
	took := time.Since(began)
	interrupted := ctx.Err() != nil
	if err == nil && !o.Once {
		r.hints()
		err = r.stack.Failed(ctx)
		interrupted = err == nil
	}
	if err != nil && !interrupted {
		r.showLogs()
	}
	if stopErr := r.stop(ctx); stopErr != nil {
		return errors.Join(err, stopErr)
	}
	switch {
	case interrupted && o.Once:
		return errors.New("interrupted")
	case interrupted:
		fmt.Fprintln(o.Out, "stopped; nothing left behind")
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintf(o.Out, "ok: pod %s succeeded on cell %s in %.1fs; cell terminated; nothing left behind\n", exampleJob, outcome.Cell,
		took.Seconds())
	return nil
}

type run struct {
	Options
	stack    *stack.Stack
	progress progress.Line
}

// start brings everything up, from a machine on which nothing of an earlier run
// is left.
func (r *run) start(ctx context.Context) error {
	phase := func(name string, do func(context.Context) error) error {
		return r.progress.Phase(name, func() error {
			ctx, cancel := context.WithTimeout(ctx, startTimeout)
			defer cancel()
			return do(ctx)
		})
	}
	if err := r.clean(ctx); err != nil {
		return err
	}
	if !r.Stack.Virtual() {
		if err := phase("building the root of the cells", r.stack.Roots.BuildCellRoot); err != nil {
			return err
		}
	}
	if r.Stack.Nodes > 0 {
		if err := phase("building the root of ordinary nodes", r.stack.Roots.BuildNodeRoot); err != nil {
			return err
		}
	}
	err := phase("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and CoreDNS", r.stack.ControlPlane.StartCluster)
	if err != nil {
		return err
	}
	if err := phase("starting the registry, with image busybox:1.36", r.stack.Images.StartRegistry); err != nil {
		return err
	}
	if r.Stack.EC2() {
		if err := phase("starting a model of EC2, with cells behind its instances", r.stack.Model.StartCloud); err != nil {
			return err
		}
	}
	if r.Stack.Chart != "" {
		return r.install(phase)
	}
	if _, err := r.stack.Processes.WriteProviderConfig(); err != nil {
		return err
	}
	what := fmt.Sprintf("starting Kip, until node %s is Ready", r.stack.FirstNode())
	if r.Stack.Nodes > 0 {
		what = fmt.Sprintf("starting Kip and ordinary nodes, until node %s and %d more are Ready", r.stack.FirstNode(), r.Stack.Nodes)
	}
	return phase(what, func(ctx context.Context) error {
		if err := errors.Join(r.stack.Processes.StartKip(), r.stack.Processes.StartPeers()); err != nil {
			return err
		}
		if err := r.stack.Nodes.StartNodes(ctx); err != nil {
			return err
		}
		if err := r.stack.Processes.NodeReady(ctx); err != nil {
			return err
		}
		if err := r.stack.Nodes.NodesReady(ctx); err != nil {
			return err
		}
		if err := r.stack.Proxy.StartProxy(ctx); err != nil {
			return err
		}
		return r.stack.ControlPlane.DNSReady(ctx)
	})
}

// install starts ordinary nodes, and Kip as a pod of one.
func (r *run) install(phase func(string, func(context.Context) error) error) error {
	if err := phase(fmt.Sprintf("starting ordinary nodes, until %d are Ready", r.Stack.Nodes), func(ctx context.Context) error {
		if err := r.stack.Nodes.StartNodes(ctx); err != nil {
			return err
		}
		if err := r.stack.Nodes.NodesReady(ctx); err != nil {
			return err
		}
		return r.stack.ControlPlane.DNSReady(ctx)
	}); err != nil {
		return err
	}
	return phase("installing Kip by its chart, until node "+r.stack.FirstNode()+" is Ready", func(ctx context.Context) error {
		if err := r.stack.Installation.Install(ctx); err != nil {
			return err
		}
		return r.stack.Processes.NodeReady(ctx)
	})
}

func (r *run) clean(ctx context.Context) error {
	found, err := r.stack.Clean(ctx)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		fmt.Fprintf(r.Out, "removed what an earlier run left: %s\n", leftovers.Summary(found))
	}
	return nil
}

// example runs the example's Job and shows what happens to its pod, and its log.
func (r *run) example(ctx context.Context, began time.Time) (story.Outcome, error) {
	limit := exampleTimeout
	if r.Stack.Virtual() {
		limit = exampleEmulated
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	fmt.Fprintf(r.Out, "\nkubectl apply -f examples/hello.yaml\n")
	if _, err := manifest.Apply(ctx, r.stack.ControlPlane.Cluster.AdminConfig(), "kip-dev", examples.Hello); err != nil {
		return story.Outcome{}, err
	}
	outcome, err := r.stack.FollowJob(ctx, exampleNamespace, exampleJob, began,
		func(s story.Step) { fmt.Fprintln(r.Out, s) },
		func(why string) { fmt.Fprintf(r.Out, "%+8.2fs   waiting for %s\n", time.Since(began).Seconds(), why) })
	if err != nil {
		return outcome, err
	}
	// The cell is gone: this is what Kip kept of it.
	log, err := r.stack.Jobs.PodLog(ctx, outcome.Namespace, outcome.Pod, outcome.Container)
	if err != nil {
		return outcome, err
	}
	fmt.Fprintf(r.Out, "\nkubectl logs %s\n", outcome.Pod)
	for line := range strings.Lines(string(log)) {
		fmt.Fprintf(r.Out, "          %s\n", strings.TrimRight(line, "\n"))
	}
	fmt.Fprintln(r.Out)
	if !outcome.Succeeded {
		return outcome, fmt.Errorf("pod %s did not succeed", outcome.Pod)
	}
	return outcome, nil
}

// hints say how to go on.
func (r *run) hints() {
	kipLog := relative(r.stack.KipLog())
	kubectl := "kubectl"
	if _, err := exec.LookPath(kubectl); err != nil {
		kubectl = filepath.Join(r.Stack.Bin, "kubectl")
	}
	config := relative(r.stack.ControlPlane.Cluster.AdminKubeconfig())
	if r.Stack.Chart != "" {
		kipLog = fmt.Sprintf("%s --kubeconfig %s logs -n %s %s-0", kubectl, config, stack.Namespace, stack.Release)
	}
	if r.stack.Model.EC2() != "" {
		r.hintsOfEC2(kubectl, config)
	}
	fmt.Fprintf(r.Out, `Kip is up. In another terminal:
  %[1]s --kubeconfig %[2]s get nodes,pods,cells
  %[1]s --kubeconfig %[2]s run shell -it --rm --image busybox:1.36 --overrides '{"spec":{"nodeSelector":{"type":"virtual-kubelet"}}}'
  %[3]s get cells --kubeconfig %[2]s
Logs: %[4]s, %[5]s. Ctrl-C ends it all.
`, kubectl, config, relative(filepath.Join(r.Stack.Bin, "kipctl")), kipLog, relative(r.stack.ControlPlane.Cluster.LogFile()))
	if r.stack.Approves() {
		fmt.Fprintln(r.Out, "kip-dev approves Kip's certificate requests, as you would in your cluster: kubectl certificate approve NAME")
	}
}

// hintsOfEC2 say how to look at the model, and what can go wrong there.
func (r *run) hintsOfEC2(kubectl, config string) {
	fmt.Fprintf(r.Out, `EC2 is up:
  %s describe-instances
A spot cell, and its notice, once it runs:
  %s --kubeconfig %s run spot --image busybox:1.36 --annotations pod.elotl.co/launch-type=spot`+
		` --overrides '{"spec":{"nodeSelector":{"type":"virtual-kubelet"}}}' -- sleep 1000
  curl -d '{}' %sinterrupt
A pod whose image is in its ECR, which needs no pull secret:
  %[2]s --kubeconfig %[3]s run private -it --rm --image %[5]s --overrides '{"spec":{"nodeSelector":{"type":"virtual-kubelet"}}}'
Something goes wrong there, by the name of what, as in the line with curl:
`, r.stack.Model.EC2(), kubectl, config, r.stack.Model.Orders(), r.stack.Model.PrivateImage())
	for _, o := range ec2.Orders() {
		fmt.Fprintf(r.Out, "  %-9s  %s\n             %s\n", o.Name, o.Does, o.JSON)
	}
}

// showLogs shows the last lines of what ran when something failed.
func (r *run) showLogs() {
	logs := []string{}
	if r.stack.ControlPlane.Cluster != nil && r.stack.Processes.Kip == nil {
		logs = append(logs, r.stack.ControlPlane.Cluster.LogFile())
	}
	if r.stack.Processes.Kip != nil {
		logs = append(logs, r.stack.KipLog())
	}
	if r.stack.ControlPlane.DNS != nil {
		select {
		case <-r.stack.ControlPlane.DNS.Done():
			logs = append(logs, r.stack.ControlPlane.DNSLog())
		default:
		}
	}
	if r.Stack.Chart != "" && r.stack.ControlPlane.Cluster != nil {
		ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
		defer cancel()
		fmt.Fprintf(r.Out, "the last lines of Kip's log:\n%s\n", stack.LastLines(r.stack.Installation.InstalledLog(ctx), logLines))
	}
	for _, log := range logs {
		fmt.Fprintf(r.Out, "the last lines of %s:\n%s\n", relative(log), stack.Tail(log, logLines))
	}
}

// stop ends everything and looks whether it is really gone.
func (r *run) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return r.progress.Phase("stopping", func() error {
		if err := r.stack.Stop(ctx); err != nil {
			return err
		}
		left, err := r.stack.Leftovers(ctx)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return &leftovers.Error{Left: left}
		}
		return nil
	})
}

// relative shortens a path where that helps the reader.
func relative(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	rel, err := filepath.Rel(wd, path)
	if err != nil || strings.HasPrefix(rel, "../../") {
		return path
	}
	return rel
}
