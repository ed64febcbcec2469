package nvidia

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// What a package's program does, once it has left its root, changes nothing of the machine.
func TestAProgramOfAPackageIsKeptFromTheMachine(t *testing.T) {
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
}
