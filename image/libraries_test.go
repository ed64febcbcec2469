package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dynamic returns a program of this host that has libraries.
func dynamic(t *testing.T, name string) string {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("this host has no %s", name)
	}
	if loader, err := loaderOf(program); err != nil || loader == "" {
		t.Skipf("%s has no dynamic loader here (%v)", program, err)
	}
	return program
}

func TestAStaticProgramAndAScriptNeedNoLibraries(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if files, err := sharedLibraries(t.Context(), script); err != nil || len(files) != 0 {
		t.Errorf("%q, %v", files, err)
	}
	if _, err := sharedLibraries(t.Context(), script+"-that-is-not-there"); err == nil {
		t.Error("a program that is not there was taken")
	}
}

func TestADynamicProgramComesWithItsLoaderAndLibraries(t *testing.T) {
	program := dynamic(t, "nft")
	files, err := sharedLibraries(t.Context(), program)
	if err != nil {
		t.Fatal(err)
	}
	loader, _ := loaderOf(program)
	if !slices.Contains(files, loader) || !slices.ContainsFunc(files, func(f string) bool { return strings.Contains(f, "libnftables.so") }) {
		t.Errorf("%q", files)
	}
	if sorted := slices.Sorted(slices.Values(files)); len(slices.Compact(sorted)) != len(files) {
		t.Errorf("a file twice: %q", files)
	}
}

func TestNftRunsInTheTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	o := options(t)
	o.Programs = map[string]string{"usr/sbin/nft": dynamic(t, "nft")}
	tree := build(t, o)
	cmd := exec.Command("/usr/sbin/nft", "--version")
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: tree}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "nftables v") {
		t.Fatalf("%q, %v", out, err)
	}
}
