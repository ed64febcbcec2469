package configs

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/vishvananda/netns"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update writes it):\n%s", path, got)
	}
}

func config() agentapi.Config {
	return agentapi.Config{
		NodeName: "kip-0", NodeIP: netip.MustParseAddr("10.110.0.2"), PodIP: netip.MustParseAddr("10.110.128.2"),
		ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "cluster.local", ReservedMemoryBytes: 64 << 20,
		RegistryMirrors: map[string][]string{
			"docker.io": {"http://10.110.0.1:5000", "https://mirror.example/hub/"},
			"_default":  {"http://10.110.0.1:5000/"},
		},
	}
}

var files = Files{CA: "/pki/ca.crt", ClientCert: "/pki/client.crt", ClientKey: "/pki/client.key", ServingCert: "/pki/serving.crt",
	ServingKey: "/pki/serving.key"}

func TestContainerdConfigIsAsReviewed(t *testing.T) {
	for name, c := range map[string]struct {
		host  Host
		pause string
	}{
		"containerd-v1-unprivileged.toml": {Host{}, PauseImage},
		"containerd-v2-full.toml":         {Host{CgroupV2: true, Hugetlb: true, SysResource: true, AppArmor: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Containerd(c.host, "/run/itzo/bin", c.pause)
			var parsed map[string]any
			if err := toml.Unmarshal([]byte(got), &parsed); err != nil {
				t.Errorf("not TOML: %v", err)
			}
			golden(t, name, []byte(got))
		})
	}
}

// kubelet returns the kubelet's configuration, in which the kubelet knows each key.
func kubelet(t *testing.T, c agentapi.Config, m Machine) (typed kubeletv1beta1.KubeletConfiguration) {
	t.Helper()
	b, err := Kubelet(c, files, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(b, &typed); err != nil {
		t.Fatalf("the kubelet would refuse it: %v", err)
	}
	return typed
}

func TestKubeletConfigIsAsReviewedAndHasNoUnknownKey(t *testing.T) {
	b, err := Kubelet(config(), files, Machine{PodGrace: 12 * time.Second, PluginGrace: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var typed kubeletv1beta1.KubeletConfiguration
	if err := yaml.UnmarshalStrict(b, &typed); err != nil {
		t.Errorf("the kubelet would refuse it: %v", err)
	}
	golden(t, "kubelet.yaml", b)
	if _, ok := typed.EvictionHard["memory.available"]; ok {
		t.Error("a memory threshold is taken off what placement counted as allocatable")
	}
	if typed.Address != "127.0.0.1" || typed.Authentication.Anonymous.Enabled == nil || *typed.Authentication.Anonymous.Enabled {
		t.Error("the kubelet's server is open")
	}
}

func TestKubeProxyConfigIsAsReviewedAndHasNoUnknownKey(t *testing.T) {
	for name, own := range map[string]bool{"kube-proxy.yaml": false, "kube-proxy-own-conntrack.yaml": true} {
		b, err := KubeProxy(config(), own)
		if err != nil {
			t.Fatal(err)
		}
		var typed kubeproxyv1alpha1.KubeProxyConfiguration
		if err := yaml.UnmarshalStrict(b, &typed); err != nil {
			t.Errorf("kube-proxy would refuse it: %v", err)
		}
		golden(t, name, b)
		for _, address := range []string{typed.MetricsBindAddress, typed.HealthzBindAddress} {
			if !strings.HasPrefix(address, "127.0.0.1:") {
				t.Errorf("%s is open to the cell's neighbours", address)
			}
		}
		// What is not said is kube-proxy's default.
		if max := typed.Conntrack.MaxPerCore; own && max != nil || !own && (max == nil || *max != 0) {
			t.Errorf("with a table of its own: %t: kube-proxy is told %+v", own, typed.Conntrack)
		}
	}
}

func TestOnlyAMachineWithAKernelOfItsOwnSizesItsTableOfConnections(t *testing.T) {
	root := t.TempDir()
	for _, f := range conntrackFiles {
		if OwnsConntrack(root) {
			t.Errorf("without %s the table is the machine's own", f)
		}
		f = filepath.Join(root, f)
		if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, []byte("1"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if !OwnsConntrack(root) {
		t.Error("with all files that are written, it is not")
	}
	// As a cell of the local cloud: with another network namespace than the kernel's first one.
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	first, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	other, err := netns.New()
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	if OwnsConntrack("/") {
		t.Error("a machine that is a namespace sizes the table of another's kernel")
	}
	if err := errors.Join(netns.Set(first), other.Close(), first.Close()); err != nil {
		t.Fatal(err)
	}
}

// Without a bound of its own a machine has the kernel's, by which the kubelet goes itself.
func TestThePodLeavesTasksOfItsMachinesCgroup(t *testing.T) {
	for tasks, want := range map[int64]int64{0: 0, 600: 300, 16384: 16384 - reservedPIDs} {
		typed := kubelet(t, config(), Machine{Tasks: tasks})
		if got := typed.PodPidsLimit; (got != nil) != (want > 0) || got != nil && *got != want {
			t.Errorf("of %d tasks of the cgroup the pod has %v, want %d", tasks, got, want)
		}
	}
}

func TestAKubeletHasStaticPodsOnlyWhereThereArePlugins(t *testing.T) {
	for _, plugins := range []bool{false, true} {
		c := config()
		c.Plugins = plugins
		typed := kubelet(t, c, Machine{})
		if (typed.StaticPodPath == StaticPodDir) != plugins || typed.MaxPods != 110 {
			t.Errorf("with plugins %t: static pods in %q, at most %d pods, want 110", plugins, typed.StaticPodPath, typed.MaxPods)
		}
	}
}

func TestAKubeletSharesSwapOnlyWhereTheMachineHasIt(t *testing.T) {
	for swap, want := range map[bool]string{false: "", true: "LimitedSwap"} {
		if got := kubelet(t, config(), Machine{Swap: swap}); got.MemorySwap.SwapBehavior != want || got.FailSwapOn == nil || *got.FailSwapOn {
			t.Errorf("with swap %t it has %q, and fails where there is swap: %v", swap, got.MemorySwap.SwapBehavior, got.FailSwapOn)
		}
	}
}

func TestAKubeletAllowsTheUnsafeSysctlsThatItsPodMaySet(t *testing.T) {
	for _, allowed := range [][]string{nil, {"kernel.msgmax", "net/core/somaxconn"}} {
		c := config()
		c.UnsafeSysctls = allowed
		if got := kubelet(t, c, Machine{}).AllowedUnsafeSysctls; !slices.Equal(got, allowed) {
			t.Errorf("allowed are %q, want %q", got, allowed)
		}
	}
}

func TestAKubeletWithGPUsTellsOfThemSoon(t *testing.T) {
	for gpus, want := range map[bool]time.Duration{false: 10 * time.Second, true: time.Second} {
		typed := kubelet(t, config(), Machine{GPUs: gpus})
		if got := typed.NodeStatusUpdateFrequency.Duration; got != want {
			t.Errorf("with GPUs %t it looks at its node every %s: want %s", gpus, got, want)
		}
	}
}

func TestPluginsEndAfterThePodsOfAMachineThatEnds(t *testing.T) {
	for grace, want := range map[time.Duration][]kubeletv1beta1.ShutdownGracePeriodByPodPriority{
		0: nil,
		12 * time.Second: {
			{Priority: 0, ShutdownGracePeriodSeconds: 12},
			{Priority: agentapi.PluginPriority, ShutdownGracePeriodSeconds: 3},
		},
	} {
		typed := kubelet(t, config(), Machine{PodGrace: grace, PluginGrace: 3 * time.Second})
		if !slices.Equal(typed.ShutdownGracePeriodByPodPriority, want) {
			t.Errorf("with a grace of %s pods have %+v: want %+v", grace, typed.ShutdownGracePeriodByPodPriority, want)
		}
	}
}

// The kernel's own threads count as tasks, at least 8 for each processor.
func TestThePodLeavesTasksForTheKernelsOwnThreads(t *testing.T) {
	for _, processors := range []int{1, 128, 896} {
		typed := kubelet(t, config(), Machine{Processors: processors})
		reserved, err := strconv.Atoi(typed.SystemReserved["pid"])
		if left := reserved - 8*processors; err != nil || left < reservedPIDs {
			t.Errorf("with %d processors %d are reserved, %v: %d are left to the agent, want %d", processors, reserved, err, left, reservedPIDs)
		}
	}
}

func TestKubeletWithoutClusterDNSHasNone(t *testing.T) {
	c := config()
	c.ClusterDNS, c.ClusterDomain = nil, ""
	b, err := Kubelet(c, files, Machine{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "clusterD") {
		t.Errorf("%s", b)
	}
}

func TestOtherFilesAreAsReviewed(t *testing.T) {
	b, err := KubeconfigFile("https://127.0.0.1:6422", files)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "kubeconfig.json", b)
	if b, err = CNI(config(), "/run/itzo/gates", []string{"policy"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "cni.json", b)
	images := config()
	images.ImagesOfCloud = []string{"*.dkr.ecr.*.amazonaws.com", "*.registry.example.com"}
	golden(t, "kubelet-args-images.txt", []byte(strings.Join(KubeletArgs(images, "/run/itzo/credential-providers"), "\n")+"\n"))
	if b, err = ImageProvidersFile(images, "https://127.0.0.1:6422", files); err != nil {
		t.Fatal(err)
	}
	golden(t, "image-credentials.json", b)
	golden(t, "kubelet-args.txt", []byte(strings.Join(KubeletArgs(config(), ""), "\n")+"\n"))
}

func TestTheKubeletKnowsAllThatItIsToldOfImageProviders(t *testing.T) {
	c := config()
	c.ImagesOfCloud = []string{"*.registry.example.com"}
	b, err := ImageProvidersFile(c, "https://127.0.0.1:6422", files)
	if err != nil {
		t.Fatal(err)
	}
	var typed kubeletv1.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(b, &typed); err != nil {
		t.Fatalf("the kubelet would refuse it: %v", err)
	}
	if len(typed.Providers) != 1 || typed.APIVersion != kubeletv1.SchemeGroupVersion.String() {
		t.Fatalf("%+v", typed)
	}
	p := typed.Providers[0]
	if p.Name != ImagePlugin || p.APIVersion != credentialproviderv1.SchemeGroupVersion.String() || p.DefaultCacheDuration == nil ||
		p.DefaultCacheDuration.Duration != 0 || !slices.Equal(p.MatchImages, c.ImagesOfCloud) || len(p.Args) != 4 {
		t.Errorf("%+v", p)
	}
}

func TestRegistryHostsAreInOrderAndCoverPaths(t *testing.T) {
	got, err := RegistryHosts(config().RegistryMirrors, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"docker.io": `[host."http://10.110.0.1:5000"]
  capabilities = ["pull", "resolve"]
[host."https://mirror.example/hub/v2"]
  capabilities = ["pull", "resolve"]
  override_path = true
`,
		"_default": `[host."http://10.110.0.1:5000"]
  capabilities = ["pull", "resolve"]
`,
	}
	for host, text := range want {
		if got[host] != text {
			t.Errorf("%s:\n%s\nwant:\n%s", host, got[host], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
}

func TestARegistryIsReachedAsItWants(t *testing.T) {
	all := []agentapi.Registry{
		{Host: "plain:5000", PlainHTTP: true},
		{Host: "own.example", CA: "the CA"},
		{Host: "mirrored.example", CA: "a CA", Certificate: "a certificate", Key: "a key"},
	}
	got, err := RegistryHosts(map[string][]string{"mirrored.example": {"http://m"}}, all)
	if err != nil {
		t.Fatal(err)
	}
	for host, text := range map[string]string{
		"plain:5000":  "server = \"http://plain:5000\"\n",
		"own.example": "server = \"https://own.example\"\nca = \"/etc/containerd/certs.d/own.example/ca.crt\"\n",
		"mirrored.example": `server = "https://mirrored.example"
ca = "/etc/containerd/certs.d/mirrored.example/ca.crt"
client = [["/etc/containerd/certs.d/mirrored.example/client.crt", "/etc/containerd/certs.d/mirrored.example/client.key"]]
[host."http://m"]
  capabilities = ["pull", "resolve"]
`,
	} {
		if got[host] != text {
			t.Errorf("%s:\n%s\nwant:\n%s", host, got[host], text)
		}
	}
	files := RegistryFiles(all)
	if len(files) != 4 || files["own.example/ca.crt"] != "the CA" || files["mirrored.example/client.key"] != "a key" {
		t.Errorf("%v", files)
	}
	for _, host := range []string{"", "..", "a/b", "_default"} {
		c := config()
		c.Registries = []agentapi.Registry{{Host: host}}
		if err := Validate(c); err == nil || !strings.Contains(err.Error(), "registries[0].host") {
			t.Errorf("host %q: %v", host, err)
		}
	}
}

func TestBadConfigurationNamesFieldAndValue(t *testing.T) {
	if err := Validate(config()); err != nil {
		t.Fatalf("a good configuration: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*agentapi.Config)
		want   []string
	}{
		"no node name":   {func(c *agentapi.Config) { c.NodeName = "" }, []string{`nodeName: ""`}},
		"node name flag": {func(c *agentapi.Config) { c.NodeName = "kip --x" }, []string{`nodeName: "kip --x"`}},
		"no node IP":     {func(c *agentapi.Config) { c.NodeIP = netip.Addr{} }, []string{"nodeIP:"}},
		"IPv6 pod IP":    {func(c *agentapi.Config) { c.PodIP = netip.MustParseAddr("fd00::1") }, []string{`podIP: "fd00::1"`, "IPv4"}},
		"same address":   {func(c *agentapi.Config) { c.PodIP = c.NodeIP }, []string{"podIP: 10.110.0.2", "own address"}},
		"half IPv6": {func(c *agentapi.Config) { c.PodIPv6 = netip.MustParseAddr("fd00::2") },
			[]string{`podIPv6 "fd00::2"`, "both, or neither"}},
		"link-local pod": {func(c *agentapi.Config) {
			c.NodeIPv6, c.PodIPv6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fe80::2")
		}, []string{`podIPv6: "fe80::2"`}},
		"IPv4 for IPv6": {func(c *agentapi.Config) {
			c.NodeIPv6, c.PodIPv6 = netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		}, []string{`nodeIPv6: "::ffff:10.0.0.1"`, `podIPv6: "10.0.0.2"`}},
		"same IPv6 address": {func(c *agentapi.Config) {
			c.NodeIPv6, c.PodIPv6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::1")
		}, []string{"podIPv6: fd00::1", "own address"}},
		"bad DNS":         {func(c *agentapi.Config) { c.ClusterDNS = []netip.Addr{{}} }, []string{"clusterDNS[0]"}},
		"bad domain":      {func(c *agentapi.Config) { c.ClusterDomain = "a b" }, []string{`clusterDomain: "a b"`}},
		"negative memory": {func(c *agentapi.Config) { c.ReservedMemoryBytes = -1 }, []string{"reservedMemoryBytes: -1"}},
		"mirror path": {func(c *agentapi.Config) { c.RegistryMirrors = map[string][]string{"../x": {"http://m"}} },
			[]string{`registryMirrors: "../x"`}},
		"mirror no URL": {func(c *agentapi.Config) { c.RegistryMirrors = map[string][]string{"a": nil} },
			[]string{"registryMirrors[a]: no URL"}},
		"mirror scheme": {func(c *agentapi.Config) { c.RegistryMirrors = map[string][]string{"a": {"m:5000"}} },
			[]string{`"m:5000" is not a base URL`}},
		"image pattern": {func(c *agentapi.Config) { c.ImagesOfCloud = []string{"*.a.b", "a b"} }, []string{`imagesOfCloud[1]: "a b"`}},
		"image URL":     {func(c *agentapi.Config) { c.ImagesOfCloud = []string{"https://a.b"} }, []string{`imagesOfCloud[0]: "https://a.b"`}},
		"many patterns": {func(c *agentapi.Config) { c.ImagesOfCloud = slices.Repeat([]string{"*.a"}, 257) }, []string{"imagesOfCloud: 257"}},
		"route of IPv6": {func(c *agentapi.Config) { c.Routes = networks("fd00::/64") }, []string{`routes[0]: "fd00::/64"`}},
		"route of hosts": {func(c *agentapi.Config) { c.Routes = networks("10.20.0.0/16", "10.30.0.1/16") },
			[]string{`routes[1]: "10.30.0.1/16"`}},
		"route of all": {func(c *agentapi.Config) { c.Routes = networks("0.0.0.0/0") }, []string{`routes[0]: "0.0.0.0/0"`}},
		"route of itself": {func(c *agentapi.Config) { c.Routes = networks("10.110.128.0/24") },
			[]string{"routes[0]: 10.110.128.0/24 has the machine's own address (nodeIP 10.110.0.2), or the pod's (podIP 10.110.128.2)"}},
		"many routes": {func(c *agentapi.Config) { c.Routes = slices.Repeat(networks("10.20.0.0/16"), 257) }, []string{"routes: 257"}},
		"a sysctl of the machine": {func(c *agentapi.Config) { c.UnsafeSysctls = []string{"kernel.msgmax", "vm.swappiness"} },
			[]string{`unsafeSysctls[1]: "vm.swappiness"`}},
		"a pattern of sysctls": {func(c *agentapi.Config) { c.UnsafeSysctls = []string{"net.*"} }, []string{`unsafeSysctls[0]: "net.*"`}},
		"many sysctls": {func(c *agentapi.Config) { c.UnsafeSysctls = slices.Repeat([]string{"net.a"}, 257) },
			[]string{"unsafeSysctls: 257"}},
		"pages of no size": {func(c *agentapi.Config) {
			c.HugePages = []agentapi.HugePages{{PageBytes: 2 << 20, Pages: 1}, {PageBytes: 3 << 20, Pages: 1}, {PageBytes: 0, Pages: 1}}
		}, []string{"hugePages[1].pageBytes: 3145728", "hugePages[2].pageBytes: 0"}},
		"no pages": {func(c *agentapi.Config) {
			c.HugePages = []agentapi.HugePages{{PageBytes: 2 << 20}, {PageBytes: 1 << 30, Pages: 1 << 40}}
		},
			[]string{"hugePages[0].pages: 0", "hugePages[1].pages: 1099511627776"}},
		"pages twice": {func(c *agentapi.Config) {
			c.HugePages = slices.Repeat([]agentapi.HugePages{{PageBytes: 2 << 20, Pages: 1}}, 2)
		},
			[]string{"hugePages[1].pageBytes: 2097152 is there twice"}},
		"many sizes of pages": {func(c *agentapi.Config) {
			for n := range 9 {
				c.HugePages = append(c.HugePages, agentapi.HugePages{PageBytes: 4096 << n, Pages: 1})
			}
		}, []string{"hugePages: 9 sizes"}},
		"negative swap": {func(c *agentapi.Config) { c.SwapBytes = -1 << 20 }, []string{"swapBytes: -1048576"}},
		"odd swap":      {func(c *agentapi.Config) { c.SwapBytes = 1<<20 + 4096 }, []string{"swapBytes: 1052672"}},
		"much swap":     {func(c *agentapi.Config) { c.SwapBytes = 1<<40 + 1<<20 }, []string{"swapBytes: 1099512676352"}},
		"several": {func(c *agentapi.Config) { c.NodeName, c.ReservedMemoryBytes = "_", -1 },
			[]string{"nodeName", "reservedMemoryBytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			c.change(&cfg)
			err := Validate(cfg)
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			}
		})
	}
}

func TestACellWithIPv6TellsItsPartsBothAddresses(t *testing.T) {
	c := config()
	four, err := CNI(c, "/gates", nil)
	if err != nil || strings.Contains(string(four), "IPv6") || !slices.Contains(KubeletArgs(c, ""), "--node-ip=10.110.0.2") {
		t.Errorf("without IPv6: %v, %s, %v", KubeletArgs(c, ""), four, err)
	}
	c.NodeIPv6, c.PodIPv6 = netip.MustParseAddr("fd10:110::2"), netip.MustParseAddr("fd10:110::8002")
	if err := Validate(c); err != nil {
		t.Error(err)
	}
	both, err := CNI(c, "/gates", nil)
	if err != nil || !strings.Contains(string(both), `"podIPv6": "fd10:110::8002"`) ||
		!strings.Contains(string(both), `"nodeIPv6": "fd10:110::2"`) {
		t.Errorf("%s, %v", both, err)
	}
	// The kubelet reports the addresses of its pod in the order of its own.
	if args := KubeletArgs(c, ""); !slices.Contains(args, "--node-ip=10.110.0.2,fd10:110::2") {
		t.Errorf("the kubelet gets %v", args)
	}
}

func TestAPasswordInAMirrorIsRefusedAndNotShown(t *testing.T) {
	for _, url := range []string{"http://user:hunter2@mirror", "http://user:hunter2@mirror:port"} {
		_, err := RegistryHosts(map[string][]string{"docker.io": {url}}, nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error %v", err)
		}
	}
}

func TestHostIsRecognised(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Host
	}{
		"cgroup v1, no CAP_SYS_RESOURCE": {map[string]string{
			"proc/self/status": "Name:\titzo\nCapEff:\t000001fffeffffff\n", "sys/fs/cgroup/memory/cgroup.procs": "",
		}, Host{SysModule: true}},
		"cgroup v2 with all": {map[string]string{
			"proc/self/status": "CapEff:\t000001ffffffffff\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory hugetlb pids\n",
			"sys/fs/cgroup/pids.max": "max\n", "sys/module/apparmor/parameters/enabled": "Y\n",
		}, Host{CgroupV2: true, Hugetlb: true, SysResource: true, SysModule: true, AppArmor: true}},
		"cgroup v1 with hugetlb, AppArmor off": {map[string]string{
			"proc/self/status": "CapEff:\t0000000001000000\n", "sys/fs/cgroup/hugetlb/cgroup.procs": "",
			"sys/module/apparmor/parameters/enabled": "N\n",
		}, Host{Hugetlb: true, SysResource: true}},
		"cgroup v1 that bounds tasks": {map[string]string{
			"proc/self/status": "CapEff:\t0\n", "sys/fs/cgroup/pids/pids.max": "16384\n",
		}, Host{Tasks: 16384}},
		"cgroup v2 that bounds tasks": {map[string]string{
			"proc/self/status": "CapEff:\t0\n", "sys/fs/cgroup/cgroup.controllers": "cpu\n", "sys/fs/cgroup/pids.max": "512\n",
		}, Host{CgroupV2: true, Tasks: 512}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for p, text := range c.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, p)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, p), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := InspectHost(root)
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	if _, err := InspectHost(t.TempDir()); err == nil {
		t.Error("a host without /proc is no host")
	}
}

func networks(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func TestTheNetworksBehindThePodAreThePlugins(t *testing.T) {
	c := config()
	c.Routes = networks("10.20.0.0/16", "192.168.7.0/24")
	if err := Validate(c); err != nil {
		t.Error(err)
	}
	got, err := CNI(c, "/gates", nil)
	var told struct {
		Plugins []struct{ Behind []netip.Prefix }
	}
	if err = errors.Join(err, json.Unmarshal(got, &told)); err != nil || !slices.Equal(told.Plugins[0].Behind, c.Routes) {
		t.Errorf("%s, %v", got, err)
	}
}
