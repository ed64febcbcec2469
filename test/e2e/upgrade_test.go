//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// older is the folder of the programs of an older Kip and its agent.
func older(t *testing.T) string {
	t.Helper()
	folder, why, err := harness.Older()
	if err != nil {
		t.Fatal(err)
	}
	if why != "" {
		t.Skip(why)
	}
	return filepath.Join(folder, "bin")
}

// olderRoot makes the root of cells with the older agent.
func olderRoot(t *testing.T, older string) string {
	t.Helper()
	programs, err := image.HostPrograms()
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	programs[image.Portmap] = world.Tool("portmap")
	root := filepath.Join(t.TempDir(), "root")
	agent := func(name string) string { return filepath.Join(older, name) }
	if err := image.Build(t.Context(), image.Options{
		Dir: root, Itzo: agent("itzo"), ItzoContainerd: agent("itzo-containerd"), ItzoLite: agent("itzo-lite"),
		Runc: world.Tool("runc"), Pause: world.Tool("pause"), Busybox: busybox, Programs: programs,
	}); err != nil {
		t.Fatal(err)
	}
	return root
}

// Not parallel: it ends Kip and starts it, as an upgrade does. An older Kip begins, on cells with an older agent. This Kip
// follows, the older one again, as in a rollback, and this one: each has cells of the other's agent.
func TestNoPodNoticesThatKipIsUpgradedAndRolledBackUnderLoad(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	bin := older(t)
	root, data := olderRoot(t, bin), filepath.Join(shortDir(t), "data")
	// The world's Kip knows no end but a crash, and a newer store than an older one
	// may read: one like it takes its place, with a store of its own.
	killKip(t)
	upgraded := func(provider map[string]any) {
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
	}
	runOlder := func() *harness.Kip {
		return runKipBy(t, func(log string, args ...string) (*harness.Kip, error) {
			return world.RunKipOf(filepath.Join(bin, "kip"), log, args...)
		}, func(provider map[string]any) {
			upgraded(provider)
			provider["cloud"].(map[string]any)["local"].(map[string]any)["rootDir"] = root
		})
	}
	k := runOlder()
	socket := filepath.Join(data, "kip.sock")
	s.waitWorks(k, socket)
	olderVersion := kipVersion(t, socket)

	before := map[string]*corev1.Pod{}
	s.Apply(counting("counter"))
	for i := range 6 {
		s.Apply(namespace.Sleeper(fmt.Sprint("kept-", i)))
	}
	before["counter"] = s.WaitReady("counter")
	counted := s.counts("counter", 0)
	for i := range 6 {
		name := fmt.Sprint("kept-", i)
		before[name] = s.WaitReady(name)
	}

	// Two at a time come, and two of three go again, when they run or before,
	// until all upgrades are over.
	ctx, stop := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	var mu sync.Mutex
	kept, deleted := map[string]bool{}, map[string]bool{}
	for worker := range 2 {
		churn.Go(func() {
			for n := 0; n < 7 || ctx.Err() == nil && n < 14; n++ {
				if err := s.churn(ctx, worker, n, func(name string, stays bool) {
					mu.Lock()
					defer mu.Unlock()
					if stays {
						kept[name] = true
					} else {
						deleted[name] = true
					}
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	// Also when the test gives up: what runs on must not report to it.
	t.Cleanup(func() { stop(); churn.Wait() })
	for i, next := range []struct {
		run   func() *harness.Kip
		older bool
	}{
		{run: func() *harness.Kip { return runKip(t, upgraded) }},
		{run: runOlder, older: true},
		{run: func() *harness.Kip { return runKip(t, upgraded) }},
	} {
		s.Eventually("pods come and go", func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if n := len(kept) + len(deleted); n < 3*(i+1) {
				return fmt.Errorf("%d have come", n)
			}
			return nil
		})
		signal(t, k, syscall.SIGTERM)
		if err := s.waitEnd(k); err != nil {
			t.Errorf("a Kip that was told to end ended with %v", err)
		}
		k = next.run()
		s.waitWorks(k, socket)
		if now := kipVersion(t, socket); (now == olderVersion) != next.older {
			t.Errorf("Kip %d is %s; the older one is %s", i+2, now, olderVersion)
		}
	}
	stop()
	churn.Wait()
	t.Logf("%d pods were created, %d of them deleted", len(kept)+len(deleted), len(deleted))

	for name := range kept {
		if c := firstContainer(s.WaitReady(name)); c.RestartCount != 0 {
			t.Errorf("pod %s was started %d times again", name, c.RestartCount)
		}
	}
	for name := range deleted {
		s.WaitGone(name)
	}
	s.allUnmoved(before)
	s.counts("counter", counted)
	cells, err := s.Cells(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := len(before) + len(kept); len(cells) != want {
		t.Errorf("there are %d cells for %d pods", len(cells), want)
	}
	s.deleteAll(slices.Concat(slices.Collect(maps.Keys(kept)), slices.Collect(maps.Keys(before)))...)
	instances, err := machinesOnDisk()
	if err != nil {
		t.Fatal(err)
	}
	if len(instances) > 0 {
		t.Errorf("instances are left: %v", instances)
	}
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Errorf("Kip ended with %v", err)
	}
}

// kipVersion is what a Kip says that it is.
func kipVersion(t *testing.T, socket string) string {
	t.Helper()
	out, errs, err := namespace.Run(exec.CommandContext(t.Context(), world.Tool("kipctl"), "version", "--socket", socket, "-o", "json"))
	if err != nil {
		t.Fatalf("kipctl version: %v: %s", err, errs)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("kipctl version printed %q: %v", out, err)
	}
	return fmt.Sprint(v["kip"])
}

// churn makes a pod that stays, or one that is deleted: at once, or when it runs.
func (s *space) churn(ctx context.Context, worker, n int, tell func(name string, stays bool)) error {
	// Not cut short by the end of the churning: it is told of what was done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	name := fmt.Sprintf("churned-%d-%d", worker, n)
	var pod corev1.Pod
	if err := yaml.Unmarshal([]byte(namespace.Sleeper(name)), &pod); err != nil {
		return err
	}
	pods := world.Admin.CoreV1().Pods(s.NS)
	if _, err := pods.Create(ctx, &pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	stays := n%3 == 0
	tell(name, stays)
	if n%3 != 1 { // else it goes while it waits for its cell
		if err := namespace.Poll(ctx, func(ctx context.Context) error {
			pod, err := s.Pod(ctx, name)
			if err == nil && !namespace.IsReady(pod) {
				err = fmt.Errorf("pod %s is %s", name, pod.Status.Phase)
			}
			return err
		}); err != nil {
			return fmt.Errorf("wait until pod %s is ready: %w", name, err)
		}
	}
	if stays {
		return nil
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	return nil
}
