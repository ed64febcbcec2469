package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/catalog"
)

// standIns is how many stand-ins for GPUs the machines of a type have.
func standIns(t catalog.InstanceType) (n int) {
	for _, g := range t.GPUs {
		n += int(g.Count)
	}
	return n
}

// noDriver is what a machine sees of the driver of its host's GPUs: those are the host's.
const noDriver = "The GPUs of this machine are stand-ins, if it has any.\n"

// withoutGPUs is the list of a kernel's drivers of devices without NVIDIA's: the agent makes, of
// what is listed there, the nodes that a machine lacks, and those would be the host's.
func withoutGPUs(drivers string) string {
	var kept strings.Builder
	for line := range strings.Lines(drivers) {
		if _, name, _ := strings.Cut(strings.TrimSpace(line), " "); !strings.HasPrefix(name, "nvidia") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// gpus makes the device nodes of stand-ins, where a driver has those of GPUs. Behind each is
// the null device, which every container may open anyway.
func (s spec) gpus(b *build) {
	if s.GPUs == 0 {
		return
	}
	names := []string{"nvidiactl", "nvidia-uvm"}
	for i := range s.GPUs {
		names = append(names, fmt.Sprintf("nvidia%d", i))
	}
	for _, name := range names {
		b.device("/dev/"+name, 0o666, unix.Mkdev(1, 3))
	}
}

// What of a driver a container is given, where nothing of an image's own is.
const (
	driverLibrary = "opt/nvidia/lib64/libcuda.so.0.0"
	driverProgram = "opt/nvidia/bin/nvidia-smi"
)

// makeDriver makes what stands in for a driver's libraries and programs in a root.
func makeDriver(root string) error {
	for _, f := range []struct {
		path, content string
		mode          os.FileMode
	}{
		{driverLibrary, "A stand-in for the library of a driver.\n", 0o644},
		{driverProgram, "#!/bin/sh\necho 'Stand-ins for GPUs, which can compute nothing:'\nls /dev/nvidia[0-9]*\n", 0o755},
	} {
		p := filepath.Join(root, f.path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(f.content), f.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, f.mode); err != nil { // whatever the umask
			return err
		}
	}
	return os.Symlink(filepath.Base(driverLibrary), filepath.Join(root, filepath.Dir(driverLibrary), "libcuda.so.1"))
}
