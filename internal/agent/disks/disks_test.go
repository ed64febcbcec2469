package disks

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
)

// machine is a root directory with a loop device, known there by its ID.
func machine(t *testing.T, link string) (s *Set, root, device string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("devices need root")
	}
	root = t.TempDir()
	image := filepath.Join(root, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", image).Output()
	if err != nil {
		t.Skipf("this host makes no loop devices: %v", err)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	if out, err := exec.Command("mkfs.ext4", "-q", device).CombinedOutput(); err != nil {
		t.Skipf("this host makes no ext4: %v: %s", err, out)
	}
	if link != "" {
		byID := filepath.Join(root, "dev/disk/by-id")
		if err := os.MkdirAll(byID, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(device, filepath.Join(byID, link)); err != nil {
			t.Fatal(err)
		}
	}
	return New(root, slog.New(slog.DiscardHandler)), root, device
}

func TestDiskIsUnmountedBeforeItsPathGoes(t *testing.T) {
	s, root, _ := machine(t, "kip-disk-1")
	for range 2 {
		if err := s.Apply([]string{"disk-1"}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(root, agentapi.DiskPath("disk-1"))
	target, bind := filepath.Join(root, "a target"), filepath.Join(root, "bind")
	for _, d := range []string{target, bind} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(path, target, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	if err := unix.Mount(target, bind, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(bind, unix.MNT_DETACH) })
	f, err := os.Create(filepath.Join(bind, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(nil); !errors.Is(err, ErrInUse) {
		t.Errorf("let go of a disk with an open file: %v: want ErrInUse", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a disk in use has lost its path: %v", err)
	}
	f.Close()
	for range 2 {
		if err := s.Apply(nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the path of a disk that was let go of: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), root) {
		t.Errorf("something is mounted below %s still (%v)", root, err)
	}
}

func TestDeviceIsFoundByLinkOrSerial(t *testing.T) {
	for name, tc := range map[string]struct {
		link, serial, page, id string
		want                   error
	}{
		"link of the local cloud": {link: "kip-disk-1", id: "disk-1"},
		"udev's link on EC2":      {link: "nvme-Amazon_Elastic_Block_Store_vol0abc", id: "vol-0abc"},
		"serial number":           {serial: "vol0abc", id: "vol-0abc"},
		"a SCSI disk's page":      {page: "\x00\x80\x00\x06disk-1", id: "disk-1"},
		"another SCSI disk's":     {page: "\x00\x80\x00\x06disk-2", id: "disk-1", want: ErrNotYet},
		"a page cut off":          {page: "\x00\x80", id: "disk-1", want: ErrNotYet},
		"the end of another ID":   {link: "kip-xdisk-1", id: "disk-1", want: ErrNotYet},
		"none":                    {id: "disk-1", want: ErrNotYet},
	} {
		t.Run(name, func(t *testing.T) {
			s, root, device := machine(t, tc.link)
			if tc.serial+tc.page != "" {
				block := filepath.Join(root, "sys/block", filepath.Base(device))
				numbers, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "dev"))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.MkdirAll(filepath.Join(block, "device"), 0o755); err != nil {
					t.Fatal(err)
				}
				serial, text := "device/serial", tc.serial+"\n"
				if tc.page != "" {
					serial, text = "device/vpd_pg80", tc.page
				}
				for file, text := range map[string]string{"dev": string(numbers), serial: text} {
					if err := os.WriteFile(filepath.Join(block, file), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := s.Apply([]string{tc.id}); !errors.Is(err, tc.want) {
				t.Fatalf("got %v: want %v", err, tc.want)
			}
			if tc.want != nil {
				return
			}
			var have, want unix.Stat_t
			if err := errors.Join(unix.Stat(filepath.Join(root, agentapi.DiskPath(tc.id)), &have), unix.Stat(device, &want)); err != nil ||
				have.Rdev != want.Rdev {
				t.Errorf("shown is device %x: want %x (%v)", have.Rdev, want.Rdev, err)
			}
			if err := s.Apply(nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnIDIsNoPath(t *testing.T) {
	for _, id := range []string{"", "..", "../etc", "a/b", strings.Repeat("x", 129)} {
		if err := New(t.TempDir(), slog.New(slog.DiscardHandler)).Apply([]string{"good", id}); err == nil ||
			!strings.Contains(err.Error(), "disks[1]") {
			t.Errorf("%q: got %v: want an error that names disks[1]", id, err)
		}
	}
}
