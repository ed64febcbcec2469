package vm

// ARM64 is the architecture of machines that are not a q35 but QEMU's "virt". Only tests boot
// them, always emulated, so that a release can say that its image for arm64 boots.
const ARM64 = "arm64"

// ProgramARM64 is QEMU for them, of Debian's package qemu-system-arm.
const ProgramARM64 = "qemu-system-aarch64"

// Firmware of machines of ARM64, as FirmwareCode and FirmwareVariables, of Debian's package qemu-efi-aarch64.
const (
	FirmwareCodeARM64      = "/usr/share/AAVMF/AAVMF_CODE.fd"
	FirmwareVariablesARM64 = "/usr/share/AAVMF/AAVMF_VARS.fd"
)

// What a machine of ARM64 has of EC2's Graviton2: the processor, which is Arm's Neoverse N1 (AWS,
// "AWS Graviton Technical Guide", the table of its processors), and an interrupt controller of version 3.
const (
	machineARM64   = "virt,gic-version=3,usb=off"
	processorARM64 = "neoverse-n1"
)

// Program is QEMU for the machine.
func (m Machine) Program() string {
	if m.Arch == ARM64 {
		return ProgramARM64
	}
	return Program
}
