//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Not parallel: it kills the Kip that all tests share. Parallel tests are
// paused while it runs.
func TestAPodDoesNotNoticeThatKipIsKilled(t *testing.T) {
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	before := s.WaitReady("a")
	instance := s.CellOf("a").Status.InstanceID

	s.Eventually("exec works", s.ExecTrue("a"))
	killKip(t)
	s.Never("exec works without Kip: the test killed something else", func(ctx context.Context) error {
		if s.ExecTrue("a")(ctx) == nil {
			return errors.New("it does")
		}
		return nil
	}, func(ctx context.Context) error {
		_, err := s.Pod(ctx, "a")
		return err
	})
	s.Kubectl("annotate", "pod", "a", "while-away=yes")
	startKip(t)

	s.Eventually("exec works again", s.ExecTrue("a"))
	after := s.WaitReady("a")
	b, a := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if a.ContainerID != b.ContainerID || a.RestartCount != 0 || after.UID != before.UID {
		t.Fatalf("the pod noticed: %s, %s before", namespace.States(after), namespace.States(before))
	}
	if got := s.CellOf("a").Status.InstanceID; got != instance {
		t.Fatalf("the pod moved from %s to %s", instance, got)
	}
	if log := s.Kubectl("logs", "a"); strings.Count(log, "started") != 1 {
		t.Fatalf("the log is %q", log)
	}
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
}

// Not parallel: it pauses the Kip that all tests share, for longer than pods' cells may
// be silent. It is Kip that was away, and not they.
func TestAPausedKipLosesNoPod(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	// The pause is longer than that, and shorter than what Kubernetes lets a node be silent.
	const silence, pause = 50 * time.Second, 60 * time.Second
	const _ = uint64(nodeGrace - nodeRoom - leaseAge - pause) // or it does not compile
	before := map[string]*corev1.Pod{}
	for _, name := range []string{"a", "b"} {
		s.Apply(strings.Replace(counting(name), "{name: "+name+"}",
			fmt.Sprintf("{name: %s, annotations: {pod.elotl.co/healthcheck-healthy-timeout: %q}}", name, fmt.Sprint(silence.Seconds())), 1))
	}
	s.Apply(namespace.Sleeper("deleted"))
	s.WaitReady("deleted")
	counted := map[string]int{}
	for _, name := range []string{"a", "b"} {
		before[name] = s.WaitReady(name)
		counted[name] = s.counts(name, 0)
	}
	pid, err := world.KipPID()
	if err != nil || pid == 0 {
		t.Fatalf("the world's Kip is process %d, %v", pid, err)
	}
	s.Eventually("exec works", s.ExecTrue("a"))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(goOn)
	paused := time.Now()
	s.Kubectl("delete", "pod", "deleted", "--wait=false")
	s.Apply(namespace.Sleeper("created"))
	s.Eventually("the pause is over", func(ctx context.Context) error {
		if err := s.NoCellOf("created")(ctx); err != nil {
			t.Fatalf("the test paused something else: %v", err)
		}
		if left := pause - time.Since(paused); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	goOn()
	s.WaitReady("created")
	s.WaitGone("deleted")
	s.Eventually("exec works again", s.ExecTrue("a"))
	s.allUnmoved(before)
	for name, n := range counted {
		s.counts(name, n)
	}
	if now, err := world.KipPID(); err != nil || now != pid {
		t.Errorf("Kip was process %d and is %d (%v)", pid, now, err)
	}
	s.deleteAll("a", "b", "created")
}

// A pod that is deleted, and one that is made, while Kip is dead.
func TestKipCatchesUpWithWhatHappenedWhileItWasDead(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	killKip(t)
	s.Kubectl("delete", "pod", "a", "--force", "--grace-period=0")
	s.Apply(namespace.Sleeper("b"))
	startKip(t)
	s.WaitGone("a")
	s.WaitReady("b")
}

// Kip is killed while it launches, in each phase of the cell: nothing is lost and
// nothing doubled. The cloud's calls are held so that the phase is the wanted one,
// and the dead Kip's store proves that it was. Ready is that of a standby cell,
// which waits there; the other cells pass it at once.
func TestAKilledLaunchIsTakenUpAgain(t *testing.T) {
	s := newSpace(t)
	killKip(t)
	w, socket := serveTo(t, openCloud(t))
	data := filepath.Join(shortDir(t), "data")
	start := func(standby int) *harness.Kip {
		t.Helper()
		return runKip(t, func(provider map[string]any) {
			provider["cloud"] = map[string]any{"sim": map[string]any{"socket": socket}}
			provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
			if standby > 0 {
				provider["cells"].(map[string]any)["standbyCells"] = []any{map[string]any{"instanceType": "small", "count": standby}}
			}
		})
	}
	// die kills a Kip, and proves that it had one cell in that phase and none in another.
	die := func(k *harness.Kip, phase apiv1.Phase) {
		t.Helper()
		signal(t, k, syscall.SIGKILL)
		<-k.Done()
		if got := storedPhases(t, data); !slices.Equal(got, []apiv1.Phase{phase}) {
			t.Fatalf("Kip was killed when its cells were %v, want one that is %s", got, phase)
		}
	}
	for _, at := range []struct {
		phase  apiv1.Phase
		moment moment // of the call that is held until Kip is dead
		freeze bool   // the machine is held, and not the call
	}{
		{apiv1.Requested, beforeList, false},
		{apiv1.Launching, beforeLaunch, false},
		{apiv1.Launching, afterLaunch, false},
		{apiv1.Booting, afterLaunch, true},
	} {
		name := strings.ReplaceAll(fmt.Sprintf("%s %s", strings.ToLower(string(at.phase)), at.moment), " ", "-")
		t.Logf("Kip is killed when a cell is %s, %s", at.phase, at.moment)
		held, dead := make(chan struct{}), make(chan struct{})
		var once sync.Once
		frozen := 0
		w.holding(func(ctx context.Context, m moment, launched []cloud.Instance) {
			if m != at.moment {
				return
			}
			if at.freeze {
				once.Do(func() {
					for _, i := range launched {
						side, err := host.Inspect(localCloud(), i.ID)
						if err == nil {
							frozen, err = side.PID, syscall.Kill(side.PID, syscall.SIGSTOP)
						}
						if err != nil {
							t.Errorf("freeze instance %s: %v", i.ID, err)
						}
					}
					close(held)
				})
				return
			}
			once.Do(func() { close(held) })
			select {
			case <-dead:
			case <-ctx.Done():
			}
		})
		k := start(0)
		s.Apply(namespace.Sleeper(name))
		s.Eventually(fmt.Sprintf("the moment %s", at.moment), func(context.Context) error {
			select {
			case <-held:
				return nil
			default:
				return errors.New("it has not come")
			}
		})
		s.waitPhase(name, at.phase)
		die(k, at.phase)
		close(dead)
		w.holding(nil)
		if at.freeze {
			if err := syscall.Kill(frozen, syscall.SIGCONT); err != nil {
				t.Errorf("let the machine go on: %v", err)
			}
		}
		k = start(0)
		s.WaitReady(name)
		s.CellOf(name)
		s.oneInstance()
		s.deleteAll(name)
		signal(t, k, syscall.SIGTERM)
		if err := s.waitEnd(k); err != nil {
			t.Error(err)
		}
	}

	k := start(1)
	kept := s.waitStandby(1)
	die(k, apiv1.Ready)
	s.Apply(namespace.Sleeper("ready"))
	k = start(1)
	s.WaitReady("ready")
	if cell := s.CellOf("ready").Name; len(kept) != 1 || kept[cell].Name == "" {
		t.Errorf("the pod runs on cell %s; the one that was ready when Kip died is %v", cell, kept)
	}
	s.deleteAll("ready")
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Error(err)
	}
	k = start(0) // without a pool
	s.Eventually("no machine is left", func(context.Context) error {
		left, err := machinesOnDisk()
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%v are", left)
		}
		return err
	})
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Error(err)
	}
}

// oneInstance proves that this host has one machine.
func (s *space) oneInstance() {
	s.Helper()
	if machines, err := machinesOnDisk(); err != nil || len(machines) != 1 {
		s.Errorf("the instances are %v, %v; want one", machines, err)
	}
}

// waitPhase waits until the pod's cell is in a phase, and in no later one.
func (s *space) waitPhase(name string, phase apiv1.Phase) {
	s.Helper()
	s.Eventually(fmt.Sprintf("the cell of pod %s is %s", name, phase), func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if c.Status.Pod.Name == name && c.Status.Phase == phase {
				return nil
			}
		}
		return fmt.Errorf("the cells are %+v", cells)
	})
}

// storedPhases are those of the cells in the store of a Kip that is dead.
func storedPhases(t *testing.T, dir string) (phases []apiv1.Phase) {
	t.Helper()
	st, err := store.OpenEmbedded(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := st.List(t.Context(), "", func(key string, data []byte, _ int64) error {
		if !strings.Contains(key, "cells/") {
			return nil
		}
		var cell struct {
			Phase apiv1.Phase `json:"phase"`
		}
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		phases = append(phases, cell.Phase)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return phases
}
