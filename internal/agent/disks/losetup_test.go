package disks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a kubelet reads to find the loop device of a file.
func loopOf(t *testing.T, file string) string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == file {
			return strings.Split(path, "/")[3]
		}
	}
	return ""
}

func TestADeviceIsHeldByALoopDevice(t *testing.T) {
	_, root, device := machine(t, "")
	dev := filepath.Join(root, "dev") // as in a cell: without any node
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := loop(dev, device); err != nil {
		t.Fatal(err)
	}
	made := loopOf(t, device)
	if made == "" {
		t.Fatalf("no loop device has %s", device)
	}
	path := filepath.Join(dev, made)
	for range 2 {
		if err := unloop(path); err != nil {
			t.Fatal(err)
		}
	}
	if left := loopOf(t, device); left != "" {
		t.Errorf("%s has %s still", left, device)
	}
	if err := loop(dev, filepath.Join(root, "missing")); err == nil {
		t.Error("a file that is not there has a loop device")
	}
	if err := unloop(filepath.Join(dev, "missing")); err == nil {
		t.Error("a loop device that is not there was freed")
	}
}

func TestADiskThatAKubeletHoldsAsABlockVolumeIsInUse(t *testing.T) {
	s, root, _ := machine(t, "kip-disk-1")
	if err := s.Apply([]string{"disk-1"}); err != nil {
		t.Fatal(err)
	}
	// As a kubelet maps the device: pkg/volume/local, volumepathhandler.
	dir := filepath.Join(root, blockVolumes, "pv-1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.show("disk-1", filepath.Join(dir, "pod-uid")); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(nil); err == nil || !strings.Contains(err.Error(), ErrInUse.Error()) {
		t.Errorf("let go of a disk that is mapped: %v: want ErrInUse", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, fmt.Sprintf("dev/kip/%s", "disk-1"))); !os.IsNotExist(err) {
		t.Errorf("its path is left (%v)", err)
	}
}
