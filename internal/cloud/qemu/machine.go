package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/host/cgroups"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// Files in a machine's folder, beside its record and its console's log.
const (
	rootFile     = "root.qcow2"
	userDataFile = "user-data"
	networkFile  = "network.json"
	firmwareFile = "firmware.fd"
	monitorFile  = "monitor"
	saidFile     = "qemu.log"
)

// monitorFD is the descriptor at which QEMU finds the socket of its monitor.
const monitorFD = 3

// Logs implements host.Kind: QEMU tells of what a guest does wrong to its devices.
func (k *kind) Logs() []string { return []string{saidFile} }

// Start boots a machine, or nothing of it but what is found by its ID.
func (k *kind) Start(ctx context.Context, b *host.Boot) (_ *host.Handle, err error) {
	if !b.Again {
		if err := k.fill(ctx, b); err != nil {
			return nil, fmt.Errorf("fill the machine's folder: %w", err)
		}
	}
	k.cfg.Reached("filled")
	tap, hardware, err := b.PlugTap()
	if err != nil {
		return nil, err
	}
	k.cfg.Reached("plugged")
	if err := k.tellNetwork(b, hardware); err != nil {
		return nil, fmt.Errorf("fill the machine's folder: %w", err)
	}
	machine, err := k.machine(b, &vm.Card{Tap: tap, Hardware: hardware})
	if err != nil {
		return nil, err
	}
	program, err := exec.LookPath(vm.Program)
	if err != nil {
		return nil, err
	}
	if err := k.cgroups.Create(b.ID, k.size(b.Type)); err != nil {
		return nil, err
	}
	k.cfg.Reached("limited")
	socket, err := listen(b.Dir)
	if err != nil {
		return nil, fmt.Errorf("make the socket of QEMU's monitor: %w", err)
	}
	defer socket.Close()
	said := filepath.Join(b.Dir, saidFile)
	p, err := spawn(program, b.Dir, machine.Args(), said, socket)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	defer func() {
		if err != nil {
			p.abandon()
			err = fmt.Errorf("%w%s", err, lastWords(said))
		}
	}()
	k.cfg.Reached("spawned")
	// Before it is QEMU: what that takes is the machine's from the first byte on.
	if err := k.cgroups.Attach(b.ID, p.pid); err != nil {
		return nil, err
	}
	k.cfg.Reached("attached")
	h, err := b.Identify(p.pid)
	if err != nil {
		return nil, err
	}
	if err := p.release(); err != nil {
		h.Close()
		return nil, fmt.Errorf("let %s begin: %w", program, err)
	}
	if err := k.begin(ctx, b, socket); err != nil {
		h.Close()
		return nil, err
	}
	k.cfg.Reached("begun")
	return h, nil
}

// What a machine's QEMU may take of the host beside the machine's memory, in bytes.
const (
	// ownMemory is for QEMU itself and for the part of the disk that the host has in memory,
	// which gives way. It is wide: what exceeds it is killed. Emulated, a machine of 512 MiB
	// with a pod took 360 MiB besides, most of it translated code.
	ownMemory = 256 << 20
	// perCPU is for the stacks of a virtual CPU.
	perCPU = 8 << 20
	// pageTables is how much memory one byte of its page tables describes: eight bytes a
	// page of 4 KiB, in the host's tables and once more in the machine's.
	pageTables = 4096 / 16
	// translated is the most that emulation keeps of the code that it has translated:
	// QEMU's default.
	translated = 1 << 30
)

// size is what the QEMU of a machine of a type is held to.
func (k *kind) size(t catalog.InstanceType) cgroups.Size {
	s := cgroups.Size{
		MilliCPU:    t.MilliCPU,
		MemoryBytes: t.MemoryBytes + t.MemoryBytes/pageTables + ownMemory + perCPU*int64(cpus(t)),
	}
	if k.accelerator == vm.TCG {
		s.MemoryBytes += translated
	}
	return s
}

// cpus are the virtual CPUs of a machine of a type: a part of one is a whole one, which its
// cgroup stops from time to time.
func cpus(t catalog.InstanceType) int { return int(max(t.MilliCPU+999, 1000) / 1000) }

// machine is what QEMU is to make, in the machine's folder.
func (k *kind) machine(b *host.Boot, card *vm.Card) (vm.Machine, error) {
	sum := sha256.Sum256([]byte("kip machine " + b.ID))
	m := vm.Machine{
		Accelerator: k.accelerator,
		CPUs:        cpus(b.Type),
		MemoryBytes: b.Type.MemoryBytes,
		Disk:        vm.Disk{File: rootFile, Format: "qcow2"},
		Card:        card,
		Console:     filepath.Base(b.Console),
		MonitorFD:   monitorFD,
		Name:        b.ID,
		UUID:        fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]),
		Paused:      true,
		Hugepages:   k.cfg.Hugepages,
		Sandbox:     true,
		Vendor:      k.cfg.Vendor,
		More:        k.cfg.More,
	}
	if k.cfg.Vendor != "" {
		m.Variables, m.Root = firmwareFile, vm.NVMe
		return m, nil
	}
	// Of its first boot: the image may be another now, and its disk lies over that one's.
	args, err := os.ReadFile(filepath.Join(b.Dir, imageLink, argsFile))
	if err != nil {
		return vm.Machine{}, fmt.Errorf("read what the machine boots: %w", err)
	}
	m.Kernel = &vm.Kernel{
		Linux:     imageLink + "/" + vm.LinuxFile,
		Initrd:    imageLink + "/" + vm.InitrdFile,
		Arguments: string(args),
	}
	m.Files = map[string]string{vm.UserData: userDataFile, vm.Network: networkFile}
	return m, nil
}

// fill makes what a machine has from its first boot on: its disk and its user data.
func (k *kind) fill(ctx context.Context, b *host.Boot) error {
	file, content := userDataFile, b.UserData
	if k.cfg.Vendor != "" {
		variables, err := os.ReadFile(vm.FirmwareVariables)
		if err != nil {
			return fmt.Errorf("read the variables of UEFI (Debian's package ovmf has them): %w", err)
		}
		file, content = firmwareFile, variables
	}
	if err := os.WriteFile(filepath.Join(b.Dir, file), content, 0o600); err != nil {
		return err
	}
	return k.image.overlay(ctx, b.Dir, b.Type.DiskBytes)
}

// tellNetwork writes what the machine is told of its network.
func (k *kind) tellNetwork(b *host.Boot, hardware net.HardwareAddr) error {
	link := vm.Link{
		Hardware:    hardware.String(),
		Hostname:    b.ID,
		Addresses:   []netip.Prefix{b.Address},
		Gateways:    []netip.Addr{b.Gateway},
		Nameservers: k.cfg.Nameservers,
	}
	if b.AddressIPv6.IsValid() {
		link.Addresses, link.Gateways = append(link.Addresses, b.AddressIPv6), append(link.Gateways, b.GatewayIPv6)
	}
	text, err := json.Marshal(link)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Dir, networkFile), text, 0o600)
}

// listen makes the socket of a monitor in a folder, whose path may be longer than a
// socket's can be. Whoever dials it is heard as soon as a process accepts.
func listen(dir string) (*os.File, error) {
	if err := os.Remove(filepath.Join(dir, monitorFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), monitorFile), Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

// startShare is the part of its time to boot that a machine's QEMU may take to start: on a busy host that was more than half a minute.
const startShare = 5

// begin lets a machine that is paused run, as soon as its QEMU is there. The socket is
// closed here, so that a QEMU that ends is seen.
func (k *kind) begin(ctx context.Context, b *host.Boot, socket *os.File) error {
	if err := socket.Close(); err != nil {
		return err
	}
	d, err := os.Open(b.Dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// The rest is for the boot itself. Meanwhile Kip hears of no machine of the launch.
	ctx, cancel := context.WithTimeout(ctx, b.Type.BootLimit()/startShare)
	defer cancel()
	m, err := vm.Dial(ctx, fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), monitorFile), 0)
	if err != nil {
		return err
	}
	defer m.Close()
	k.cfg.Reached("answers")
	return m.Do(ctx, "cont", nil, nil)
}

// withMonitor talks to the monitor of a machine. ErrGone when its process has ended.
func withMonitor(ctx context.Context, p host.Process, talk func(*vm.Monitor) error) error {
	h, err := p.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	// Its working folder, whatever that is called: the process is itself until h is closed.
	m, err := vm.Dial(ctx, fmt.Sprintf("/proc/%d/cwd/%s", p.PID, monitorFile), vm.AnswerLimit)
	if err != nil {
		if live, gone := p.Open(); gone != nil {
			return errors.Join(gone, err)
		} else {
			live.Close()
		}
		return err
	}
	defer m.Close()
	return talk(m)
}
