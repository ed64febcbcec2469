package qemu

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A process is a program from its release on, in its folder, with nothing to read and the
// files that it was given; unreleased it never becomes one.
func TestAProcessBecomesItsProgramWhenItIsReleased(t *testing.T) {
	for _, released := range []bool{true, false} {
		dir := t.TempDir()
		said := filepath.Join(dir, "said")
		given, err := os.Create(filepath.Join(dir, "given"))
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"-c", `read -r nothing || echo "$1" > here; echo to 3 >&3; echo "$0"`, "a b", "c  d"}
		p, err := spawn("/bin/sh", dir, args, said, given)
		given.Close()
		if err != nil {
			t.Fatal(err)
		}
		if released {
			err = p.release()
		} else {
			err = p.gate.Close() // as when this process dies
		}
		if err != nil {
			t.Error(err)
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(p.pid, &status, 0, nil); err != nil {
			t.Fatal(err)
		}
		if got := status.ExitStatus() == 0; got != released {
			t.Errorf("released: %t; ended with %d", released, status.ExitStatus())
		}
		want := map[string]string{"said": "", "given": ""}
		if released {
			want = map[string]string{"said": "a b\n", "given": "to 3\n", "here": "c  d\n"}
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != len(want) {
			t.Errorf("released: %t; files %v, %v", released, entries, err)
		}
		for name, content := range want {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != content {
				t.Errorf("released: %t; %s holds %q, %v; want %q", released, name, got, err, content)
			}
		}
	}
}
