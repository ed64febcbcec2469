package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agent/configs"
)

func config() Config {
	return Config{
		Name: "node-1", IP: netip.MustParseAddr("10.110.120.0"), PodCIDR: netip.MustParsePrefix("10.110.248.0/24"),
		ClusterDNS: netip.MustParseAddr("10.96.0.10"), ClusterDomain: "cluster.local", Server: "https://10.110.0.1:6443",
		Mirrors: map[string][]string{"docker.io": {"http://10.110.0.1:5000"}},
		PKI: PKI{
			CA: []byte("ca"), ClientCert: []byte("client"), ClientKey: []byte("client key"), ProxyCert: []byte("proxy"),
			ProxyKey:    []byte("proxy key"),
			ServingCert: []byte("serving"), ServingKey: []byte("serving key"),
		},
	}
}

func rendered(t *testing.T, portmap bool) map[string]file {
	t.Helper()
	list, err := config().files(configs.Host{}, configs.PauseImage, portmap)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]file{}
	for _, f := range list {
		files[f.path] = f
	}
	return files
}

func TestTheKubeletHasUsualSettings(t *testing.T) {
	var k kubeletv1beta1.KubeletConfiguration
	if err := yaml.UnmarshalStrict(rendered(t, false)[configs.KubeletConfig].content, &k); err != nil {
		t.Fatal(err)
	}
	if k.MaxPods != 110 || len(k.ClusterDNS) != 1 || k.ClusterDNS[0] != "10.96.0.10" || k.StaticPodPath != "" {
		t.Errorf("%d pods, DNS %v, static pods in %q", k.MaxPods, k.ClusterDNS, k.StaticPodPath)
	}
	if *k.Authentication.Anonymous.Enabled || k.Authorization.Mode != kubeletv1beta1.KubeletAuthorizationModeWebhook {
		t.Error("the kubelet's server is open to its neighbours")
	}
}

func TestPortmapIsAskedOnlyWhereItIs(t *testing.T) {
	for _, portmap := range []bool{false, true} {
		cni := string(rendered(t, portmap)[configs.CNIConfFile].content)
		if strings.Contains(cni, "portmap") != portmap || !strings.Contains(cni, `"subnet": "10.110.248.0/24"`) {
			t.Errorf("with portmap %t:\n%s", portmap, cni)
		}
	}
}

func TestKeysAreForTheirOwnerOnlyAndNotInOtherFiles(t *testing.T) {
	for path, f := range rendered(t, true) {
		if key := strings.HasSuffix(path, ".key"); key != strings.Contains(string(f.content), " key") || key && f.mode != 0o600 {
			t.Errorf("%s: mode %o, %q", path, f.mode, f.content)
		}
	}
}

func TestBadConfigurationNamesFieldAndValue(t *testing.T) {
	good := filepath.Join(t.TempDir(), "user-data")
	if err := os.WriteFile(good, []byte(`{"name":"node-1","ip":"fd00::1","podCIDR":"10.110.248.0/30","server":"https://10.110.0.1:6443"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Read(good)
	for _, want := range []string{`ip: "fd00::1"`, `podCIDR: "10.110.248.0/30"`, "pki.ca is empty", "pki.proxyKey is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := config().check(); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
}
