//go:build e2e

package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// kustomizeNamespace is that of the base.
const kustomizeNamespace = "kube-system"

// overlay writes a user's overlay of the base, which has the settings of the chart's values, into a folder.
func overlay(s *namespace.Space, folder, step string) {
	s.Helper()
	_, file := chart(s.T)
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	var values struct {
		Config      map[string]any
		Image       struct{ Repository, Tag string }
		Credentials struct{ Data map[string]string }
		ExtraEnv    []map[string]any
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		s.Fatal(err)
	}
	root, err := harness.Repository()
	if err != nil {
		s.Fatal(err)
	}
	base, err := filepath.Rel(folder, filepath.Join(root, "deploy", "manifests", "kip", "base"))
	if err != nil {
		s.Fatal(err)
	}
	values.Config["servingCertificate"] = map[string]any{"signerName": "kubernetes.io/kubelet-serving"}
	var credentials []string
	for key, value := range values.Credentials.Data {
		credentials = append(credentials, key+"="+value)
	}
	patch := map[string]any{
		"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": map[string]any{"name": "kip", "namespace": kustomizeNamespace},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"step": step}},
			"spec": map[string]any{"containers": []any{map[string]any{
				"name": "kip", "env": values.ExtraEnv,
				"envFrom": []any{map[string]any{"secretRef": map[string]any{"name": "kip-credentials"}}},
			}}},
		}},
	}
	patchText, err := yaml.Marshal(patch)
	if err != nil {
		s.Fatal(err)
	}
	kustomization, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": kustomizeNamespace,
		"resources": []string{base},
		"images": []any{map[string]any{
			"name": "ghcr.io/elotl/kip", "newName": values.Image.Repository, "newTag": values.Image.Tag,
		}},
		"configMapGenerator": []any{map[string]any{"name": "config", "behavior": "merge", "files": []string{"provider.yaml"}}},
		"secretGenerator":    []any{map[string]any{"name": "kip-credentials", "envs": []string{"credentials.env"}}},
		"patches":            []any{map[string]any{"patch": string(patchText)}},
	})
	if err != nil {
		s.Fatal(err)
	}
	provider, err := yaml.Marshal(values.Config)
	if err != nil {
		s.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"kustomization.yaml": kustomization, "provider.yaml": provider, "credentials.env": []byte(strings.Join(credentials, "\n") + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

// claimed makes the volume for the claim of the base.
func claimed(s *namespace.Space) {
	s.Helper()
	folders, err := volumeFolders()
	if err != nil {
		s.Fatal(err)
	}
	for _, folder := range folders {
		if err := os.MkdirAll(filepath.Join(folder, "kustomize"), 0o777); err != nil {
			s.Fatal(err)
		}
	}
	_, err = world.Admin.CoreV1().PersistentVolumes().Create(s.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "kip-kustomize"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: kustomizeNamespace, Name: "data-" + kipPod},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: filepath.Join(node.VolumeDir, "kustomize")},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// It leaves no Kip.
func TestKipIsInstalledUpgradedAndRemovedByKustomize(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	if out, err := helm(t, "uninstall", release, "--wait", "--ignore-not-found"); err != nil {
		t.Fatalf("uninstall the chart: %v\n%s", err, out)
	}
	claimed(s)
	folder := t.TempDir()
	overlay(s, folder, "install")
	run(s, world.Kubectl(t.Context(), "apply", "-k", folder))
	first := kipIn(s, kustomizeNamespace, nil)
	stays := newKept(s)
	s.Apply(job)
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	if text := s.Kubectl("logs", "job/hello"); text != "hello\n" {
		t.Errorf("the Job logged %q", text)
	}
	stays.unmoved("an installation by kustomize")

	overlay(s, folder, "upgrade")
	run(s, world.Kubectl(t.Context(), "apply", "-k", folder))
	if second := kipIn(s, kustomizeNamespace, first); second.Annotations["step"] != "upgrade" {
		t.Errorf("the upgraded pod has annotations %v", second.Annotations)
	}
	stays.unmoved("an upgrade by kustomize")

	out := s.Kubectl("exec", "-n", kustomizeNamespace, kipPod, "--", "/kipctl", "cleanup", "--yes")
	if !strings.Contains(out, "node") {
		t.Errorf("kipctl cleanup says\n%s", out)
	}
	s.Eventually("all cells are gone", s.NoCells)
	if out, _, err := namespace.Run(world.Kubectl(t.Context(), "get", "node", harness.Node)); err == nil {
		t.Errorf("the node is left:\n%s", out)
	}
	run(s, world.Kubectl(t.Context(), "delete", "-k", folder))
	// It has taken the definition of Cell along, as docs/uninstall.md says.
	run(s, exec.CommandContext(t.Context(), world.Tool("kipctl"), "crd", "update", "--kubeconfig", world.Kubeconfig))
}

func run(s *namespace.Space, cmd *exec.Cmd) {
	s.Helper()
	if out, errs, err := namespace.Run(cmd); err != nil {
		s.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, errs)
	}
}
