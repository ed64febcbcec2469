// Command bench measures Kip on this machine, with real kubelets on local cells,
// and prints one line a figure: bench NAME VALUE UNIT. It asserts nothing.
// docs/performance.md keeps the figures with the machine and the date.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/harness"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	runs     = 7                // of each start and end
	idle     = 60 * time.Second // of looking at idle cells
	patience = 5 * time.Minute
	// presentImage is on every cell from the start: the pause image.
	presentImage = "kip.elotl.co/pause:1"
	// pulledImage comes from the registry on the bridge: 1 MB.
	pulledImage = "busybox:1.36"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("only", "", "parts to measure, separated by commas: real, scale, ec2, jobs, nodes, boot, peers; default all")
	cells := flag.Int("cells", 10_000, "how many hollow cells the part scale keeps alive")
	pairs := flag.Int("pairs", 3, "how many times the part peers measures Kip and Karpenter, in turns")
	flag.Parse()
	if *pairs < 1 {
		fmt.Fprintf(os.Stderr, "bench: -pairs is %d: want 1 or more\n", *pairs)
		os.Exit(2)
	}
	if least := singles + burst; *cells < least {
		fmt.Fprintf(os.Stderr, "bench: -cells is %d: want %d or more, which are there after the first figures\n", *cells, least)
		os.Exit(2)
	}
	if err := conditions(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"real", real},
		{"scale", func(ctx context.Context) error { return scale(ctx, *cells) }},
		{"ec2", onEC2},
		{"jobs", jobs},
		{"nodes", nodes},
		{"boot", boot},
		{"peers", func(ctx context.Context) error { return peers(ctx, *pairs) }},
	} {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), part.name) {
			continue
		}
		began := time.Now()
		progress("part %s begins", part.name)
		if err := part.run(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "bench %s: %v\n", part.name, err)
			os.Exit(1)
		}
		progress("part %s took %s", part.name, time.Since(began).Round(time.Second))
	}
}

// real measures Kip with real kubelets.
func real(ctx context.Context) (err error) {
	w, err := harness.Start(ctx, harness.Options{
		Name:   "kipbench0",
		CIDR:   "10.112.0.0/16",
		Stderr: os.Stderr,
		Fsync:  true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	b := bed{World: w}
	for _, step := range []struct {
		what string
		run  func(context.Context) error
	}{
		{"starts and ends", b.startsAndEnds},
		{"requests", b.requests},
		{"idle cells", b.idleCells},
		{"watches", b.watches},
		{"a burst of cold cells", b.coldBurst},
		{"standby cells", b.standby},
	} {
		progress("measuring %s", step.what)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("measure %s: %w", step.what, err)
		}
	}
	return nil
}

// bed is where it is measured.
type bed struct{ *harness.World }

// start makes a pod that runs until it is deleted, and returns how long it took
// from the request to the status Running.
func (b bed) start(ctx context.Context, name, image string) (time.Duration, error) {
	return b.startWith(ctx, name, image, "1")
}

func (b bed) startWith(ctx context.Context, name, image, cpu string) (time.Duration, error) {
	var command []string
	if image == pulledImage {
		command = []string{"sleep", "infinity"}
	}
	return b.startPod(ctx, name, image, cpu, command)
}

func (b bed) startPod(ctx context.Context, name, image, cpu string, command []string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(b.Patience, patience))
	defer cancel()
	pods := b.Admin.CoreV1().Pods(metav1.NamespaceDefault)
	events, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	grace := int64(0)
	began := time.Now()
	if _, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{"type": "virtual-kubelet"},
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	for e := range events.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("pod %s did not run", name)
}

// end deletes a pod and returns how long it took until its cell was gone.
func (b bed) end(ctx context.Context, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cells := b.Dynamic.Resource(apiv1.Resource)
	var cell, version string
	// The resource is a mirror, and may be a moment late.
	if err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list, err := cells.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		version = list.GetResourceVersion()
		for _, item := range list.Items {
			if pod, found, err := unstructured.NestedString(item.Object, "status", "pod", "name"); err != nil {
				return false, err
			} else if found && pod == name {
				cell = item.GetName()
			}
		}
		return cell != "", nil
	}); err != nil {
		return 0, fmt.Errorf("find the cell of pod %s: %w", name, err)
	}
	events, err := cells.Watch(ctx, metav1.ListOptions{ResourceVersion: version,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", cell).String()})
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	began := time.Now()
	if err := b.Admin.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	for e := range events.ResultChan() {
		if e.Type == watch.Deleted {
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("cell %s of pod %s did not go", cell, name)
}

func (b bed) startsAndEnds(ctx context.Context) error {
	var present, pulled, ends []float64
	for i := range runs {
		for image, times := range map[string]*[]float64{presentImage: &present, pulledImage: &pulled} {
			name := fmt.Sprintf("start-%d", i)
			took, err := b.start(ctx, name, image)
			if err != nil {
				return err
			}
			*times = append(*times, took.Seconds())
			if took, err = b.end(ctx, name); err != nil {
				return err
			}
			ends = append(ends, took.Seconds())
		}
	}
	printAll("cold_start_seconds", present, "s")
	printAll("cold_start_with_pull_seconds", pulled, "s")
	printAll("delete_to_gone_seconds", ends, "s")
	return nil
}

// kipFlows are the priority-and-fairness flows that only Kip and its cells use
// here: the node user, and service accounts outside kube-system.
var kipFlows = []string{"system-nodes", "system-node-high", "service-accounts"}

// requests counts what a pod's life costs the API server, less what Kip asks
// anyway in the same time.
func (b bed) requests(ctx context.Context) error {
	count := func() (float64, error) {
		return b.metric(ctx, "apiserver_flowcontrol_dispatched_requests_total", func(labels string) bool {
			return slices.ContainsFunc(kipFlows, func(f string) bool { return strings.Contains(labels, `flow_schema="`+f+`"`) })
		})
	}
	before, err := count()
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range runs {
		name := fmt.Sprintf("request-%d", i)
		if _, err := b.start(ctx, name, pulledImage); err != nil {
			return err
		}
		if _, err := b.end(ctx, name); err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := count()
	if err != nil {
		return err
	}
	if err := harness.Sleep(ctx, took); err != nil {
		return err
	}
	quiet, err := count()
	if err != nil {
		return err
	}
	print("api_requests_per_pod", ((after-before)-(quiet-after))/runs, "requests")
	return nil
}

// metric adds up the samples of a metric of the API server whose labels are
// wanted.
func (b bed) metric(ctx context.Context, name string, wanted func(labels string) bool) (float64, error) {
	text, err := b.Admin.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.SplitSeq(string(text), "\n") {
		labels, value, ok := strings.Cut(strings.TrimPrefix(line, name+"{"), "} ")
		if !strings.HasPrefix(line, name+"{") || !ok {
			continue
		}
		found = true
		if !wanted(labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += v
	}
	if !found {
		return 0, fmt.Errorf("the API server has no metric %s", name)
	}
	return sum, nil
}

func (b bed) openWatches(ctx context.Context) (float64, error) {
	return b.metric(ctx, "apiserver_longrunning_requests", func(l string) bool { return strings.Contains(l, `verb="WATCH"`) })
}

func (b bed) idleCells(ctx context.Context) error {
	for i := range 2 {
		if _, err := b.start(ctx, fmt.Sprintf("idle-%d", i), pulledImage); err != nil {
			return err
		}
	}
	cells, err := cgroupsOfCells(b.Bridge)
	if err != nil {
		return err
	}
	var before, cpu, memory []float64
	for _, c := range cells {
		used, err := c.cpuSeconds()
		if err != nil {
			return err
		}
		before = append(before, used)
	}
	began := time.Now()
	if err := harness.Sleep(ctx, idle); err != nil {
		return err
	}
	for i, c := range cells {
		used, err := c.cpuSeconds()
		if err != nil {
			return err
		}
		cpu = append(cpu, (used-before[i])/time.Since(began).Seconds())
		bytes, err := c.memoryBytes()
		if err != nil {
			return err
		}
		memory = append(memory, bytes)
	}
	printAll("cell_idle_memory_bytes", memory, "B")
	printAll("cell_idle_cpu_cores", cpu, "cores")
	pid, err := b.KipPID()
	if err != nil {
		return err
	}
	kip, err := residentBytes(pid)
	if err != nil {
		return err
	}
	print("kip_memory_bytes", kip, "B")
	return nil
}

// watches counts those open on the API server, by anybody, with the two cells
// that are there and with eighteen more.
func (b bed) watches(ctx context.Context) error {
	few, err := b.openWatches(ctx)
	if err != nil {
		return err
	}
	failed := make(chan error, 18)
	for i := range cap(failed) {
		go func() {
			_, err := b.start(ctx, fmt.Sprintf("watched-%d", i), pulledImage)
			failed <- err
		}()
	}
	var errs []error
	for range cap(failed) {
		errs = append(errs, <-failed)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	many, err := b.openWatches(ctx)
	if err != nil {
		return err
	}
	print("api_watches_2_cells", few, "watches")
	print("api_watches_20_cells", many, "watches")
	return nil
}

// coldPods is how many pods coldBurst starts at once.
const coldPods = 30

// coldBurst starts many pods at once, each on a machine that is not there yet.
func (b bed) coldBurst(ctx context.Context) error {
	if err := b.endAll(ctx); err != nil {
		return err
	}
	began := time.Now()
	all, ctx2 := errgroup.WithContext(ctx)
	for i := range coldPods {
		all.Go(func() error {
			_, err := b.start(ctx2, fmt.Sprintf("cold-%d", i), presentImage)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	print(fmt.Sprintf("cold_%d_pods_seconds", coldPods), time.Since(began).Seconds(), "s")
	return b.endAll(ctx)
}

// endAll deletes all pods and waits until no cell is left.
func (b bed) endAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	grace := int64(0)
	if err := b.Admin.CoreV1().Pods(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &grace},
		metav1.ListOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list, err := b.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
}

// standbyPool is how many cells standby keeps ready.
const standbyPool = 3

// standby measures pods that take a cell which is ready for them: of the type of
// those that start cold, and of the smallest, whose CPU is a quarter of a core.
func (b bed) standby(ctx context.Context) error {
	if err := b.standbyOf(ctx, "standby_start_seconds", "small", "1"); err != nil {
		return err
	}
	return b.standbyOf(ctx, "standby_start_nano_seconds", "nano", "100m")
}

// standbyOf measures pods that ask for so much CPU and so get that type.
func (b bed) standbyOf(ctx context.Context, figure, typ, cpu string) error {
	restore, err := b.Reconfigure(ctx, func(provider map[string]any) {
		provider["cells"].(map[string]any)["standbyCells"] = []any{map[string]any{"instanceType": typ, "count": standbyPool}}
	})
	if err != nil {
		return err
	}
	full := func(ctx context.Context) (bool, error) {
		list, err := b.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
		ready := 0
		for _, item := range list.Items {
			var cell apiv1.Cell
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &cell); err != nil {
				return false, err
			}
			if s := cell.Status; s.Pod.Name == "" && s.Phase == apiv1.Ready && s.InstanceType == typ {
				ready++
			}
		}
		return ready == standbyPool, err
	}
	var took []float64
	for i := range runs {
		if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, full); err != nil {
			return fmt.Errorf("wait for %d standby cells: %w", standbyPool, err)
		}
		if err := harness.Sleep(ctx, time.Second); err != nil { // what has just booted comes to rest
			return err
		}
		name := fmt.Sprintf("standby-%s-%d", typ, i)
		d, err := b.startWith(ctx, name, presentImage, cpu)
		if err != nil {
			return err
		}
		took = append(took, d.Seconds())
		if _, err := b.end(ctx, name); err != nil {
			return err
		}
	}
	printAll(figure, took, "s")
	return restore(ctx)
}

func residentBytes(pid int) (float64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.ParseFloat(f[1], 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}
