package local

import (
	"reflect"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/host"
)

func TestConfigOfMachinesHasDefaultsAndErrorsThatNameTheField(t *testing.T) {
	c, err := Config{Config: host.Config{StateDir: "/var/lib/kip"}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.Bridge != "kip0" || !reflect.DeepEqual(c.Init, []string{"/bin/itzo", "cell"}) || len(c.Catalogue) == 0 {
		t.Errorf("defaults: %+v", c)
	}
	c.Init = []string{"itzo"}
	if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), `init "itzo": want an absolute path`) {
		t.Errorf("error is %v", err)
	}
	if _, err := (Config{}).withDefaults(); err == nil || !strings.Contains(err.Error(), "stateDir is empty") {
		t.Errorf("error is %v", err)
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
