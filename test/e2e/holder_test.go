//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// letGo lets a Kip with another store begin at once, as an admin does who knows that the
// last one is gone.
func letGo(t *testing.T) {
	t.Helper()
	err := world.Admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(context.Background(), harness.Node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// Not parallel: another Kip than the world's has the node at the end.
func TestAKipWithAnotherStoreWaitsUntilTheNodeIsNotHeldAnyMore(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(counting("a"))
	before := map[string]*corev1.Pod{"a": s.WaitReady("a")}
	counted, instance := s.counts("a", 0), s.CellOf("a").Status.InstanceID
	mark := func() string {
		lease, err := world.Admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), harness.Node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return lease.Annotations[holder.Annotation]
	}
	held := mark()
	s.Eventually("the mark is renewed beside the node's own renewals", func(context.Context) error {
		if now := mark(); held == "" || now == held {
			return fmt.Errorf("it is %q", now)
		}
		return nil
	})

	data := filepath.Join(shortDir(t), "data")
	socket := filepath.Join(data, "kip.sock")
	file := providerFile(t, func(provider map[string]any) {
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
	})
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	second, err := world.RunKip(filepath.Join(filepath.Dir(file), "kip.log"), "--provider-config="+file, fmt.Sprint("--kubelet-port=", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		<-second.Done()
		if err := second.Amiss(); err != nil {
			t.Error(err)
		}
	})
	aside := func() {
		t.Helper()
		s.waitReadyz(second, 500, "another Kip, with another store, holds node "+harness.Node)
		if text, err := world.Scrape(t.Context(), second.Metrics); err != nil || !strings.Contains(text, "\nkip_node_held_by_another 1\n") {
			t.Errorf("no metric says so: %v", err)
		}
		if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it serves its socket: %v", err)
		}
		s.Eventually("exec in the pod of the world's Kip", s.ExecTrue("a"))
	}
	aside()
	s.Eventually("an Event of the node says so", func(ctx context.Context) error {
		of := "involvedObject.name=" + harness.Node + ",reason=" + events.NodeHeldByAnother
		list, err := world.Admin.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: of})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	// A restart goes on at once, and the other waits on.
	killKip(t)
	startKip(t)
	if log, err := os.ReadFile(filepath.Join(world.State, "kip.log")); err != nil || strings.Contains(string(log), "holds node") {
		t.Errorf("the world's Kip waits for the other (%v)", err)
	}
	aside()
	// The first is gone for good. The other has the node, and finds that it knows nothing.
	killKip(t)
	s.waitLogs(second, "no other Kip holds the node any more")
	s.Within(namespace.LossPatience, "it knows that its store is behind", func(context.Context) error {
		if out, errs, err := s.kipctl(socket, "generation"); err != nil || !strings.Contains(out, instance) {
			return fmt.Errorf("kipctl generation: %v: %s%s", err, out, errs)
		}
		return nil
	})
	signal(t, second, syscall.SIGKILL)
	<-second.Done()
	letGo(t)
	startKip(t)
	s.Eventually("exec in the pod", s.ExecTrue("a"))
	s.allUnmoved(before)
	s.counts("a", counted)
}
