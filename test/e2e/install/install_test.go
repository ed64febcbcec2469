//go:build e2e

// Package install proves that Kip runs as a pod: its chart installs it into a cluster whose ordinary node runs it, from the
// images built here and with exactly the chart's rights. Its cells are instances of a model of EC2, which it asks by HTTPS.
package install

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

var (
	ownNetwork = harness.MustClaim("install")
	world      *harness.World
)

// Of kip-dev: where it installs Kip, and by which name.
const (
	kipNamespace = "kip-system"
	release      = "kip"
	kipPod       = "kip-0"
)

func TestMain(m *testing.M) {
	flag.Parse()
	o := harness.Options{
		Network:   ownNetwork,
		Nodes:     2, // Kip's pods leave one of them
		Stderr:    os.Stderr,
		Installed: true,
		AuditLog:  filepath.Join(os.TempDir(), ownNetwork.Bridge+"-audit.log"),
	}
	if !testing.Short() {
		folder, why, err := harness.Older()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if why == "" {
			o.DevArgs = []string{"--images", filepath.Join(folder, "images", "kip")}
		}
	}
	os.Exit(harness.Main(o, &world, m.Run))
}

const running = `apiVersion: v1
kind: Pod
metadata: {name: stays}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'echo started; trap "exit 0" TERM; while :; do sleep 0.1; done']
`

const job = `apiVersion: batch/v1
kind: Job
metadata: {name: hello}
spec:
  backoffLimit: 0
  template:
    spec:
      nodeSelector: {type: virtual-kubelet}
      restartPolicy: Never
      containers: [{name: main, image: 'busybox:1.36', command: [echo, hello]}]
`

// helm runs Helm as a user would, and returns what it printed.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helmIn(t, kipNamespace, args...)
}

func helmIn(t *testing.T, where string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), world.Tool("helm"), append(args, "--namespace", where, "--kubeconfig", world.Kubeconfig)...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// revision is the number by which Helm knows the release as it is now.
func revision(t *testing.T) string {
	t.Helper()
	out, err := helm(t, "status", release, "--output", "json")
	if err != nil {
		t.Fatalf("status: %v\n%s", err, out)
	}
	var status struct{ Version int }
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Version == 0 {
		t.Fatalf("status: %v\n%s", err, out)
	}
	return strconv.Itoa(status.Version)
}

// chart is the folder of the chart, and values the file by which it was installed.
func chart(t *testing.T) (folder, values string) {
	t.Helper()
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "helm", "kip"), filepath.Join(world.State, "values.yaml")
}

// printed is the first block of a language below a heading of docs/install.md.
func printed(t *testing.T, heading, language string) string {
	t.Helper()
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n"+heading+"\n")
	_, text, _ = strings.Cut(text, "```"+language+"\n")
	text, _, found := strings.Cut(text, "```")
	if !found {
		t.Fatalf("docs/install.md has no %s below %q", language, heading)
	}
	return text
}

// readValues reads a file of values.
func readValues[T any](t *testing.T, file string) (values T) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
	return values
}

// settings are the values that tests use without the chart.
type settings struct {
	Config      map[string]any
	Image       struct{ Repository, Tag string }
	Credentials struct{ Data map[string]string }
	ExtraEnv    []map[string]any
}

// provider writes provider.yaml into a folder, and returns its path.
func (v settings) provider(t *testing.T, folder string) string {
	t.Helper()
	return writeYAML(t, filepath.Join(folder, "provider.yaml"), v.Config)
}

func writeYAML(t *testing.T, file string, content any) string {
	t.Helper()
	text, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withValues writes values that differ from those of the installation by change.
func withValues(t *testing.T, change func(map[string]any)) string {
	t.Helper()
	_, file := chart(t)
	values := readValues[map[string]any](t, file)
	change(values)
	return writeYAML(t, filepath.Join(t.TempDir(), "values.yaml"), values)
}

// kip waits until Kip's pod is ready, and is another one than before.
func kip(s *namespace.Space, before *corev1.Pod) *corev1.Pod {
	s.Helper()
	return kipIn(s, kipNamespace, before)
}

func kipIn(s *namespace.Space, where string, before *corev1.Pod) *corev1.Pod {
	s.Helper()
	return kipCalled(s, where, kipPod, before)
}

func kipCalled(s *namespace.Space, where, name string, before *corev1.Pod) *corev1.Pod {
	s.Helper()
	var found *corev1.Pod
	s.Eventually("Kip's pod is ready", func(ctx context.Context) (err error) {
		if found, err = world.Admin.CoreV1().Pods(where).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		switch {
		case before != nil && found.UID == before.UID:
			return fmt.Errorf("it is still the one before, %s", namespace.States(found))
		case !namespace.IsReady(found):
			return fmt.Errorf("it is %s", namespace.States(found))
		}
		return nil
	})
	return found
}

// log is what Kip's pod has logged. A panic, an instance that Kip did not know, and the like fail the test.
func log(s *namespace.Space) string {
	s.Helper()
	return logOf(s, kipNamespace, kipPod)
}

func logOf(s *namespace.Space, where, name string) string {
	s.Helper()
	text, err := world.Admin.CoreV1().Pods(where).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if amiss := harness.Amiss(text); len(amiss) > 0 {
		s.Errorf("Kip's log has\n  %s", strings.Join(amiss, "\n  "))
	}
	return string(text)
}

func TestInstallationsThatCannotWorkAreRefused(t *testing.T) {
	s := namespace.New(t, world)
	installed(s)
	folder, _ := chart(t)
	for what, tc := range map[string]struct {
		change func(map[string]any)
		words  []string
	}{
		"another release with the node's name": {
			func(map[string]any) {}, []string{"nodeName", harness.Node, release},
		},
		"the release with another node": {
			func(v map[string]any) { v["nodeName"] = "kip-9" }, []string{"nodeName", "kip-9", "kipctl cleanup"},
		},
		"a typo": {
			func(v map[string]any) { v["nodeName"] = "kip-9"; v["replica"] = 1 }, []string{"replica"},
		},
	} {
		args := []string{"install", "second"}
		if what == "the release with another node" {
			args = []string{"upgrade", release}
		}
		out, err := helm(t, append(args, folder, "--values", withValues(t, tc.change))...)
		if err == nil {
			t.Errorf("%s is installed:\n%s", what, out)
			continue
		}
		for _, w := range tc.words {
			if !strings.Contains(out, w) {
				t.Errorf("%s: %q is not in\n%s", what, w, out)
			}
		}
	}
}

// kept is a pod that runs, and looks whether it is moved.
type kept struct {
	*namespace.Space
	pod *corev1.Pod
}

func newKept(s *namespace.Space) kept {
	s.Helper()
	s.Apply(running)
	return kept{s, s.WaitReady("stays")}
}

func (k kept) unmoved(after string) {
	k.Helper()
	now := k.WaitReady("stays")
	was, is := k.pod.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
	if now.UID != k.pod.UID || is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount {
		k.Errorf("after %s the pod runs as %s with %d restarts, before as %s", after, is.ContainerID, is.RestartCount, was.ContainerID)
	}
	// Through the API server and Kip's kubelet port.
	k.Eventually("exec works after "+after, k.ExecTrue("stays"))
}

func TestKipRunsAsAPodAndIsUpgradedByItsChart(t *testing.T) {
	s := namespace.New(t, world)
	installed(s)
	first := kip(s, nil)
	if on := first.Spec.NodeName; on != "node-1" || first.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("Kip's pod is on %s, and %s", on, namespace.States(first))
	}
	text := s.Kubectl("get", "node", harness.Node, "--no-headers")
	if !strings.Contains(text, " agent ") || !strings.Contains(text, " Ready ") {
		t.Errorf("kubectl get nodes shows %s", text)
	}

	// Its webhook gives them the toleration of the node's taint.
	s.Apply(job)
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	if text := s.Kubectl("logs", "job/hello"); text != "hello\n" {
		t.Errorf("the Job logged %q", text)
	}
	stays := newKept(s)
	stays.unmoved("nothing")
	log(s)

	folder, _ := chart(t)
	verbose := withValues(t, func(v map[string]any) { v["podAnnotations"] = map[string]any{"step": "upgrade"} })
	if out, err := helm(t, "upgrade", release, folder, "--values", verbose, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("upgrade: %v\n%s", err, out)
	}
	second := kip(s, first)
	if second.Annotations["step"] != "upgrade" {
		t.Errorf("the upgraded pod has annotations %v", second.Annotations)
	}
	stays.unmoved("an upgrade")
	log(s)
	upgraded := revision(t)
	out, err := helm(t, "uninstall", release, "--wait")
	if err == nil || !strings.Contains(out, "stays") {
		t.Fatalf("Kip is uninstalled while a pod runs, or the pod is not named: %v\n%s", err, out)
	}
	// Helm takes such a release for one that is uninstalled.
	if out, err := helm(t, "rollback", release, upgraded, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("go back after a refused uninstallation: %v\n%s", err, out)
	}
	stays.unmoved("a refused uninstallation")
}

// One test, since each step needs the one before. The last one leaves no Kip.
func TestKipIsRolledBackAndRemovedByItsChart(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	folder, values := chart(t)
	installed(s)
	first := kip(s, nil)
	stays := newKept(s)
	annotated := withValues(t, func(v map[string]any) { v["podAnnotations"] = map[string]any{"step": "before the rollback"} })
	if out, err := helm(t, "upgrade", release, folder, "--values", annotated, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("upgrade: %v\n%s", err, out)
	}
	second := kip(s, first)
	if out, err := helm(t, "rollback", release, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("rollback: %v\n%s", err, out)
	}
	third := kip(s, second)
	stays.unmoved("a rollback")
	log(s)

	// As the seeds' documents say.
	s.Kubectl("patch", "statefulset", release, "-n", kipNamespace, "-p",
		`{"spec":{"template":{"metadata":{"annotations":{"step":"patch"}}}}}`)
	kip(s, third)
	stays.unmoved("a patch of the StatefulSet")

	// Whoever ends Kip ends no instance.
	if out, err := helm(t, "uninstall", release, "--no-hooks", "--wait"); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out)
	}
	cells, err := s.Cells(t.Context())
	if err != nil || len(cells) != 1 {
		t.Fatalf("without Kip there are cells %+v, %v", cells, err)
	}
	if out, err := helm(t, "install", release, folder, "--values", values, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("install again: %v\n%s", err, out)
	}
	kip(s, nil)
	stays.unmoved("an uninstallation and another installation")
	log(s)

	forced := withValues(t, func(v map[string]any) { v["uninstall"] = map[string]any{"force": true} })
	if out, err := helm(t, "upgrade", release, folder, "--values", forced, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("upgrade, to uninstall: %v\n%s", err, out)
	}
	if out, err := helm(t, "uninstall", release, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("uninstall by force: %v\n%s", err, out)
	}
	s.Eventually("the pod and all cells are gone", func(ctx context.Context) error {
		if _, err := s.Pod(ctx, "stays"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod stays is there: %v", err)
		}
		return s.NoCells(ctx)
	})
}
