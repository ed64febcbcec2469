package userdata

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// localLimit bounds what needs no network.
const localLimit = 10 * time.Second

// QEMUName is under which QEMU shows the document: -fw_cfg name=…,file=….
const QEMUName = "opt/com.elotl.kip/user-data"

// qemuNetwork is under which QEMU shows what the machine is told of its network.
const qemuNetwork = "opt/com.elotl.kip/network"

// QEMUNetwork returns that document, which package machine reads; nil for a machine that is
// told nothing, and asks by DHCP.
func QEMUNetwork() ([]byte, error) { return qemuNetworkOf("/sys") }

func qemuNetworkOf(sys string) ([]byte, error) {
	file := qemuFile(sys, qemuNetwork)
	if there, err := exists(file); err != nil || !there {
		return nil, err
	}
	b, err := readFile(file)
	if err == nil && len(b) > maxBytes {
		return nil, fmt.Errorf("%s is longer than %d bytes", qemuNetwork, maxBytes)
	}
	return b, err
}

func qemuFile(sys, name string) string {
	return filepath.Join(sys, "firmware/qemu_fw_cfg/by_name", name, "raw")
}

// OEMPrefix begins the string of SMBIOS type 11 with the document in base64:
// -smbios type=11,value=….
const OEMPrefix = "kip.user-data="

// qemu is what QEMU shows by its firmware configuration.
func qemu(sys string) Source {
	file := qemuFile(sys, QEMUName)
	return Source{
		Name:  "QEMU's firmware configuration " + QEMUName,
		Limit: localLimit,
		Here:  func() (bool, error) { return exists(file) },
		Fetch: func(context.Context) (Data, error) {
			b, err := readFile(file)
			return Data{Document: b}, err
		},
	}
}

// smbios is a string that a hypervisor puts into the machine's description.
func smbios(sys string) Source {
	find := func() (string, error) {
		entries, err := filepath.Glob(filepath.Join(sys, "firmware/dmi/entries/11-*/raw"))
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			b, err := os.ReadFile(e)
			if err != nil {
				return "", err
			}
			for _, s := range oemStrings(b) {
				if v, ok := strings.CutPrefix(s, OEMPrefix); ok {
					return v, nil
				}
			}
		}
		return "", nil
	}
	return Source{
		Name:  "the SMBIOS string " + OEMPrefix,
		Limit: localLimit,
		Here:  func() (bool, error) { v, err := find(); return v != "", err },
		Fetch: func(context.Context) (Data, error) {
			v, err := find()
			if err != nil {
				return Data{}, err
			}
			b, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				return Data{}, errors.New("it is not base64") // without the value
			}
			return Data{Document: b}, nil
		},
	}
}

// oemStrings are those behind an entry: each ends with a zero, the last with two.
func oemStrings(entry []byte) []string {
	if len(entry) < 2 || len(entry) < int(entry[1]) {
		return nil
	}
	var out []string
	for s := range bytes.SplitSeq(entry[entry[1]:], []byte{0}) {
		if len(s) == 0 {
			break
		}
		out = append(out, string(s))
	}
	return out
}

// noCloud is a disk with cloud-init's seed: an ISO 9660 or FAT file system of that
// label. Mount shows a device's files and returns how to end that.
func noCloud(sys, dev string, mount func(device string) (dir string, unmount func() error, err error)) Source {
	find := func() (string, error) {
		all, err := filepath.Glob(filepath.Join(sys, "class/block/*"))
		if err != nil {
			return "", err
		}
		var unread []error
		for _, d := range all {
			device := filepath.Join(dev, filepath.Base(d))
			label, err := labelOf(device)
			if err != nil {
				if !empty(err) {
					unread = append(unread, fmt.Errorf("%w: %w", errUnread, err))
				}
				continue
			}
			if strings.EqualFold(label, "cidata") {
				return device, nil
			}
		}
		return "", errors.Join(unread...)
	}
	return Source{
		Name:  "a NoCloud disk",
		Limit: localLimit,
		Here:  func() (bool, error) { d, err := find(); return d != "", err },
		Fetch: func(context.Context) (Data, error) {
			device, err := find()
			if err != nil {
				return Data{}, err
			}
			dir, unmount, err := mount(device)
			if err != nil {
				return Data{}, err
			}
			b, err := readFile(filepath.Join(dir, "user-data"))
			return Data{Document: b}, errors.Join(err, unmount())
		},
	}
}

// empty says that an error is that of a drive without a medium, which EOF is of some, or of one that went.
func empty(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ENOMEDIUM) || errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist)
}

// labelOf returns the label of an ISO 9660 or FAT file system, "" for another.
func labelOf(device string) (string, error) {
	f, err := os.Open(device)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const isoAt, fatBytes = 16 * 2048, 512
	b := make([]byte, fatBytes)
	if _, err := f.ReadAt(b, 0); err != nil {
		return "", err
	}
	switch {
	case string(b[82:85]) == "FAT":
		return strings.TrimRight(string(b[71:82]), " "), nil
	case string(b[54:57]) == "FAT":
		return strings.TrimRight(string(b[43:54]), " "), nil
	}
	if _, err := f.ReadAt(b, isoAt); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if string(b[:6]) != "\x01CD001" {
		return "", nil
	}
	return strings.TrimRight(string(b[40:72]), " "), nil
}

// mountSeed mounts a NoCloud disk, as either of its kinds.
func mountSeed(device string) (string, func() error, error) {
	dir, err := os.MkdirTemp("/run", "seed-")
	if err != nil {
		return "", nil, err
	}
	var errs []error
	for _, kind := range []string{"iso9660", "vfat"} {
		err := unix.Mount(device, dir, kind, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		if err == nil {
			return dir, func() error { return errors.Join(unix.Unmount(dir, 0), os.Remove(dir)) }, nil
		}
		errs = append(errs, fmt.Errorf("mount %s as %s: %w", device, kind, err))
	}
	return "", nil, errors.Join(append(errs, os.Remove(dir))...)
}

func exists(file string) (bool, error) {
	_, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// readFile reads what may be a document, and one byte more where it is too long.
func readFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes+1))
}
