package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// passed records which targets have passed, and on which files: a file for each target and each set of settings.
type passed struct {
	folder   string
	settings []string // names of environment variables
}

// file returns the name of the record of a target with the present settings.
func (p passed) file(target string) string {
	h := sha256.New()
	for _, name := range p.settings {
		fmt.Fprintf(h, "%s=%q ", name, os.Getenv(name))
	}
	return filepath.Join(p.folder, fmt.Sprintf("%s-%x", target, h.Sum(nil)[:8]))
}

// has reports whether a target has passed on the files of the tree, with the present settings.
func (p passed) has(target string) bool {
	state, err := treeHash()
	if err != nil {
		return false
	}
	recorded, err := os.ReadFile(p.file(target))
	return err == nil && string(recorded) == state
}

// begin forgets that a target has passed, and returns the state. It is empty where
// git cannot tell.
func (p passed) begin(target string) (state string, err error) {
	if err := os.Remove(p.file(target)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	state, err = treeHash()
	if err != nil {
		return "", nil // then it is not recorded, and not skipped
	}
	return state, nil
}

// add records that a target has passed, unless the files have changed since
// begin.
func (p passed) add(target, before string) error {
	if state, err := treeHash(); err != nil || state != before {
		return nil // as in begin
	}
	if err := os.MkdirAll(p.folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(p.file(target), []byte(before), 0o644)
}

// treeHash returns git's hash of all files of the work tree, whether they are
// committed or not, and the version of Go. It leaves out untracked files that
// git ignores, and leaves git's own index alone. It fails where this folder is
// not the top of a work tree, such as in an unpacked archive.
func treeHash() (string, error) {
	scratch, err := os.MkdirTemp("", "kip-stages-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+filepath.Join(scratch, "index"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if prefix, err := git("rev-parse", "--show-prefix"); err != nil || prefix != "" {
		return "", errors.Join(err, errors.New("this folder is not the top of a git work tree"))
	}
	// Tracked files count even if they are ignored.
	if _, err := git("read-tree", "HEAD"); err != nil {
		return "", err
	}
	if _, err := git("add", "--all", ":/"); err != nil {
		return "", err
	}
	tree, err := git("write-tree")
	return tree + " " + runtime.Version(), err
}
