package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"Write": Write, "WriteSynced": WriteSynced} {
		dir := t.TempDir()
		path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
		if err := os.WriteFile(other, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		// As a process that was killed leaves it, or somebody else who may write here.
		if err := os.Symlink(other, filepath.Join(dir, ".file.new")); err != nil {
			t.Fatal(err)
		}
		// A reader that has the old one open goes on with it.
		if err := write(path, []byte("first"), 0o600); err != nil {
			t.Fatal(err)
		}
		reader, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if err := write(path, []byte("2nd"), 0o666); err != nil {
			t.Fatal(err)
		}
		old := make([]byte, 10)
		n, _ := reader.Read(old)
		now, err := os.ReadFile(path)
		if string(old[:n]) != "first" || string(now) != "2nd" || err != nil {
			t.Errorf("%s: %q was replaced by %q, %v", name, old[:n], now, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o666 {
			t.Errorf("%s: it has the mode %v, %v, whatever the umask", name, info.Mode(), err)
		}
		if is, err := os.ReadFile(other); err != nil || string(is) != "old" {
			t.Errorf("%s: the target of a link in the way is %q, %v", name, is, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("%s: there are %v, %v", name, left, err)
		}
	}
}

func TestAFileThatCannotBeReplacedStaysAndNothingIsLeft(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("there are %v, %v", left, err)
	}
}
