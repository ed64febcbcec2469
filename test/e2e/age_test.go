//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// makeOlder has the cells in the store of a Kip that is dead be older by so much.
func makeOlder(t *testing.T, dir string, by time.Duration, cells ...string) {
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
	wanted := map[string]bool{}
	for _, c := range cells {
		wanted[c] = true
	}
	var all []store.Change
	if err := st.List(t.Context(), "", func(key string, data []byte, revision int64) error {
		if !wanted[filepath.Base(key)] {
			return nil
		}
		var cell, instance map[string]json.RawMessage
		var steps []apiv1.Step
		var launched time.Time
		if err := json.Unmarshal(data, &cell); err != nil {
			return err
		}
		for _, into := range []struct {
			from json.RawMessage
			to   any
		}{{cell["steps"], &steps}, {cell["instance"], &instance}} {
			if err := json.Unmarshal(into.from, into.to); err != nil {
				return err
			}
		}
		if err := json.Unmarshal(instance["launched"], &launched); err != nil {
			return err
		}
		for i := range steps {
			steps[i].Time.Time = steps[i].Time.Add(-by)
		}
		encode := func(v any) json.RawMessage {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		instance["launched"] = encode(launched.Add(-by))
		cell["steps"], cell["instance"] = encode(steps), encode(instance)
		all = append(all, store.Change{Key: key, Value: cell, Revision: revision})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(all) != len(cells) {
		t.Fatalf("the store has %d of the cells %v", len(all), cells)
	}
	if _, err := st.Apply(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
}

// Not parallel: Kip starts with other settings, and its store is changed meanwhile.
func TestPodsLeaveCellsThatAreTooOldWithinTheirDisruptionBudgets(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	deployment := func(name string) string {
		return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity]}]
---
`, name)
	}
	s.Apply(deployment("moves") + deployment("kept") + deployment("young") + `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: kept}
spec: {minAvailable: 1, selector: {matchLabels: {app: kept}}}
`)
	s.Apply(namespace.Sleeper("bare"))
	was, cells := map[string]*corev1.Pod{}, map[string]string{}
	for _, app := range []string{"moves", "kept", "young"} {
		was[app] = s.ready(app, "")
	}
	was["bare"] = s.WaitReady("bare")
	for name, pod := range was {
		cells[name] = s.CellOf(pod.Name).Name
	}

	killKip(t)
	makeOlder(t, filepath.Join(world.State, "kip"), 2*time.Hour, cells["moves"], cells["kept"], cells["bare"])
	restore := reconfigure(t, map[string]any{"maxAge": 3600})
	moved := s.ready("moves", was["moves"].Name)
	if cell := s.CellOf(moved.Name); cell.Name == cells["moves"] || cell.Status.Phase != apiv1.Bound {
		t.Errorf("the pod that replaces it is on cell %s, %s", cell.Name, cell.Status.Phase)
	}
	s.WaitEvent(was["moves"].Name, "Evicted", "cells.maxAge is 1h")
	s.WaitEvent(was["kept"].Name, "EvictionBlocked", "older than 1h")
	s.WaitEvent("bare", "AgedPodStays", "no controller would replace it")
	stays := func(names ...string) {
		t.Helper()
		for _, name := range names {
			p, err := s.Pod(t.Context(), was[name].Name)
			if err != nil || p.UID != was[name].UID || p.DeletionTimestamp != nil || p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("pod %s is %+v, %v", was[name].Name, p, err)
			}
		}
	}
	stays("kept", "young", "bare")

	s.Kubectl("delete", "pdb", "kept")
	s.Within(servedAgain, "the pod leaves once its budget allows it", func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, "kept")
		if err != nil || len(pods) != 1 || pods[0].UID == was["kept"].UID || !namespace.IsReady(&pods[0]) {
			return fmt.Errorf("its pods are %+v, %w", pods, err)
		}
		return nil
	})
	stays("young", "bare")
	s.Kubectl("delete", "deployment", "moves", "kept", "young")
	s.Kubectl("delete", "pod", "bare", "--wait=false")
	s.Eventually("all cells are gone", s.NoCells)
	restore()
}

// ready waits for the one pod of an app to be Ready, another than that of a name.
func (s *space) ready(app, other string) *corev1.Pod {
	s.Helper()
	var found *corev1.Pod
	s.Within(servedAgain, "a pod of "+app+" is Ready, other than "+other, func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, app)
		if err != nil || len(pods) != 1 || pods[0].Name == other || !namespace.IsReady(&pods[0]) {
			return fmt.Errorf("its pods are %d: %+v, %w", len(pods), pods, err)
		}
		found = &pods[0]
		return nil
	})
	return found
}
