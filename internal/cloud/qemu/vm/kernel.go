package vm

import (
	"debug/pe"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Names of what UnpackKernel writes.
const (
	LinuxFile  = "linux"
	InitrdFile = "initrd"
)

// maxKernel bounds each part of an EFI program, in bytes.
const maxKernel = 256 << 20

// UnpackKernel writes the kernel and the first file system of a unified kernel image, as
// kip-image makes it, to a folder as LinuxFile and InitrdFile, so that a machine boots them
// without firmware.
func UnpackKernel(file, dir string) (*Kernel, error) {
	f, err := pe.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the EFI program %s, which kip-image writes beside the image: %w", file, err)
	}
	defer f.Close()
	section := func(name string) ([]byte, error) {
		s := f.Section(name)
		// The size that is loaded leaves out what fills the section up in the file.
		if s == nil || s.VirtualSize == 0 || s.VirtualSize > min(s.Size, maxKernel) {
			return nil, fmt.Errorf("the EFI program %s has no whole section %s: it is no unified kernel image", file, name)
		}
		b := make([]byte, s.VirtualSize)
		_, err := io.ReadFull(s.Open(), b)
		return b, err
	}
	k := &Kernel{Linux: filepath.Join(dir, LinuxFile), Initrd: filepath.Join(dir, InitrdFile)}
	for name, to := range map[string]string{".linux": k.Linux, ".initrd": k.Initrd} {
		b, err := section(name)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, b, 0o600); err != nil {
			return nil, err
		}
	}
	b, err := section(".cmdline")
	k.Arguments = strings.TrimRight(string(b), "\x00\n ")
	return k, err
}
