package vm

import (
	"net"
	"slices"
	"strings"
	"testing"
)

func TestArgumentsSayWhatTheMachineIs(t *testing.T) {
	m := Machine{
		Accelerator: KVM,
		CPUs:        2,
		MemoryBytes: 3 << 30,
		Kernel:      &Kernel{Linux: "linux", Initrd: "initrd", Arguments: "quiet root=x"},
		Disk:        Disk{File: "a,b.qcow2", Format: "qcow2"},
		Card:        &Card{Tap: "kip0", Hardware: net.HardwareAddr{2, 0, 0, 0, 0, 1}},
		Files:       map[string]string{UserData: "user", Network: "net"},
		Console:     "console.log",
		MonitorFD:   3,
		Name:        "i-1",
		Paused:      true,
	}
	text := strings.Join(m.Args(), " ")
	for _, want := range []string{
		"-accel kvm -cpu host", "-smp 2 -m 3072 ", "-kernel linux -initrd initrd -append quiet root=x ", "file=a,,b.qcow2 ",
		"ifname=kip0 -device virtio-net-pci,netdev=card,romfile=,mac=02:00:00:00:00:01", "socket,id=monitor,server=on,wait=off,fd=3 ",
		"-fw_cfg name=" + Network + ",file=net -fw_cfg name=" + UserData + ",file=user", "append=on,path=console.log",
		"free-page-reporting=on", " -device virtio-rng-pci ", " -name i-1", " -S",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	for _, no := range []string{"pflash", "memory-backend", "-sandbox", "-uuid"} {
		if strings.Contains(text, no) {
			t.Errorf("%s in %s", no, text)
		}
	}
	m.Accelerator, m.Kernel, m.Variables, m.Card, m.Console, m.Monitor = TCG, nil, "vars", nil, "", "mon"
	m.Hugepages, m.Sandbox, m.Paused = true, true, false
	text = strings.Join(m.Args(), " ")
	for _, want := range []string{
		"-accel tcg,thread=single", "readonly=on,file=" + FirmwareCode, "format=raw,file=vars", "-serial stdio", "wait=off,path=mon ",
		"q35,usb=off,vmport=off,memory-backend=memory", "memory-backend-memfd,id=memory,hugetlb=on,prealloc=on,size=3221225472",
		"-sandbox on,",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	for _, no := range []string{"-kernel", "-netdev", "balloon", " -S"} {
		if strings.Contains(text, no) {
			t.Errorf("%s in %s", no, text)
		}
	}
	m.Arch = ARM64
	text = strings.Join(m.Args(), " ")
	if want := "-machine virt,gic-version=3,usb=off,memory-backend=memory "; !strings.Contains(text, want) || m.Program() != ProgramARM64 ||
		!strings.Contains(text, "-cpu neoverse-n1 ") || !strings.Contains(text, "readonly=on,file="+FirmwareCodeARM64) {
		t.Errorf("a machine for arm64 is one of %s: %s", m.Program(), text)
	}
	m.Arch = ""
	if !slices.Contains(m.Args(), "-no-reboot") {
		t.Error("a machine that panics would start again")
	}
	m.Reboots, m.More = true, []string{"-rtc", "base=utc"}
	if args := m.Args(); slices.Contains(args, "-no-reboot") || !slices.Equal(args[len(args)-2:], m.More) {
		t.Errorf("one that is to start again, with more: %v", args)
	}
}
