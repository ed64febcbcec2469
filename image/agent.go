package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Machines are what executables of an architecture say of themselves.
var Machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// agentFiles are what a Linux of one's own needs to be a cell's machine, by their names in
// the archive, as itzo install knows them, and among what make builds.
var agentFiles = []struct{ name, program string }{
	{"itzo", "itzo-lite"},
	{"itzo-components", "itzo"},
	{"itzo-containerd", "itzo-containerd"},
	{"runc", "runc"},
	{"portmap", "portmap"},
}

// AgentArchive writes the agent with all that it brings along as a tar.gz with one folder,
// kip-agent: of the programs that make has built for an architecture into a folder. Equal
// programs make equal bytes.
func AgentArchive(to io.Writer, programs, arch string) error {
	if Machines[arch] == 0 {
		return fmt.Errorf("there are agents for amd64 and arm64 only, not for %s", arch)
	}
	z := gzip.NewWriter(to)
	w := tar.NewWriter(z)
	add := func(name string, content []byte, mode fs.FileMode) error {
		err := w.WriteHeader(&tar.Header{
			Name:     "kip-agent/" + name,
			Mode:     int64(mode),
			Size:     int64(len(content)),
			ModTime:  epoch,
			Typeflag: tar.TypeReg,
			Format:   tar.FormatUSTAR,
		})
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	}
	for _, f := range agentFiles {
		content, err := executable(filepath.Join(programs, f.program), arch)
		if err == nil {
			err = add(f.name, content, 0o755)
		}
		if err != nil {
			return fmt.Errorf("pack the agent: %w", err)
		}
	}
	program, err := executable(filepath.Join(programs, "pause"), arch)
	if err != nil {
		return fmt.Errorf("pack the agent: %w", err)
	}
	pause, err := PauseArchive(program, arch)
	if err != nil {
		return err
	}
	if err := add(filepath.Base(PauseFile), pause, 0o644); err != nil {
		return fmt.Errorf("pack the agent: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("pack the agent: %w", err)
	}
	return z.Close()
}

// executable reads a program that must be of this architecture.
func executable(path, arch string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	if f.Machine != Machines[arch] {
		return nil, fmt.Errorf("%s is a program for %v, and the agent is for %s", path, f.Machine, arch)
	}
	return b, nil
}
