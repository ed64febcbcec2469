package vm

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Program is QEMU for machines of amd64, which are a q35.
const Program = "qemu-system-x86_64"

// Names of files in QEMU's firmware configuration, which the image reads.
const (
	// UserData is the document that a cell is launched with.
	UserData = "opt/com.elotl.kip/user-data"
	// Network is a Link, as JSON: without it the image asks by DHCP.
	Network = "opt/com.elotl.kip/network"
)

// Accelerators.
const (
	KVM = "kvm"
	TCG = "tcg" // emulation
)

// Firmware is where Debian's package ovmf has UEFI: the code, and the variables of a
// machine that has none yet, of which each machine writes a copy of its own.
const (
	FirmwareCode      = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	FirmwareVariables = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// What a root disk may be.
const (
	VirtioBlk = "virtio-blk-pci"
	NVMe      = "nvme,serial=root"        // as on EC2's Nitro
	SCSI      = "scsi-hd,bus=" + DisksBus // as on Google Cloud
	SATA      = "ide-hd,bus=ide.0"        // as on many hypervisors
)

// DisksBus is the bus on which disks are plugged in while the machine runs.
const DisksBus = "disks.0"

// Machine is a virtual machine. Its files are named as QEMU sees them from its working
// folder; fields without a default are required.
type Machine struct {
	// Arch is amd64 unless it is ARM64.
	Arch        string
	Accelerator string
	CPUs        int
	MemoryBytes int64
	// Kernel is what it boots; without one, UEFI boots Disk.
	Kernel *Kernel
	// Variables is the file of UEFI's variables, its own; without a Kernel only.
	Variables string
	Disk      Disk
	Card      *Card // nil for a machine without a network
	// Files are shown in its firmware configuration, by their names there.
	Files map[string]string
	// Console is the file to which the serial console is appended; "" for QEMU's own output.
	Console string
	// Monitor is a socket that QEMU makes, or MonitorFD one on which it is to listen and
	// that its parent has made.
	Monitor   string
	MonitorFD int
	// Name and UUID are optional.
	Name, UUID string
	// Vendor is the manufacturer of the system, as SMBIOS has it; optional.
	Vendor string
	// Root is QEMU's device that the root disk is: VirtioBlk unless it is given.
	Root string
	// Paused machines run nothing until they are told to by the monitor (cont).
	Paused bool
	// Hugepages says that memory is taken from the host's hugepages, whole and at once.
	// Else it comes as the machine uses it, and what the machine frees goes back.
	Hugepages bool
	// Reboots says that a machine whose kernel asks for a reset starts again; else that ends it.
	Reboots bool
	// More are further arguments, as QEMU takes them: what is wrong with a machine of a test, or
	// what a hypervisor adds.
	More []string
	// Sandbox says that QEMU gives up what it never needs once it runs.
	Sandbox bool
}

// Kernel is what a machine boots without firmware that looks for it.
type Kernel struct {
	Linux, Initrd string // files
	Arguments     string
}

// Disk is the one that the machine boots from, or has its root on.
type Disk struct {
	File, Format string
}

// Card is a network card.
type Card struct {
	// Tap is a tap device of the host.
	Tap      string
	Hardware net.HardwareAddr
	// User is instead of Tap, and needs no rights: options of QEMU's own network.
	User string
}

// Args are QEMU's arguments. None is a secret: everybody on the host can read them.
func (m Machine) Args() []string {
	machine, accelerate := "q35,usb=off,vmport=off", Accelerate(m.Accelerator)
	if m.Arch == ARM64 {
		machine, accelerate = machineARM64, []string{"-accel", "tcg,thread=multi", "-cpu", processorARM64}
	}
	if m.Hugepages {
		machine += ",memory-backend=memory"
	}
	args := []string{
		"-machine", machine,
		"-nodefaults", "-no-user-config", "-display", "none",
		"-smp", strconv.Itoa(m.CPUs),
		"-m", strconv.FormatInt(m.MemoryBytes>>20, 10),
	}
	args = append(args, accelerate...)
	args = append(args, m.boot()...)
	args = append(args, m.devices()...)
	if m.Hugepages {
		args = append(args, "-object", fmt.Sprintf("memory-backend-memfd,id=memory,hugetlb=on,prealloc=on,size=%d", m.MemoryBytes))
	}
	if m.Name != "" {
		args = append(args, "-name", escape(m.Name))
	}
	if m.UUID != "" {
		args = append(args, "-uuid", m.UUID)
	}
	if m.Vendor != "" {
		args = append(args, "-smbios", "type=1,manufacturer="+escape(m.Vendor))
	}
	if !m.Reboots {
		args = append(args, "-no-reboot")
	}
	if m.Paused {
		args = append(args, "-S")
	}
	if m.Sandbox {
		args = append(args, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	}
	return append(args, m.More...)
}

// Accelerate are QEMU's arguments that say by what a machine runs, and on which processor.
func Accelerate(accelerator string) []string {
	if accelerator == KVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	// The emulation of CMPXCHG16B in QEMU 7.2 damages flags, of which the kernel dies. With a thread for each processor a kernel that
	// patches its own code dies now and then too, of "Oops: int3" (ClangBuiltLinux/boot-utils#111; mended in QEMU 8.1).
	return []string{"-accel", "tcg,thread=single", "-cpu", "max,-cx16,-la57"}
}

// boot is how the machine finds what it runs.
func (m Machine) boot() []string {
	if k := m.Kernel; k != nil {
		return []string{"-kernel", k.Linux, "-initrd", k.Initrd, "-append", k.Arguments}
	}
	code := FirmwareCode
	if m.Arch == ARM64 {
		code = FirmwareCodeARM64
	}
	return []string{
		"-drive", "if=pflash,format=raw,readonly=on,file=" + escape(code),
		"-drive", "if=pflash,format=raw,file=" + escape(m.Variables),
	}
}

func (m Machine) devices() []string {
	args := []string{
		// What it has not written when the host crashes is lost, and no machine runs on then.
		// On a full disk of the host it gets an error, of which it can tell: paused it would say nothing.
		"-drive", "if=none,id=root,discard=unmap,cache=unsafe,werror=report,format=" + m.Disk.Format + ",file=" + escape(m.Disk.File),
		"-device", "virtio-scsi-pci,id=" + strings.TrimSuffix(DisksBus, ".0"),
		"-device", cmp.Or(m.Root, VirtioBlk) + ",drive=root,bootindex=1",
		"-device", "virtio-rng-pci",
	}
	if !m.Hugepages {
		args = append(args, "-device", "virtio-balloon-pci,free-page-reporting=on")
	}
	if m.Console == "" {
		args = append(args, "-serial", "stdio")
	} else {
		args = append(args, "-chardev", "file,id=console,append=on,path="+escape(m.Console), "-serial", "chardev:console")
	}
	monitor := "path=" + escape(m.Monitor)
	if m.Monitor == "" {
		monitor = "fd=" + strconv.Itoa(m.MonitorFD)
	}
	args = append(args, "-chardev", "socket,id=monitor,server=on,wait=off,"+monitor, "-mon", "chardev=monitor,mode=control")
	if c := m.Card; c != nil {
		device := "virtio-net-pci,netdev=card,romfile="
		if c.Hardware != nil {
			device += ",mac=" + c.Hardware.String()
		}
		back := "user,id=card," + c.User
		if c.Tap != "" {
			back = "tap,id=card,script=no,downscript=no,ifname=" + escape(c.Tap)
		}
		args = append(args, "-netdev", back, "-device", device)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		args = append(args, "-fw_cfg", "name="+name+",file="+escape(m.Files[name]))
	}
	return args
}

// escape makes a value of an option: a comma would end it.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
