//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// kipctl runs kipctl against a Kip's socket, in the test's namespace.
func (s *space) kipctl(socket string, args ...string) (stdout, stderr string, err error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	return namespace.Run(exec.CommandContext(ctx, world.Tool("kipctl"),
		append(args, "--kubeconfig", world.Kubeconfig, "--socket", socket, "--namespace", s.NS)...))
}

// tells runs kipctl and returns what it prints.
func (s *space) tells(socket string, args ...string) string {
	s.Helper()
	out, errs, err := s.kipctl(socket, args...)
	if err != nil {
		s.Fatalf("kipctl %s: %v\n%s%s", strings.Join(args, " "), err, out, errs)
	}
	return out
}

// row returns the words of a table's row that begins with one.
func row(text, first string) []string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == first {
			return f
		}
	}
	return nil
}

func TestKipctlShowsCellsAndPods(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a") + "---\n" + namespace.Sleeper("b"))
	s.WaitReady("a")
	s.WaitReady("b")
	cell := s.CellOf("a")
	// The mirror of a cell may be a moment late.
	s.Eventually("kipctl get cells shows that pod a runs", func(context.Context) error {
		out := s.tells(world.Socket, "get", "cells")
		if f := row(out, cell.Name); !slices.Contains(f, "Bound") || !slices.Contains(f, s.NS+"/a") || !slices.Contains(f, "small") {
			return fmt.Errorf("the row of cell %s is %q in\n%s", cell.Name, f, out)
		}
		return nil
	})
	if out := s.tells(world.Socket, "get", "cells", cell.Name); row(out, cell.Name) == nil || row(out, s.CellOf("b").Name) != nil {
		t.Errorf("kipctl get cells %s prints\n%s", cell.Name, out)
	}
	if out := s.tells(world.Socket, "get", "pods"); !slices.Contains(row(out, "a"), cell.Name) || row(out, "b") == nil {
		t.Errorf("kipctl get pods prints\n%s", out)
	}
	var pods struct{ Items []corev1.Pod }
	if out := s.tells(world.Socket, "get", "pods", "-o", "json"); json.Unmarshal([]byte(out), &pods) != nil || len(pods.Items) != 2 {
		t.Errorf("kipctl get pods -o json prints\n%s", out)
	}
	if out := s.tells(world.Socket, "why", "a"); !strings.Contains(out, cell.Name) || !strings.Contains(out, "small") {
		t.Errorf("kipctl why a prints\n%s", out)
	}
	for _, wrong := range [][]string{{"get", "cells", "none"}, {"get", "nothing"}, {"why", "nobody"}} {
		if out, errs, err := s.kipctl(world.Socket, wrong...); err == nil || errs == "" {
			t.Errorf("kipctl %s is well: %q, %q", strings.Join(wrong, " "), out, errs)
		}
	}
}

// Not parallel: another Kip than the world's serves the node, with a cloud that runs
// out of a type.
func TestKipctlShowsWhatTheCloudIsOutOf(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	killKip(t)
	w, at := serveTo(t, openCloud(t))
	data := filepath.Join(shortDir(t), "data")
	socket := filepath.Join(data, "kip.sock")
	k := runKip(t, func(provider map[string]any) {
		provider["cloud"] = map[string]any{"sim": map[string]any{"socket": at}}
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
	})
	s.waitWorks(k, socket)
	asks := func(name string) string {
		return namespace.Bare(name, `  containers:
  - {name: main, image: "busybox:1.36", command: [sleep, "1000"], resources: {requests: {cpu: 400m, memory: 300Mi}}}
`)
	}
	s.Apply(asks("before"))
	s.WaitReady("before")
	first := s.CellOf("before").Status.InstanceType
	if out, errs, err := s.kipctl(socket, "get", "capacity"); err != nil || out != "" || !strings.Contains(errs, "Nothing is known") {
		t.Errorf("before, kipctl get capacity prints %q, %q (%v)", out, errs, err)
	}
	w.runOut(first)
	s.Apply(asks("after"))
	s.WaitEvent("after", "NoCapacity", first)
	s.WaitReady("after")
	if got := s.CellOf("after").Status.InstanceType; got == first {
		t.Errorf("the second pod is on a %s too, of which there is none", got)
	}
	out := s.tells(socket, "get", "capacity")
	if f := row(out, first); len(f) < 6 || f[1] == "all" || !strings.Contains(out, "it is rehearsed") {
		t.Errorf("kipctl get capacity prints\n%s", out)
	}
	s.deleteAll("before", "after")
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Error(err)
	}
}

// Not parallel: it ends the world's Kip, and another loses its store and removes the
// node.
func TestABackupIsRestoredAndACleanupLeavesNothing(t *testing.T) {
	s := newSpace(t)
	killKip(t)
	dir := shortDir(t)
	data, backup := filepath.Join(dir, "data"), filepath.Join(dir, "kip.backup")
	socket := filepath.Join(data, "kip.sock")
	own := func(provider map[string]any) {
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
	}
	file := providerFile(t, own)
	k := runKip(t, own)
	s.waitWorks(k, socket)
	s.Apply(counting("kept"))
	before := map[string]*corev1.Pod{"kept": s.WaitReady("kept")}
	counted := s.counts("kept", 0)
	s.tells(socket, "backup", "-f", backup)
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup is %v, %v; want a file that nobody else reads", info, err)
	}
	s.Apply(namespace.Sleeper("later"))
	later, stray := s.WaitReady("later"), s.CellOf("later").Status.InstanceID

	restore := func(args ...string) (string, error) {
		out, errs, err := s.kipctl(socket, append([]string{"restore", backup, "--provider-config", file, "--node", harness.Node}, args...)...)
		return out + errs, err
	}
	if text, err := restore(); err == nil {
		t.Fatalf("a backup was restored into the store of a Kip that runs: %s", text)
	}
	signal(t, k, syscall.SIGKILL)
	<-k.Done()
	if text, err := restore(); err == nil || !strings.Contains(text, "--overwrite") {
		t.Fatalf("a store with records was replaced (%v): %s", err, text)
	}
	// The volume is lost.
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(backup, whole[:len(whole)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := restore(); err == nil {
		t.Fatalf("a backup that was cut off is restored: %s", text)
	}
	if err := os.WriteFile(backup, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := restore(); err != nil {
		t.Fatalf("restore: %v: %s", err, text)
	}
	k = runKip(t, own)
	k.Forgive(harness.Stray, stray) // the cell of which the backup knows nothing
	// Nothing is swept before a person decides.
	s.Within(namespace.LossPatience, "Kip says that its store is older than an instance", func(context.Context) error {
		if out, errs, err := s.kipctl(socket, "generation"); err != nil || !strings.Contains(out, stray) {
			return fmt.Errorf("kipctl generation: %v: %s%s", err, out, errs)
		}
		return nil
	})
	var shown string
	s.Within(namespace.LossPatience, "a take-over without --yes says what it is to have", func(context.Context) error {
		out, errs, err := s.kipctl(socket, "generation", "take-over")
		_, said, found := strings.Cut(errs, "--yes ")
		shown, _, _ = strings.Cut(said, " ")
		if err == nil || !found {
			return fmt.Errorf("kipctl generation take-over: %v: %s%s", err, out, errs)
		}
		return nil
	})
	s.allUnmoved(before)
	if out, errs, err := s.kipctl(socket, "generation", "take-over", "--yes", shown); err != nil {
		t.Fatalf("take-over: %v: %s%s", err, out, errs)
	}
	s.waitWorks(k, socket)
	s.Within(namespace.LossPatience, "the pod of which the backup knows nothing runs again", func(ctx context.Context) error {
		pod, err := s.Pod(ctx, "later")
		if err == nil && (!namespace.IsReady(pod) || firstContainer(pod).ContainerID == firstContainer(later).ContainerID) {
			err = fmt.Errorf("it is %s", namespace.States(pod))
		}
		return err
	})
	s.Eventually("exec in the pod that the backup has", s.ExecTrue("kept"))
	s.allUnmoved(before)
	s.counts("kept", counted)

	out, errs, err := s.kipctl(socket, "cleanup")
	if err == nil || !strings.Contains(errs, "--yes") {
		t.Errorf("cleanup without --yes: %v: %s", err, errs)
	}
	for _, name := range []string{s.NS + "/kept", s.NS + "/later", s.CellOf("kept").Name, harness.Node} {
		if !strings.Contains(out, name) {
			t.Errorf("cleanup does not name %s:\n%s", name, out)
		}
	}
	s.allUnmoved(before)
	if _, errs, err := s.kipctl(socket, "cleanup", "--yes"); err != nil || !strings.Contains(errs, "Clean") {
		t.Fatalf("cleanup --yes: %v: %s", err, errs)
	}
	for _, name := range []string{"kept", "later"} {
		if _, err := s.Pod(t.Context(), name); !apierrors.IsNotFound(err) {
			t.Errorf("after the cleanup pod %s: %v", name, err)
		}
	}
	if err := s.NoCells(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := machinesOnDisk(); err != nil || len(left) > 0 {
		t.Errorf("after the cleanup instances are left: %v, %v", left, err)
	}
	if _, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the cleanup the node: %v", err)
	}
	if _, errs, err := s.kipctl(socket, "cleanup"); err != nil || !strings.Contains(errs, "nothing to clean up") {
		t.Errorf("a second cleanup: %v: %s", err, errs)
	}
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of a Kip that has ended: %v", err)
	}
	startKip(t)
	if err := world.NodeReady(t.Context()); err != nil {
		t.Error(err)
	}
}
