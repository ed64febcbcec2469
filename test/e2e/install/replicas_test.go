//go:build e2e

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/store/storetest"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// installed installs Kip as at first, if an earlier test has removed it.
func installed(s *namespace.Space) {
	s.Helper()
	folder, values := chart(s.T)
	out, err := helm(s.T, "upgrade", release, folder, "--install", "--values", values, "--wait", "--timeout", "5m")
	if err != nil {
		s.Fatalf("install: %v\n%s", err, out)
	}
	kip(s, nil)
}

// stop ends Kip's pod, as whoever looks after its store does.
func stop(s *namespace.Space) {
	s.Helper()
	s.Kubectl("scale", "statefulset", release, "-n", kipNamespace, "--replicas=0")
	s.Kubectl("wait", "--for=delete", "pod/"+kipPod, "-n", kipNamespace, "--timeout=2m")
}

// One test, since each step needs the one before. It leaves no Kip. A NetworkPolicy holds, behind which the replicas reach their etcd.
func TestKipIsMovedToAnEtcdOfItsUsersAndServedByTwoReplicas(t *testing.T) {
	tier.All(t)
	etcd := storetest.ServeAt(t, ownNetwork.Host(), nil) // it ends after the namespace
	s := namespace.New(t, world)
	installed(s)
	enforce(s, "node-1")
	enforce(s, "node-2")
	stays := newKept(s)

	backup := filepath.Join(t.TempDir(), "kip.backup")
	content := s.Kubectl("exec", "-n", kipNamespace, kipPod, "--", "/kipctl", "backup")
	if err := os.WriteFile(backup, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	stop(s)
	policy := ownPolicy(t, s.NS)
	values := withValues(t, func(v map[string]any) {
		v["networkPolicy"] = policy
		v["config"].(map[string]any)["etcd"] = map[string]any{
			"client": map[string]any{"endpoints": []string{"http://" + etcd.Endpoint}, "allowPlainText": true},
		}
		v["uninstall"] = map[string]any{"force": true}
	})
	restore(s, backup, values)
	folder, _ := chart(t)
	if out, err := helm(t, "upgrade", release, folder, "--values", values, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("move to another etcd: %v\n%s", err, out)
	}
	if leader := leads(s); len(leader.OwnerReferences) != 1 || leader.OwnerReferences[0].Kind != "ReplicaSet" {
		t.Errorf("Kip's pod %s belongs to %+v", leader.Name, leader.OwnerReferences)
	}
	stays.unmoved("a move to another etcd")

	s.Kubectl("rollout", "restart", "deployment/"+release, "-n", kipNamespace)
	s.Kubectl("rollout", "status", "deployment/"+release, "-n", kipNamespace, "--timeout=5m")
	leads(s)
	stays.unmoved("a rolling update")

	drained := leads(s).Spec.NodeName
	s.Kubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m")
	if after := leads(s); after.Spec.NodeName == drained {
		t.Errorf("node %s was drained, and Kip's pod %s leads on it", drained, after.Name)
	}
	stays.unmoved("the drain of Kip's node")
	s.Apply(job)
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	s.Kubectl("uncordon", drained)

	if out, err := helm(t, "uninstall", release, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("uninstall by force: %v\n%s", err, out)
	}
	s.Eventually("all cells are gone", s.NoCells)
}

// restore writes a backup into the store that values name, by kipctl on this host.
func restore(s *namespace.Space, backup, values string) {
	s.Helper()
	provider := readValues[settings](s.T, values).provider(s.T, s.TempDir())
	out, errs, err := namespace.Run(exec.CommandContext(s.Context(), world.Tool("kipctl"), "restore", backup, "--provider-config", provider,
		"--node", harness.Node, "--kubeconfig", world.Kubeconfig))
	if err != nil {
		s.Fatalf("restore: %v\n%s%s", err, out, errs)
	}
}

// leads waits until two pods of Kip are Ready, and the node shows the address of one, which it returns.
func leads(s *namespace.Space) (found *corev1.Pod) {
	s.Helper()
	s.Eventually("one of two pods of Kip leads", func(ctx context.Context) error {
		pods, err := world.Admin.CoreV1().Pods(kipNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=kip-provider"})
		if err != nil {
			return err
		}
		virtual, err := world.Admin.CoreV1().Nodes().Get(ctx, harness.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := 0
		found = nil
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.DeletionTimestamp != nil || !namespace.IsReady(p) {
				continue
			}
			ready++
			for _, a := range virtual.Status.Addresses {
				if a.Type == corev1.NodeInternalIP && a.Address == p.Status.PodIP {
					found = p
				}
			}
		}
		switch {
		case ready != 2:
			return fmt.Errorf("%d of %d are Ready", ready, len(pods.Items))
		case found == nil:
			return fmt.Errorf("the node has the addresses %v", virtual.Status.Addresses)
		}
		return nil
	})
	return found
}

// As the documents of old say: a copy of the volume's folder, taken while Kip writes.
func TestKipIsRestoredFromACopyOfItsVolume(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	stays := newKept(s)
	volume, err := volumeFolder()
	if err != nil {
		t.Fatal(err)
	}
	// Kip has much to store meanwhile.
	s.Apply(load)
	s.Kubectl("rollout", "status", "deployment/load", "--timeout=5m")
	copied := filepath.Join(t.TempDir(), "copy")
	s.Kubectl("scale", "deployment/load", "--replicas=1")
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", volume, copied).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v: %s", volume, err, out)
	}
	s.Kubectl("rollout", "status", "deployment/load", "--timeout=5m")

	stop(s)
	left, err := os.ReadDir(volume)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(volume, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-aT", copied, volume).CombinedOutput(); err != nil {
		t.Fatalf("bring %s back: %v: %s", volume, err, out)
	}
	s.Kubectl("scale", "statefulset", release, "-n", kipNamespace, "--replicas=1")
	kip(s, nil)
	stays.unmoved("a restore of a copy of the volume")
	s.Kubectl("delete", "deployment", "load")
	s.Kubectl("delete", "pod", "stays")
	s.Eventually("all cells are gone", s.NoCells)
	log(s)
}

// tolerates is the toleration that Kip's webhook adds, of pods that may be made while no Kip answers.
const tolerates = `tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]`

// load are pods that come and go.
const load = `apiVersion: apps/v1
kind: Deployment
metadata: {name: load}
spec:
  replicas: 3
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      ` + tolerates + `
` + namespace.Sleeps

// volumeFolder is where this host sees the volume of Kip's store, which is on the disk of a node's machine.
func volumeFolder() (string, error) {
	folders, err := volumeFolders()
	if err != nil {
		return "", err
	}
	for _, folder := range folders {
		if within, err := os.ReadDir(folder); err == nil && len(within) > 0 {
			return folder, nil
		}
	}
	return "", errors.New("no node's machine has a volume with anything in it")
}

// volumeFolders are where this host sees the folder for volumes of each node's machine.
func volumeFolders() (folders []string, err error) {
	nodes := host.Config{StateDir: filepath.Join(world.State, "nodes")}
	machines, err := host.Recorded(nodes)
	if err != nil {
		return nil, err
	}
	for _, m := range machines {
		side, err := host.Inspect(nodes, m.ID)
		if err != nil {
			return nil, err
		}
		folders = append(folders, filepath.Join("/proc", strconv.Itoa(side.PID), "root", node.VolumeDir))
	}
	return folders, nil
}
