//go:build e2e

package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

const (
	// answerWithin is what each question of the bystander is given. It only tells a hang:
	// how fast the answers come is printed.
	answerWithin = namespace.Patience
	// rounds is how often the bystander is asked everything while an attack goes on.
	rounds = 2
	// mostMemory bounds by how many MiB Kip's largest resident set may grow while one
	// cell attacks. Of that cell Kip holds 256 KiB of node, lease and CSINode, 512 KiB
	// of bodies and 1 MiB that HTTP/2 buffers; of its agent 16 MiB that HTTP/2 buffers;
	// and a few objects that are worked on. The rest is room for Go's collector, which
	// lets a heap double, and longer grow where the CPUs are busy, and for what the
	// bystander's exec takes. What an attack sends is gigabytes.
	mostMemory = 192
)

// space is a namespace of a test's own.
type space struct{ *namespace.Space }

// sleeper is a pod that runs a shell until it is told to stop. more is what its
// metadata has, spec what its spec has, indented by two.
func sleeper(name, more, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + more + "}\nspec:\n  " + `nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
` + spec + `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; echo started; while :; do sleep 0.1; done']
---
`
}

// machine is the machine of a pod's cell.
func (s *space) machine(pod string) namespace.Machine {
	s.Helper()
	var m namespace.Machine
	s.Eventually("pod "+pod+" has its cell", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if c.Status.Pod.Name == pod {
				m = s.Machine(c)
				return nil
			}
		}
		return fmt.Errorf("none of %d cells is its", len(cells))
	})
	return m
}

// bystander is a pod on a cell of its own that has done nothing.
type bystander struct {
	space   *space
	pod     *corev1.Pod
	kubelet kubernetes.Interface // as its kubelet
	http    *http.Client         // that trusts Kip's metrics port
	kip     int                  // Kip's process when all was well
}

// begin makes a namespace with a bystander, and pods of a manifest.
func begin(t *testing.T, manifest string, pods ...string) (*space, *bystander) {
	t.Helper()
	s := &space{namespace.New(t, world)}
	s.Apply(sleeper("bystander", "", "") + manifest)
	for _, name := range pods {
		s.WaitReady(name)
	}
	b := &bystander{space: s, pod: s.WaitReady("bystander")}
	cfg, err := s.machine("bystander").Kubelet()
	if err != nil {
		t.Fatal(err)
	}
	if b.kubelet, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	// The certificate of the metrics port is of Kip's own CA, which Kip keeps to itself.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	b.http = &http.Client{Transport: transport}
	if b.kip, err = world.KipPID(); err != nil || b.kip == 0 {
		t.Fatalf("Kip's process is %d: %v", b.kip, err)
	}
	return s, b
}

// asks are what the bystander is asked, in order.
var asks = []struct {
	name string
	ask  func(*bystander, context.Context) error
}{
	{"exec", func(b *bystander, ctx context.Context) error { return b.exec(ctx, b.pod.Name) }},
	{"logs", func(b *bystander, ctx context.Context) error {
		log, err := world.Admin.CoreV1().Pods(b.space.NS).GetLogs(b.pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err == nil && !strings.Contains(string(log), "started") {
			err = fmt.Errorf("the log is %q", log)
		}
		return err
	}},
	{"node", func(b *bystander, ctx context.Context) error {
		patch := `{"status":{"conditions":[{"type":"PIDPressure","status":"False","message":"` + time.Now().String() + `"}]}}`
		_, err := b.kubelet.CoreV1().Nodes().PatchStatus(ctx, harness.Node, []byte(patch))
		return err
	}},
	{"healthz", func(b *bystander, ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+metrics+"/healthz", nil)
		if err != nil {
			return err
		}
		resp, err := b.http.Do(req)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("it answers %s", resp.Status)
		}
		return errors.Join(err, resp.Body.Close())
	}},
}

// exec runs true in a pod.
func (b *bystander) exec(ctx context.Context, pod string) error {
	req := world.Admin.CoreV1().RESTClient().Post().Namespace(b.space.NS).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"true"}, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(world.Config, http.MethodGet, req.URL().String())
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &out}); err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}

// counts are how often an attack was answered how.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[answer]++
}

func (c *counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for answer, n := range c.of {
		all = append(all, fmt.Sprintf("%s: %d", answer, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// while runs an attack, and goes on with it until the bystander has been asked all a
// few times. The attack ends when its context does, and may end before. It fails the
// test where the bystander is not answered, Kip is another process or has grown too
// large, and prints a line.
func (b *bystander) while(t *testing.T, attack string, run func(ctx context.Context, answers *counts)) {
	t.Helper()
	before, err := resident(b.kip)
	if err != nil {
		t.Fatal(err)
	}
	var answers counts
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, &answers)
	}()
	slowest := map[string]time.Duration{}
	for n := 0; ; n++ {
		if n >= rounds {
			cancel()
			select {
			case <-ended:
			default: // once more while it ends
			}
		}
		for _, q := range asks {
			within, end := context.WithTimeout(t.Context(), answerWithin)
			began := time.Now()
			err := q.ask(b, within)
			end()
			if slowest[q.name] = max(slowest[q.name], time.Since(began)); err != nil {
				t.Errorf("%s: the bystander's %s: %v", attack, q.name, err)
			}
		}
		if n >= rounds {
			break
		}
	}
	<-ended
	cancel()
	most, err := peak(b.kip)
	if err != nil {
		t.Errorf("%s: %v", attack, err)
	}
	if grew := most - before; grew > mostMemory {
		t.Errorf("%s: Kip grew from %d MiB to %d: want %d more at most", attack, before, most, mostMemory)
	}
	if pid, err := world.KipPID(); err != nil || pid != b.kip {
		t.Errorf("%s: Kip was process %d and is %d (%v)", attack, b.kip, pid, err)
	}
	if pod, err := b.space.Pod(t.Context(), b.pod.Name); err != nil || pod.UID != b.pod.UID || !namespace.IsReady(pod) ||
		pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("%s: the bystander is %v (%v)", attack, pod, err)
	}
	var took []string
	for _, q := range asks {
		took = append(took, fmt.Sprintf("%s %d ms", q.name, slowest[q.name].Milliseconds()))
	}
	fmt.Printf("%s: %s; memory of Kip %d MiB, at most %d; slowest of the bystander: %s\n", attack, answers.String(), before, most,
		strings.Join(took, ", "))
}

// resident is what of a process is in memory, in MiB. The kernel's mark of the most
// begins anew there.
func resident(pid int) (int, error) {
	// 5: see proc_pid_clear_refs(5).
	if err := os.WriteFile(procFile(pid, "clear_refs"), []byte("5"), 0); err != nil {
		return 0, err
	}
	return inStatus(pid, "VmRSS:")
}

// peak is the most since resident.
func peak(pid int) (int, error) { return inStatus(pid, "VmHWM:") }

func inStatus(pid int, field string) (mib int, err error) {
	text, err := os.ReadFile(procFile(pid, "status"))
	if err != nil {
		return 0, fmt.Errorf("see how large Kip is: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == field {
			kib, err := strconv.Atoi(f[1])
			return kib >> 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}

func procFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }
