//go:build e2e

package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// diagnosis is what kipctl doctor -o json has of a check.
type diagnosis struct{ Area, Check, Outcome, Message, Cure string }

// diagnoses reads what doctor has printed.
func diagnoses(s *namespace.Space, out string) []diagnosis {
	s.Helper()
	var report struct{ Results []diagnosis }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		s.Fatalf("%v:\n%s", err, out)
	}
	return report.Results
}

// examined runs kipctl doctor as a user does elsewhere, with the keys of the account.
func examined(s *namespace.Space) []diagnosis {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), world.Tool("kipctl"), "doctor", "--kubeconfig", world.Kubeconfig, "-o", "json")
	cmd.Env = environment(s)
	out, errs, err := namespace.Run(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // it exits with 1 if a check has failed
		s.Fatalf("%v: %s", err, errs)
	}
	return diagnoses(s, out)
}

// failed are those of failed checks.
func failed(all []diagnosis) []diagnosis {
	return slices.DeleteFunc(slices.Clone(all), func(d diagnosis) bool { return d.Outcome != "failed" })
}

// fine fails the test if a check has failed, or was not made and does not say why. least are checks that must be ok.
func fine(s *namespace.Space, who string, all []diagnosis, least ...string) {
	s.Helper()
	ok := map[string]bool{}
	for _, d := range all {
		s.Logf("%s: %s: %s: %s: %s", who, d.Outcome, d.Area, d.Check, d.Message)
		if d.Outcome == "failed" || d.Outcome == "not checked" && d.Message == "" || strings.Contains(d.Cure, "cluster-admin") {
			s.Errorf("%s: %+v", who, d)
		}
		ok[d.Area+": "+d.Check] = ok[d.Area+": "+d.Check] || d.Outcome == "ok"
	}
	for _, check := range least {
		if !ok[check] {
			s.Errorf("%s: %s is not ok", who, check)
		}
	}
}

// cure runs the commands that doctor has printed, as they are printed, in the repository's folder.
func cure(s *namespace.Space, d diagnosis) {
	s.Helper()
	root, err := harness.Repository()
	if err != nil {
		s.Fatal(err)
	}
	home := s.TempDir()
	cmd := exec.CommandContext(s.Context(), "bash", "-euo", "pipefail", "-c", d.Cure)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PATH="+world.Bin+":"+os.Getenv("PATH"), "KUBECONFIG="+world.Kubeconfig, "HELM_CONFIG_HOME="+home,
		"HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	if out, errs, err := namespace.Run(cmd); err != nil {
		s.Errorf("%s: %v\n%s%s", d.Cure, err, out, errs)
	}
}

// unreached has a firewall between Kip and the cells that it makes then. doctor names the port and the cell, and where to look. Cells that
// have joined stay connected.
func unreached(s *namespace.Space, node string) {
	s.Helper()
	restore := cut(s, ordinary(s, node), agentapi.Port, "ct state new")
	s.Apply(namespace.Sleeper("unreached"))
	agents := func() diagnosis {
		all := examined(s)
		return all[slices.IndexFunc(all, func(d diagnosis) bool { return d.Area == "kip" && d.Check == "agents" })]
	}
	s.Eventually("doctor names the port that Kip does not reach", func(context.Context) error {
		d := agents()
		if d.Outcome != "warning" || !strings.Contains(d.Message, "Kip cannot connect to port 6421 of 1 cells") || !strings.Contains(d.Message,
			"i/o timeout") ||
			!strings.Contains(d.Cure, "kubectl get networkpolicy -n "+kipNamespace) || !strings.Contains(d.Cure, "the firewall of node "+node) {
			return fmt.Errorf("it finds %+v", d)
		}
		s.Logf("%s\n$ %s", d.Message, d.Cure)
		return nil
	})
	restore() // which is in the firewall of that node
	s.WaitReady("unreached")
	s.Eventually("doctor finds that Kip reaches its cells again", func(context.Context) error {
		if d := agents(); d.Outcome != "ok" {
			return fmt.Errorf("it finds %+v", d)
		}
		return nil
	})
}

// profilesWithoutWebhooks has a profile in provider.yaml that the chart's values do not have. The command that doctor prints makes its
// webhooks.
func profilesWithoutWebhooks(s *namespace.Space) {
	s.Helper()
	defer installed(s)
	before := kip(s, nil)
	configs := world.Admin.CoreV1().ConfigMaps(kipNamespace)
	config, err := configs.Get(s.Context(), release+"-config", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	config.Data["provider.yaml"] += "\nadmission:\n  profiles:\n  - {name: batch, namespaces: [" + s.NS + "], mode: burst}\n"
	if _, err := configs.Update(s.Context(), config, metav1.UpdateOptions{FieldManager: "somebody"}); err != nil {
		s.Fatal(err)
	}
	all := failed(examined(s))
	if len(all) != 1 || all[0].Check != "profiles" || !strings.Contains(all[0].Message, "admission.profiles have no effect") {
		s.Fatalf("doctor finds %+v", all)
	}
	s.Logf("%s\n$ %s", all[0].Message, all[0].Cure)
	cure(s, all[0])
	kip(s, before)
	s.Eventually("the webhooks of profiles are there", func(context.Context) error {
		all := examined(s)
		i := slices.IndexFunc(all, func(d diagnosis) bool { return d.Check == "profiles" })
		if i < 0 || all[i].Outcome != "ok" || len(failed(all)) > 0 {
			return fmt.Errorf("doctor finds %+v", all)
		}
		return nil
	})
	s.Eventually("the API server asks Kip about pods of the profile", func(ctx context.Context) error {
		pod, err := madeAs(ctx, s, &corev1.Pod{})
		if err == nil && pod.Annotations["pod.elotl.co/profile"] != "batch" {
			err = fmt.Errorf("a pod is made with the annotations %v", pod.Annotations)
		}
		return err
	})
}

// unneeded is what Kip may read and does not while no CSI driver is configured, so that its loss refuses Kip nothing.
const unneeded = "daemonsets"

func TestDoctorFindsWhatIsBrokenAndItsCommandsMendIt(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	newKept(s)
	before := kip(s, nil)
	works := []string{
		"cluster: API server", "cluster: DNS", "cluster: StorageClass", "kip: pods", "kip: nodes", "kip: versions", "kip: definition of Cell", "kip: rights",
		"kip: webhook", "kip: kubelet port", "kip: agents", "account: credentials", "account: subnets", "account: rights to read",
		"account: rights to launch",
	}
	fine(s, "from elsewhere", examined(s), works...)
	inside := func() []diagnosis {
		return diagnoses(s, s.Kubectl("exec", "-n", kipNamespace, kipPod, "--", "/kipctl", "doctor", "-f",
			"/etc/kip/config/provider.yaml", "-o", "json"))
	}
	fine(s, "in Kip's pod", inside(), "cluster: API server", "account: credentials", "account: rights to launch")

	for _, broken := range []struct {
		check, says string
		breaks      func() error
	}{
		{"webhook", "the Service kip-system/kip-webhook of Kip's webhook is gone", func() error {
			return world.Admin.CoreV1().Services(kipNamespace).Delete(t.Context(), release+"-webhook", metav1.DeleteOptions{})
		}},
		{"rights", "may not get/list daemonsets.apps", func() error {
			roles := world.Admin.RbacV1().ClusterRoles()
			role, err := roles.Get(t.Context(), "kip."+harness.Node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, unneeded) })
			_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{FieldManager: "somebody"})
			return err
		}},
		{"nodes", "is cordoned", func() error {
			s.Kubectl("cordon", harness.Node)
			return nil
		}},
	} {
		if err := broken.breaks(); err != nil {
			t.Fatalf("break the %s: %v", broken.check, err)
		}
		var found diagnosis
		s.Eventually("doctor finds that the "+broken.check+" is broken, and nothing else", func(context.Context) error {
			all := failed(examined(s))
			if len(all) != 1 || all[0].Area != "kip" || all[0].Check != broken.check || !strings.Contains(all[0].Message, broken.says) {
				return fmt.Errorf("it finds %+v, want %q", all, broken.says)
			}
			found = all[0]
			return nil
		})
		t.Logf("%s: %s\n$ %s", found.Check, found.Message, found.Cure)
		cure(s, found)
		s.Eventually("its command has mended the "+broken.check, func(context.Context) error {
			if all := failed(examined(s)); len(all) > 0 {
				return fmt.Errorf("it finds %+v", all)
			}
			return nil
		})
	}
	unreached(s, before.Spec.NodeName)
	if after := kip(s, nil); after.UID != before.UID {
		t.Errorf("the commands have made another pod of Kip")
	}
	fine(s, "after all", examined(s), works...)
	fine(s, "in Kip's pod, after all", inside())
	profilesWithoutWebhooks(s)
	log(s)
}
