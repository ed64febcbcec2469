package command

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/clouds"
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
		"--provisioner-account=kip":              {`--provisioner-account is "kip"`, "NAMESPACE/NAME"},
		"--provisioner-account=kip/":             {`--provisioner-account is "kip/"`},
		"--provisioner-account=a/b/c":            {"--provisioner-account"},
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

func TestHelpSaysEachDefaultOnceAndWhatEachFlagTakes(t *testing.T) {
	for _, name := range []string{"KUBECONFIG", "DEFAULTNODE_NAME", "VKUBELET_POD_IP"} {
		t.Setenv(name, "of-the-environment")
	}
	t.Setenv("KUBELET_PORT", "10999")
	help := command(clouds.Shipped()).Flags().FlagUsages()
	for line := range strings.Lines(help) {
		if strings.Count(line, "default") > 1 || strings.Contains(line, "of-the-environment") || strings.Contains(line, "10999") {
			t.Errorf("a default is told twice, or is this machine's: %s", line)
		}
		for _, vague := range []string{" string ", " int ", " float32 "} {
			if strings.Contains(line, vague) {
				t.Errorf("what the flag takes is not told: %s", line)
			}
		}
	}
	if strings.Count(help, "--kubelet-port port") != 1 || !strings.Contains(help, "(default 10250)") {
		t.Errorf("the help is %s", help)
	}
}
