package stack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine makes a root in which everything is there that checkHost looks for.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, ns := range namespaces {
		write(t, filepath.Join(root, "proc/self/ns", ns), "")
	}
	write(t, filepath.Join(root, "proc/filesystems"), "nodev\tproc\nnodev\toverlay\n\text4\n")
	write(t, filepath.Join(root, "sys/fs/cgroup/memory/tasks"), "")
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func found(string) (string, error)   { return "/bin/busybox", nil }
func missing(string) (string, error) { return "", &exec.Error{Name: "busybox", Err: exec.ErrNotFound} }

func TestEachThingThatIsMissingIsNamedWithWhatMendsIt(t *testing.T) {
	tests := []struct {
		name       string
		spoil      func(root string) error
		uid        int
		look       func(string) (string, error)
		what, mend string // empty: nothing is wrong
	}{
		{name: "nothing", look: found},
		{name: "root", uid: 1000, look: found, what: "not root", mend: "sudo make run"},
		{name: "busybox", look: missing, what: "busybox", mend: "apt-get install busybox-static"},
		{name: "overlay", look: found, what: "overlay", mend: "modprobe overlay", spoil: func(root string) error {
			return os.WriteFile(filepath.Join(root, "proc/filesystems"), []byte("nodev\toverlayfoo\n"), 0o644)
		}},
		{name: "namespace", look: found, what: "no pid namespaces", mend: "kernel", spoil: func(root string) error {
			return os.Remove(filepath.Join(root, "proc/self/ns/pid"))
		}},
		{name: "cgroups", look: found, what: "cgroup", mend: "mount -t cgroup2", spoil: func(root string) error {
			return os.RemoveAll(filepath.Join(root, "sys"))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := machine(t)
			if tt.spoil != nil {
				if err := tt.spoil(root); err != nil {
					t.Fatal(err)
				}
			}
			problems := check(root, tt.uid, "/proc/not/yet/made", tt.look)
			if tt.what == "" {
				if len(problems) != 0 {
					t.Errorf("problems: %v", problems)
				}
				return
			}
			if len(problems) != 1 || !strings.Contains(problems[0].What, tt.what) || !strings.Contains(problems[0].Mend, tt.mend) {
				t.Errorf("problems: %v, want %q, mended by %q", problems, tt.what, tt.mend)
			}
		})
	}
}
