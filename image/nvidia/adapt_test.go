package nvidia

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheSourceIsAdaptedToTheKernel(t *testing.T) {
	const call = "    r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size"
	for header, want := range map[string]string{
		"int __must_check pci_resize_resource(struct pci_dev *dev, int i, int size);\n":                                 call + ");\n",
		"int __must_check pci_resize_resource(struct pci_dev *dev, int i, int size,\n\t\t\t\t     int exclude_bars);\n": call + ", 0);\n",
	} {
		root := t.TempDir()
		file := filepath.Join(root, "build", sourceDir, "nvidia/nv-pci.c")
		declares := filepath.Join(root, "usr/src/linux-headers-6.12-common/include/linux/pci.h")
		for path, text := range map[string]string{file: call + ");\n", declares: header} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if err := adapt(root); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("for %q the call is %q (%v), want %q", header, got, err, want)
		}
	}
	if err := adapt(t.TempDir()); err == nil || !strings.Contains(err.Error(), "linux/pci.h") {
		t.Errorf("without headers: %v", err)
	}
}
