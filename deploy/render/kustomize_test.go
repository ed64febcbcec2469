package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// build is what kustomize build prints of a folder, by kind and name.
func build(t *testing.T, folder string) map[string]*unstructured.Unstructured {
	t.Helper()
	text, err := kustomized(folder)
	if err != nil {
		t.Fatalf("build %s: %v", folder, err)
	}
	return byName(t, text)
}

// kustomized is what kustomize build prints of a folder.
func kustomized(folder string) (string, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return "", err
	}
	text, err := resources.AsYaml()
	return string(text), err
}

// byName are the objects of a YAML text, by kind and name.
func byName(t *testing.T, text string) map[string]*unstructured.Unstructured {
	t.Helper()
	out := map[string]*unstructured.Unstructured{}
	for _, document := range documents(text) {
		o := object(t, document)
		out[o.GetKind()+" "+o.GetName()] = o
	}
	return out
}

func manifests(folder string) string { return filepath.Join(top, "deploy/manifests", folder) }

// suffix is what kustomize appends to a name of a generated object.
var suffix = regexp.MustCompile(`\b(config|kip-credentials|kip-cloud-init)-[0-9a-z]{10}\b`)

func TestBaseAndChartRenderTheSameObjects(t *testing.T) {
	c, err := loadChart(top)
	if err != nil {
		t.Fatal(err)
	}
	for base := range bases {
		r, err := baseRelease(top, base)
		if err != nil {
			t.Fatal(err)
		}
		// The chart makes the ConfigMap itself, under another name, and rolls Kip's pods by its checksum.
		name := r.values["existingConfigMap"].(string)
		delete(r.values, "existingConfigMap")
		outputs, err := r.render(c)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(together(outputs)), r.name+"-config", name)
		want := map[string]*unstructured.Unstructured{}
		for _, document := range documents(text) {
			o := object(t, document)
			unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "annotations")
			want[o.GetKind()+" "+o.GetName()] = o
		}
		is := map[string]*unstructured.Unstructured{}
		for key, o := range build(t, filepath.Join(top, base)) {
			data, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			is[suffix.ReplaceAllString(key, "$1")] = object(t, suffix.ReplaceAllString(string(data), "$1"))
		}
		definition := "CustomResourceDefinition cells.kip.elotl.co"
		if is[definition] == nil {
			t.Errorf("%s lacks the %s", base, definition)
		}
		delete(is, definition)
		config := "ConfigMap " + name
		for _, o := range []*unstructured.Unstructured{is[config], want[config]} {
			if o == nil {
				t.Fatalf("%s: there is no %s in\n%v\nnor in\n%v", base, config, slices.Collect(maps.Keys(is)), slices.Collect(maps.Keys(want)))
			}
			o.SetLabels(nil)
			var provider map[string]any
			text, _, err := unstructured.NestedString(o.Object, "data", "provider.yaml")
			if err == nil {
				err = yaml.Unmarshal([]byte(text), &provider)
			}
			if err != nil || len(provider) == 0 {
				t.Fatalf("%s: %v", text, err)
			}
			o.Object["data"] = provider
		}
		if role := "ServiceAccount kip-provider"; want[role] != nil && base != "deploy/manifests/kip/base" {
			is[role].SetAnnotations(nil) // the overlay's example of a role
		}
		for key, o := range want {
			if is[key] == nil {
				t.Errorf("%s lacks %s", base, key)
			} else if !reflect.DeepEqual(is[key].Object, o.Object) {
				t.Errorf("%s: %s is\n%v\nand by the chart\n%v", base, key, is[key].Object, o.Object)
			}
		}
		for key := range is {
			if want[key] == nil {
				t.Errorf("%s has %s, which the chart has not", base, key)
			}
		}
	}
}

// The names of the guides of 2020.
func TestBasesHaveTheNamesOfTheirGuides(t *testing.T) {
	for folder, c := range map[string]struct{ workload, node, config, claim string }{
		"kip/base":             {"StatefulSet kip", "kip-0", "config", "data"},
		"kip/overlays/aws-eks": {"StatefulSet kip-provider", "kip-provider-0", "config", "data"},
		"virtual-kubelet/base": {"Deployment virtual-kubelet", "virtual-kubelet", "virtual-kubelet-config", ""},
	} {
		all := build(t, manifests(folder))
		o := all[c.workload]
		if o == nil {
			t.Fatalf("%s has no %s", folder, c.workload)
		}
		pod := podOf(t, []*unstructured.Unstructured{o})
		labels, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels")
		if o.GetNamespace() != "kube-system" || labels["app"] != "kip-provider" || pod.Containers[0].Name != "kip" ||
			!slices.Contains(pod.Containers[0].Args, "--nodename="+c.node) {
			t.Errorf("%s: namespace %s, labels %v, container 0 %+v", folder, o.GetNamespace(), labels, pod.Containers[0])
		}
		claims, _, _ := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
		claim := ""
		for _, one := range claims {
			claim, _, _ = unstructured.NestedString(one.(map[string]any), "metadata", "name")
		}
		if claim != c.claim {
			t.Errorf("%s: the claim is of %q", folder, claim)
		}
		found := false
		for key, o := range all {
			if text, _, _ := unstructured.NestedString(o.Object, "data", "provider.yaml"); text != "" {
				found = suffix.ReplaceAllString(key, "$1") == "ConfigMap "+c.config
				if got := pod.Volumes[0].ConfigMap; got == nil || "ConfigMap "+got.Name != key {
					t.Errorf("%s: %s is not mounted: %v", folder, key, pod.Volumes[0])
				}
			}
		}
		if !found {
			t.Errorf("%s has no ConfigMap %s with provider.yaml", folder, c.config)
		}
	}
}

func TestOverlaysChangeTheBase(t *testing.T) {
	base := build(t, manifests("kip/base"))
	for overlay, word := range map[string]string{
		"gcp":          "projectID: my-project",
		"minikube":     "extraCIDRs",
		"cloudinit":    "cloudInitFile: /etc/kip/cloud-init/cells.yaml",
		"conformance":  "unrestricted: true",
		"local-config": "defaultInstanceType",
	} {
		all := build(t, manifests("kip/overlays/"+overlay))
		found := false
		for key, o := range all {
			text, _, _ := unstructured.NestedString(o.Object, "data", "provider.yaml")
			found = found || strings.HasPrefix(key, "ConfigMap config-") && strings.Contains(text, word)
		}
		if !found {
			t.Errorf("no provider.yaml of overlay %s has %q", overlay, word)
		}
		for key := range base {
			if !strings.HasPrefix(key, "ConfigMap ") && all[key] == nil {
				t.Errorf("overlay %s lacks %s", overlay, key)
			}
		}
		pod := podOf(t, []*unstructured.Unstructured{all["StatefulSet kip"]})
		for name := range map[string]bool{"minikube": true, "cloudinit": true} {
			secret := ""
			for key := range all {
				if strings.HasPrefix(key, "Secret ") {
					secret = strings.TrimPrefix(key, "Secret ")
				}
			}
			if name != overlay {
				continue
			}
			used := slices.ContainsFunc(pod.Containers[0].EnvFrom, func(e corev1.EnvFromSource) bool { return e.SecretRef.Name == secret }) ||
				slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == secret })
			if secret == "" || !used {
				t.Errorf("overlay %s: Kip does not have Secret %q", overlay, secret)
			}
		}
		if disabled := slices.Contains(pod.Containers[0].Args, "--disable-taint"); disabled != (overlay == "conformance") {
			t.Errorf("overlay %s: args %v", overlay, pod.Containers[0].Args)
		}
	}
}

// Pods of 2020 name profiles and groups: no policy refuses these, and the rendered provider.yaml is the one beside the overlay, of which
// internal/kip asks that it grants them.
func TestNothingRefusesThePodsOf2020BeforeKipIsAsked(t *testing.T) {
	for _, folder := range []string{
		"kip/base", "virtual-kubelet/base", "kip/overlays/aws-eks", "kip/overlays/local-config", "kip/overlays/minikube",
		"kip/overlays/cloudinit",
	} {
		want, err := os.ReadFile(filepath.Join(manifests(folder), "provider.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for key, o := range build(t, manifests(folder)) {
			text, _, _ := unstructured.NestedString(o.Object, "data", "provider.yaml")
			found = found || text == string(want)
			if strings.Contains(key, "kip-pod-annotations") {
				t.Errorf("%s has the %s", folder, key)
			}
		}
		if !found {
			t.Errorf("%s does not have the provider.yaml of its folder", folder)
		}
	}
}

// A kustomization that names the folder profiles or daemonsets of a base has the webhooks that the chart makes, in the same order: the
// API server calls them so, and those of profiles are not to come before those of pods that select Kip's nodes.
func TestABaseHasFurtherWebhooksAsComponents(t *testing.T) {
	for name, folders := range map[string][]string{"profiles": {"profiles"}, "sets": {"daemonsets"}, "both": {"daemonsets", "profiles"}} {
		t.Run(name, func(t *testing.T) { hasComponents(t, folders) })
	}
}

// hasComponents checks that a base with components has the webhooks of the chart.
func hasComponents(t *testing.T, folders []string) {
	c, err := loadChart(top)
	if err != nil {
		t.Fatal(err)
	}
	for base := range bases {
		r, err := baseRelease(top, base)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]any{}
		for _, folder := range folders {
			values[components[folder].key] = true
		}
		r.values["webhook"] = values
		outputs, err := r.render(c)
		if err != nil {
			t.Fatal(err)
		}
		// As in an overlay of a user's own.
		folder := t.TempDir()
		at, err := filepath.Abs(filepath.Join(top, base))
		if err == nil {
			at, err = filepath.Rel(folder, at)
		}
		if err == nil {
			text := fmt.Appendf(nil, "resources: [%s]\ncomponents:\n", at)
			for _, folder := range folders {
				text = fmt.Appendf(text, "- %s/%s\n", at, folder)
			}
			err = os.WriteFile(filepath.Join(folder, "kustomization.yaml"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		is := build(t, folder)
		for name, want := range byName(t, string(outputs["webhook"])) {
			if is[name] == nil || !reflect.DeepEqual(is[name].Object, want.Object) {
				t.Errorf("%s: %s is\n%v\nand by the chart\n%v", base, name, is[name], want)
			}
		}
		for name, o := range build(t, filepath.Join(top, base)) {
			if o.GetKind() != "MutatingWebhookConfiguration" && (is[name] == nil || !reflect.DeepEqual(is[name].Object, o.Object)) {
				t.Errorf("%s: the component changes %s", base, name)
			}
		}
	}
}

// Without Helm the webhooks of profiles come from the chart, by the command that kipctl doctor prints (internal/doctor/profiles.go). All
// that it applies besides is as it was.
func TestTheWebhooksOfProfilesAddToThoseOfTheManifests(t *testing.T) {
	c, err := loadChart(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"deploy/manifests/kip/base", "deploy/manifests/kip/overlays/aws-eks"} {
		r, err := baseRelease(top, base)
		if err != nil {
			t.Fatal(err)
		}
		provider := r.values["config"].(map[string]any)
		delete(provider, "nodes")
		provider["admission"] = map[string]any{"profiles": []any{map[string]any{"name": "batch", "namespaces": []any{"ml-*"}, "mode": "burst"}}}
		outputs, err := release{name: r.name, namespace: r.namespace, values: map[string]any{
			"config": provider, "existingConfigMap": "config", "fullnameOverride": r.name, "nodeName": r.name + "-0", "nodeCount": 64,
		}}.render(c)
		if err != nil {
			t.Fatal(err)
		}
		was, is := build(t, filepath.Join(top, base)), byName(t, string(outputs["webhook"]))
		if len(is) != 2 {
			t.Fatalf("%s: it has %d objects", base, len(is))
		}
		for name, o := range is {
			if o.GetKind() == "MutatingWebhookConfiguration" {
				hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
				all := len(hooks)
				hooks = slices.DeleteFunc(hooks, func(h any) bool {
					at := h.(map[string]any)["name"]
					return at == "profiles.kip.elotl.co" || at == "bindings.kip.elotl.co"
				})
				if len(hooks) != all-2 {
					t.Errorf("%s: %d webhooks are of profiles", base, all-len(hooks))
				}
				if err := unstructured.SetNestedSlice(o.Object, hooks, "webhooks"); err != nil {
					t.Fatal(err)
				}
			}
			if was[name] == nil || !reflect.DeepEqual(o.Object, was[name].Object) {
				t.Errorf("%s: %s differs:\n%v\n%v", base, name, o, was[name])
			}
		}
	}
}
