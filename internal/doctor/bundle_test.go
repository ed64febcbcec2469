package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/config"
)

// planted are secrets, each with something else on its line that stays.
var planted = []struct{ text, secret, stays string }{
	{`level=INFO msg="asked" token=planted-0001 pod=web`, "planted-0001", "pod=web"},
	{`{"password":"planted 0002","pod":"web"}`, "planted 0002", `"pod":"web"`},
	{`{"password": "planted\"0003", "pod": "web"}`, "0003", `"pod": "web"`},
	{`secretAccessKey: planted/0004+x`, "planted/0004", "secretAccessKey"},
	{`DB_PASSWORD='planted 0005' pod=web`, "planted 0005", "pod=web"},
	{`GET https://user:planted0006@example.org/v2/ pod=web`, "planted0006", "example.org/v2/"},
	{`Authorization: Bearer planted0007abc pod=web`, "planted0007", "pod=web"},
	{`key AKIAPLANTED0008XYZ of jane`, "AKIAPLANTED0008XYZ", "of jane"},
	{`eyJhbGciOiJSUzI1NiJ9.eyJwbGFudGVkIjoiMDAwOSJ9.planted0009 of jane`, "planted0009", "of jane"},
	{"-----BEGIN EC PRIVATE KEY-----\nplanted0010\n-----END EC PRIVATE KEY-----\npod=web", "planted0010", "pod=web"},
	{"pod=web -----BEGIN PRIVATE KEY-----\nplanted0011", "planted0011", "pod=web"},
	{`{"pin_passwd": 98765, "pod": "web"}`, "98765", `"[REDACTED]", "pod": "web"`},
	{`get s3://x?X-Amz-Signature=planted0012&pod=web`, "planted0012", "pod=web"},
	{`msg="{\"apiKey\": \"planted0013\", \"pod\": 1}"`, "planted0013", "pod"},
	{`{"auths":{"example.org":{"auth": "cGxhbnRlZDAwMTU=", "pod": "web"}}}`, "cGxhbnRlZDAwMTU", `"[REDACTED]", "pod": "web"`},
	{`msg="{\"auth\":\"cGxhbnRlZDAwMTY=\",\"pod\":1}"`, "cGxhbnRlZDAwMTY", "pod"},
	{"pod: web\n  auth: cGxhbnRlZDAwMTc=\n", "cGxhbnRlZDAwMTc", "pod: web"},
	{`AccountName=web;AccountKey=planted0018==;pod=web`, "planted0018", "AccountName=web"},
	{`the known one is in planted-known-0014, pod=web`, "planted-known-0014", "pod=web"},
}

func TestTextsLoseTheirSecretsAndNothingElse(t *testing.T) {
	r := NewRedactor("planted-known-0014", "web"[:1])
	for _, p := range planted {
		got := string(r.Text([]byte(p.text)))
		if strings.Contains(got, p.secret) || !strings.Contains(got, p.stays) {
			t.Errorf("%s\nis %s", p.text, got)
		}
		if again := string(r.Text([]byte(got))); again != got {
			t.Errorf("%s\nis %s the second time", got, again)
		}
	}
	for _, whole := range []string{
		`{"automountServiceAccountToken":false,"pod":"web"}`, "cell-1 is Booting: its kubelet is not ready", "tokens: [a, b]",
		`{"auth":true,"key":"web"}`,
	} {
		if got := string(r.Text([]byte(whole))); got != whole {
			t.Errorf("%s\nis %s", whole, got)
		}
	}
}

// Each key of provider.yaml that holds a secret has a name by which it is left out.
func TestNoSecretOfProviderYAMLIsKept(t *testing.T) {
	var walk func(of reflect.Type) any
	secrets := 0
	walk = func(of reflect.Type) any {
		switch {
		case of == reflect.TypeFor[config.Secret]():
			secrets++
			return "planted-in-yaml"
		case of.Kind() == reflect.Pointer, of.Kind() == reflect.Slice:
			if inner := walk(of.Elem()); inner != nil {
				if of.Kind() == reflect.Slice {
					return []any{inner}
				}
				return inner
			}
		case of.Kind() == reflect.Struct:
			tree := map[string]any{}
			for _, f := range reflect.VisibleFields(of) {
				if key := f.Tag.Get("key"); key != "" {
					if inner := walk(f.Type); inner != nil {
						tree[key] = inner
					}
				}
			}
			if len(tree) > 0 {
				return tree
			}
		}
		return nil
	}
	tree := walk(reflect.TypeFor[config.Config]()).(map[string]any)
	tree["another"] = map[string]any{"storageKey": "planted-in-yaml", "sasToken": "planted-in-yaml", "adminPassword": "planted-in-yaml",
		"theSecret": "planted-in-yaml", "auth": "planted-in-yaml", "key": "taint-stays"}
	tree["cells"] = map[string]any{"cellConfig": map[string]any{"x": "planted-in-yaml"}, "defaultInstanceType": "t3.nano"}
	text, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, []byte("# a comment with planted-in-yaml\n")...)
	got := string(NewRedactor().YAML(text))
	if secrets < 4 || strings.Contains(got, "planted") || !strings.Contains(got, "defaultInstanceType: t3.nano") ||
		!strings.Contains(got, "key: taint-stays") {
		t.Errorf("of %d secrets:\n%s\nis\n%s", secrets, text, got)
	}
	if got := string(NewRedactor().YAML([]byte("a: [planted-in-yaml"))); strings.Contains(got, "planted") {
		t.Errorf("no YAML: %s", got)
	}
}

// unpacked are the files of a bundle.
func unpacked(t *testing.T, bundle []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil || head.Mode != 0o600 {
			t.Fatalf("%s, mode %o: %v", head.Name, head.Mode, err)
		}
		files[head.Name] = string(data)
	}
}

func TestABundleHasWhatABugReportNeedsAndNoSecret(t *testing.T) {
	const secret = "planted-9999"
	w := installed()
	plant := func(p *corev1.Pod) {
		p.Annotations = map[string]string{"of.others/x": secret, "pod.elotl.co/instance-type": "t3.small"}
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: secret}}
		p.Spec.Containers = []corev1.Container{{
			Name: "main", Image: "shop/web:1", Env: []corev1.EnvVar{{Name: "COLOUR", Value: secret}}, Command: []string{secret},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				HTTPHeaders: []corev1.HTTPHeader{{Name: "x", Value: secret}}}}},
		}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{VolumeAttributes: map[string]string{"x": secret}}}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Message: secret}}}}
	}
	web := onCell("web")
	web.UID, web.Status.Phase = "uid-web", corev1.PodPending
	plant(&web)
	web.Spec.Containers[0].Args = []string{secret}
	w.pods = append(w.pods, web)
	plant(&w.kips[0])
	w.kips[0].UID, w.kips[0].Spec.Containers[0].Name = "uid-kip", kipContainer
	w.kips[0].Spec.Containers[0].Args = []string{"--nodename=kip-0", "--a-token=" + secret}
	w.nodes[1].Annotations = map[string]string{"of.others/x": secret}
	event := func(name string, about corev1.ObjectReference) corev1.Event {
		return corev1.Event{ObjectMeta: meta("default", name), InvolvedObject: about, Reason: name, Message: "password=" + secret + " " + name}
	}
	w.events = []corev1.Event{
		event("OfTheNode", corev1.ObjectReference{Kind: "Node", Name: "kip-0"}),
		event("OfThePod", corev1.ObjectReference{UID: "uid-web"}),
		event("OfAnother", corev1.ObjectReference{Kind: "Pod", UID: "uid-x"}),
	}
	kube := w.kube(t)
	kube.PrependReactor("*", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		t.Errorf("a Secret is asked for: %v", a)
		return false, nil, nil
	})
	d := New(Config{Cluster: Cluster{Kube: kube}, Clock: clocktesting.NewFakePassiveClock(now)})
	d.own, d.pods, d.onOwn = w.nodes[1:], w.kips, w.pods
	var said []string
	files := d.Files(t.Context(), func(line string) { said = append(said, line) })
	files = append(files, File{"provider.yaml", NewRedactor().YAML([]byte("cloud: {aws: {secretAccessKey: " + secret + ", region: r-1}}"))})
	var bundle bytes.Buffer
	if err := WriteBundle(&bundle, "kip-bundle", now, files, NewRedactor()); err != nil {
		t.Fatal(err)
	}
	all := unpacked(t, bundle.Bytes())
	for name, text := range all {
		if strings.Contains(text, "planted") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON:\n%s", name, text)
		}
	}
	for name, want := range map[string]string{
		"kip-bundle/nodes.json":               "v1.36.3-kip-1.2.0",
		"kip-bundle/pods.json":                "shop/web:1",
		"kip-bundle/events.json":              "OfThePod",
		"kip-bundle/log-kip-system-kip-0.txt": "fake logs",
		"kip-bundle/provider.yaml":            "region: r-1",
	} {
		if !strings.Contains(all[name], want) {
			t.Errorf("%s does not have %q:\n%s", name, want, all[name])
		}
	}
	for _, want := range []string{"--nodename=kip-0", "COLOUR", "pod.elotl.co/instance-type"} {
		if !strings.Contains(all["kip-bundle/pods.json"], want) {
			t.Errorf("%q is not in %s", want, all["kip-bundle/pods.json"])
		}
	}
	if strings.Contains(all["kip-bundle/events.json"], "OfAnother") || len(said) < 2 || len(d.Waiting()) != 1 {
		t.Errorf("said %q; waiting %d; %s", said, len(d.Waiting()), all["kip-bundle/events.json"])
	}
}
