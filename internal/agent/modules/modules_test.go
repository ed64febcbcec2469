package modules

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	deps = "kernel/fs/erofs/erofs.ko: kernel/lib/lz4.ko kernel/lib/crc.ko\n" +
		"kernel/lib/crc.ko:\nkernel/lib/lz4.ko: kernel/lib/crc.ko\nkernel/net/virtio_net.ko:\nkernel/hv/hv-bus.ko:\n"
	aliases = "# of all\nalias fs-erofs erofs\nalias virtio:d00000001v* virtio_net\nalias acpi*:VMBUS:* hv_bus\nalias bad[ erofs\n"
)

// opened is a set of these lists that only notes what it would load.
func opened(t *testing.T) (*Set, *[]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{DepFile: deps, AliasFile: aliases} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	s.insert = func(p string) error {
		if strings.Contains(p, "hv-bus") {
			return os.ErrPermission
		}
		got = append(got, strings.TrimSuffix(filepath.Base(p), ".ko"))
		return nil
	}
	return s, &got
}

func TestWhatAModuleNeedsIsLoadedBeforeIt(t *testing.T) {
	for wanted, want := range map[string][]string{
		"erofs":                  {"crc", "lz4", "erofs"},
		"fs-erofs":               {"crc", "lz4", "erofs"},
		"lz4":                    {"crc", "lz4"},
		"virtio-net":             {"virtio_net"},
		"virtio:d00000001v0001F": {"virtio_net"},
	} {
		s, got := opened(t)
		if err := s.Load(wanted); err != nil || !slices.Equal(*got, want) {
			t.Errorf("%s loads %v (%v), want %v", wanted, *got, err, want)
		}
		if err := s.Load(wanted); err != nil || !slices.Equal(*got, want) {
			t.Errorf("%s again loads %v (%v)", wanted, *got, err)
		}
	}
	s, _ := opened(t)
	if err := s.Load("virtio:d00000002v1"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown alias: %v", err)
	}
	if err := s.Load("hv_bus"); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "hv-bus.ko") {
		t.Errorf("a module that the kernel refuses: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a folder without lists opens")
	}
}

func TestDriversOfDevicesThatAreThere(t *testing.T) {
	s, got := opened(t)
	sys := t.TempDir()
	device := func(at, alias string) {
		p := filepath.Join(sys, at)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p, "modalias"), []byte(alias+"\n"), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	device("acpi/1", "acpi:VMBUS:")   // its driver fails
	device("pci/2", "pci:v1d2")       // no driver
	device("cpu", "cpu:type:x86,fs-") // not asked
	device("pci/3", "fs-erofs")
	insert := s.insert
	s.insert = func(p string) error {
		if strings.HasSuffix(p, "erofs.ko") { // a bus: its devices are seen once it is driven
			device("pci/3/virtio0", "virtio:d00000001v9")
		}
		return insert(p)
	}
	err := s.LoadPresent(sys)
	if !errors.Is(err, os.ErrPermission) || errors.Is(err, ErrUnknown) {
		t.Errorf("the driver that fails: %v", err)
	}
	if want := []string{"crc", "lz4", "erofs", "virtio_net"}; !slices.Equal(*got, want) {
		t.Errorf("loaded %v, want %v", *got, want)
	}
}
