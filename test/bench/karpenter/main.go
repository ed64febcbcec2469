package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// agent is the user agent of this program, whose requests are not counted.
const agent = "kip-bench"

// teardown bounds the cleaning up.
const teardown = 10 * time.Minute

type options struct {
	kubeconfig, auditLog string
	karpenter, kwok      string
	clientQPS            int
	clientBurst          int
	pods                 int
	nodeSelector         map[string]string
	untilRunning         bool
	processes            map[string]int
	timeout              time.Duration
	beside               bool
}

func init() {
	// Children get a death signal when the thread that started them ends: as long
	// as main is bound to it, that is the one that lives as long as the program.
	runtime.LockOSThread()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "karpenter:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.beside {
		return runBeside(ctx, o)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("it took longer than --timeout=%s", o.timeout))
	defer cancel()
	// A product that ends by itself ends the measurement.
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	c, err := newCluster(o.kubeconfig)
	if err != nil {
		return err
	}
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace %s (if a killed run left it: use a new cluster): %w", namespace, err)
	}
	m := measure{cluster: c, options: o}
	// Whatever the measurement came to, the cluster is left as it was found.
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
		defer cancel()
		if m.product != nil {
			// First, since it would replace what it takes for lost.
			err = errors.Join(err, m.product.stop(late))
		}
		err = errors.Join(err, c.removePods(late))
		if m.product != nil {
			err = errors.Join(err, m.product.remove(late))
		}
	}()
	if err := c.serviceAccount(ctx); err != nil {
		return because(ctx, err)
	}
	if o.karpenter != "" {
		m.product = &karpenter{cluster: c, options: o, fail: fail}
		if err := m.product.start(ctx); err != nil {
			return fmt.Errorf("start Karpenter: %w", because(ctx, err))
		}
	}
	result, err := m.run(ctx)
	if err != nil {
		return because(ctx, err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(result)
}

// runBeside starts Karpenter in a cluster that has nodes of others, says so, and stops it when ctx ends. What it made stays.
func runBeside(ctx context.Context, o options) (err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	c, err := newCluster(o.kubeconfig)
	if err != nil {
		return err
	}
	k := &karpenter{cluster: c, options: o, fail: fail}
	defer func() { err = errors.Join(err, k.stop(context.WithoutCancel(ctx))) }()
	if err := k.start(ctx); err != nil {
		return fmt.Errorf("start Karpenter: %w", because(ctx, err))
	}
	fmt.Println("ready")
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// because says why ctx ended, where err is that it did.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func parse(args []string) (options, error) {
	o := options{nodeSelector: map[string]string{}, processes: map[string]int{}}
	until := "bound"
	fs := flag.NewFlagSet("karpenter", flag.ContinueOnError)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` of an administrator")
	fs.StringVar(&o.auditLog, "audit-log", "", "audit log `file` of the API server, as kip-dev --audit-log writes it")
	fs.StringVar(&o.karpenter, "karpenter", "", "`program` sigs.k8s.io/karpenter/kwok; without it, what already runs is measured")
	fs.StringVar(&o.kwok, "kwok", "", "`program` sigs.k8s.io/kwok/cmd/kwok")
	fs.IntVar(&o.clientQPS, "karpenter-qps", 200, "`requests` a second that Karpenter allows itself; its own default")
	fs.IntVar(&o.clientBurst, "karpenter-burst", 300, "`requests` at once that Karpenter allows itself; its own default")
	fs.IntVar(&o.pods, "pods", 500, "`number` of pods")
	fs.StringVar(&until, "until", until, "`state` of all pods in which the window ends: bound or running")
	fs.DurationVar(&o.timeout, "timeout", 15*time.Minute, "`time` for all but cleaning up")
	fs.BoolVar(&o.beside, "beside", false, "start Karpenter in a cluster that has nodes, print ready, measure nothing, and stop it at a signal")
	fs.Func("node-selector", "`label=value` of the nodes for the pods; can be repeated", func(s string) error {
		label, value, ok := strings.Cut(s, "=")
		if !ok || label == "" {
			return errors.New("want label=value, such as type=virtual-kubelet")
		}
		o.nodeSelector[label] = value
		return nil
	})
	fs.Func("process", "`name=pid` of a process to measure, such as control-plane=1234; can be repeated", func(s string) error {
		name, number, _ := strings.Cut(s, "=")
		pid, err := strconv.Atoi(number)
		if err != nil || pid < 1 || name == "" {
			return errors.New("want name=pid, such as control-plane=1234")
		}
		o.processes[name] = pid
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.untilRunning = until == "running"
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("argument %q: there are only flags", fs.Arg(0))
	case o.kubeconfig == "":
		return o, errors.New("--kubeconfig is empty: want the file of an administrator")
	case o.beside && o.karpenter == "":
		return o, errors.New("--beside: want --karpenter and --kwok as well")
	case o.auditLog == "" && !o.beside:
		return o, errors.New("--audit-log is empty: want the file that the API server writes")
	case (o.karpenter == "") != (o.kwok == ""):
		return o, errors.New("--karpenter and --kwok: want both or neither")
	case until != "bound" && until != "running":
		return o, fmt.Errorf("--until=%s: want bound or running", until)
	case o.pods < 1:
		return o, fmt.Errorf("--pods=%d: want at least 1", o.pods)
	case o.clientQPS < 1:
		return o, fmt.Errorf("--karpenter-qps=%d: want at least 1", o.clientQPS)
	case o.clientBurst < o.clientQPS:
		return o, fmt.Errorf("--karpenter-burst=%d: want at least as many as --karpenter-qps, %d", o.clientBurst, o.clientQPS)
	}
	return o, nil
}

// cluster is where it is measured.
type cluster struct {
	config  *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

func newCluster(kubeconfig string) (*cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS, config.UserAgent = -1, agent
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(config)
	return &cluster{config: config, client: client, dynamic: dyn}, err
}
