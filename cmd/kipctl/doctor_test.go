package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	extensionsfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/doctor"
	"github.com/elotl/kip/internal/finding"
)

// configure gives the Kip of a namespace its provider.yaml.
func configure(t *testing.T, c *cluster, namespace, text string) {
	t.Helper()
	if _, err := c.kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kip"}, Data: map[string]string{"provider.yaml": text},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// forDoctor is testCluster with a Kip, whose provider.yaml is text, and an API server that tells its version.
func forDoctor(t *testing.T, text string) *cluster {
	t.Helper()
	c := testCluster(t)
	ctx := t.Context()
	for _, name := range []string{"kip-0", "kip-1"} {
		own, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		own = own.DeepCopy()
		own.Labels = map[string]string{"type": "virtual-kubelet", apiv1.LabelController: "id"}
		if _, err := c.kube.CoreV1().Nodes().Update(ctx, own, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	installKip(t, c, "kip-system")
	configure(t, c, "kip-system", text)
	c.crds = extensionsfake.NewSimpleClientset().ApiextensionsV1().CustomResourceDefinitions()
	c.host = "https://10.0.0.1"
	c.raw = func(_ context.Context, path string) (doctor.Answer, error) {
		if path == "/version" {
			return doctor.Answer{Status: http.StatusOK, Date: now, Body: []byte(`{"gitVersion":"v1.35.0"}`)}, nil
		}
		return doctor.Answer{Status: http.StatusForbidden}, nil
	}
	return c
}

// reported are the results in a report, by area and check.
func reported(t *testing.T, out string) map[string]finding.Finding {
	t.Helper()
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	all := map[string]finding.Finding{}
	for _, one := range r.Results {
		all[one.Area+": "+one.Check] = one.Finding
	}
	return all
}

// withImage is a provider.yaml of the model, which names its image and its subnet.
func withImage(t *testing.T, file string) string {
	t.Helper()
	text := strings.Replace(read(t, file), "cells: {", "cells: {bootImageSpec: {name: kip}, ", 1)
	return strings.Replace(text, "region: us-east-1, ", "region: us-east-1, subnetID: subnet-1, ", 1)
}

func TestDoctorChecksAnAccountBeforeThereIsACluster(t *testing.T) {
	model, file := ec2Of(t)
	if err := os.WriteFile(file, []byte(withImage(t, file)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, nil, "doctor", "-f", file, "-o", "json")
	all := reported(t, r.out)
	for name, want := range map[string]finding.Outcome{
		"cluster: API server": finding.NotChecked, "account: credentials": finding.OK, "account: subnets": finding.OK, "account: image": finding.Warning,
		"account: instance type": finding.OK,
	} {
		if all[name].Outcome != want {
			t.Errorf("%s is %+v, want %s\n%s", name, all[name], want, r.out)
		}
	}
	if len(owners(model)) != 0 {
		t.Errorf("there are instances of %q", owners(model))
	}
}

func TestDoctorChecksTheAccountOfTheKipInTheCluster(t *testing.T) {
	_, file := ec2Of(t)
	c := forDoctor(t, strings.Replace(withImage(t, file), "subnet-1", "subnet-9", 1))
	r := run(t, c, "doctor")
	if r.failed == nil {
		t.Error("it does not fail")
	}
	has(t, "the table", r.out, "kip: provider.yaml", "ConfigMap kip-system/kip", "failed       account: subnets",
		`cloud.aws.subnetID is "subnet-9"`, "$ aws ec2 describe-subnets", "not checked  kip: kubelet port", "failed       kip: definition of Cell", "$ kipctl crd update",
		"warning      kip: DaemonSets")
	has(t, "the error", r.err, "checks failed: ")
}

// A tenant can make a pod with Kip's labels, and a provider.yaml for it. The user's credentials go to no address that it names.
func TestDoctorBelievesNoConfigurationOfATenant(t *testing.T) {
	_, file := ec2Of(t)
	c := forDoctor(t, withImage(t, file))
	tenant := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the tenant is asked, by the key %s", r.Header.Get("Authorization"))
	}))
	defer tenant.Close()
	installKip(t, c, "a-tenant")
	configure(t, c, "a-tenant", regexp.MustCompile(`endpointURL: '[^']+'`).ReplaceAllString(withImage(t, file), "endpointURL: '"+tenant.URL+"'"))
	r := run(t, c, "doctor", "-o", "json")
	all := reported(t, r.out)
	if all["account: credentials"].Outcome != finding.OK {
		t.Errorf("the account of Kip: %+v", all["account: credentials"])
	}
	has(t, "the report", r.out, "pod a-tenant/kip-0 has the labels of Kip's pods, and its service account kip may not act as node kip-0",
		"kipctl doctor --namespace a-tenant")
}

func TestDoctorRefusesBadInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: serverConfig\ncloud: {aws: {region: us-east-1, subnet: x}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"doctor x":                     `kipctl doctor takes no arguments: got "x"`,
		"doctor --timeout 0s":          "--timeout is 0s: it must be above 0",
		"doctor -f /none/p":            "read the configuration: open /none/p",
		"doctor -f " + file:            "cloud.aws.subnet",
		"doctor --kubeconfig /none/kc": "no cluster",
		"doctor --bundle /none/b.tgz":  "/none/b.tgz is not written",
		"doctor --account":             "--account needs a provider.yaml",
		"doctor --role kip":            `--role is "kip": it must be an ARN such as`,
	} {
		if r := run(t, nil, strings.Fields(args)...); r.failed == nil || !strings.Contains(r.err, want) {
			t.Errorf("%s: %v, %q, want %q", args, r.failed, r.err, want)
		}
	}
}

func TestABundleHoldsWhatWasFoundAndNoKey(t *testing.T) {
	_, file := ec2Of(t)
	text := strings.Replace(withImage(t, file), "region: ", "accessKeyID: planted-key-1, secretAccessKey: planted-key-2, region: ", 1)
	c := forDoctor(t, text)
	to := filepath.Join(t.TempDir(), "bundle.tar.gz")
	r := run(t, c, "doctor", "--bundle", to)
	has(t, "what is said", r.err, "Wrote "+to)
	f, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(head.Name)
		names = append(names, name)
		if strings.Contains(string(data), "planted") {
			t.Errorf("%s has a key:\n%s", name, data)
		}
		if name == "kipctl-why-default-boots.txt" && !strings.Contains(string(data), "c-boots-2") {
			t.Errorf("%s:\n%s", name, data)
		}
	}
	for _, want := range []string{
		"doctor.json", "provider.yaml", "nodes.json", "pods.json", "events.json", "log-kip-system-kip-0.txt", "kipctl-version.txt", "kipctl-get-cells.txt", "kipctl-why-default-boots.txt",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not in the bundle: %q", want, names)
		}
	}
}
