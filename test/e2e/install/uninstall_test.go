//go:build e2e

package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// The last of this world's tests: it takes Kip's claim along.
func TestWhatAGoneKipHasLeftIsEndedFromOutside(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	newKept(s)
	cells, err := s.Cells(t.Context())
	if err != nil || len(cells) != 1 {
		t.Fatalf("there are cells %+v, %v", cells, err)
	}
	controller := cells[0].Status.ControllerID
	cleanup := outside(s)

	// Nothing of a Kip that runs is ended.
	if out, errs, err := namespace.Run(cleanup("--controller", controller, "--yes")); err == nil || !strings.Contains(errs, "kubectl exec") {
		t.Fatalf("what a Kip has that runs is ended: %v\n%s%s", err, out, errs)
	}
	if out, err := helm(t, "uninstall", release, "--no-hooks", "--wait"); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out)
	}
	run(s, world.Kubectl(t.Context(), "delete", "namespace", kipNamespace))
	if out, errs, err := namespace.Run(cleanup()); err == nil || !strings.Contains(out, controller) {
		t.Errorf("controller %s is not listed: %v\n%s%s", controller, err, out, errs)
	}
	var left string
	s.Within(4*time.Minute, "the instances are ended, once Kip's lease is old", func(ctx context.Context) error {
		out, errs, err := namespace.Run(cleanup("--controller", controller, "--yes"))
		if err != nil {
			return fmt.Errorf("%w: %s%s", err, out, errs)
		}
		left = out
		return nil
	})
	// It names what is left in the cluster, with the commands that remove it.
	commands := regexp.MustCompile(`(?m)^ +kubectl (.*)$`).FindAllStringSubmatch(left, -1)
	if len(commands) == 0 || !strings.Contains(left, "kubectl delete node kip-0") {
		t.Fatalf("no commands for the node and the rest are in\n%s", left)
	}
	for _, c := range commands {
		words := strings.Fields(strings.SplitN(c[1], "#", 2)[0])
		run(s, world.Kubectl(t.Context(), words...))
	}
	s.Kubectl("delete", "pod", "stays", "--force", "--grace-period=0", "--ignore-not-found")
	run(s, exec.CommandContext(t.Context(), world.Tool("kipctl"), "crd", "update", "--kubeconfig", world.Kubeconfig))
	s.Eventually("all cells are gone", s.NoCells)
}

// outside returns kipctl cleanup with the provider.yaml and the keys of the installed Kip, as a user runs it elsewhere.
func outside(s *namespace.Space) func(args ...string) *exec.Cmd {
	s.Helper()
	_, file := chart(s.T)
	provider, env := readValues[settings](s.T, file).provider(s.T, s.TempDir()), environment(s)
	return func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(s.Context(), world.Tool("kipctl"),
			append([]string{"cleanup", "-f", provider, "--kubeconfig", world.Kubeconfig}, args...)...)
		cmd.Env = env
		return cmd
	}
}

// environment is that of a user elsewhere, with the keys of the installed Kip.
func environment(s *namespace.Space) []string {
	s.Helper()
	_, file := chart(s.T)
	ca := filepath.Join(s.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, world.Config.CAData, 0o600); err != nil {
		s.Fatal(err)
	}
	env := append(os.Environ(), "AWS_CA_BUNDLE="+ca)
	for key, value := range readValues[settings](s.T, file).Credentials.Data {
		env = append(env, key+"="+value)
	}
	return env
}
