package image

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// sharedLibraries returns the files that a program needs beside itself, by their
// paths on this host: its dynamic loader and all libraries that this one finds.
// A static program and a script need none.
//
// They go to the same paths in the tree, where the loader finds them because it
// looks in the same folders; the host's cache of further folders is not asked,
// since the tree has none.
func sharedLibraries(ctx context.Context, program string) ([]string, error) {
	loader, err := loaderOf(program)
	if err != nil || loader == "" {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, loader, "--inhibit-cache", "--list", program).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	files := []string{loader}
	for line := range strings.Lines(string(out)) {
		// "libm.so.6 => /lib/libm.so.6 (0x…)"; without an arrow it is the loader
		// or the kernel's own.
		_, found, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if !ok {
			continue
		}
		path, _, _ := strings.Cut(found, " (0x")
		if !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("list the libraries of %s: %s", program, strings.TrimSpace(line))
		}
		if path != loader {
			files = append(files, path)
		}
	}
	return files, nil
}

// loaderOf returns the dynamic loader that a program names, "" for none.
func loaderOf(program string) (string, error) {
	f, err := elf.Open(program)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return "", nil // a script
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(p.Open())
		if err != nil {
			return "", fmt.Errorf("read which loader %s wants: %w", program, err)
		}
		return strings.TrimRight(string(name), "\x00"), nil
	}
	return "", nil
}
