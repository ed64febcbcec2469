//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/remote"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// shortDir is a folder whose path leaves room for the name of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", harness.TempPrefix())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// runKip starts a Kip in the place of the world's, which is dead, with a
// provider.yaml that differs in what change does. It ends with the test. Its store need
// not be the last one's.
func runKip(t *testing.T, change func(provider map[string]any), args ...string) *harness.Kip {
	t.Helper()
	return runKipBy(t, world.RunKip, change, args...)
}

// runKipBy is runKip, started by run.
func runKipBy(t *testing.T, run func(log string, args ...string) (*harness.Kip, error), change func(provider map[string]any),
	args ...string) *harness.Kip {
	t.Helper()
	if pid, err := world.KipPID(); err != nil || pid != 0 {
		t.Fatalf("the world's Kip runs, as process %d (%v)", pid, err)
	}
	file := providerFile(t, change)
	letGo(t)
	k, err := run(filepath.Join(filepath.Dir(file), "kip.log"), append([]string{"--provider-config=" + file}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		<-k.Done()
		letGo(t)
		if err := k.Amiss(); err != nil {
			t.Error(err)
		}
		if log, err := os.ReadFile(k.Log); t.Failed() {
			t.Logf("the end of the log of Kip, process %d (%v):\n%s", k.PID(), err, log[max(0, len(log)-6000):])
		}
	})
	return k
}

// providerFile writes the world's provider.yaml as changed, into a folder of its own.
func providerFile(t *testing.T, change func(provider map[string]any)) (file string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(world.State, "provider.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	provider := map[string]any{}
	if err := yaml.Unmarshal(data, &provider); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(provider)
	}
	if data, err = yaml.Marshal(provider); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(shortDir(t), "provider.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// waitLeads waits until a Kip that shares its etcd leads.
func (s *space) waitLeads(k *harness.Kip) {
	s.Helper()
	s.waitLogs(k, "this Kip leads")
}

// waitWorks waits until a Kip with an etcd of its own does its work.
func (s *space) waitWorks(k *harness.Kip, socket string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("Kip, process %d, answers on its socket", k.PID()), func(ctx context.Context) error {
		select {
		case <-k.Done():
			return fmt.Errorf("it ended: %v", k.Err())
		default:
		}
		if _, errs, err := namespace.Run(exec.CommandContext(ctx, world.Tool("kipctl"), "version", "--socket", socket)); err != nil {
			return fmt.Errorf("%w: %s", err, errs)
		}
		return nil
	})
	s.waitReadyz(k, 200, "[+]node ok")
}

func (s *space) waitLogs(k *harness.Kip, text string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("Kip, process %d, logs %q", k.PID(), text), func(context.Context) error {
		select {
		case <-k.Done():
			return fmt.Errorf("it ended: %v", k.Err())
		default:
		}
		logged, err := k.Logs(text)
		if err == nil && !logged {
			err = errors.New("it does not")
		}
		return err
	})
}

// waitReadyz waits until a Kip's readiness is as wanted: code, and what is said.
func (s *space) waitReadyz(k *harness.Kip, code int, texts ...string) (body string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("Kip, process %d, answers %d to /readyz", k.PID(), code), func(ctx context.Context) error {
		got, text, err := k.Get(ctx, "/readyz?verbose")
		if err != nil {
			return err
		}
		body = text
		if got != code || slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(text, t) }) {
			return fmt.Errorf("it answers %d: %s; want %d with %q", got, text, code, texts)
		}
		return nil
	})
	return body
}

// waitEnd waits until a Kip has ended.
func (s *space) waitEnd(k *harness.Kip) error {
	s.Helper()
	s.Eventually(fmt.Sprintf("Kip, process %d, ends", k.PID()), func(context.Context) error {
		select {
		case <-k.Done():
			return nil
		default:
			return errors.New("it runs")
		}
	})
	return k.Err()
}

func signal(t *testing.T, k *harness.Kip, sig syscall.Signal) {
	t.Helper()
	if err := k.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// watchedCloud is this host's cloud as one Kip sees it, with a record of what that
// Kip changes.
type watchedCloud struct {
	*local.Cloud
	mu      sync.Mutex
	changes []string
	hold    func(ctx context.Context, moment moment, launched []cloud.Instance) // nil for nothing
	out     string                                                              // an instance type of which it has none
}

// moment is one at which a call to the cloud can be held.
type moment string

const (
	beforeList   moment = "before a list"
	beforeLaunch moment = "before a launch"
	afterLaunch  moment = "before the answer to a launch"
)

func (c *watchedCloud) at(ctx context.Context, m moment, launched []cloud.Instance) {
	c.mu.Lock()
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		hold(ctx, m, launched)
	}
}

// holding lets hold be called at each moment, instead of what was before.
func (c *watchedCloud) holding(hold func(context.Context, moment, []cloud.Instance)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = hold
}

func (c *watchedCloud) List(ctx context.Context, owner string) (cloud.Listing, error) {
	c.at(ctx, beforeList, nil)
	return c.Cloud.List(ctx, owner)
}

func (c *watchedCloud) changed(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes = append(c.changes, time.Now().Format(time.StampMilli)+" "+what)
}

// Optional are those that are watched too.
func (c *watchedCloud) Optional() cloud.Optional {
	return cloud.Optional{Interrupter: c.Cloud, Disks: c}
}

func (c *watchedCloud) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	c.changed("launch " + r.Token)
	c.at(ctx, beforeLaunch, nil)
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if r.InstanceType == out {
		none := cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: r.InstanceType, Zone: r.Zone}, errors.New("it is rehearsed"))
		return cloud.NotLaunched(len(r.Machines), none)
	}
	// It takes effect also if whoever sent it has died.
	results := c.Cloud.Launch(context.WithoutCancel(ctx), r)
	c.at(ctx, afterLaunch, results.Instances())
	return results
}

func (c *watchedCloud) Terminate(ctx context.Context, ids ...string) cloud.Results {
	c.changed(fmt.Sprint("terminate ", ids))
	return c.Cloud.Terminate(ctx, ids...)
}

func (c *watchedCloud) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	c.changed("create disk " + r.Token)
	return c.Cloud.CreateDisk(ctx, r)
}

func (c *watchedCloud) DeleteDisk(ctx context.Context, id string) error {
	c.changed("delete disk " + id)
	return c.Cloud.DeleteDisk(ctx, id)
}

func (c *watchedCloud) AttachDisk(ctx context.Context, id, instance string) error {
	c.changed("attach disk " + id)
	return c.Cloud.AttachDisk(ctx, id, instance)
}

func (c *watchedCloud) DetachDisk(ctx context.Context, id, instance string) error {
	c.changed("detach disk " + id)
	return c.Cloud.DetachDisk(ctx, id, instance)
}

// runOut lets it have no more instances of a type; "" ends that.
func (c *watchedCloud) runOut(instanceType string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = instanceType
}

func (c *watchedCloud) made() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.changes)
}

var (
	_ cloud.Cloud = (*watchedCloud)(nil)
	_ cloud.Disks = (*watchedCloud)(nil)
)

// openCloud opens the world's cloud in this process, as something that several
// Kips can share, like any cloud but the local one. The world's Kip must be dead.
func openCloud(t *testing.T) *local.Cloud {
	t.Helper()
	cfg, _, err := config.Load(filepath.Join(world.State, "provider.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	l := cfg.Cloud.Local
	c, err := local.New(local.Config{
		Config:  host.Config{StateDir: l.StateDir, Bridge: l.Bridge, CIDR: l.CIDR, Log: slog.New(slog.DiscardHandler)},
		RootDir: l.RootDir, LauncherPath: world.Tool("kip"), LauncherArgs: []string{local.MachineCommand},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// serveTo serves the cloud to one Kip.
func serveTo(t *testing.T, c *local.Cloud) (w *watchedCloud, socket string) {
	t.Helper()
	w = &watchedCloud{Cloud: c}
	return w, serveCloud(t, shortDir(t), w)
}

// serveCloud serves a cloud to one Kip until the test ends, at a socket in a folder with a short name.
func serveCloud(t *testing.T, dir string, c cloud.Cloud) (socket string) {
	t.Helper()
	socket = filepath.Join(dir, "cloud.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: remote.Handler(c), ReadHeaderTimeout: patience}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return socket
}

// counting is a pod that writes 0, 1, 2, … a line each 100 ms.
func counting(name string) string {
	return namespace.Bare(name, `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; i=0; while :; do echo $i; i=$((i+1)); sleep 0.1; done']
`)
}

// counts waits until a counting pod is further than it was, proves that it has left
// nothing out, and returns how far it is.
func (s *space) counts(name string, was int) (now int) {
	s.Helper()
	s.Eventually(fmt.Sprintf("pod %s counts on from %d", name, was), func(context.Context) error {
		lines := strings.Fields(s.Kubectl("logs", name))
		for i, line := range lines {
			if line != fmt.Sprint(i) {
				s.Fatalf("line %d of pod %s is %q", i, name, line)
			}
		}
		if now = len(lines); now <= was {
			return fmt.Errorf("it is at %d", now)
		}
		return nil
	})
	return now
}

// allUnmoved proves that pods run in the containers that they had, and were ready
// all the time.
func (s *space) allUnmoved(before map[string]*corev1.Pod) {
	s.Helper()
	since := func(pod *corev1.Pod) metav1.Time {
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		return pod.Status.Conditions[i].LastTransitionTime
	}
	for name, pod := range before {
		unmoved(s, firstContainer(pod).ContainerID, name)
		if was, is := since(pod), since(s.WaitReady(name)); !is.Equal(&was) {
			s.Errorf("pod %s was ready since %s, and is since %s", name, was, is)
		}
	}
}

// deleteAll deletes pods and waits until they and their cells are gone.
func (s *space) deleteAll(names ...string) {
	s.Helper()
	s.Kubectl(slices.Concat([]string{"delete", "--wait=false", "pod"}, names)...)
	for _, name := range names {
		s.WaitGone(name)
	}
}

// nodeIsReady says that the virtual node is Ready.
func nodeIsReady(s *space) bool {
	s.Helper()
	node, err := world.Admin.CoreV1().Nodes().Get(s.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// machinesOnDisk are the instances of which this host has something.
func machinesOnDisk() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(world.State, "cloud", "machines"))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, nil
}
