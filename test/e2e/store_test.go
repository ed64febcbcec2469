//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Not parallel: another Kip than the world's serves the node.
func TestAnEtcdThatIsDownStopsNothingThatRuns(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	killKip(t)
	etcd := serveEtcd(t)
	k := runKip(t, func(provider map[string]any) { etcd.use(t, provider) })
	s.waitLeads(k)
	s.Apply(counting("a"))
	s.Apply(namespace.Sleeper("deleted"))
	before := map[string]*corev1.Pod{"a": s.WaitReady("a")}
	s.WaitReady("deleted")
	m, counted := s.machine("a"), s.counts("a", 0)
	s.waitReadyz(k, 200)

	// Longer than the lease of a leader, and shorter than what Kubernetes lets a node be
	// silent: a Kip without its store does not lead, and who does not lead does not renew the
	// node's lease.
	const outage = 30 * time.Second
	const _ = uint64(nodeGrace - nodeRoom - leaseAge - outage) // or it does not compile
	began := time.Now()
	etcd.Stop()
	t.Logf("/readyz says\n%s", s.waitReadyz(k, 500, "[-]store failed: "))
	if code, text, err := k.Get(t.Context(), "/healthz"); err != nil || code != 200 {
		t.Errorf("/healthz answers %d: %s, %v; a Kip that is started again cannot do more", code, text, err)
	}
	s.Apply(namespace.Sleeper("created"))
	s.Kubectl("delete", "pod", "deleted", "--wait=false")
	s.Eventually("the outage is over", func(context.Context) error {
		if err := syscall.Kill(m.pid, 0); err != nil {
			t.Fatalf("the machine of pod a: %v", err)
		}
		if left := outage - time.Since(began); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	if got := s.waitReadyz(k, 500, "[-]store failed: "); !nodeIsReady(s) {
		t.Errorf("after %s the node is not Ready; /readyz says %s", outage, got)
	}
	etcd.Start(t)
	again := time.Now()
	s.waitReadyz(k, 200)
	s.WaitReady("created")
	s.WaitGone("deleted")
	t.Logf("%.1f s after etcd was back all was done", time.Since(again).Seconds())
	s.allUnmoved(before)
	s.counts("a", counted)
	select {
	case <-k.Done():
		t.Errorf("Kip ended: %v", k.Err())
	default:
	}

	s.deleteAll("a", "created")
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Errorf("Kip ended with %v", err)
	}
}

// Not parallel: another Kip than the world's serves the node.
func TestAFullDiskUnderKipStopsNothingThatRuns(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	killKip(t)
	disk := shortDir(t)
	// Room for etcd's log, which claims two segments of 64 MiB ahead.
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=512m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	k := runKip(t, func(provider map[string]any) {
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": filepath.Join(disk, "data")}}
	})
	s.waitWorks(k, filepath.Join(disk, "data", "kip.sock"))
	s.Apply(counting("a"))
	s.Apply(namespace.Sleeper("deleted"))
	before := map[string]*corev1.Pod{"a": s.WaitReady("a")}
	s.WaitReady("deleted")
	counted := s.counts("a", 0)

	ballast := filepath.Join(disk, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fill := func(left uint64) {
		var room unix.Statfs_t
		s.Eventually("the disk is full", func(context.Context) error {
			if err := unix.Statfs(disk, &room); err != nil {
				return err
			}
			blocks := left / uint64(room.Bsize)
			if room.Bavail <= blocks {
				return nil
			}
			info, err := f.Stat()
			if err != nil {
				return err
			}
			err = unix.Fallocate(int(f.Fd()), 0, info.Size(), int64(room.Bavail-blocks)*room.Bsize)
			return errors.Join(err, errors.New("there was room"))
		})
	}
	// Not at once: what etcd has taken by then it has to commit.
	fill(32 << 20)
	s.waitReadyz(k, 500, "[-]store failed: ")
	fill(0)
	t.Logf("/readyz says\n%s", s.waitReadyz(k, 500, "[-]store failed: ", "0 MiB left"))
	s.Apply(namespace.Sleeper("created"))
	s.WaitEvent("created", "CellNotRequested", "0 MiB left")
	s.Kubectl("delete", "pod", "deleted", "--wait=false")
	s.allUnmoved(before) // exec works

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.waitReadyz(k, 200)
	s.WaitReady("created")
	s.WaitGone("deleted")
	s.allUnmoved(before)
	s.counts("a", counted)
	s.deleteAll("a", "created")
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Errorf("Kip ended with %v", err)
	}
}
