package cgroups

import (
	"reflect"
	"strings"
	"testing"
)

func TestHierarchiesOfEachKindOfHost(t *testing.T) {
	for name, tc := range map[string]struct {
		mounts string
		want   Hierarchies
		pureV2 bool
	}{
		"v2": {
			mounts: "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot",
			want:   Hierarchies{{Mount: "/sys/fs/cgroup", V2: true}},
			pureV2: true,
		},
		"v1 with shared hierarchies": {
			mounts: `25 20 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw
26 25 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
27 25 0:23 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
28 25 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
29 25 0:22 / /mnt/again rw - cgroup cgroup rw,cpu,cpuacct`,
			want: Hierarchies{
				{Mount: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"cpu", "cpuacct"}},
				{Mount: "/sys/fs/cgroup/systemd", Controllers: []string{"name=systemd"}},
				{Mount: "/sys/fs/cgroup/unified", V2: true},
			},
		},
	} {
		got, err := parseHierarchies(strings.Split(tc.mounts, "\n"))
		if err != nil || !reflect.DeepEqual(got, tc.want) || got.PureV2() != tc.pureV2 {
			t.Errorf("%s: %+v (pure v2: %t), %v; want %+v", name, got, got.PureV2(), err, tc.want)
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

func TestLimitsOfASize(t *testing.T) {
	size := Size{MilliCPU: 1500, MemoryBytes: 1 << 30}
	flat := func(ls []Limit) string {
		var b strings.Builder
		for _, l := range ls {
			b.WriteString(l.Path + "=" + l.Content + ";")
		}
		return b.String()
	}
	for _, tc := range []struct {
		h      Hierarchy
		pureV2 bool
		want   string
	}{
		{Hierarchy{V2: true}, true, "cpu.max=150000 100000;cpu.weight=59;memory.max=1073741824;memory.swap.max=0;pids.max=16384;"},
		{Hierarchy{V2: true}, false, ""},
		{Hierarchy{Controllers: []string{"cpu", "cpuacct"}}, false, "cpu.cfs_period_us=100000;cpu.cfs_quota_us=150000;cpu.shares=1536;"},
		{Hierarchy{Controllers: []string{"memory"}}, false, "memory.limit_in_bytes=1073741824;memory.memsw.limit_in_bytes=1073741824;"},
		{Hierarchy{Controllers: []string{"pids"}}, false, "pids.max=16384;"},
		{Hierarchy{Controllers: []string{"name=systemd"}}, false, ""},
	} {
		if got := flat(tc.h.limits(size, tc.pureV2)); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.h, got, tc.want)
		}
	}
}
