package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/elotl/kip/test/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"
)

// moreNodes is how many virtual nodes are measured.
const moreNodes = 20

// nodes measures what virtual nodes without pods cost.
func nodes(ctx context.Context) (err error) {
	w, err := harness.Start(ctx, harness.Options{
		Name:   "kipnodes0",
		CIDR:   "10.115.0.0/16",
		Stderr: os.Stderr,
		Fsync:  true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	b := bed{w}
	if err := b.NodeReady(ctx); err != nil {
		return err
	}
	before, err := b.costOfNodes(ctx)
	if err != nil {
		return err
	}
	if err := b.addNodes(ctx, moreNodes); err != nil {
		return err
	}
	after, err := b.costOfNodes(ctx)
	if err != nil {
		return err
	}
	print(fmt.Sprintf("nodes_%d_memory_bytes", moreNodes), after.memory-before.memory, "B")
	print(fmt.Sprintf("nodes_%d_goroutines", moreNodes), after.goroutines-before.goroutines, "goroutines")
	print(fmt.Sprintf("nodes_%d_api_watches", moreNodes), after.watches-before.watches, "watches")
	print(fmt.Sprintf("nodes_%d_leases", moreNodes), after.leases-before.leases, "leases")
	return nil
}

type cost struct{ memory, goroutines, watches, leases float64 }

// costOfNodes is what Kip and the API server have when nothing happens.
func (b bed) costOfNodes(ctx context.Context) (c cost, err error) {
	if err := harness.Sleep(ctx, settle); err != nil {
		return c, err
	}
	pid, err := b.KipPID()
	if err != nil {
		return c, err
	}
	leases, err := b.Admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return c, err
	}
	c.leases = float64(len(leases.Items))
	memory, err := residentBytes(pid)
	if err != nil {
		return c, err
	}
	c.memory = memory
	if c.goroutines, err = b.kipMetric(ctx, "go_goroutines"); err != nil {
		return c, err
	}
	c.watches, err = b.openWatches(ctx)
	return c, err
}

// addNodes gives Kip, which runs on, n virtual nodes beside the one that it has, and
// waits until they are Ready.
func (b bed) addNodes(ctx context.Context, n int) error {
	path := filepath.Join(b.State, "provider.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	provider := map[string]any{}
	if err := yaml.Unmarshal(data, &provider); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	list := []any{map[string]any{"suffix": 0}}
	for i := range n {
		list = append(list, map[string]any{"suffix": i + 1, "labels": map[string]any{"number": strconv.Itoa(i + 1)}})
	}
	provider["nodes"] = list
	if data, err = yaml.Marshal(provider); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		all, err := b.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "number"})
		if err != nil {
			return false, err
		}
		ready := 0
		for _, node := range all.Items {
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		return ready == n, nil
	})
}
