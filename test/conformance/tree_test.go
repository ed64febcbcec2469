package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheCommitIsNamedAndItsChangesAre(t *testing.T) {
	o := options{root: t.TempDir()}
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Dir = o.root
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	expect := func(what, commit, warning string) {
		t.Helper()
		if c, w := o.commit(t.Context()); c != commit || !strings.Contains(w, warning) || (w == "") != (warning == "") {
			t.Errorf("%s: commit %q, warning %q", what, c, w)
		}
	}
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(o.root))
	expect("an archive", noCommit, "not publishable: this is no git checkout, so no commit can be named")
	git("init", "-q")
	write(t, filepath.Join(o.root, "a"), "a")
	git("add", "a")
	git("commit", "-q", "-m", "a")
	commit := git("rev-parse", "--short=12", "HEAD")
	expect("a clean tree", commit, "")
	write(t, filepath.Join(o.root, "b.go"), "package b")
	expect("a new file", commit+dirty, "not publishable: the tree has uncommitted changes")
	if err := os.Remove(filepath.Join(o.root, "b.go")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(o.root, "a"), "b")
	expect("a changed file", commit+dirty, "not publishable: the tree has uncommitted changes")
	o.root = filepath.Join(o.root, "unpacked")
	write(t, filepath.Join(o.root, "c"), "c")
	expect("an archive in another's checkout", noCommit, "not publishable: this is no git checkout, so no commit can be named")
}
