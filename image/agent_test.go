package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

func TestTheAgentIsPackedAsItIsInstalled(t *testing.T) {
	// The least that is a program of an architecture.
	header := elf.Header64{
		Ident:   [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_EXEC),
		Machine: uint16(Machines[runtime.GOARCH]),
		Version: uint32(elf.EV_CURRENT),
		Ehsize:  64,
	}
	var program bytes.Buffer
	if err := binary.Write(&program, binary.LittleEndian, header); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"itzo-lite", "itzo", "itzo-containerd", "runc", "portmap", "pause"} {
		if err := os.WriteFile(filepath.Join(dir, name), program.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var first, second bytes.Buffer
	for _, to := range []*bytes.Buffer{&first, &second} {
		if err := AgentArchive(to, dir, runtime.GOARCH); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("equal programs have made other bytes")
	}
	z, err := gzip.NewReader(&first)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if program := h.Name != "kip-agent/pause.tar"; program != (h.Mode == 0o755) {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		names = append(names, h.Name)
	}
	want := []string{
		"kip-agent/itzo", "kip-agent/itzo-components", "kip-agent/itzo-containerd", "kip-agent/runc", "kip-agent/portmap", "kip-agent/pause.tar",
	}
	if !slices.Equal(names, want) {
		t.Errorf("it has %v", names)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if err := AgentArchive(io.Discard, dir, other); err == nil {
		t.Errorf("programs for %s were packed for %s", runtime.GOARCH, other)
	}
	if err := AgentArchive(io.Discard, dir, "mips"); err == nil {
		t.Error("an agent for mips was packed")
	}
	if err := os.Remove(filepath.Join(dir, "runc")); err != nil {
		t.Fatal(err)
	}
	if err := AgentArchive(io.Discard, dir, runtime.GOARCH); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without runc: %v", err)
	}
}
