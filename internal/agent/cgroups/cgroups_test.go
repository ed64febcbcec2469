package cgroups

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestHierarchiesAreFoundByType(t *testing.T) {
	const mountinfo = `22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
33 22 0:29 / /mnt/cgroup rw - nfs cgroup rw
`
	got, err := hierarchies(strings.NewReader(mountinfo))
	if want := []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestAnEmptyCpusetTakesItsParents(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "system")
	for path, content := range map[string]string{
		"cpuset.cpus": "0-3\n", "cpuset.mems": "0\n", "system/cpuset.cpus": "\n", "system/cpuset.mems": "1\n", "system/cgroup.procs": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := join(dir, root, 42); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpuset.cpus": "0-3\n", "cpuset.mems": "1\n", "cgroup.procs": "42"} {
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v; want %q", file, got, err, want)
		}
	}
}
