//go:build e2e

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// kustomizeNamespace is that of the base.
const kustomizeNamespace = "kube-system"

// overlay writes a user's overlay of a Kip's base, which has the settings of the chart's values and profiles, into a folder.
func overlay(s *namespace.Space, folder string, of build, step string, profiles ...any) {
	s.Helper()
	_, file := chart(s.T)
	values := readValues[settings](s.T, file)
	base, err := filepath.Rel(folder, filepath.Join(of.deploy, "manifests", "kip", "base"))
	if err != nil {
		s.Fatal(err)
	}
	values.Config["servingCertificate"] = map[string]any{"signerName": "kubernetes.io/kubelet-serving"}
	components := []string{}
	if len(profiles) > 0 {
		values.Config["admission"] = map[string]any{"profiles": profiles}
		components = append(components, base+"/profiles")
	}
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
	writeYAML(s.T, filepath.Join(folder, "kustomization.yaml"), map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": kustomizeNamespace,
		"resources": []string{base}, "components": components,
		"images": []any{map[string]any{
			"name": "ghcr.io/elotl/kip", "newName": values.Image.Repository, "newTag": of.version,
		}},
		"configMapGenerator": []any{map[string]any{"name": "config", "behavior": "merge", "files": []string{"provider.yaml"}}},
		"secretGenerator":    []any{map[string]any{"name": "kip-credentials", "envs": []string{"credentials.env"}}},
		"patches":            []any{map[string]any{"patch": string(patchText)}},
	})
	values.provider(s.T, folder)
	if err := os.WriteFile(filepath.Join(folder, "credentials.env"), []byte(strings.Join(credentials, "\n")+"\n"), 0o600); err != nil {
		s.Fatal(err)
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
	volume := node.Volume("kip-kustomize", "node-1", "kustomize", types.NamespacedName{Namespace: kustomizeNamespace, Name: "data-" + kipPod})
	if _, err := world.Admin.CoreV1().PersistentVolumes().Create(s.Context(), volume, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// It leaves no Kip.
func TestKipIsInstalledUpgradedRolledBackAndRemovedByKustomize(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	if out, err := helm(t, "uninstall", release, "--wait", "--ignore-not-found"); err != nil {
		t.Fatalf("uninstall the chart: %v\n%s", err, out)
	}
	claimed(s)
	// From the older Kip and back, where there is one.
	now := thisKip(t)
	first, steps := now, []build{now}
	if older, why := olderKip(t); why == "" {
		first, steps = older, []build{now, older, now}
	} else {
		t.Log(why)
	}
	folder := t.TempDir()
	overlay(s, folder, first, "install")
	run(s, world.Kubectl(t.Context(), "apply", "-k", folder))
	pod := kipIn(s, kustomizeNamespace, nil)
	runs(s, kustomizeNamespace, first)
	stays := newKept(s)
	s.Apply(job)
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	if text := s.Kubectl("logs", "job/hello"); text != "hello\n" {
		t.Errorf("the Job logged %q", text)
	}
	stays.unmoved("an installation by kustomize")

	for i, to := range steps {
		step := fmt.Sprint("step ", i)
		overlay(s, folder, to, step)
		run(s, world.Kubectl(t.Context(), "apply", "-k", folder))
		if pod = kipIn(s, kustomizeNamespace, pod); pod.Annotations["step"] != step {
			t.Errorf("in %s Kip's pod has annotations %v", step, pod.Annotations)
		}
		runs(s, kustomizeNamespace, to)
		stays.unmoved(step + " by kustomize")
		runNew(s, fmt.Sprint("kustomize-", i))
	}

	overlay(s, folder, now, "profiles", profiles(s.NS)[0])
	run(s, world.Kubectl(t.Context(), "apply", "-k", folder))
	kipIn(s, kustomizeNamespace, pod)
	s.Eventually("the API server asks Kip about pods of profiles", func(ctx context.Context) error {
		made, err := madeAs(ctx, s, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"runs": "never"}}})
		if err == nil && made.Annotations["pod.elotl.co/profile"] != "never" {
			err = errors.New("it does not")
		}
		return err
	})
	stays.unmoved("profiles by kustomize")

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
