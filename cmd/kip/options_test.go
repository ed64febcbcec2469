package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/control"
	"github.com/spf13/pflag"
)

// parsed are the options of a command line, with a provider.yaml that is there.
func parsed(t *testing.T, args ...string) options {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	for _, name := range []string{"KUBECONFIG", "KUBELET_PORT", "DEFAULTNODE_NAME", "VKUBELET_POD_IP"} {
		t.Setenv(name, "")
	}
	file := filepath.Join(t.TempDir(), "provider.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var o options
	flags := pflag.NewFlagSet("kip", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.add(flags)
	if err := flags.Parse(append([]string{"--provider-config=" + file}, args...)); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestFlagsThatCannotWorkAreNamed(t *testing.T) {
	o := parsed(t)
	if err := o.complete(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for _, args := range []string{"--nodename=kip-0.example.com", "--kube-api-qps=0.5 --kube-api-burst=1"} {
		o := parsed(t, strings.Fields(args)...)
		if err := o.complete(); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	for args, words := range map[string][]string{
		"--nodename=Kip_0":                       {"--nodename", `"Kip_0"`, "lowercase"},
		"--nodename=":                            {"--nodename", `""`},
		"--nodename=" + strings.Repeat("a", 254): {"--nodename", "253"},
		"--kube-api-qps=0":                       {"--kube-api-qps is 0", "above 0"},
		"--kube-api-qps=-1":                      {"--kube-api-qps is -1"},
		"--kube-api-qps=NaN":                     {"--kube-api-qps"},
		"--kube-api-burst=0":                     {"--kube-api-burst is 0", "above 0"},
		"--provider-config=/none/provider.yaml":  {"--provider-config", "/none/provider.yaml", "no such file"},
		"--kubelet-port=65536":                   {"--kubelet-port is 65536"},
		"--cluster-dns=dns":                      {"--cluster-dns", `"dns"`, "IP address"},
	} {
		o := parsed(t, strings.Fields(args)...)
		err := o.complete()
		if err == nil {
			t.Errorf("%s is taken", args)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", args, err, w)
			}
		}
	}
}

func TestAKubeconfigThatCannotBeReadIsNamed(t *testing.T) {
	unmeasured := func(string) func(http.RoundTripper) http.RoundTripper {
		return func(r http.RoundTripper) http.RoundTripper { return r }
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("\x00\x01 not yaml: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{garbage, "/none/kubeconfig"} {
		_, err := connect(t.Context(), parsed(t, "--kubeconfig="+file), unmeasured)
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--kubeconfig") {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := connect(t.Context(), parsed(t), unmeasured); err == nil || !strings.Contains(err.Error(), "there is no --kubeconfig") {
		t.Errorf("outside of a cluster: %v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAnAgentIsAskedAndOneThatHangsHoldsNobodyUp(t *testing.T) {
	answer := func(code int, body string) roundTripper {
		return func(r *http.Request) (*http.Response, error) {
			if r.URL.String() != "https://cell-1/v1/status" {
				t.Errorf("asked for %s", r.URL)
			}
			return &http.Response{StatusCode: code, Status: fmt.Sprint(code), Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	got := askAgent(t.Context(), answer(200, `{"components":[{"name":"containerd","pid":7},{"name":"kubelet","restarts":2,"waiting":"waiting for containerd"}]}`), "cell-1")
	want := []control.Component{{Name: "containerd", PID: 7}, {Name: "kubelet", Restarts: 2, Waiting: "waiting for containerd"}}
	if got.Error != "" || fmt.Sprint(got.Components) != fmt.Sprint(want) {
		t.Errorf("got %+v", got)
	}
	for name, link := range map[string]roundTripper{"an error": answer(500, ""), "garbage": answer(200, "{")} {
		if got := askAgent(t.Context(), link, "cell-1"); !strings.Contains(got.Error, "cell-1") || got.Components != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	hangs := roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	if got := askAgent(ctx, hangs, "cell-1"); !strings.Contains(got.Error, "deadline") {
		t.Errorf("one that hangs: %+v", got)
	}
}
