package nvidia

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What a package's program does, once it has left its root, changes nothing of the machine.
func TestAProgramOfAPackageIsKeptFromTheMachine(t *testing.T) {
	if os.Geteuid() != 0 { // it would have what its caller has
		if _, err := sandboxed(t.Context(), t.TempDir(), "/escape"); !errors.Is(err, errNotRoot) {
			t.Errorf("as another user than root: %v, want %v", err, errNotRoot)
		}
		return
	}
	private := t.TempDir()
	for _, dir := range []string{private, filepath.Dir(private)} { // that nothing but its owner keeps others from writing
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	machines := filepath.Join(private, "file") // which a package's link names in the place of a device
	if err := os.WriteFile(machines, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(machines, filepath.Join(root, "dev", "null")); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(root, "escape"), "./testdata/escape")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd, err := sandboxed(t.Context(), root, "/escape", private)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, said.String())
	}
	var got struct {
		Devices, Interfaces []string
		PID                 int
		Wrote               bool
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got.Wrote {
		t.Error("it wrote into root's folder")
	}
	if want := []string{"null", "random", "urandom", "zero"}; !slices.Equal(got.Devices, want) {
		t.Errorf("it has the devices %v, want %v", got.Devices, want)
	}
	if slices.ContainsFunc(got.Interfaces, func(name string) bool { return name != "lo" }) {
		t.Errorf("it has the network interfaces %v, want lo alone", got.Interfaces)
	}
	if got.PID != 1 {
		t.Errorf("it is process %d, want the first of a namespace of its own", got.PID)
	}
	if text, err := os.ReadFile(machines); err != nil || string(text) != "x" {
		t.Errorf("root's file has %q (%v), want x", text, err)
	}
}

// What a build leaves in the place of a module is read only if it is a file of the build's own.
func TestOnlyFilesOfTheBuildAreReadAsModules(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write := func(path string) error { return os.WriteFile(path, []byte("x"), 0o644) }
	if err := write(secret); err != nil {
		t.Fatal(err)
	}
	if err := write(filepath.Join(filepath.Dir(secret), built[0])); err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct {
		leave func(root string) error
		taken bool
	}{
		"a file":                  {func(root string) error { return write(filepath.Join(root, "build", built[0])) }, true},
		"a link out":              {func(root string) error { return os.Symlink(secret, filepath.Join(root, "build", built[0])) }, false},
		"a device without an end": {func(root string) error { return os.Symlink("/dev/zero", filepath.Join(root, "build", built[0])) }, false},
		"a pipe":                  {func(root string) error { return unix.Mkfifo(filepath.Join(root, "build", built[0]), 0o644) }, false},
		"a folder out": {func(root string) error {
			return errors.Join(os.RemoveAll(filepath.Join(root, "build")), os.Symlink(filepath.Dir(secret), filepath.Join(root, "build")))
		}, false},
		"much": {func(root string) error {
			return errors.Join(write(filepath.Join(root, "build", built[0])), os.Truncate(filepath.Join(root, "build", built[0]), moduleMost+1))
		}, false},
	} {
		root := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(root, "build"), 0o755), tc.leave(root)); err != nil {
			t.Fatal(what, err)
		}
		if _, err := os.Lstat(filepath.Join(root, "build", built[1])); err != nil {
			if err := write(filepath.Join(root, "build", built[1])); err != nil {
				t.Fatal(what, err)
			}
		}
		if _, err := read(root, "build"); (err == nil) != tc.taken {
			t.Errorf("%s: %v", what, err)
		}
	}
}
