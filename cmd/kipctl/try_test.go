package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/trial"
)

// tries runs kipctl try against a cluster with a Kip in the region us-east-1, whose pod prints holdings.
func tries(t *testing.T, c *cluster, stdin, holdings string, args ...string) result {
	t.Helper()
	node, err := c.kube.CoreV1().Nodes().Get(t.Context(), "kip-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels[apiv1.LabelController], node.Labels[corev1.LabelTopologyRegion] = "id", "us-east-1"
	if _, err := c.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	installKip(t, c, "kip-system")
	c.exec = func(_ context.Context, namespace, pod string, command []string, out, messages io.Writer) error {
		if command[1] == "doctor" {
			fmt.Fprint(out, `{"results": [{"area": "account", "check": "subnets", "subnet": {"id": "subnet-1", "zone": "us-east-1a", "public": true}},
				{"area": "account", "check": "subnets", "subnet": {"id": "subnet-2", "zone": "us-east-1b", "public": false}}]}`)
			return nil
		}
		if got := fmt.Sprint(namespace, pod, command); got != "kip-systemkip-0[/kipctl cleanup -o json]" {
			t.Errorf("it runs %s", got)
		}
		fmt.Fprint(out, holdings)
		fmt.Fprint(messages, "Error: nothing was done")
		return errors.New("exit status 1")
	}
	var out, stderr bytes.Buffer
	k := &kipctl{
		in: strings.NewReader(stdin), out: &out, err: &stderr, clock: clock.RealClock{}, waits: clock.RealClock{},
		connect:        func(clientcmd.ClientConfig) (*cluster, error) { return c, nil },
		fallbackSocket: filepath.Join("none", adminapi.SocketName),
	}
	root := newRoot(k, "kipctl")
	root.SetArgs(append([]string{"try"}, args...))
	err = root.ExecuteContext(t.Context())
	return result{out.String(), stderr.String(), err}
}

// spaces are the namespaces of trials.
func spaces(t *testing.T, c *cluster) (names []string) {
	t.Helper()
	list, err := c.kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: trial.Label})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

func TestTryShowsWhatItMayCostAndAsks(t *testing.T) {
	c := testCluster(t)
	r := tries(t, c, "no\n", "")
	if r.failed == nil || r.out != "" || len(spaces(t, c)) > 0 {
		t.Errorf("%v: it has made %v and printed %s", r.failed, spaces(t, c), r.out)
	}
	for _, step := range []string{"egress-public", "egress-private"} {
		if !regexp.MustCompile(step + " +1 t3a.nano").MatchString(r.err) {
			t.Errorf("%s has no instance in\n%s", step, r.err)
		}
	}
	for _, want := range []string{
		"load-balancer", "if kipctl is killed", "BY CATALOGUE has the prices of us-east-1 of 20", "2 t3a.nano", "$0.08 a GiB and month",
		"$0.005 an hour", "Begin, for at most $0.", "add --yes",
	} {
		if !strings.Contains(r.err, want) {
			t.Errorf("%q is not in\n%s", want, r.err)
		}
	}
}

func TestTryRefusesPricesThatAreTooHighOrTooLow(t *testing.T) {
	for price, want := range map[string]string{
		"2":      "it must be at most $1.00",
		"0.0001": "--max-price-per-hour is 0.0001: it must be at least 0.0",
	} {
		c := testCluster(t)
		r := tries(t, c, "", "", "--yes", "--max-price-per-hour", price)
		if r.failed == nil || !strings.Contains(r.err, want) || len(spaces(t, c)) > 0 {
			t.Errorf("%s: %v: it has made %v: %s", price, r.failed, spaces(t, c), r.err)
		}
	}
}

// oldTrial makes the namespace of an earlier trial.
func oldTrial(t *testing.T, c *cluster) {
	t.Helper()
	old := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kip-try-ld2222", Labels: map[string]string{trial.Label: "ld2222"}}}
	if _, err := c.kube.CoreV1().Namespaces().Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTryCleanListsWhatItRemovesAndAsks(t *testing.T) {
	for answer, removed := range map[string]bool{"": false, "no\n": false, "yes\n": true} {
		synctest.Test(t, func(t *testing.T) {
			c := testCluster(t)
			oldTrial(t, c)
			r := tries(t, c, answer, `{"node": "kip-0"}`, "--clean")
			if (r.failed == nil) != removed || (len(spaces(t, c)) == 0) != removed ||
				!strings.Contains(r.err, "to be removed: namespace kip-try-ld2222\n") {
				t.Errorf("%q: %v: of trials there is %s: %s", answer, r.failed, spaces(t, c), r.err)
			}
		})
	}
}

func TestTryCleanRemovesATrialAndProvesIt(t *testing.T) {
	for what, tc := range map[string]struct{ holdings, out, err string }{
		"nothing is left": {`{"node": "kip-0", "instances": ["i-1 of c-web"], "disks": []}`, `"names": []`, ""},
		"a disk is left":  {`{"node": "kip-0", "disks": ["vol-1 of 1Gi: Kip volume id kip-try-ld2222/data"]}`, "vol-1", "left: disk vol-1"},
		"Kip says why":    {"", `"names": []`, "Error: nothing was done"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testCluster(t)
				oldTrial(t, c)
				r := tries(t, c, "", tc.holdings, "--clean", "--yes", "-o", "json")
				if (r.failed != nil) != (tc.err != "") || !strings.Contains(r.err, tc.err) || !strings.Contains(r.out, tc.out) {
					t.Errorf("%v: %s%s", r.failed, r.out, r.err)
				}
				if left := spaces(t, c); len(left) > 0 {
					t.Errorf("left: %s", left)
				}
			})
		})
	}
}

// The pod of Kip runs kipctl doctor, which here is that of the test: so EC2 answers Kip's own credentials.
func TestTryAsksEC2ForADryRunInKipsPod(t *testing.T) {
	const gpu = "g4dn.xlarge"
	for what, tc := range map[string]struct {
		image   bool // of cells
		running bool
		outcome finding.Outcome
		says    string
	}{
		"EC2 would launch": {true, true, finding.OK, "EC2 would launch a " + gpu + " in us-east-1a"},
		"no image":         {false, true, finding.NotChecked, "no image for amd64"},
		"no pod":           {true, false, "", "no pod of Kip runs in this cluster: run kipctl doctor --account"},
	} {
		t.Run(what, func(t *testing.T) {
			model, file := ec2Of(t)
			text := withImage(t, file)
			if !tc.image {
				model.Change(func(cfg *ec2.Config) { cfg.Images = nil })
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := forDoctor(t, text)
			pods := c.kube.CoreV1().Pods("kip-system")
			pod, err := pods.Get(t.Context(), "kip-0", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !tc.running {
				pod.Status.Phase = corev1.PodPending
			}
			if _, err := pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			c.exec = func(_ context.Context, namespace, pod string, command []string, out, messages io.Writer) error {
				want := "/kipctl doctor --account -f /etc/kip/config/provider.yaml --instance-type g6f.large," + gpu + " -o json --controller id"
				got := strings.Join(command, " ")
				if namespace+"/"+pod != "kip-system/kip-0" || got != want && got != strings.Replace(want, " --instance-type g6f.large,"+gpu, "", 1) {
					t.Errorf("in pod %s/%s runs %s", namespace, pod, got)
				}
				command[4] = file
				r := run(t, nil, command[1:]...)
				fmt.Fprint(out, r.out)
				fmt.Fprint(messages, r.err)
				return r.failed
			}
			subnets, err := (&kipctl{fallbackSocket: "none"}).subnets(t.Context(), c)
			if tc.running != (err == nil) || tc.running && (len(subnets) != 1 || subnets[0].Zone != "us-east-1a") {
				t.Errorf("the subnets are %+v (%v)", subnets, err)
			}
			found, err := (&kipctl{fallbackSocket: "none"}).dryRun(t.Context(), c, []string{"g6f.large", gpu})
			said := fmt.Sprint(err)
			if err == nil {
				said = found[0].Message
			}
			if len(found) > 1 || len(found) == 1 && found[0].Outcome != tc.outcome || (err != nil) != (tc.outcome == "") ||
				!strings.Contains(said, tc.says) {
				t.Errorf("%+v: %v\nwant %s: %q", found, err, tc.outcome, tc.says)
			}
			if n := len(model.Machines().History()); n > 0 {
				t.Errorf("%d instances were launched", n)
			}
		})
	}
}

// Kip's labels, its container and its own StatefulSet are all that a tenant can give a pod: kipctl runs no command in it, and believes
// nothing that it prints.
func TestTryAsksNoPodOfATenant(t *testing.T) {
	c := testCluster(t)
	installKip(t, c, "a-tenant") // the first by namespace
	tenants := &kipctl{fallbackSocket: "none", err: io.Discard}
	c.exec = func(_ context.Context, namespace, pod string, _ []string, out, _ io.Writer) error {
		if namespace != "kip-system" {
			t.Errorf("it runs a command in %s/%s", namespace, pod)
		}
		fmt.Fprint(out, `{"node": "kip-0", "results": [{"check": "dry run", "outcome": "ok", "message": "yes"}]}`)
		return nil
	}
	const why = "pod a-tenant/kip-0 has the labels of Kip's pods, and its service account kip may not act as node kip-0"
	if _, err := tenants.dryRun(t.Context(), c, []string{"g5.xlarge"}); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("the dry run: %v", err)
	}
	if _, err := tenants.holdingsOf(t.Context(), c); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("the holdings: %v", err)
	}
	installKip(t, c, "kip-system")
	if found, err := tenants.dryRun(t.Context(), c, []string{"g5.xlarge"}); err != nil || len(found) != 1 {
		t.Errorf("the dry run beside Kip's pod: %+v, %v", found, err)
	}
	if all, err := tenants.holdingsOf(t.Context(), c); err != nil || len(all) != 1 {
		t.Errorf("the holdings beside Kip's pod: %+v, %v", all, err)
	}
}
