package gpus

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/elotl/kip/internal/atomicfile"
)

// Kind is that of the devices in CDI. It is not NVIDIA's own (nvidia.com/gpu), which
// NVIDIA's container toolkit describes on an image that has it: of two descriptions of one
// device a runtime takes neither.
const Kind = "kip.elotl.co/gpu"

// SpecFile is the description, in a folder in which containerd looks.
const SpecFile = "/var/run/cdi/kip-gpu.json"

// specVersion of CDI is the first that has all that is used here.
const specVersion = "0.3.0"

// CDIName is the name by which a container runtime knows the GPU.
func (g GPU) CDIName() string { return Kind + "=" + g.Name }

// controlNodes are the nodes that a program needs beside that of its GPU.
var controlNodes = []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}

// libraryDirs are where the driver's libraries may be, the one of the distribution first.
// On a Linux with /usr/lib64, /usr/lib is for programs of 32 bits.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/opt/nvidia/lib64",
}

// libraries are the driver's that programs load: for CUDA, OpenCL and video, and to watch
// a GPU. Others, for graphics, are of use with a screen.
var libraries = []string{
	"libcuda", "libcudadebugger", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-gpucomp",
	"libnvidia-opencl", "libnvidia-cfg", "libnvidia-allocator", "libnvidia-fatbinaryloader", "libnvidia-sandboxutils", "libnvidia-pkcs11",
	"libnvidia-pkcs11-openssl3", "libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libnvidia-nscq",
}

// ContainerLibraryDir is where every container has the libraries. Images that are made for
// CUDA look there, whatever their distribution; the driver's own folder is one that a
// container of the same family of distributions looks in by itself.
const ContainerLibraryDir = "/usr/local/nvidia/lib64"

// programs are the driver's, by their names. A container has them in programDir.
var programs = []string{"nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

const programDir = "/usr/bin"

// sockets are of the driver's services, where they run.
var sockets = []string{"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"}

// noLegacy is what NVIDIA's own descriptions have in a container's environment: a runtime
// that gives GPUs by that variable is to give none.
const noLegacy = "NVIDIA_VISIBLE_DEVICES=void"

// Spec describes these GPUs, and what each container that has one of them gets beside it.
func (m Machine) Spec(list []GPU) cdi.Spec {
	s := cdi.Spec{
		Version:        specVersion,
		Kind:           Kind,
		Devices:        []cdi.Device{},
		ContainerEdits: cdi.ContainerEdits{Env: []string{noLegacy}, Mounts: m.mounts()},
	}
	for _, g := range list {
		if n := m.node(g.Name); n != nil { // else it has gone since it was found
			s.Devices = append(s.Devices, cdi.Device{Name: g.Name, ContainerEdits: cdi.ContainerEdits{DeviceNodes: []*cdi.DeviceNode{n}}})
		}
	}
	for _, name := range controlNodes {
		if n := m.node(name); n != nil {
			s.ContainerEdits.DeviceNodes = append(s.ContainerEdits.DeviceNodes, n)
		}
	}
	return s
}

// node is a device node that a container has where the machine has it; nil if it has none.
func (m Machine) node(name string) *cdi.DeviceNode {
	n := &cdi.DeviceNode{Path: path.Join(devDir, name)}
	var s unix.Stat_t
	if err := unix.Stat(m.path(n.Path), &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil
	}
	mode := fs.FileMode(s.Mode).Perm()
	n.Type, n.FileMode, n.Permissions = "c", &mode, "rw"
	n.Major, n.Minor = int64(unix.Major(s.Rdev)), int64(unix.Minor(s.Rdev))
	return n
}

// mounts are the driver's files in a container, which it may not write.
func (m Machine) mounts() (mounts []*cdi.Mount) {
	add := func(from, to string) {
		mounts = append(mounts, &cdi.Mount{
			HostPath:      m.path(from),
			ContainerPath: to,
			Options:       []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
		})
	}
	dir, names := m.libraries()
	for _, name := range names {
		from := path.Join(dir, name)
		add(from, path.Join(ContainerLibraryDir, name))
		if dir != ContainerLibraryDir && !strings.HasPrefix(dir, "/opt/") {
			add(from, from)
		}
	}
	for _, name := range programs {
		if from := m.program(name); from != "" {
			add(from, path.Join(programDir, name))
		}
	}
	for _, s := range sockets {
		if info, err := os.Stat(m.path(s)); err == nil && info.Mode()&fs.ModeSocket != 0 {
			add(s, s)
		}
	}
	return mounts
}

// libraries returns the folder with the driver's libraries, the first that has one, and
// all names by which each can be loaded: a link is mounted as what it leads to.
func (m Machine) libraries() (dir string, names []string) {
	for _, dir := range libraryDirs {
		entries, _ := os.ReadDir(m.path(dir)) // a distribution has not all of them
		for _, e := range entries {
			base, _, isLibrary := strings.Cut(e.Name(), ".so")
			if isLibrary && slices.Contains(libraries, base) && m.isFile(path.Join(dir, e.Name())) {
				names = append(names, e.Name())
			}
		}
		if len(names) > 0 {
			return dir, names
		}
	}
	return "", nil
}

// isFile is false for a link that leads nowhere: a container with it mounted would not start.
func (m Machine) isFile(path string) bool {
	info, err := os.Stat(m.path(path))
	return err == nil && info.Mode().IsRegular()
}

func (m Machine) program(name string) string {
	for _, dir := range []string{programDir, "/bin", "/usr/local/nvidia/bin", "/opt/nvidia/bin"} {
		if from := path.Join(dir, name); m.isFile(from) {
			return from
		}
	}
	return ""
}

// HasLibraries says whether the image has the driver's libraries. Without them a program in
// a container finds its GPU only if its own image brings them, in the driver's version.
func (m Machine) HasLibraries() bool {
	_, names := m.libraries()
	return len(names) > 0
}

// Write makes a description the one that the machine's container runtime reads.
func (m Machine) Write(s cdi.Spec) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("describe the GPUs: %w", err)
	}
	file := m.path(SpecFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("describe the GPUs: %w", err)
	}
	if err := atomicfile.Write(file, b, 0o644); err != nil {
		return fmt.Errorf("describe the GPUs: %w", err)
	}
	return nil
}
