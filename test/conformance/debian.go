package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debianSuite is the release of Debian that the layers are made of.
const debianSuite = "trixie"

// tree is one of Debian's packages.
type tree struct {
	name, variant string
	packages      []string
	hooks         []string
}

var (
	// full is the base of most images. Upstream's base is Alpine, whose wget is busybox's: it does not try again as GNU's does.
	full = tree{
		name:    "debian",
		variant: "essential",
		packages: []string{
			"busybox", "curl", "bind9-dnsutils", "netcat-openbsd", "iproute2", "iptables", "iputils-ping", "nginx-light", "procps",
		},
		hooks: []string{`ln -s busybox "$1/usr/bin/wget"`},
	}
	// busybox is small. Some specs want environment variables with a dash in their
	// names, which Debian's busybox shell drops and upstream's keeps, and call sh;
	// another wants what busybox's shell says of an error, and calls /bin/sh.
	busybox = tree{
		name:     "busybox",
		variant:  "extract",
		packages: []string{"bash", "busybox", "libc-bin", "libc6"},
		hooks: []string{
			`mkdir -p "$1/usr/local/bin" && ln -s ../../bin/bash "$1/usr/local/bin/sh"`,
			`for a in $(chroot "$1" /usr/bin/busybox --list); do [ -e "$1/usr/bin/$a" ] || ln -s busybox "$1/usr/bin/$a"; done`,
		},
	}
)

// arguments are how mmdebstrap makes the tree.
func (t tree) arguments() []string {
	args := []string{
		"--quiet", "--variant=" + t.variant, "--format=tar", "--include=" + strings.Join(t.packages, ","),
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/zoneinfo/*", "--dpkgopt=path-exclude=/usr/lib/*/gconv/*",
		"--skip=output/dev",
	}
	for _, h := range t.hooks {
		args = append(args, "--extract-hook="+h)
	}
	return append(args, debianSuite)
}

// make builds the tree as a tar file, unless it is there, and returns its path.
func (t tree) make(ctx context.Context, dir string) (string, error) {
	file := filepath.Join(dir, t.name+"-"+fingerprint(t.arguments())+".tar")
	if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fmt.Printf("making the layer %s of Debian's packages, once\n", t.name)
	if out, err := exec.CommandContext(ctx, "mmdebstrap", append(t.arguments(), file+".new")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make the layer %s of Debian's packages: %w\n%s", t.name, err, out)
	}
	return file, os.Rename(file+".new", file)
}
