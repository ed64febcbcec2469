package nvidia

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// Linux 6.12.97 and later have a fourth argument of pci_resize_resource, which Debian's source does not give
// (NVIDIA/open-gpu-kernel-modules#1272). NVIDIA's newer drivers and Flatcar (flatcar/scripts#4205) give 0: no BAR is kept.
// The call is made only with the module's parameter NVreg_EnableResizableBar, which is off.
var (
	threeArguments = []byte("pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size)")
	fourArguments  = []byte("pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size, 0)")
)

// adapt changes the source in a build's root where it does not fit to the kernel's headers there.
func adapt(root string) error {
	headers, err := filepath.Glob(filepath.Join(root, "usr/src/linux-headers-*-common/include/linux/pci.h"))
	if err != nil {
		return err
	}
	if len(headers) != 1 {
		return fmt.Errorf("find linux/pci.h of the kernel's headers in %s: found %q, want one", root, headers)
	}
	header, err := os.ReadFile(headers[0])
	if err != nil {
		return err
	}
	if !bytes.Contains(header, []byte("exclude_bars")) {
		return nil
	}
	file := filepath.Join(root, "build", sourceDir, "nvidia/nv-pci.c")
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bytes.ReplaceAll(source, threeArguments, fourArguments), 0o644)
}
