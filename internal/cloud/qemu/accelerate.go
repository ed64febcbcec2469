package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// probeLimit bounds the trial of KVM, which takes a tenth of a second.
const probeLimit = 15 * time.Second

// probeStatus is with what QEMU ends after the trial: twice what the machine says, and one.
const (
	probeSays   = 0x10
	probeStatus = probeSays<<1 | 1
)

// probeROM is a machine's whole firmware: at the address where a processor begins, 16 bytes
// below the end, it says probeSays at port 0xf4 and halts.
func probeROM() []byte {
	const size, reset = 64 << 10, 16
	rom := make([]byte, size)
	copy(rom[size-reset:], []byte{
		0xb0, probeSays, // mov al, probeSays
		0xe6, 0xf4, // out 0xf4, al
		0xf4,       // hlt
		0xeb, 0xfd, // jmp back to it
	})
	return rom
}

// accelerator is the one that machines have: KVM where it is wanted and a machine runs with
// it, and else why not.
func accelerator(ctx context.Context, wanted, program, dir string) (name string, why error) {
	if wanted == vm.TCG {
		return vm.TCG, errors.New("the configuration says so")
	}
	if err := probe(ctx, program, dir); err != nil {
		return vm.TCG, err
	}
	return vm.KVM, nil
}

// probe runs a machine of five instructions with KVM: that the kernel has the device does
// not say that it runs machines.
func probe(ctx context.Context, program, dir string) error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("the kernel offers no KVM: %w", err)
	}
	f.Close()
	rom := filepath.Join(dir, "probe.rom")
	if err := os.WriteFile(rom, probeROM(), 0o600); err != nil {
		return err
	}
	defer os.Remove(rom)
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "16", "-nodefaults",
		"-no-user-config", "-display", "none", "-bios", rom, "-device", "isa-debug-exit,iobase=0xf4,iosize=0x4")
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("a machine of five instructions did not end within %v with KVM", probeLimit)
	case errors.As(err, &exit) && exit.ExitCode() == probeStatus:
		return nil
	case err == nil:
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("a machine does not run with KVM: %w: %s", err, firstLine(said.String()))
}

// firstLine of what a program said, in bounds.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), 300)]
}
