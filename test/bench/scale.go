package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/hollow"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	burst   = 1000
	singles = 100 // pods one at a time
	// writers is how many requests of this program are under way at once.
	writers  = 32
	busyRate = 100 // status changes a second
	settle   = 30 * time.Second
	// cloudBoot is what an instance of a cloud takes to boot: Kip is free for the
	// launches of a burst until then.
	cloudBoot     = 20 * time.Second
	scalePatience = 30 * time.Minute
)

// scale measures Kip with many cells, none of which runs a container.
func scale(ctx context.Context, cells int) (err error) {
	s, err := simulate(ctx, cloudBoot, harness.Options{
		Name:   "kipscale0",
		CIDR:   "10.114.0.0/16",
		Stderr: os.Stderr,
		Fsync:  true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	watches, err := s.openWatches(ctx)
	if err != nil {
		return err
	}
	print("api_watches_0_cells", watches, "watches")
	for _, step := range []struct {
		what string
		run  func(context.Context) error
	}{
		{"pods one at a time", s.single},
		{"a burst", s.burst},
		{fmt.Sprintf("%d cells", cells), func(ctx context.Context) error { return s.many(ctx, cells) }},
		{"recovery", func(ctx context.Context) error { return s.recovery(ctx, cells) }},
	} {
		progress("measuring %s", step.what)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("measure %s: %w", step.what, err)
		}
	}
	return nil
}

// podOnKip is a pod that is bound to the virtual node from the start.
func podOnKip(name string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: harness.Node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: presentImage,
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
			}},
		},
	}
}

// single measures pods one at a time: from the request for a pod to the call that
// launches its instance.
func (s *simulated) single(ctx context.Context) error {
	var took []float64
	for n := range singles {
		began := time.Now()
		pod, err := s.Admin.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, podOnKip(fmt.Sprintf("single-%d", n)), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if err := wait.PollUntilContextTimeout(ctx, time.Millisecond, patience, true, func(context.Context) (bool, error) {
			return !s.launches.of(pod.UID).IsZero(), nil
		}); err != nil {
			return fmt.Errorf("wait for the launch of pod %s: %w", pod.Name, err)
		}
		took = append(took, s.launches.of(pod.UID).Sub(began).Seconds())
	}
	printAll("intent_p50_seconds", took, "s")
	slices.Sort(took)
	print("intent_p99_seconds", took[len(took)*99/100], "s")
	return s.running(ctx, singles)
}

// burst measures pods that are all bound when Kip first looks: from its first
// sight of one to the last call that launches.
func (s *simulated) burst(ctx context.Context) error {
	if err := s.KillKip(ctx); err != nil {
		return err
	}
	uids, err := s.create(ctx, "burst", burst)
	if err != nil {
		return err
	}
	started := time.Now()
	if err := s.StartKip(ctx); err != nil {
		return err
	}
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return !slices.ContainsFunc(uids, func(uid types.UID) bool { return s.launches.of(uid).IsZero() }), nil
	}); err != nil {
		return fmt.Errorf("wait for %d launches: %w", burst, err)
	}
	if err := s.running(ctx, singles+burst); err != nil {
		return err
	}
	seen, err := s.firstSeen(ctx, uids)
	if err != nil {
		return err
	}
	var last time.Time
	var running []float64
	for _, uid := range uids {
		if at := s.launches.of(uid); at.After(last) {
			last = at
		}
		running = append(running, s.launches.of(uid).Sub(seen).Seconds())
	}
	slices.Sort(running)
	print("burst_1000_intents_seconds", last.Sub(seen).Seconds(), "s")
	print("burst_1000_intent_p50_seconds", running[len(running)/2], "s")
	print("burst_1000_intents_from_start_seconds", last.Sub(started).Seconds(), "s")
	return nil
}

// firstSeen is when Kip saw the first of some pods.
func (s *simulated) firstSeen(ctx context.Context, uids []types.UID) (first time.Time, err error) {
	list, err := s.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return first, err
	}
	for _, item := range list.Items {
		var cell apiv1.Cell
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &cell); err != nil {
			return first, err
		}
		if !slices.Contains(uids, cell.Status.Pod.UID) {
			continue
		}
		for _, step := range cell.Status.Steps {
			if step.Name == apiv1.StepSeen && (first.IsZero() || step.Time.Time.Before(first)) {
				first = step.Time.Time
			}
		}
	}
	if first.IsZero() {
		return first, errors.New("no cell of the burst says when its pod was seen")
	}
	return first, nil
}

// create makes n pods on the virtual node.
func (s *simulated) create(ctx context.Context, name string, n int) ([]types.UID, error) {
	uids := make([]types.UID, n)
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(writers)
	for i := range n {
		all.Go(func() error {
			pod, err := s.Admin.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, podOnKip(fmt.Sprintf("%s-%d", name, i)), metav1.CreateOptions{})
			if err == nil {
				uids[i] = pod.UID
			}
			return err
		})
	}
	return uids, all.Wait()
}

// running waits until so many pods run, first as their cells see it, then as the API
// server shows all of them.
func (s *simulated) running(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, scalePatience)
	defer cancel()
	said := time.Now()
	if err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		up, running := s.fleet.Count()
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			progress("  %d of %d pods run, %d cells are up", running, want, up)
		}
		return running >= want, nil
	}); err != nil {
		return err
	}
	notRunning := fields.OneTermNotEqualSelector("status.phase", string(corev1.PodRunning)).String()
	return wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list, err := s.Admin.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: notRunning, Limit: 1})
		if err != nil {
			return false, err
		}
		return len(list.Items) == 0, nil
	})
}

// many measures Kip with many cells: when nothing happens, when metrics-server is all
// that asks, and when pods change.
func (s *simulated) many(ctx context.Context, cells int) error {
	began := time.Now()
	if _, err := s.create(ctx, "many", cells-singles-burst); err != nil {
		return err
	}
	if err := s.running(ctx, cells); err != nil {
		return fmt.Errorf("wait for %d cells: %w", cells, err)
	}
	name := fmt.Sprintf("cells_%d_", cells)
	print(name+"up_seconds", time.Since(began).Seconds(), "s")
	if err := harness.Sleep(ctx, settle); err != nil {
		return err
	}
	pid, err := s.KipPID()
	if err != nil {
		return err
	}
	cores, err := coresOf(ctx, pid, idle)
	if err != nil {
		return err
	}
	print(name+"idle_cpu_cores", cores, "cores")
	bytes, err := residentBytes(pid)
	if err != nil {
		return err
	}
	print(name+"memory_bytes", bytes, "B")
	watches, err := s.openWatches(ctx)
	if err != nil {
		return err
	}
	print(name+"api_watches", watches, "watches")
	goroutines, err := s.kipMetric(ctx, "go_goroutines")
	if err != nil {
		return err
	}
	print(name+"goroutines", goroutines, "goroutines")
	if err := s.scrapedIdle(ctx, name, pid); err != nil {
		return err
	}

	progress("measuring %d status changes a second", busyRate)
	busy, stop := context.WithTimeout(ctx, idle)
	defer stop()
	var changed atomic.Int64
	var failed atomic.Pointer[error]
	done := make(chan error, 1)
	go func() {
		done <- s.fleet.StatusChanges(busy, busyRate, func(_ hollow.Change, _ time.Duration, err error) {
			if err != nil {
				failed.Store(&err)
				return
			}
			changed.Add(1)
		})
	}()
	cores, err = coresOf(ctx, pid, idle)
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return fmt.Errorf("change a pod's status: %w", *err)
	}
	if least := int64(0.95 * busyRate * idle.Seconds()); changed.Load() < least {
		return fmt.Errorf("%d status changes were made in %s: want %d or more, or Kip is not as busy as the figure says", changed.Load(), idle, least)
	}
	print(name+"busy_cpu_cores", cores, "cores")
	print(name+"busy_changes_per_second", float64(changed.Load())/idle.Seconds(), "/s")
	return nil
}

// scrapeEvery is how often metrics-server asks by default.
const scrapeEvery = 15 * time.Second

// scrapedIdle measures idle cells while Kip's kubelet port is asked what their pods
// use, as metrics-server asks it, but through the API server.
func (s *simulated) scrapedIdle(ctx context.Context, name string, pid int) error {
	progress("measuring scrapes")
	var took, pods []float64
	scraping, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		for {
			began := time.Now()
			text, err := s.Admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + harness.Node + "/proxy/metrics/resource").DoRaw(scraping)
			if scraping.Err() != nil {
				done <- nil
				return
			}
			if err != nil {
				done <- fmt.Errorf("scrape the kubelet port: %w", err)
				return
			}
			took, pods = append(took, time.Since(began).Seconds()), append(pods, scraped(string(text)))
			if harness.Sleep(scraping, scrapeEvery-time.Since(began)) != nil {
				done <- nil
				return
			}
		}
	}()
	cores, err := coresOf(ctx, pid, idle)
	stop()
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	bytes, err := residentBytes(pid)
	if err != nil {
		return err
	}
	print(name+"scraped_cpu_cores", cores, "cores")
	print(name+"scraped_memory_bytes", bytes, "B")
	printAll(name+"scrape_seconds", took, "s")
	printAll(name+"scrape_pods", pods, "pods")
	return nil
}

// scraped counts the pods that an answer of /metrics/resource is about.
func scraped(text string) (pods float64) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "pod_cpu_usage_seconds_total{") {
			pods++
		}
	}
	return pods
}

// kipMetric reads a metric without labels from Kip.
func (b bed) kipMetric(ctx context.Context, name string) (float64, error) {
	node, err := b.Admin.CoreV1().Nodes().Get(ctx, harness.Node, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		text, err := b.Scrape(ctx, net.JoinHostPort(a.Address, "10255"))
		if err != nil {
			return 0, err
		}
		for line := range strings.SplitSeq(text, "\n") {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				return strconv.ParseFloat(value, 64)
			}
		}
		return 0, fmt.Errorf("there is no metric %s of Kip", name)
	}
	return 0, fmt.Errorf("node %s has no address", harness.Node)
}

// ticksPerSecond is the unit of /proc/PID/stat: USER_HZ, which is 100 on every
// architecture that Kip is built for.
const ticksPerSecond = 100

// cpuSecondsOf is what a process has used, its dead threads included.
func cpuSecondsOf(pid int) (float64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The name, in brackets, may hold anything.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	const utime, stime = 11, 12 // counted from the state, the third field
	user, err := strconv.ParseFloat(fields[utime], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[stime], 64)
	return (user + system) / ticksPerSecond, err
}

// coresOf measures what a process uses over a while.
func coresOf(ctx context.Context, pid int, d time.Duration) (float64, error) {
	before, err := cpuSecondsOf(pid)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := harness.Sleep(ctx, d); err != nil {
		return 0, err
	}
	after, err := cpuSecondsOf(pid)
	return (after - before) / time.Since(began).Seconds(), err
}
