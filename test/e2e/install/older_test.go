//go:build e2e

package install

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// build is a Kip that can be installed.
type build struct {
	deploy  string // the folder deploy of its commit
	kipctl  string
	image   string
	version string // what its programs say, and the tag of its image
}

func (b build) chart() string { return filepath.Join(b.deploy, "helm", "kip") }

// thisKip is the Kip of this commit.
func thisKip(t *testing.T) build {
	t.Helper()
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	return newBuild(t, filepath.Join(root, "deploy"), world.Tool("kipctl"))
}

// olderKip is the one that hack/older has built, or why there is none.
func olderKip(t *testing.T) (older build, why string) {
	t.Helper()
	folder, why, err := harness.Older()
	if err != nil {
		t.Fatal(err)
	}
	if why != "" {
		return build{}, why
	}
	return newBuild(t, filepath.Join(folder, "deploy"), filepath.Join(folder, "bin", "kipctl")), ""
}

func newBuild(t *testing.T, deploy, kipctl string) build {
	t.Helper()
	_, values := chart(t)
	version := versions(t, exec.CommandContext(t.Context(), kipctl, "version", "-o", "json")).Kipctl.Version
	return build{
		deploy:  deploy,
		kipctl:  kipctl,
		image:   readValues[settings](t, values).Image.Repository + ":" + version,
		version: version,
	}
}

// said is what kipctl version says.
type said struct{ Kipctl, Kip struct{ Version string } }

func versions(t *testing.T, cmd *exec.Cmd) (v said) {
	t.Helper()
	out, errs, err := namespace.Run(cmd)
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, errs)
	}
	return v
}

// runs proves which Kip runs.
func runs(s *namespace.Space, where string, want build) {
	s.Helper()
	is := versions(s.T, world.Kubectl(s.Context(), "exec", "-n", where, kipPod, "--", "/kipctl", "version", "-o", "json"))
	if is.Kip.Version != want.version || is.Kipctl.Version != want.version {
		s.Errorf("Kip's pod runs %+v, want %s", is, want.version)
	}
}

// runNew proves that Kip runs new pods, and ends them.
func runNew(s *namespace.Space, name string) {
	s.Helper()
	s.Apply(namespace.Bare(name, "  "+tolerates+"\n  containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity]}]\n"))
	s.WaitReady(name)
	s.Kubectl("delete", "pod", name, "--wait=false")
	s.WaitGone(name)
}

// noneStartedAgain proves that no pod of the namespace has failed, or has been started again, but those that are deleted.
func noneStartedAgain(s *namespace.Space, after string) {
	s.Helper()
	pods, err := world.Admin.CoreV1().Pods(s.NS).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if p.DeletionTimestamp == nil && (c.RestartCount > 0 || p.Status.Phase == corev1.PodFailed) {
				s.Errorf("after %s pod %s is %s: %s", after, p.Name, p.Status.Phase, namespace.States(&p))
			}
		}
	}
}

// The definition of Cell, and the binding of the policy that keeps it from being replaced by an older one.
const (
	definition = "cells.kip.elotl.co"
	keepsIt    = "kip-crd." + harness.Node
)

func definitionVersion(s *namespace.Space) int {
	s.Helper()
	text := s.Kubectl("get", "crd", definition, "-o", `jsonpath={.metadata.annotations.kip\.elotl\.co/crd-version}`)
	version, err := strconv.Atoi(text)
	if err != nil {
		s.Fatalf("the definition of Cell has version %q: %v", text, err)
	}
	return version
}

func annotation(version int) string { return fmt.Sprintf("%s=%d", apiv1.AnnotationCRDVersion, version) }

// replacements are what upgrades and rolls back the Kip of the tests' release.
type replacements struct {
	kept
	kip *corev1.Pod
	n   int
}

// step has Kip replaced by another one, while pods come and go.
func (r *replacements) step(what string, to build, replace func()) {
	r.Helper()
	r.n++
	r.Kubectl("rollout", "restart", "deployment/load")
	replace()
	r.kip = kip(r.Space, r.kip)
	runs(r.Space, kipNamespace, to)
	r.unmoved(what)
	r.Kubectl("rollout", "status", "deployment/load", "--timeout=5m")
	runNew(r.Space, fmt.Sprint("new-", r.n))
	noneStartedAgain(r.Space, what)
	log(r.Space)
}

func (r *replacements) helm(args ...string) func() {
	return func() {
		r.Helper()
		if out, err := helm(r.T, append(args, "--wait", "--timeout", "5m")...); err != nil {
			r.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Real programs, charts and images of both. Both have schema 1 of the store, so each reads what the other has written: a
// rollback is refused only where a migration (internal/store) lies between the two. The cells have this Kip's agent;
// TestNoPodNoticesThatKipIsUpgradedAndRolledBackUnderLoad has cells with either's.
//
// It removes the Kip that it finds, if there is one, and leaves this one, installed by its chart.
func TestNoPodNoticesAnUpgradeOrARollbackByHelmOrKubectl(t *testing.T) {
	tier.All(t)
	older, why := olderKip(t)
	if why != "" {
		t.Skip(why)
	}
	now := thisKip(t)
	if older.version == now.version {
		t.Fatalf("both versions are %s", now.version)
	}
	s := namespace.New(t, world)
	if out, err := helm(t, "uninstall", release, "--wait", "--ignore-not-found"); err != nil {
		t.Fatalf("uninstall what is there: %v\n%s", err, out)
	}
	r := &replacements{kept: kept{Space: s}}
	_, values := chart(t)
	ofOlder := withValues(t, func(v map[string]any) { v["image"].(map[string]any)["tag"] = older.version })
	r.helm("install", release, older.chart(), "--values", ofOlder)()
	r.kip = kip(s, nil)
	runs(s, kipNamespace, older)
	r.kept = newKept(s)
	s.Apply(load)
	s.Kubectl("rollout", "status", "deployment/load", "--timeout=5m")

	r.step("an upgrade by Helm", now, r.helm("upgrade", release, now.chart(), "--reset-then-reuse-values", "--set", "image.tag="+now.version))

	// As if by a chart that is newer than both, which have the same definition of Cell today.
	ours := definitionVersion(s)
	s.Kubectl("annotate", "crd", definition, annotation(ours+1), "--overwrite")
	r.step("a rollback by Helm", older, r.helm("rollback", release))
	// The Job of the older chart's upgrades does this.
	run(s, exec.CommandContext(t.Context(), older.kipctl, "crd", "update", "--kubeconfig", world.Kubeconfig))
	crd := filepath.Join(older.chart(), "crds", "cells.yaml")
	if out, code, errs := s.Try("apply", "-f", crd); code == 0 || !strings.Contains(errs, "older one") {
		t.Errorf("the older definition of Cell is applied, or it is refused in other words: exit %d\n%s%s", code, out, errs)
	}
	if version := definitionVersion(s); version != ours+1 {
		t.Errorf("the definition of Cell has version %d after a rollback, want %d", version, ours+1)
	}

	// As the seeds' documents say.
	r.step("a patch of the image", now, func() {
		s.Kubectl("patch", "-n", kipNamespace, "statefulset", release, "--type=json",
			"--patch", fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": %q}]`, now.image))
	})
	r.step("an undone patch", older, func() { s.Kubectl("rollout", "undo", "-n", kipNamespace, "statefulset/"+release) })

	// The next upgrade by Helm brings the policy back.
	s.Kubectl("delete", "validatingadmissionpolicybinding", keepsIt)
	s.Eventually("the definition of Cell has its own version again", func(ctx context.Context) error {
		if _, code, errs := s.Attempt(ctx, "annotate", "crd", definition, annotation(ours), "--overwrite"); code != 0 {
			return fmt.Errorf("exit %d: %s", code, errs)
		}
		return nil
	})
	r.step("an upgrade by Helm after kubectl", now, r.helm("upgrade", release, now.chart(), "--values", values, "--force-conflicts"))
	s.Kubectl("get", "validatingadmissionpolicybinding", keepsIt)

	s.Kubectl("delete", "deployment", "load")
	s.Kubectl("delete", "pod", "stays")
	s.Eventually("all cells are gone", s.NoCells)
}
