package gpus

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is where to look.
type Machine struct {
	// Root is the machine's root directory: "/".
	Root string

	// mknod makes a device node; nil for the system call.
	mknod func(path string, dev uint64) error
}

// GPU is one of the machine's.
type GPU struct {
	// Name is that of its device node in /dev, nvidia0. It is also its name in CDI, and
	// the kubelet's for it.
	Name string
	// Minor is the driver's number of it.
	Minor int
}

const (
	devDir = "/dev"
	// driverDir is the driver's, and has a folder of each GPU, by its address on the bus.
	driverDir = "/proc/driver/nvidia/gpus"
	// pciDir has a folder of each device on the bus.
	pciDir = "/sys/bus/pci/devices"
	// modulesDir has the modules of a machine that has a kernel of its own.
	modulesDir = "/lib/modules"
	// charDevices has the major numbers of drivers.
	charDevices = "/proc/devices"
)

const (
	vendorNVIDIA = "0x10de"
	// classDisplay begins the PCI classes of GPUs, with a connector for a screen or without.
	classDisplay = "0x03"
)

// deviceNodes are the names of GPUs' nodes.
var deviceNodes = regexp.MustCompile(`^nvidia([0-9]{1,4})$`)

func (m Machine) path(p string) string { return filepath.Join(m.Root, p) }

// Present says whether the machine may have GPUs: one has a device node, the driver has
// one, or one is on the bus. It is false on a machine that shows the bus of its host.
func (m Machine) Present() bool {
	if listed, known := m.listed(); len(m.nodes()) > 0 || known && len(listed) > 0 {
		return true
	}
	if _, err := os.Stat(m.path(modulesDir)); err != nil {
		return false
	}
	vendors, _ := filepath.Glob(m.path(pciDir + "/*/vendor")) // the pattern is good
	return slices.ContainsFunc(vendors, func(vendor string) bool {
		class := filepath.Join(filepath.Dir(vendor), "class")
		return line(vendor) == vendorNVIDIA && strings.HasPrefix(line(class), classDisplay)
	})
}

// line is what a file of one line says, "" where it cannot be read.
func line(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// GPUs are those that can be used, by their numbers: they have a device node, and the
// driver has them, where it says which it has.
func (m Machine) GPUs() []GPU {
	found := m.nodes()
	if listed, known := m.listed(); known {
		found = slices.DeleteFunc(found, func(g GPU) bool { return !slices.Contains(listed, g.Minor) })
	}
	return found
}

// nodes are the GPUs that have a device node.
func (m Machine) nodes() (found []GPU) {
	entries, _ := os.ReadDir(m.path(devDir)) // without it there are none
	for _, e := range entries {
		match := deviceNodes.FindStringSubmatch(e.Name())
		if match == nil || !m.isDevice(filepath.Join(devDir, e.Name())) {
			continue
		}
		if minor, err := strconv.Atoi(match[1]); err == nil {
			found = append(found, GPU{Name: e.Name(), Minor: minor})
		}
	}
	slices.SortFunc(found, func(a, b GPU) int { return cmp.Compare(a.Minor, b.Minor) })
	return found
}

func (m Machine) isDevice(path string) bool {
	info, err := os.Stat(m.path(path))
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}

// listed are the numbers of the GPUs that the driver has; it is not known where there is
// no driver, or one that does not say.
func (m Machine) listed() (minors []int, known bool) {
	entries, err := os.ReadDir(m.path(driverDir))
	if err != nil {
		return nil, false
	}
	for _, e := range entries {
		b, _ := os.ReadFile(m.path(filepath.Join(driverDir, e.Name(), "information"))) // it may have gone
		for l := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(l, ":")
			if strings.TrimSpace(name) != "Device Minor" {
				continue
			}
			if minor, err := strconv.Atoi(strings.TrimSpace(value)); err == nil && minor >= 0 {
				minors = append(minors, minor)
			}
		}
	}
	return minors, true
}

// A driver's nodes that are of no GPU, and their minor numbers, which are part of the
// driver's interface. So is that the nodes may be opened by everybody.
const (
	ctlMinor      = 255
	modesetMinor  = 254
	uvmMinor      = 0
	uvmToolsMinor = 1
	nodeMode      = 0o666
)

// MakeNodes makes the device nodes that a machine without udev lacks: the driver makes
// none, and NVIDIA's program that makes them runs when something first opens one.
func (m Machine) MakeNodes() error {
	majors, err := m.majors()
	if err != nil {
		return err
	}
	type node struct {
		name         string
		major, minor int
	}
	var nodes []node
	// Drivers since 550 have a name for each kind of node.
	if major := cmp.Or(majors["nvidia"], majors["nvidia-frontend"]); major != 0 {
		listed, _ := m.listed()
		for _, minor := range listed {
			nodes = append(nodes, node{fmt.Sprintf("nvidia%d", minor), major, minor})
		}
		nodes = append(nodes, node{"nvidiactl", major, ctlMinor}, node{"nvidia-modeset", major, modesetMinor})
	}
	if major := majors["nvidia-uvm"]; major != 0 {
		nodes = append(nodes, node{"nvidia-uvm", major, uvmMinor}, node{"nvidia-uvm-tools", major, uvmToolsMinor})
	}
	mknod := makeNode
	if m.mknod != nil {
		mknod = m.mknod
	}
	var errs []error
	for _, n := range nodes {
		path := m.path(filepath.Join(devDir, n.name))
		if _, err := os.Lstat(path); err == nil {
			continue
		}
		if err := mknod(path, unix.Mkdev(uint32(n.major), uint32(n.minor))); err != nil && !errors.Is(err, fs.ErrExist) {
			errs = append(errs, fmt.Errorf("make device %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func makeNode(path string, dev uint64) error {
	if err := unix.Mknod(path, unix.S_IFCHR|nodeMode, int(dev)); err != nil {
		return err
	}
	return os.Chmod(path, nodeMode) // whatever the umask
}

// HasDriver says whether the kernel has the driver.
func (m Machine) HasDriver() bool {
	_, known := m.listed()
	return known
}

// moduleLists are what the machine's kernels can load.
const moduleLists = modulesDir + "/*/modules.dep"

// Lacks returns why a machine that has a GPU has none that can be used.
func (m Machine) Lacks() error {
	if m.HasDriver() {
		return errors.New("the driver has found no GPU that it can drive: the kernel's log has what it says")
	}
	lists, _ := filepath.Glob(m.path(moduleLists)) // the pattern is good
	for _, list := range lists {
		if b, err := os.ReadFile(list); err == nil && strings.Contains(string(b), "/nvidia.ko") {
			return errors.New("the driver is not loaded: it is built for another kernel, or drives no such GPU; the kernel's log has why")
		}
	}
	return errors.New("the image has no driver: want one with the kernel modules nvidia and nvidia-uvm")
}

// HasUVM says whether the kernel has the module by which CUDA shares memory with a GPU. No
// device asks for that module, so it is loaded by name.
func (m Machine) HasUVM() bool {
	majors, err := m.majors()
	return err == nil && majors["nvidia-uvm"] != 0
}

// majors are the major numbers of the drivers of character devices, by their names.
func (m Machine) majors() (map[string]int, error) {
	f, err := os.Open(m.path(charDevices))
	if err != nil {
		return nil, fmt.Errorf("read the numbers of drivers: %w", err)
	}
	defer f.Close()
	majors, lines := map[string]int{}, bufio.NewScanner(f)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Block devices") {
			break
		}
		number, name, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if major, err := strconv.Atoi(number); err == nil {
			majors[strings.TrimSpace(name)] = major
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the numbers of drivers: %w", err)
	}
	return majors, nil
}
