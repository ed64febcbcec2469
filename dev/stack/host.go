package stack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Problem is something that this machine lacks.
type Problem struct {
	What string
	Mend string // a command where there is one
}

func (p Problem) String() string { return p.What + ": " + p.Mend }

// overlayMagic is the type of an overlay file system in statfs(2).
const overlayMagic = 0x794c7630

// checkHost returns what this machine lacks to hold machines in the state folder.
func checkHost(state string) []Problem { return check("/", os.Geteuid(), state, exec.LookPath) }

// namespaces that a machine has of its own.
var namespaces = []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"}

func check(root string, uid int, state string, lookPath func(string) (string, error)) []Problem {
	var problems []Problem
	add := func(what, mend string) { problems = append(problems, Problem{What: what, Mend: mend}) }
	if uid != 0 {
		add("not root", "cells are machines made of namespaces, which only root may make: sudo make run")
	}
	for _, ns := range namespaces {
		if _, err := os.Lstat(filepath.Join(root, "proc/self/ns", ns)); err != nil {
			add(fmt.Sprintf("the kernel has no %s namespaces", ns), "use a kernel of a usual Linux distribution")
		}
	}
	filesystems, err := os.ReadFile(filepath.Join(root, "proc/filesystems"))
	if err != nil || !strings.Contains(string(filesystems), "\toverlay\n") {
		add("the kernel has no overlay file system", "modprobe overlay")
	}
	if _, err := os.Stat(filepath.Join(root, "sys/fs/cgroup")); err != nil {
		add("there is no cgroup file system", "mount -t cgroup2 none /sys/fs/cgroup")
	}
	if _, err := lookPath("busybox"); errors.Is(err, exec.ErrNotFound) {
		add("there is no busybox, of which cells and the example image are made", "apt-get install busybox-static")
	}
	// The folder itself is made later.
	var s unix.Statfs_t
	dir := state
	for err = unix.Statfs(dir, &s); errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir); err = unix.Statfs(dir, &s) {
		dir = filepath.Dir(dir)
	}
	switch {
	case err != nil:
		add(fmt.Sprintf("the state folder %s cannot be looked at (%v)", state, err), "choose another one with --state")
	case s.Type == overlayMagic:
		add(fmt.Sprintf("the state folder %s lies on an overlay file system, on which containerd cannot work", state),
			"choose a folder of a disk or of a tmpfs with --state")
	}
	return problems
}
