package local

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

func TestAddressesFollowFromTheSlot(t *testing.T) {
	for _, tc := range []struct {
		cidr                     string
		slot                     uint32
		gateway, management, pod string
	}{
		{"10.110.0.0/16", 2, "10.110.0.1", "10.110.0.2", "10.110.128.2"},
		{"10.110.0.0/16", 300, "10.110.0.1", "10.110.1.44", "10.110.129.44"},
		{"192.168.7.16/28", 6, "192.168.7.17", "192.168.7.22", "192.168.7.30"},
		{"10.0.0.0/8", 1<<23 - 2, "10.0.0.1", "10.127.255.254", "10.255.255.254"},
	} {
		n := network{netip.MustParsePrefix(tc.cidr)}
		got := []string{n.gateway().String(), n.management(tc.slot).String(), n.pod(tc.slot).String()}
		if want := []string{tc.gateway, tc.management, tc.pod}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s slot %d: %v, want %v", tc.cidr, tc.slot, got, want)
		}
	}
}

func TestSlotsAreAllGivenOutOnceBeforeOneIsReused(t *testing.T) {
	n := network{netip.MustParsePrefix("10.0.0.0/28")}
	used := map[uint32]bool{}
	isUsed := func(s uint32) bool { return used[s] }
	last := uint32(4)
	var order []uint32
	for {
		slot, err := n.free(false, isUsed, last)
		if errors.Is(err, errNoAddress) {
			break
		}
		if err != nil || used[slot] {
			t.Fatalf("slot %d given twice, or %v", slot, err)
		}
		used[slot], last = true, slot
		order = append(order, slot)
	}
	// Not 0 (network), 1 (host), 7 (its pod would have the broadcast address).
	if want := []uint32{5, 6, 2, 3, 4}; !reflect.DeepEqual(order, want) {
		t.Errorf("slots in order: %v, want %v", order, want)
	}
	delete(used, 3)
	if slot, err := n.free(false, isUsed, last); slot != 3 || err != nil {
		t.Errorf("slot %d, %v; want 3, the only free one", slot, err)
	}
}

func TestAGuestsAddressesAreNobodyElses(t *testing.T) {
	for cidr, want := range map[string]struct{ pods, first string }{
		"10.110.0.0/16":  {"10.110.248.0/21", "10.110.120.0"},
		"192.168.7.0/24": {"192.168.7.248/29", "192.168.7.120"},
	} {
		cfg := Config{StateDir: "/var/lib/kip", CIDR: netip.MustParsePrefix(cidr)}
		pods, err := cfg.GuestPods()
		if err != nil || pods.String() != want.pods {
			t.Errorf("%s: pods of a guest in %s, %v; want %s", cidr, pods, err, want.pods)
		}
		first, err := cfg.GuestAddress(0)
		if err != nil || first.String() != want.first {
			t.Errorf("%s: a guest's first machine has %s, %v; want %s", cidr, first, err, want.first)
		}
		// Every slot of the owner and of the guest, once.
		n := network{cfg.CIDR}
		seen := map[netip.Addr]bool{n.gateway(): true}
		for _, guest := range []bool{false, true} {
			used := map[uint32]bool{}
			last := uint32(0)
			for {
				slot, err := n.free(guest, func(s uint32) bool { return used[s] }, last)
				if err != nil {
					break
				}
				used[slot], last = true, slot
				if seen[n.management(slot)] || pods.Contains(n.management(slot)) || !cfg.CIDR.Contains(n.management(slot)) {
					t.Fatalf("%s: guest %t: slot %d has %s", cidr, guest, slot, n.management(slot))
				}
				seen[n.management(slot)] = true
				if !guest && pods.Contains(n.pod(slot)) {
					t.Fatalf("%s: the pod of slot %d has %s, which is a guest's", cidr, slot, n.pod(slot))
				}
			}
			if len(used) == 0 {
				t.Errorf("%s: guest %t: no address", cidr, guest)
			}
		}
	}
	small := Config{StateDir: "/var/lib/kip", CIDR: netip.MustParsePrefix("10.110.0.0/28")}
	if _, err := small.GuestPods(); err == nil {
		t.Error("16 addresses are enough for a guest's pods")
	}
	if _, err := small.GuestAddress(0); err == nil {
		t.Error("16 addresses are enough for a guest")
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	good := Config{StateDir: "/var/lib/kip", Bridge: "kip1"}
	for want, spoil := range map[string]func(*Config){
		`stateDir is empty`:                            func(c *Config) { c.StateDir = "" },
		`stateDir "/a:b": want a path without comma`:   func(c *Config) { c.StateDir = "/a:b" },
		`bridge "kip-with-a-long-name": want a letter`: func(c *Config) { c.Bridge = "kip-with-a-long-name" },
		`cidr "fd00::/64": want an IPv4 network`:       func(c *Config) { c.CIDR = netip.MustParsePrefix("fd00::/64") },
		`cidr "10.0.0.0/30": want an IPv4 network`:     func(c *Config) { c.CIDR = netip.MustParsePrefix("10.0.0.0/30") },
		`cidr "10.0.0.1/16": want an IPv4 network`:     func(c *Config) { c.CIDR = netip.MustParsePrefix("10.0.0.1/16") },
		`init "itzo": want an absolute path`:           func(c *Config) { c.Init = []string{"itzo"} },
		`characters too long`:                          func(c *Config) { c.StateDir = "/" + strings.Repeat("x", 240) },
	} {
		c := good
		spoil(&c)
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
	c, err := good.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.CIDR.String() != "10.110.0.0/16" || !reflect.DeepEqual(c.Init, []string{"/bin/itzo", "cell"}) || len(c.Catalogue) == 0 {
		t.Errorf("defaults: %+v", c)
	}
}

func TestRecordReadsBackAsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "i-00112233445566ff")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	want := record{
		Token: "tok", Slot: 7, Process: process{PID: 9, Started: 1234, BootID: "b"},
		Instance: cloud.Instance{
			ID: "i-00112233445566ff", InstanceType: "nano", Zone: "local", State: cloud.Running,
			ManagementIP: netip.MustParseAddr("10.110.0.7"), PodIP: netip.MustParseAddr("10.110.128.7"),
			Launched: time.Unix(1700000000, 5).UTC(), Tags: map[string]string{cloud.TagOwner: "me"},
		},
	}
	if err := want.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := readRecord(dir)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
}

func TestEveryFolderIsListedAlsoWithoutAGoodRecord(t *testing.T) {
	cfg := Config{StateDir: t.TempDir()}
	if all, err := readAll(cfg); err != nil || len(all) != 0 {
		t.Fatalf("empty state: %v, %v", all, err)
	}
	content := map[string]string{
		"i-0000000000000001": `{"instance":{"id":"i-0000000000000001"}}`,
		"i-0000000000000002": `{"instance":{"id":"i-0000000000000001"}}`, // copied there
		"i-0000000000000003": `{"inst`,
		"i-0000000000000004": "",
		"lost+found":         "",
	}
	for name, c := range content {
		if err := os.MkdirAll(cfg.machineDir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cfg.machineDir(name), recordName), []byte(c), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(cfg.machineDir("i-0000000000000005"), 0o700); err != nil {
		t.Fatal(err)
	}
	all, err := readAll(cfg)
	if err != nil || len(all) != 5 {
		t.Fatalf("read %v, %v", all, err)
	}
	for n, s := range all {
		if (s.err == nil) != (n == 0) {
			t.Errorf("%s: error is %v", s.id, s.err)
		}
	}
}

func TestStartTimeIsFoundBehindAnyCommandName(t *testing.T) {
	rest := " S 1 2 3 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 4 5"
	for _, command := range []string{"(sh)", "(a b)", "(x) R 1 (y)", "())"} {
		got, err := startTime([]byte("12 " + command + rest))
		if err != nil || got != 98765 {
			t.Errorf("%s: %d, %v", command, got, err)
		}
	}
	for _, bad := range []string{"", "12 sh S", "12 (sh) S 1 2"} {
		if got, err := startTime([]byte(bad)); err == nil {
			t.Errorf("%q: %d, want an error", bad, got)
		}
	}
}

func TestProcessIsOnlyItself(t *testing.T) {
	self, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h, err := self.open()
	if err != nil {
		t.Fatal(err)
	}
	h.close()
	for what, p := range map[string]process{
		"unset":           {},
		"started earlier": {PID: self.PID, Started: self.Started - 1, BootID: self.BootID},
		"of another boot": {PID: self.PID, Started: self.Started, BootID: "other"},
	} {
		if _, err := p.open(); !errors.Is(err, errGone) {
			t.Errorf("%s: error is %v", what, err)
		}
	}
}

func TestCPUInfoHasOneBlockACore(t *testing.T) {
	host := "processor\t: 0\nmodel name\t: X: 1\nphysical id\t: 3\nsiblings\t: 64\ncore id\t\t: 9\ncpu cores\t: 32\npower management:\n\nprocessor\t: 1\nmodel name\t: X\n\n"
	want := "processor\t: 0\nmodel name\t: X: 1\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 0\ncpu cores\t: 2\npower management:\n\n" +
		"processor\t: 1\nmodel name\t: X: 1\nphysical id\t: 0\nsiblings\t: 2\ncore id\t\t: 1\ncpu cores\t: 2\npower management:\n\n"
	if got := cpuinfo(host, 2); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestMeminfoIsTheTypes(t *testing.T) {
	got := meminfo(512 << 20)
	for _, want := range []string{"MemTotal:         524288 kB\n", "MemAvailable:     524288 kB\n", "SwapTotal:             0 kB\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

func TestCoresAreRoundedUp(t *testing.T) {
	for milli, want := range map[int64]int{0: 1, 250: 1, 1000: 1, 1001: 2, 8000: 8} {
		if got := cores(catalog.InstanceType{MilliCPU: milli}); got != want {
			t.Errorf("%d milliCPU: %d cores, want %d", milli, got, want)
		}
	}
}

func TestHierarchiesOfEachKindOfHost(t *testing.T) {
	for name, tc := range map[string]struct {
		mounts string
		want   hierarchies
		pureV2 bool
	}{
		"v2": {
			mounts: "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot",
			want:   hierarchies{{Mount: "/sys/fs/cgroup", V2: true}},
			pureV2: true,
		},
		"v1 with shared hierarchies": {
			mounts: `25 20 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw
26 25 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
27 25 0:23 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
28 25 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
29 25 0:22 / /mnt/again rw - cgroup cgroup rw,cpu,cpuacct`,
			want: hierarchies{
				{Mount: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"cpu", "cpuacct"}},
				{Mount: "/sys/fs/cgroup/systemd", Controllers: []string{"name=systemd"}},
				{Mount: "/sys/fs/cgroup/unified", V2: true},
			},
		},
	} {
		got, err := parseHierarchies(strings.Split(tc.mounts, "\n"))
		if err != nil || !reflect.DeepEqual(got, tc.want) || got.pureV2() != tc.pureV2 {
			t.Errorf("%s: %+v (pure v2: %t), %v; want %+v", name, got, got.pureV2(), err, tc.want)
		}
	}
	for want, mounts := range map[string]string{
		"no cgroup file system is mounted": "25 20 0:21 / / rw - ext4 /dev/vda rw",
		"mounted read-only":                "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw",
	} {
		if _, err := parseHierarchies([]string{mounts}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
}

func TestLimitsOfAType(t *testing.T) {
	typ := catalog.InstanceType{MilliCPU: 1500, MemoryBytes: 1 << 30}
	flat := func(ls []limit) string {
		var b strings.Builder
		for _, l := range ls {
			b.WriteString(l.path + "=" + l.content + ";")
		}
		return b.String()
	}
	for _, tc := range []struct {
		h      hierarchy
		pureV2 bool
		want   string
	}{
		{hierarchy{V2: true}, true, "cpu.max=150000 100000;cpu.weight=59;memory.max=1073741824;memory.swap.max=0;pids.max=16384;"},
		{hierarchy{V2: true}, false, ""},
		{hierarchy{Controllers: []string{"cpu", "cpuacct"}}, false, "cpu.cfs_period_us=100000;cpu.cfs_quota_us=150000;cpu.shares=1536;"},
		{hierarchy{Controllers: []string{"memory"}}, false, "memory.limit_in_bytes=1073741824;memory.memsw.limit_in_bytes=1073741824;"},
		{hierarchy{Controllers: []string{"pids"}}, false, "pids.max=16384;"},
		{hierarchy{Controllers: []string{"name=systemd"}}, false, ""},
	} {
		if got := flat(tc.h.limits(typ, tc.pureV2)); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.h, got, tc.want)
		}
	}
}

func TestDroppedForwardingIsSeen(t *testing.T) {
	for rules, want := range map[string]bool{
		"-P FORWARD ACCEPT\n":                                       false,
		"-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n":              true,
		"-P FORWARD DROP\n-A FORWARD -i kip0 -o kip0 -j ACCEPT\n":   false,
		"-P FORWARD DROP\n-A FORWARD -i kip01 -o kip01 -j ACCEPT\n": true,
	} {
		if got := forwardDropped(rules, "kip0"); got != want {
			t.Errorf("%q: %t, want %t", rules, got, want)
		}
	}
}

func TestConsoleKeepsItsEndAndGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	write := func(s string) {
		if _, err := writer.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := boundConsole(path); err != nil {
			t.Fatal(err)
		}
	}
	write("short")
	if b, err := os.ReadFile(path); err != nil || string(b) != "short" {
		t.Fatalf("a short log became %q, %v", b, err)
	}
	write(strings.Repeat("x", maxConsole) + "the end")
	write(", and on")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != keptConsole+len(", and on") || !strings.HasSuffix(string(b), "xthe end, and on") {
		t.Errorf("%d bytes, ending in %q", len(b), b[max(0, len(b)-20):])
	}
	if err := boundConsole(path + "-of-a-machine-that-is-gone"); err != nil {
		t.Error(err)
	}
}
