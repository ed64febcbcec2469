package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// passed records which targets have passed on which files. The zero value
// records nothing.
type passed struct {
	folder string
	tree   string // the hash of the files
}

// has reports whether a target has passed on these files.
func (p passed) has(target string) bool {
	if p.folder == "" {
		return false
	}
	tree, err := os.ReadFile(filepath.Join(p.folder, target))
	return err == nil && string(tree) == p.tree
}

// add records that a target has passed.
func (p passed) add(target string) error {
	if p.folder == "" {
		return nil
	}
	if err := os.MkdirAll(p.folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.folder, target), []byte(p.tree), 0o644)
}

// treeHash returns git's hash of all files in the work tree that git does not
// ignore, whether they are committed or not. It leaves git's own index alone.
func treeHash() (string, error) {
	scratch, err := os.MkdirTemp("", "kip-stages-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	hash := ""
	for _, args := range [][]string{{"add", "--all", ":/"}, {"write-tree"}} {
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+filepath.Join(scratch, "index"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
		}
		hash = strings.TrimSpace(string(out))
	}
	return hash, nil
}
