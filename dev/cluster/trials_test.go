package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/elotl/kip/dev/manifest"
)

// workloadPod returns the pod that the StatefulSet or Deployment of an installation makes. It is without the service account, which
// other namespaces do not have.
func workloadPod(t *testing.T, objects []*unstructured.Unstructured) corev1.PodSpec {
	t.Helper()
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "StatefulSet" || o.GetKind() == "Deployment"
	})
	spec, _, err := unstructured.NestedMap(objects[i].Object, "spec", "template", "spec")
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod); err != nil {
		t.Fatal(err)
	}
	if objects[i].GetKind() == "StatefulSet" { // adds the volume of its claim
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "data"})
	}
	pod.ServiceAccountName, pod.DeprecatedServiceAccount = "", ""
	return pod
}

// tryPod asks the API server whether it takes a pod in a namespace.
func (is identities) tryPod(t *testing.T, namespace string, pod corev1.PodSpec) error {
	t.Helper()
	_, err := is.admin.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kip"}, Spec: pod,
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// theAPIServerTakesWhatOperatorsAndHostsNeed applies objects that no base has: those of operators, against the operators' own
// definitions, and a Kip whose cells are on its host.
func theAPIServerTakesWhatOperatorsAndHostsNeed(t *testing.T, is identities) {
	definitions, err := filepath.Glob("testdata/crds/*.yaml")
	if err != nil || len(definitions) != 2 {
		t.Fatalf("there are the definitions %v, %v", definitions, err)
	}
	for _, path := range definitions {
		if _, err := manifest.Apply(t.Context(), is.config, "kubectl", read(t, path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"monitoring.coreos.com/v1", "cert-manager.io/v1"} {
		becomes(t, version+" is served", func() error {
			_, err := is.admin.Discovery().ServerResourcesForGroupVersion(version)
			return err
		})
	}
	theAPIServerTakesWebhooksOfProfiles(t, is)
	for _, name := range []string{"operators", "host-local", "host-qemu"} {
		objects, err := manifest.Apply(t.Context(), is.config, "kubectl", read(t, "testdata/"+name+".yaml"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// All share the host's network, which the namespace that the chart makes allows and a restricted one does not.
		pod := workloadPod(t, objects)
		if err := is.tryPod(t, "kip-"+name, pod); err != nil {
			t.Errorf("the pod of %s: %v", name, err)
		}
		if err := refused(is.tryPod(t, "restricted", pod), "violates PodSecurity"); err != nil {
			t.Errorf("the pod of %s in a restricted namespace: %v", name, err)
		}
	}
	text := read(t, "testdata/operators.yaml")
	for _, c := range []struct{ was, is, words string }{
		{"interval: 30s", "interval: 30 seconds", "spec.endpoints[0].interval"},
		{"scheme: https", "schema: https", "schema"},
		{"usages: [digital signature", "usages: [digital signatur", "spec.usages[0]"},
		{"issuerRef:", "issuer:", "issuer"},
		{"endPort: ", "endPort: 1", "endPort"},
	} {
		if !strings.Contains(string(text), c.was) {
			t.Errorf("%q is not in\n%s", c.was, text)
			continue
		}
		_, err := manifest.Apply(t.Context(), is.config, "kubectl", bytes.ReplaceAll(text, []byte(c.was), []byte(c.is)))
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: error %v, want one with %q", c.is, err, c.words)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// theAPIServerTakesWebhooksOfProfiles asks the API server whether it takes the conditions that the chart makes of profiles and DaemonSets.
// It makes no webhook: nobody would answer.
func theAPIServerTakesWebhooksOfProfiles(t *testing.T, is identities) {
	objects, err := manifest.Parse(read(t, "testdata/profiles.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"testdata/any-profiles.yaml", "testdata/daemonsets.yaml"} {
		others, err := manifest.Parse(read(t, more))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, others...)
	}
	asked := 0
	for _, o := range objects {
		if o.GetKind() != "MutatingWebhookConfiguration" {
			continue
		}
		var hooks admissionregistrationv1.MutatingWebhookConfiguration
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &hooks, true); err != nil {
			t.Fatal(err)
		}
		hooks.Name, asked = "kip-profiles", asked+len(hooks.Webhooks)
		if _, err := is.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &hooks,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("the webhooks of profiles: %v", err)
		}
	}
	if asked != 14 {
		t.Errorf("there are %d webhooks", asked)
	}
}
