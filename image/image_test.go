package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/configs"
)

// options makes small scripts and files in the place of the programs. The
// busybox here only lists its applets.
func options(t *testing.T) Options {
	t.Helper()
	in := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(in, name)
		if err := os.WriteFile(p, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return p
	}
	return Options{
		Dir:  filepath.Join(t.TempDir(), "cells", "root"),
		Itzo: file("itzo", "whole"), ItzoContainerd: file("itzo-containerd", "middle"), ItzoLite: file("itzo-lite", "small"),
		Runc: file("runc", "runc"), Pause: file("pause", "pause"),
		Busybox:      file("busybox", "#!/bin/sh\necho bin/sh\necho usr/bin/wc\necho usr/bin/runc\necho sbin/init\necho ../../escape\n"),
		Certificates: file("certs", "PEM"),
		Programs:     map[string]string{"usr/sbin/nft": file("nft", "nft"), Portmap: file("portmap", "portmap")},
	}
}

func build(t *testing.T, o Options) (tree string) {
	t.Helper()
	if err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	tree, err := filepath.EvalSymlinks(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// listing says all of a tree: names, types, modes, times, targets, contents.
func listing(t *testing.T, tree string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(tree, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(tree, p)
		fmt.Fprintf(&b, "%s %s", rel, info.Mode())
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %s\n", to)
			return nil
		case d.Type().IsRegular():
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(content)
			b.WriteString(" " + hex.EncodeToString(sum[:]))
		}
		fmt.Fprintf(&b, " %d\n", info.ModTime().Unix())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTheTreeHoldsEveryProgramUnderItsNames(t *testing.T) {
	o := options(t)
	tree := build(t, o)
	for p, want := range map[string]string{
		"bin/itzo": "small", "bin/itzo-components": "whole", "bin/kubelet": "whole",
		"bin/itzo-containerd": "middle", "bin/containerd": "middle",
		"usr/bin/runc": "runc", "usr/sbin/nft": "nft", "opt/cni/bin/portmap": "portmap",
		"etc/ssl/certs/ca-certificates.crt": "PEM",
	} {
		if got, err := os.ReadFile(filepath.Join(tree, p)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", p, got, err, want)
		}
	}
	for p, want := range map[string]string{"bin/sh": "/bin/busybox", "usr/bin/wc": "/bin/busybox", "sbin/init": "/bin/itzo",
		"var/run": "../run"} {
		if got, err := os.Readlink(filepath.Join(tree, p)); err != nil || got != want {
			t.Errorf("%s -> %q, %v; want %q", p, got, err, want)
		}
	}
	for p, want := range map[string]fs.FileMode{
		"bin/itzo": 0o755, "etc/passwd": 0o644, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "root": fs.ModeDir | 0o700,
		"var/lib/cloud/seed": fs.ModeDir | 0o700, "proc": fs.ModeDir | 0o555,
	} {
		if info, err := os.Stat(filepath.Join(tree, p)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", p, info.Mode(), err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(filepath.Dir(tree), "..", "escape")); err == nil {
		t.Error("an applet's name led out of the tree")
	}
}

func TestThePauseArchiveIsTheImageThatContainerdIsToldOf(t *testing.T) {
	o := options(t)
	tree := build(t, o)
	tag, err := name.NewTag(configs.PauseImage)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(filepath.Join(tree, "usr/share/kip/pause.tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Config.Entrypoint) != 1 || cfg.Config.Entrypoint[0] != "/pause" || cfg.OS != "linux" {
		t.Errorf("config %+v", cfg)
	}
	if layers, err := img.Layers(); err != nil || len(layers) != 1 || len(cfg.RootFS.DiffIDs) != 1 {
		t.Errorf("layers %v, %v", layers, err)
	}
}

func TestEqualInputsMakeEqualTreesWhateverTheUmask(t *testing.T) {
	o := options(t)
	first := build(t, o)
	defer unix.Umask(unix.Umask(0o077))
	o.Dir = filepath.Join(t.TempDir(), "root")
	second := build(t, o)
	if filepath.Base(first) != filepath.Base(second) {
		t.Errorf("%s and %s", first, second)
	}
	if a, b := listing(t, first), listing(t, second); a != b {
		t.Errorf("trees differ:\n%s\n%s", a, b)
	}
}

func TestAnUnchangedTreeIsNotBuiltAgain(t *testing.T) {
	o := options(t)
	tree := build(t, o)
	mark := filepath.Join(tree, "mark")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again := build(t, o); again != tree {
		t.Errorf("%s, want %s", again, tree)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error("it was built again")
	}
}

func TestAChangedInputMakesAnotherTreeAndTheOldOneGoes(t *testing.T) {
	o := options(t)
	old := build(t, o)
	if err := os.WriteFile(o.Itzo, []byte("newer"), 0o700); err != nil {
		t.Fatal(err)
	}
	tree := build(t, o)
	if tree == old {
		t.Fatal("the same tree")
	}
	if got, err := os.ReadFile(filepath.Join(o.Dir, "bin/itzo-components")); err != nil || string(got) != "newer" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old tree is still there: %v", err)
	}
}

func TestATreeThatAMachineIsMountedOnStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	for name, lower := range map[string]func(o Options, tree string) string{
		"by the tree's name": func(_ Options, tree string) string { return tree },
		"by the link's name": func(o Options, _ string) string { return o.Dir },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			old := build(t, o)
			at := t.TempDir()
			if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+lower(o, old)+":"+t.TempDir()); err != nil {
				t.Skipf("no overlay mounts here: %v", err)
			}
			defer unix.Unmount(at, unix.MNT_DETACH)
			if err := os.WriteFile(o.Itzo, []byte("newer"), 0o700); err != nil {
				t.Fatal(err)
			}
			build(t, o)
			if _, err := os.Stat(filepath.Join(old, "bin/itzo")); err != nil {
				t.Errorf("the machine lost its root: %v", err)
			}
		})
	}
}

func TestWhatAKilledBuildLeftIsRemoved(t *testing.T) {
	o := options(t)
	build(t, o)
	half := filepath.Join(filepath.Dir(o.Dir), ".new-root-0123456789abcdef-1")
	if err := os.MkdirAll(filepath.Join(half, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	build(t, o)
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestAFailedBuildNamesItsCauseAndLeavesTheOldTree(t *testing.T) {
	o := options(t)
	old := build(t, o)
	bad := o
	bad.Runc, bad.Pause = filepath.Join(t.TempDir(), "none"), ""
	err := Build(t.Context(), bad)
	if err == nil || !strings.Contains(err.Error(), "Runc: stat ") || !strings.Contains(err.Error(), "Pause: no file given") {
		t.Errorf("error %v", err)
	}
	bad = o
	bad.Busybox = filepath.Join(t.TempDir(), "busybox")
	if err := os.WriteFile(bad.Busybox, []byte("#!/bin/sh\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Build(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
	if now, err := filepath.EvalSymlinks(o.Dir); err != nil || now != old {
		t.Errorf("now %s, %v; want %s", now, err, old)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(o.Dir), ".new-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestABuildWaitsForAnotherOneAndNoLongerThanItMay(t *testing.T) {
	o := options(t)
	unlock, err := lock(t.Context(), o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Build(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	unlock()
	build(t, o)
}
