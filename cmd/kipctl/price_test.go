package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// priced runs kipctl price with something on standard input.
func priced(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, stderr bytes.Buffer
	k := &kipctl{in: strings.NewReader(stdin), out: &out, err: &stderr}
	root := newRoot(k, "kipctl")
	root.SetArgs(append([]string{"price"}, args...))
	err := root.ExecuteContext(t.Context())
	return result{out.String(), stderr.String(), err}
}

func manifests(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("testdata/price.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestManifestsArePriced(t *testing.T) {
	for name, args := range map[string][]string{
		"price":         {"-f", "-", "--cloud", "aws", "--region", "us-east-1", "--run-time", "10m"},
		"price-yaml":    {"-f", "testdata/price.yaml", "--cloud", "gce", "--region", "us-central1", "-o", "yaml", "-n", "shop"},
		"price-unknown": {"-f", "-", "--cloud", "aws", "--region", "eu-west-1", "--private-ip-only"},
	} {
		got := priced(t, manifests(t), args...)
		if got.failed != nil || got.err != "" {
			t.Errorf("%s: %v, %s", name, got.failed, got.err)
		}
		golden(t, name, got.out)
	}
}

func TestRegionsAreCompared(t *testing.T) {
	got := priced(t, manifests(t), "-f", "-", "--compare", "--run-time", "10m")
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if got.failed != nil || len(lines) != 3+133 || !strings.Contains(lines[3], "gce") || !strings.HasSuffix(lines[3], " 0") ||
		!strings.Contains(lines[135], "unknown") {
		t.Errorf("%v, %d lines, the first is %s, the last %s", got.failed, len(lines), lines[3], lines[len(lines)-1])
	}
	got = priced(t, manifests(t), "-f", "-", "--compare", "--cloud", "gce", "-o", "json")
	if n := strings.Count(got.out, `"region"`); got.failed != nil || n != 43 || strings.Contains(got.out, "azure") {
		t.Errorf("of one cloud: %v, %d regions", got.failed, n)
	}
}

func TestMachinesHaveRoomForTheDaemonSetsBesideThePods(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sets.yaml")
	const set = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: c, image: x, resources: {requests: {cpu: "2", memory: 4Gi}}}]}
`
	if err := os.WriteFile(file, []byte(set), 0o600); err != nil {
		t.Fatal(err)
	}
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x, resources: {requests: {cpu: 1, memory: 3Gi}}}]}\n"
	in := []string{"-f", "-", "--cloud", "aws", "--region", "us-east-1", "-o", "json"}
	alone, beside := priced(t, pod, in...), priced(t, pod, append(in, "--beside", file)...)
	if alone.failed != nil || beside.failed != nil || !strings.Contains(alone.out, "that fit cpu 1, memory 3Gi") ||
		!strings.Contains(beside.out, "that fit cpu 3, memory 7Gi") {
		t.Errorf("alone %v, %s\nbeside %v, %s", alone.failed, alone.out, beside.failed, beside.out)
	}
}

func TestPricesOfOnesOwnAreTaken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data.json")
	const text = `{"eu-west-1": [{"instanceType": "m5.4xlarge", "price": 0.5, "memory": 64, "cpu": 16},
		{"instanceType": "r5.4xlarge", "price": 0.75, "memory": 128, "cpu": 16}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-f", "-", "--cloud", "aws", "--private-ip-only", "--instance-data-path", file, "-o", "json", "--region"}
	got := priced(t, manifests(t), append(args, "eu-west-1")...)
	if got.failed != nil || strings.Count(got.out, `"pricePerHour": 0.5,`) != 2 || strings.Count(got.out, `"pricePerHour": 0.75,`) != 1 {
		t.Errorf("%v, %s", got.failed, got.out)
	}
	got = priced(t, manifests(t), append(args, "us-east-1")...)
	if got.failed == nil || !strings.Contains(got.failed.Error(), `have neither region "us-east-1" nor one of its zones`) {
		t.Errorf("of another region: %v", got.failed)
	}
	got = priced(t, manifests(t), "-f", "-", "--compare", "--instance-data-path", file)
	if got.failed == nil {
		t.Error("prices of one region are compared with those of others")
	}
}

func TestWhatCannotBePricedIsAnError(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"bad.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c}]\n  restart: Never\n",
		"note.txt": "no manifest",
		"huge.yml": "apiVersion: v1\nkind: Pod\nmetadata: {name: huge}\nspec: {containers: [{name: c, resources: {requests: {cpu: 9k}}}]}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := []string{"--cloud", "aws", "--region", "us-east-1"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "say which manifests"},
		{[]string{"-f", "-"}, "say where"},
		{[]string{"-f", "-", "--cloud", "aws"}, "say where"},
		{[]string{"-f", "-", "--compare", "--region", "x"}, "want only one of them"},
		{[]string{"-f", "-", "--cloud", "awz", "--region", "x"}, "want one of aws, azure, gce"},
		{[]string{"-f", "-", "--cloud", "aws", "--region", "us-east-9"}, "did you mean us-east-1?"},
		{append([]string{"-f", "-", "--arch", "mips"}, in...), `--arch: "mips" is no architecture`},
		{append([]string{"-f", "-", "--beside", "testdata/price.yaml"}, in...), "--beside: Deployment/web does not run beside pods: want DaemonSets"},
		{append([]string{"-f", "-", "--disk", "100Mi"}, in...), `--disk: "100Mi" is no size`},
		{append([]string{"-f", "-", "--disk", "1e-999999999"}, in...), `--disk: "1e-999999999" is no size`},
		{append([]string{"-f", "-", "--run-time", "-1s"}, in...), "--run-time: -1s is no time"},
		{append([]string{"-f", filepath.Join(dir, "none.yaml")}, in...), "no such file"},
		{append([]string{"-f", dir}, in...), dir + `/bad.yaml:6: Pod "p": unknown field "spec.restart"`},
		{append([]string{"-f", filepath.Join(dir, "huge.yml")}, in...), "no instance type for Pod/huge"},
	} {
		got := priced(t, manifests(t), c.args...)
		if got.failed == nil || !strings.Contains(got.failed.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.args, got.failed, c.want)
		}
	}
	if got := priced(t, "kind: Service\napiVersion: v1\n", append([]string{"-f", "-"}, in...)...); got.failed == nil ||
		got.failed.Error() != "there are no pods in -" {
		t.Errorf("without pods: %v", got.failed)
	}
}
