package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// probeLimit bounds each trial of KVM: the first takes a tenth of a second, the other one or two.
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
func accelerator(ctx context.Context, wanted, program, dir string, i image) (name string, why error) {
	if wanted == vm.TCG {
		return vm.TCG, errors.New("the configuration says so")
	}
	if err := tryProcessor(ctx, program, dir); err != nil {
		return vm.TCG, err
	}
	if err := tryKernel(ctx, vm.KVM, program, i); err != nil {
		return vm.TCG, err
	}
	return vm.KVM, nil
}

// tryProcessor runs a machine of five instructions with KVM: that the kernel has the device
// does not say that it runs machines.
func tryProcessor(ctx context.Context, program, dir string) error {
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
	return try(ctx, vm.KVM, "a machine of five instructions", probeStatus, program,
		"-m", "16", "-bios", rom, "-device", "isa-debug-exit,iobase=0xf4,iosize=0x4")
}

// kernelMegabytes is enough for the kernel, which finds no file system.
const kernelMegabytes = 256

// tryKernel boots the image's kernel until it has found no root, upon which it resets the
// machine: a host that has no hardware for machines itself may run a few instructions by
// KVM, and lack others that a kernel has.
func tryKernel(ctx context.Context, accelerator, program string, i image) error {
	return try(ctx, accelerator, "the image's kernel", 0, program,
		"-m", strconv.Itoa(kernelMegabytes), "-no-reboot", "-kernel", filepath.Join(i.dir, vm.LinuxFile), "-append", "panic=-1 root=none")
}

// try runs a machine that ends by itself, upon which QEMU ends with a status.
func try(ctx context.Context, accelerator, what string, status int, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	args = append([]string{"-machine", "q35", "-nodefaults", "-no-user-config", "-display", "none"}, args...)
	cmd := exec.CommandContext(ctx, program, append(vm.Accelerate(accelerator), args...)...)
	said := &lastSaid{end: cancel}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s did not end within %v with %s", what, probeLimit, accelerator)
	case said.failed():
		return fmt.Errorf("%s does not run with %s: %s", what, accelerator, firstLine(said.text.String()))
	case ctx.Err() != nil:
		return ctx.Err()
	case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == status:
		return nil
	case err == nil:
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s does not run with %s: %w: %s", what, accelerator, err, firstLine(said.text.String()))
}

// lastSaid is what QEMU says. When KVM has given a machine up QEMU says so and goes on
// without it, for which nobody needs to wait.
type lastSaid struct {
	text bytes.Buffer
	end  func()
}

func (s *lastSaid) Write(b []byte) (int, error) {
	n, err := s.text.Write(b)
	if s.failed() {
		s.end()
	}
	return n, err
}

func (s *lastSaid) failed() bool { return bytes.Contains(s.text.Bytes(), []byte("KVM internal error")) }

// firstLine of what a program said, in bounds.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), 300)]
}
