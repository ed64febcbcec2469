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

// Bounds of the trials of KVM: the first takes a tenth of a second, the other one or two, and a
// busy host is no reason to emulate.
const (
	processorLimit = 15 * time.Second
	kernelLimit    = time.Minute
)

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

// trials are how KVM is tried.
type trials struct {
	processor func(ctx context.Context, program, dir string) error
	kernel    func(ctx context.Context, accelerator, program string, i image) error
}

// accelerator is the one that machines have: KVM where it is wanted and a machine runs with
// it, and else why not.
func (t trials) accelerator(ctx context.Context, wanted, program, dir string, i image) (name string, why error) {
	if wanted == vm.TCG {
		return vm.TCG, errors.New("the configuration says so")
	}
	if err := t.processor(ctx, program, dir); err != nil {
		return vm.TCG, err
	}
	if err := t.kernel(ctx, vm.KVM, program, i); err != nil {
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
	return try(ctx, processorLimit, vm.KVM, "a machine of five instructions", probeStatus, "", program,
		"-m", "16", "-bios", rom, "-device", "isa-debug-exit,iobase=0xf4,iosize=0x4")
}

// kernelMegabytes is enough for the kernel, which finds no file system.
const kernelMegabytes = 256

// noRoot is what the kernel says when it has found no root file system, at the end of its own start.
const noRoot = "Unable to mount root fs"

// tryKernel boots the image's kernel until it has found no root, upon which it says so and resets
// the machine: a host that has no hardware for machines itself may run a few instructions by
// KVM, and lack others that a kernel has. A kernel that hits such a one may reset the machine, too.
func tryKernel(ctx context.Context, accelerator, program string, i image) error {
	return try(ctx, kernelLimit, accelerator, "the image's kernel", 0, noRoot, program,
		"-m", strconv.Itoa(kernelMegabytes), "-no-reboot", "-serial", "stdio", "-kernel", filepath.Join(i.dir, vm.LinuxFile),
		"-append", "console=ttyS0 panic=-1 root=none")
}

// try runs a machine that ends by itself, upon which QEMU ends with a status, and has said
// something.
func try(ctx context.Context, limit time.Duration, accelerator, what string, status int, says, program string, args ...string) error {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args = append([]string{"-machine", "q35", "-nodefaults", "-no-user-config", "-display", "none"}, args...)
	cmd := exec.CommandContext(ctx, program, append(vm.Accelerate(accelerator), args...)...)
	said := &lastSaid{end: cancel}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	text := said.text.String()
	switch {
	case outer.Err() != nil:
		return outer.Err()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s did not end within %v with %s", what, limit, accelerator)
	case said.failed():
		return fmt.Errorf("%s does not run with %s: %s", what, accelerator, lastLine(text))
	case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == status:
		if strings.Contains(text, says) {
			return nil
		}
		err = fmt.Errorf("it ended without saying %q, last", says)
	case err == nil:
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s does not run with %s: %w: %s", what, accelerator, err, lastLine(text))
}

// mostSaid is how much is kept of what QEMU and a kernel say: ten times of what a kernel does.
const mostSaid = 1 << 20

// kvmError is what QEMU says when KVM has given a machine up.
const kvmError = "KVM internal error"

// lastSaid is what QEMU says. When KVM has given a machine up QEMU says so and goes on
// without it, for which nobody needs to wait.
type lastSaid struct {
	text bytes.Buffer
	end  func()
}

func (s *lastSaid) Write(b []byte) (int, error) {
	s.text.Write(b[:min(len(b), max(0, mostSaid-s.text.Len()))])
	if s.failed() {
		s.end()
	}
	return len(b), nil
}

func (s *lastSaid) failed() bool { return bytes.Contains(s.text.Bytes(), []byte(kvmError)) }

// firstLine of what a program said, in bounds.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), 300)]
}

// lastLine is that which says most of what a program said, in bounds: KVM's error, or the last.
func lastLine(s string) string {
	line := ""
	for l := range strings.Lines(s) {
		if l = strings.TrimSpace(l); l != "" {
			line = l
		}
		if strings.Contains(l, kvmError) {
			break
		}
	}
	return strings.ToValidUTF8(line[:min(len(line), 300)], "?")
}
