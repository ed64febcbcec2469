package gpus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// devicesFile is /proc/devices of a machine with a driver.
const devicesFile = `Character devices:
  1 mem
195 nvidia
195 nvidiactl
511 nvidia-uvm

Block devices:
  7 loop
195 nvidia-frontend
`

// machine is a folder that looks like a machine's root. A device in it is a link to the null
// device, since only root can make others.
type machine struct {
	*testing.T
	Machine
}

func newMachine(t *testing.T) *machine {
	return &machine{t, Machine{Root: t.TempDir()}}
}

func (m *machine) file(name, text string) {
	m.Helper()
	path := m.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) link(name, to string) {
	m.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(m.path(name)), 0o755), os.Symlink(to, m.path(name))); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) devices(names ...string) {
	m.Helper()
	for _, name := range names {
		m.link("/dev/"+name, "/dev/null")
	}
}

// driver has the driver list GPUs with these numbers.
func (m *machine) driver(minors ...int) {
	m.Helper()
	for _, minor := range minors {
		m.file(fmt.Sprintf("/proc/driver/nvidia/gpus/0000:%02x:1e.0/information", minor),
			fmt.Sprintf("Model: \t\t Tesla T4\nIRQ:   \t\t 10\nDevice Minor: \t %d\nGPU Excluded:\t No\n", minor))
	}
}

func (m *machine) remove(name string) {
	m.Helper()
	if err := os.RemoveAll(m.path(name)); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) names() (names []string) {
	for _, g := range m.GPUs() {
		names = append(names, g.Name)
	}
	return names
}

func TestGPUsAreThoseWithANodeThatTheDriverHas(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(m *machine)
		want string
	}{
		"none": {func(*machine) {}, ""},
		"nodes, and a silent driver": {func(m *machine) { m.devices("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvme0") },
			"nvidia0 nvidia2 nvidia10"},
		"no device": {func(m *machine) {
			m.file("/dev/nvidia0", "")
			m.file("/dev/nvidia1/x", "")
			m.link("/dev/nvidia2", "gone")
		}, ""},
		"one that the driver lost": {func(m *machine) { m.devices("nvidia0", "nvidia1"); m.driver(1) }, "nvidia1"},
		"one without a node":       {func(m *machine) { m.devices("nvidia0"); m.driver(0, 1) }, "nvidia0"},
		"a driver that says no number": {func(m *machine) {
			m.devices("nvidia0", "nvidia1")
			m.driver(0)
			m.file("/proc/driver/nvidia/gpus/x/information", "Device Minor: \t ?\nDevice Minor: -1\n")
		}, "nvidia0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			c.set(m)
			if got := strings.Join(m.names(), " "); got != c.want {
				t.Errorf("GPUs are %q: want %q", got, c.want)
			}
		})
	}
}

func TestAMachineThatMayHaveGPUsIsTold(t *testing.T) {
	card := func(m *machine, vendor, class string) {
		m.file("/sys/bus/pci/devices/0000:00:1e.0/vendor", vendor+"\n")
		m.file("/sys/bus/pci/devices/0000:00:1e.0/class", class+"\n")
	}
	for name, c := range map[string]struct {
		set  func(m *machine)
		want bool
	}{
		"none":                 {func(*machine) {}, false},
		"a node":               {func(m *machine) { m.devices("nvidia3") }, true},
		"only the driver's":    {func(m *machine) { m.devices("nvidiactl", "nvidia-uvm") }, false},
		"the driver has one":   {func(m *machine) { m.driver(0) }, true},
		"the driver has none":  {func(m *machine) { m.file("/proc/driver/nvidia/gpus/x", "") }, false},
		"a card":               {func(m *machine) { m.file("/lib/modules/x", ""); card(m, "0x10de", "0x030200") }, true},
		"a card of the host's": {func(m *machine) { card(m, "0x10de", "0x030200") }, false},
		"a card of another":    {func(m *machine) { m.file("/lib/modules/x", ""); card(m, "0x1002", "0x030000") }, false},
		"its sound":            {func(m *machine) { m.file("/lib/modules/x", ""); card(m, "0x10de", "0x040300") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			c.set(m)
			if got := m.Present(); got != c.want {
				t.Errorf("it may have GPUs: %t, want %t", got, c.want)
			}
		})
	}
}

func TestMissingNodesAreMadeAsTheDriverNumbersThem(t *testing.T) {
	for name, c := range map[string]struct {
		devices string
		want    string
	}{
		"a driver": {devicesFile, "nvidia1 195:1, nvidiactl 195:255, nvidia-modeset 195:254, nvidia-uvm 511:0, nvidia-uvm-tools 511:1"},
		"before 550": {strings.ReplaceAll(strings.ReplaceAll(devicesFile, "195 nvidiactl\n", ""), "195 nvidia\n", "195 nvidia-frontend\n"),
			"nvidia1 195:1, nvidiactl 195:255, nvidia-modeset 195:254, nvidia-uvm 511:0, nvidia-uvm-tools 511:1"},
		"without CUDA's module": {strings.ReplaceAll(devicesFile, "511 nvidia-uvm\n", ""),
			"nvidia1 195:1, nvidiactl 195:255, nvidia-modeset 195:254"},
		"no driver": {"Character devices:\n  1 mem\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.file("/proc/devices", c.devices)
			m.devices("nvidia0")
			m.driver(0, 1)
			var made []string
			m.mknod = func(path string, dev uint64) error {
				made = append(made, fmt.Sprintf("%s %d:%d", filepath.Base(path), unix.Major(dev), unix.Minor(dev)))
				return fs.ErrExist // somebody else has made it meanwhile
			}
			if err := m.MakeNodes(); err != nil {
				t.Error(err)
			}
			if got := strings.Join(made, ", "); got != c.want {
				t.Errorf("made %s: want %s", got, c.want)
			}
			if m.HasUVM() != strings.Contains(c.devices, "uvm") || !m.HasDriver() {
				t.Errorf("CUDA's module is there: %t; the driver: %t", m.HasUVM(), m.HasDriver())
			}
			m.mknod = func(string, uint64) error { return fs.ErrPermission }
			if err := m.MakeNodes(); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), m.path("/dev/nvidia1")) {
				t.Errorf("a node that cannot be made: %v", err)
			}
		})
	}
}

// inject has CDI's own library do to a container what containerd has it do.
func (m *machine) inject(gpus ...string) *oci.Spec {
	m.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Dir(m.path(SpecFile))), cdi.WithAutoRefresh(false))
	if err != nil {
		m.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		m.Fatal(errs)
	}
	var names []string
	for _, name := range gpus {
		names = append(names, GPU{Name: name}.CDIName())
	}
	container := &oci.Spec{Process: &oci.Process{Env: []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"}}}
	if missing, err := cache.InjectDevices(container, names...); err != nil || len(missing) > 0 {
		m.Fatalf("%v are not described: %v", missing, err)
	}
	return container
}

func TestAContainerGetsItsGPUAndTheDriver(t *testing.T) {
	m := newMachine(t)
	m.devices("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset")
	const libs = "/usr/lib/x86_64-linux-gnu/"
	m.file(libs+"libcuda.so.550.54.15", "")
	m.link(libs+"libcuda.so.1", "libcuda.so.550.54.15")
	m.file(libs+"libnvidia-ml.so.1", "")
	m.file(libs+"libc.so.6", "")
	m.file(libs+"libnvidia-container.so.1", "")
	m.link(libs+"libnvidia-nvvm.so.4", "gone")
	m.file("/usr/lib/libcuda.so.1", "of 32 bits")
	m.file("/usr/bin/nvidia-smi", "")
	if err := m.Write(m.Spec(m.GPUs())); err != nil {
		t.Fatal(err)
	}
	got := m.inject("nvidia1")
	var devices, mounts []string
	for _, d := range got.Linux.Devices {
		devices = append(devices, d.Path)
		if d.Type != "c" || d.Major != 1 || d.Minor != 3 || *d.FileMode != 0o666 {
			t.Errorf("the container has %+v: want a null device that all may open", d)
		}
	}
	for _, x := range got.Mounts {
		mounts = append(mounts, x.Destination)
		if !slices.Contains(x.Options, "ro") || !slices.Contains(x.Options, "nosuid") || !slices.Contains(x.Options, "rbind") ||
			!strings.HasPrefix(x.Source, m.Root) {
			t.Errorf("%s is mounted from %s with %q", x.Destination, x.Source, x.Options)
		}
	}
	slices.Sort(devices)
	slices.Sort(mounts)
	if want := []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"}; !slices.Equal(devices, want) {
		t.Errorf("the container has %q: want %q", devices, want)
	}
	want := []string{"/usr/bin/nvidia-smi", libs + "libcuda.so.1", libs + "libcuda.so.550.54.15", libs + "libnvidia-ml.so.1",
		"/usr/local/nvidia/lib64/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.550.54.15", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"}
	if !slices.Equal(mounts, want) {
		t.Errorf("the container has the files %q: want %q", mounts, want)
	}
	// Of a variable that is there twice, as from an image for CUDA, the last value counts.
	if env := got.Process.Env; env[0] != "PATH=/bin" || env[len(env)-1] != "NVIDIA_VISIBLE_DEVICES=void" {
		t.Errorf("its environment is %q", env)
	}
	if allowed := got.Linux.Resources.Devices; len(allowed) != len(devices) {
		t.Errorf("its cgroup may open %+v", allowed)
	}
	if both := m.inject("nvidia0", "nvidia1"); len(both.Linux.Devices) != 5 {
		t.Errorf("one with both GPUs has %d devices: want 5", len(both.Linux.Devices))
	}
}

func TestADescriptionReplacesTheOneBefore(t *testing.T) {
	m := newMachine(t)
	m.devices("nvidia0", "nvidia1")
	if err := m.Write(m.Spec(m.GPUs())); err != nil {
		t.Fatal(err)
	}
	m.inject("nvidia0", "nvidia1")
	m.remove("/dev/nvidia1")
	if err := m.Write(m.Spec(m.GPUs())); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(m.path(SpecFile)))
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v: want one file", entries, err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Dir(m.path(SpecFile))), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if got := cache.ListDevices(); !slices.Equal(got, []string{Kind + "=nvidia0"}) {
		t.Errorf("described are %q: want one", got)
	}
	m.remove("/var")
	m.file("/var", "no folder")
	if err := m.Write(m.Spec(m.GPUs())); err == nil {
		t.Error("a description that was not written is no error")
	}
}

func TestLibrariesAreThoseOfTheFirstFolderThatHasSome(t *testing.T) {
	for name, c := range map[string]struct {
		files, mounts []string
	}{
		"Red Hat": {[]string{"/usr/lib/libcuda.so.1", "/usr/lib64/libcuda.so.1"},
			[]string{"/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.1"}},
		"a folder of its own": {[]string{"/opt/nvidia/lib64/libcuda.so.1"}, []string{"/usr/local/nvidia/lib64/libcuda.so.1"}},
		"the images' own":     {[]string{"/usr/local/nvidia/lib64/libcuda.so.1"}, []string{"/usr/local/nvidia/lib64/libcuda.so.1"}},
		"none":                {[]string{"/usr/lib64/libc.so.6", "/usr/lib64/libcuda"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			for _, f := range c.files {
				m.file(f, "")
			}
			var got []string
			for _, x := range m.mounts() {
				got = append(got, x.ContainerPath)
			}
			if !slices.Equal(got, c.mounts) || m.HasLibraries() != (c.mounts != nil) {
				t.Errorf("mounted are %q: want %q; it has libraries: %t", got, c.mounts, m.HasLibraries())
			}
		})
	}
}

func TestWhyNoGPUCanBeUsedIsSaid(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"the image has no driver":  {"/lib/modules/6.12/modules.dep": "kernel/fs/xfs.ko:\n"},
		"the driver is not loaded": {"/lib/modules/6.12/modules.dep": "updates/nvidia.ko:\nupdates/nvidia-uvm.ko: updates/nvidia.ko\n"},
		"the driver has found no GPU": {
			"/lib/modules/6.12/modules.dep": "updates/nvidia.ko:\n", "/proc/driver/nvidia/gpus/0000:00:1e.0/information": "Model: Tesla T4\n",
		},
	} {
		m := newMachine(t)
		for name, text := range files {
			m.file(name, text)
		}
		if err := m.Lacks(); !strings.HasPrefix(err.Error(), want) {
			t.Errorf("with %v: %v; want %s", files, err, want)
		}
	}
}
