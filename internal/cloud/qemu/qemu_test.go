package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/cloudtest"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/host/cgroups"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/test/journal"
	"github.com/elotl/kip/test/network"
	"github.com/elotl/kip/test/tier"
)

// The environment with which this test binary runs itself as a Kip that dies: it does what
// crashDoes says until it reaches crashAt, and kills itself there.
const (
	crashAt   = "KIP_QEMU_TEST_CRASH_AT"
	crashDoes = "KIP_QEMU_TEST_CRASH_DOES"
	crashSlot = "KIP_QEMU_TEST_CRASH_SLOT" // of its network
)

// patience only bounds a failing test.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if step := os.Getenv(crashAt); step != "" {
		fmt.Fprintln(os.Stderr, crash(step, os.Getenv(crashDoes)))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// testDir is what the name of a test's folder begins with.
func testDir() string { return filepath.Join(os.TempDir(), "kip-qemu-") }

var claimed = sync.OnceValues(func() (network.Network, error) {
	return network.QEMU.Claim(testDir(), func(earlier network.Network) error {
		return errors.Join(Destroy(context.Background(), configOf(earlier)), os.RemoveAll(earlier.State))
	})
})

// ours returns the network of this process's tests.
func ours(t testing.TB) network.Network {
	t.Helper()
	n, err := claimed()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func configOf(n network.Network) Config {
	return Config{
		Config: host.Config{
			StateDir: filepath.Join(n.State, "state"),
			Bridge:   n.Bridge,
			CIDR:     n.CIDR,
			IPv6CIDR: n.IPv6CIDR,
			Catalogue: []catalog.InstanceType{{
				Name: "small", MilliCPU: 1000, MemoryBytes: 1 << 30, DiskBytes: 1 << 30, Arch: "amd64",
				Offerings: []catalog.PurchaseOption{{Zone: "here"}},
			}},
			Log: slog.New(slog.DiscardHandler),
		},
		Image:       filepath.Join(n.State, "image", "cell.raw"),
		Nameservers: []netip.Addr{n.Host()},
		// The same machines wherever the test runs.
		Accelerator: vm.TCG,
		ShutLimit:   patience,
	}
}

// testHost makes the image of a test and takes care that nothing is left: every test ends
// by looking. Real machines of QEMU boot a kernel of 60 bytes.
func testHost(t testing.TB) Config {
	t.Helper()
	tier.All(t)
	if os.Geteuid() != 0 {
		t.Skip("machines need root")
	}
	for _, p := range []string{vm.Program, "qemu-img"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("machines need QEMU: apt-get install qemu-system-x86 qemu-utils")
		}
	}
	n := ours(t)
	cfg := configOf(n)
	n.Clear(t, func(ctx context.Context) error { return Destroy(ctx, cfg) },
		func(ctx context.Context) ([]string, error) { return Leftovers(ctx, cfg) })
	writeImage(t, filepath.Dir(cfg.Image), guest(true))
	return cfg
}

func open(t testing.TB, cfg Config) *Cloud {
	t.Helper()
	c, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const secret = "#cloud-config\n# a token that joins once\n"

func request(token string) cloud.LaunchRequest {
	return cloud.LaunchRequest{
		Token: token,
		LaunchSpec: cloud.LaunchSpec{
			InstanceType: "small", Zone: "here", CapacityType: cloud.OnDemand, Tags: map[string]string{cloud.TagOwner: "me"},
		},
		Machines: []cloud.Machine{{UserData: []byte(secret)}},
	}
}

func launch(t testing.TB, c *Cloud, token string) cloud.Instance {
	t.Helper()
	list, err := c.Launch(context.Background(), request(token)).All()
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func list(t testing.TB, c *Cloud) []cloud.Instance {
	t.Helper()
	l, err := c.List(context.Background(), "me")
	if err != nil {
		t.Fatal(err)
	}
	return l.Instances
}

// only returns the one machine that is listed.
func only(t testing.TB, c *Cloud) cloud.Instance {
	t.Helper()
	l := list(t, c)
	if len(l) != 1 {
		t.Fatalf("listed: %+v; want one machine", l)
	}
	return l[0]
}

// within waits until check returns nil.
func within(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for err := check(); err != nil; err = check() {
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// says waits until a machine's console has said something.
func says(t testing.TB, c *Cloud, id, want string) {
	t.Helper()
	within(t, "the console", func() error {
		got, err := c.Console(context.Background(), id)
		if err == nil && !strings.HasSuffix(string(got), want) {
			err = fmt.Errorf("it ends with %q, want %q", got[max(0, len(got)-100):], want)
		}
		return err
	})
}

// left is what there is on the host but for the bridge.
func left(t testing.TB, cfg Config) []string {
	t.Helper()
	all, err := Leftovers(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s string) bool {
		return s == "network device "+cfg.Bridge || strings.HasSuffix(s, " kip-agents-"+cfg.Bridge) ||
			strings.HasPrefix(s, "cgroup ") && strings.HasSuffix(s, "/kip-"+cfg.Bridge)
	})
}

func onlyBridgeIsLeft(t testing.TB, cfg Config) {
	t.Helper()
	if l := left(t, cfg); len(l) > 0 {
		t.Errorf("left: %q", l)
	}
}

func TestKeepsWhatCloudsPromise(t *testing.T) {
	tier.All(t)
	cloudtest.Run(t, cloudtest.Subject{
		New:           func(t *testing.T) cloud.Cloud { return open(t, testHost(t)) },
		UserData:      []byte(secret),
		Patience:      patience,
		ForgetsTokens: true,
	})
}

func TestAMachineBootsAndIsToldByFilesOfItsOwn(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, "a")
	says(t, c, i.ID, "here\n")
	side, err := host.Inspect(cfg.Config, i.ID)
	if err != nil || side.PID == 0 {
		t.Fatalf("%+v, %v", side, err)
	}
	// Everybody on the host can read the arguments.
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", side.PID))
	if err != nil || bytes.Contains(args, []byte("token")) || !bytes.Contains(args, []byte(userDataFile)) {
		t.Errorf("arguments %q, %v", args, err)
	}
	// It has given up what it never needs: system calls are filtered (proc_pid_status(5), "Seccomp").
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", side.PID)); err != nil || !bytes.Contains(status, []byte("\nSeccomp:\t2\n")) {
		t.Errorf("QEMU's system calls are not filtered: %s, %v", status, err)
	}
	for name, want := range map[string]fs.FileMode{
		userDataFile: 0o600, networkFile: 0o600, rootFile: 0o600, saidFile: 0o600, ".": fs.ModeDir | 0o700,
	} {
		if info, err := os.Stat(filepath.Join(side.Dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	if got, err := os.ReadFile(filepath.Join(side.Dir, userDataFile)); err != nil || string(got) != secret {
		t.Errorf("user data %q, %v", got, err)
	}
	// Its disk is as large as its type says, and not as its image. QEMU has the file locked (-U).
	info, err := exec.Command("qemu-img", "info", "-U", "--output=json", filepath.Join(side.Dir, rootFile)).Output()
	var disk struct {
		Bytes int64 `json:"virtual-size"`
	}
	if err == nil {
		err = json.Unmarshal(info, &disk)
	}
	image, statErr := os.Stat(cfg.Image)
	if statErr != nil {
		t.Fatal(statErr)
	}
	if want := cfg.Catalogue[0].DiskBytes; err != nil || disk.Bytes != want || want == image.Size() {
		t.Errorf("its disk has %d bytes, %v; want %d, which is not its image's %d", disk.Bytes, err, want, image.Size())
	}
	var link vm.Link
	text, err := os.ReadFile(filepath.Join(side.Dir, networkFile))
	if err == nil {
		err = json.Unmarshal(text, &link)
	}
	ip := i.ManagementIP.As4()
	hardware := fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3])
	want := vm.Link{
		Hardware:    hardware,
		Hostname:    i.ID,
		Addresses:   []netip.Prefix{netip.PrefixFrom(i.ManagementIP, 16), netip.PrefixFrom(i.ManagementIPv6, 64)},
		Gateways:    []netip.Addr{cfg.Nameservers[0], cfg.IPv6CIDR.Addr().Next()},
		Nameservers: cfg.Nameservers,
	}
	if err != nil || !reflect.DeepEqual(link, want) {
		t.Errorf("told %+v, %v; want %+v", link, err, want)
	}
	if name := userdata.QEMUName; name != vm.UserData {
		t.Errorf("the agent looks for %s, and QEMU shows %s", name, vm.UserData)
	}
	if err := c.Terminate(context.Background(), i.ID).Err(); err != nil {
		t.Fatal(err)
	}
	onlyBridgeIsLeft(t, cfg)
}

func groupsOf(t testing.TB, cfg Config) cgroups.Machines {
	t.Helper()
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	groups, err := cgroups.Of(cfg.Group)
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

func TestAMachineHasACgroupOfItsOwnThatHoldsItToItsType(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, "a")
	side, err := host.Inspect(cfg.Config, i.ID)
	if err != nil || side.PID == 0 {
		t.Fatalf("%+v, %v", side, err)
	}
	groups := groupsOf(t, cfg)
	if !groups.PureV2() && len(groups.Hierarchies) < 2 {
		t.Errorf("hierarchies: %+v", groups.Hierarchies)
	}
	limits := 0
	// A GiB, its page tables, QEMU, a CPU's stacks, and the code that is translated.
	want := cgroups.Size{MilliCPU: 1000, MemoryBytes: (1024 + 4 + 256 + 8 + 1024) << 20}
	for _, h := range groups.Hierarchies {
		read := func(name string) string {
			text, err := os.ReadFile(filepath.Join(groups.Dir(h, i.ID), name))
			if err != nil {
				t.Error(err)
			}
			return strings.TrimSpace(string(text))
		}
		if got := read("cgroup.procs"); got != fmt.Sprint(side.PID) {
			t.Errorf("in %s are processes %q, want %d alone", groups.Dir(h, i.ID), got, side.PID)
		}
		for _, l := range groups.Limits(h, want) {
			if l.Optional {
				continue // not every kernel has it
			}
			if got := read(l.Path); got != l.Content {
				t.Errorf("%s in %s: %q, want %q", l.Path, h.Mount, got, l.Content)
			}
			limits++
		}
	}
	if limits < 4 {
		t.Errorf("%d limits were looked at", limits)
	}
	if err := c.Terminate(context.Background(), i.ID).Err(); err != nil {
		t.Fatal(err)
	}
	onlyBridgeIsLeft(t, cfg)
}

func TestAPartOfACPUIsAWholeOneForAPartOfTheTime(t *testing.T) {
	for milli, want := range map[int64]int{1: 1, 500: 1, 1000: 1, 1001: 2, 1500: 2, 4000: 4} {
		typ := catalog.InstanceType{MilliCPU: milli}
		if got, size := cpus(typ), (&kind{}).size(typ); got != want || size.MilliCPU != milli {
			t.Errorf("%d thousandths: %d CPUs, want %d; held to %d", milli, got, want, size.MilliCPU)
		}
	}
}

func TestMachinesAreHeldToWhatQEMUNeedsBesideTheirMemory(t *testing.T) {
	large := catalog.InstanceType{MilliCPU: 4000, MemoryBytes: 8 << 30}
	want := cgroups.Size{MilliCPU: 4000, MemoryBytes: (8192 + 32 + 256 + 32) << 20}
	if got := (&kind{accelerator: vm.KVM}).size(large); got != want {
		t.Errorf("with KVM %+v, want %+v", got, want)
	}
	want.MemoryBytes += 1 << 30
	if got := (&kind{accelerator: vm.TCG}).size(large); got != want {
		t.Errorf("emulated %+v, want %+v", got, want)
	}
}

func TestAMachineOutlivesKipAndEndsWithItsQEMU(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, "a")
	before, err := host.Inspect(cfg.Config, i.ID)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	c = open(t, cfg)
	if after, err := host.Inspect(cfg.Config, i.ID); err != nil || after != before || only(t, c).State != cloud.Running {
		t.Errorf("adopted %+v, %v; was %+v", after, err, before)
	}
	if err := unix.Kill(before.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within(t, "the machine vanishes", func() error {
		if l := list(t, c); len(l) > 0 {
			return fmt.Errorf("listed: %+v", l)
		}
		return nil
	})
	onlyBridgeIsLeft(t, cfg)
}

func TestAMachineThatIsStoppedEndsByItsPowerButtonAndStartsAgain(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, "a")
	for range 2 {
		says(t, c, i.ID, "here\n")
		if err := c.Stop(context.Background(), i.ID).Err(); err != nil {
			t.Fatal(err)
		}
		says(t, c, i.ID, ".")
		if got := only(t, c); got.State != cloud.Stopped || got.ManagementIP != i.ManagementIP {
			t.Errorf("stopped: %+v", got)
		}
		if l := left(t, cfg); !slices.Equal(l, []string{"folder " + cfg.MachineDir(i.ID)}) {
			t.Errorf("left of a stopped machine: %q", l)
		}
		if err := c.Start(context.Background(), i.ID).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMachineThatDoesNotHearItsPowerButtonIsKilled(t *testing.T) {
	cfg := testHost(t)
	writeImage(t, filepath.Dir(cfg.Image), guest(false))
	cfg.ShutLimit = 100 * time.Millisecond
	c := open(t, cfg)
	i := launch(t, c, "a")
	says(t, c, i.ID, "here\n")
	if err := c.Stop(context.Background(), i.ID).Err(); err != nil || only(t, c).State != cloud.Stopped {
		t.Errorf("stopped: %+v, %v", only(t, c), err)
	}
	// One that is to end for good is not waited for.
	cfg2 := cfg
	cfg2.ShutLimit = time.Hour
	_ = c.Close()
	c = open(t, cfg2)
	if err := c.Start(context.Background(), i.ID).Err(); err != nil {
		t.Fatal(err)
	}
	says(t, c, i.ID, "here\n")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Stop(ctx, i.ID) // it goes on
	if got := only(t, c); got.State != cloud.Stopping {
		t.Errorf("being stopped: %+v", got)
	}
	if err := c.Terminate(context.Background(), i.ID).Err(); err != nil {
		t.Error(err)
	}
	onlyBridgeIsLeft(t, cfg)
}

func TestAMachineThatQEMURefusesLeavesNothingAndSaysWhy(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	images, err := filepath.Glob(filepath.Join(cfg.StateDir, imagesFolder, "*", vm.LinuxFile))
	if err != nil || len(images) != 1 {
		t.Fatalf("images: %q, %v", images, err)
	}
	kernel, err := os.ReadFile(images[0])
	if err := errors.Join(err, os.Remove(images[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Launch(context.Background(), request("a")).All(); err == nil || !strings.Contains(err.Error(), vm.LinuxFile) {
		t.Errorf("launched without a kernel: %v", err)
	}
	within(t, "nothing is left", func() error {
		if l := left(t, cfg); len(l) > 0 {
			return fmt.Errorf("left: %q", l)
		}
		return nil
	})
	if err := os.WriteFile(images[0], kernel, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, c, launch(t, c, "a").ID, "here\n")
}

func diskRequest() cloud.DiskRequest {
	return cloud.DiskRequest{
		Token:     "d",
		SizeBytes: 1 << 20,
		Zone:      "here",
		Tags:      map[string]string{cloud.TagOwner: "me"},
	}
}

// grownBytes is how large the disk of diskRequest becomes.
const grownBytes = 3 << 20

// diskLife is all that is done with a disk of a machine.
func diskLife(ctx context.Context, c *Cloud, machine string) error {
	d, err := c.CreateDisk(ctx, diskRequest())
	if err != nil {
		return err
	}
	if err := c.AttachDisk(ctx, d.ID, machine); err != nil {
		return err
	}
	if _, err := c.GrowDisk(ctx, d.ID, grownBytes); err != nil {
		return err
	}
	if err := c.DetachDisk(ctx, d.ID, machine); err != nil {
		return err
	}
	return c.DeleteDisk(ctx, d.ID)
}

// livesOn goes through a disk's life, or the rest of it, and then ends the machine: nothing is left.
func livesOn(t *testing.T, cfg Config, c *Cloud, machine string) {
	t.Helper()
	ctx := context.Background()
	if err := diskLife(ctx, c, machine); err != nil {
		t.Error(err)
	}
	if got, found := devices(t, cfg, machine), diskFolders(t, cfg); len(got)+len(found) > 0 {
		t.Errorf("the machine has %q; left of all disks: %q", got, found)
	}
	if err := c.Terminate(ctx, machine).Err(); err != nil {
		t.Error(err)
	}
	onlyBridgeIsLeft(t, cfg)
}

// onlyDisk returns the one disk that is listed.
func onlyDisk(t testing.TB, c *Cloud) cloud.Disk {
	t.Helper()
	disks, err := c.ListDisks(context.Background(), "me")
	if err != nil || len(disks) != 1 {
		t.Fatalf("disks: %+v, %v; want one", disks, err)
	}
	return disks[0]
}

// hasGrown checks that the one disk has its new size in its record, in its file and for the machine that
// has it.
func hasGrown(t testing.TB, cfg Config, c *Cloud, machine string) {
	t.Helper()
	d := onlyDisk(t, c)
	if d.SizeBytes != grownBytes || d.Instance != machine {
		t.Errorf("listed: %+v; want %d bytes, at %s", d, grownBytes, machine)
	}
	if file, err := os.Stat(cfg.Disk(d.ID).File); err != nil || file.Size() != grownBytes {
		t.Errorf("its file: %+v, %v; want %d bytes", file, err, grownBytes)
	}
	var nodes []struct {
		Name  string `json:"node-name"`
		Image struct {
			Bytes int64 `json:"virtual-size"`
		} `json:"image"`
	}
	tell(t, cfg, machine, "query-named-block-nodes", map[string]any{"flat": true}, &nodes)
	seen := int64(0)
	for _, n := range nodes {
		if n.Name == d.ID {
			seen = n.Image.Bytes
		}
	}
	if seen != grownBytes {
		t.Errorf("the machine sees %d bytes of it, want %d", seen, grownBytes)
	}
}

// diskFolders are the disks of which something is on the host.
func diskFolders(t testing.TB, cfg Config) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(cfg.StateDir, "disks", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// tell gives an order to a machine's QEMU.
func tell(t testing.TB, cfg Config, id, command string, arguments, result any) {
	t.Helper()
	d, err := os.Open(cfg.MachineDir(id))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := vm.Dial(t.Context(), fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), monitorFile), vm.AnswerLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Do(t.Context(), command, arguments, result); err != nil {
		t.Fatal(err)
	}
}

// devices are the disks of volumes that a machine has, by what its QEMU says.
func devices(t testing.TB, cfg Config, id string) (names []string) {
	t.Helper()
	var all []struct{ Name, Type string }
	tell(t, cfg, id, "qom-list", map[string]any{"path": "/machine/peripheral"}, &all)
	for _, p := range all {
		if strings.HasPrefix(p.Name, "disk-") {
			names = append(names, p.Name+" "+p.Type)
		}
	}
	return names
}

func TestTheStartRemovesAnImageThatNoMachineBootsAndTellsOfOneOfAnotherVersion(t *testing.T) {
	cfg := testHost(t)
	var said bytes.Buffer
	cfg.Log, cfg.Version = slog.New(slog.NewTextHandler(&said, nil)), "v0.0.0-another"
	old := filepath.Join(cfg.StateDir, imagesFolder, "of-an-earlier-release")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	open(t, cfg)
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the image that no machine boots is there: %v", err)
	}
	if !strings.Contains(said.String(), "kip="+cfg.Version) {
		t.Errorf("nothing is said of the image's version: %s", &said)
	}
}

func TestDisksArePluggedInAndTakenOutWhileTheMachineRuns(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	ctx := context.Background()
	i := launch(t, c, "a")
	d, err := c.CreateDisk(ctx, diskRequest())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.AttachDisk(ctx, d.ID, i.ID); err != nil {
			t.Fatal(err)
		}
		if got := devices(t, cfg, i.ID); !slices.Equal(got, []string{d.ID + " child<scsi-hd>"}) {
			t.Errorf("attached: %q", got)
		}
		var disks []struct {
			Device, Qdev string
			Status       string `json:"io-status"`
		}
		tell(t, cfg, i.ID, "query-block", nil, &disks)
		used := 0
		for _, disk := range disks {
			if disk.Qdev != "" {
				used++
			}
			// Only of one at whose errors the machine is paused does QEMU say whether it had any.
			if disk.Status != "" {
				t.Errorf("an error of %s %s, such as a full disk of the host, pauses the machine and nobody is told", disk.Device, disk.Qdev)
			}
		}
		if used != 2 {
			t.Errorf("the machine uses %d disks, want its own and the volume: %+v", used, disks)
		}
		for range 2 {
			if err := c.DetachDisk(ctx, d.ID, i.ID); err != nil {
				t.Fatal(err)
			}
		}
		if got := devices(t, cfg, i.ID); len(got) > 0 {
			t.Errorf("detached: %q", got)
		}
	}
	// A stop takes it away, too.
	if err := c.AttachDisk(ctx, d.ID, i.ID); err != nil {
		t.Fatal(err)
	}
	says(t, c, i.ID, "here\n")
	if err := errors.Join(c.Stop(ctx, i.ID).Err(), c.Start(ctx, i.ID).Err()); err != nil {
		t.Fatal(err)
	}
	if got := devices(t, cfg, i.ID); len(got) > 0 {
		t.Errorf("after a stop: %q", got)
	}
}

func TestDestroyNeedsNoRecords(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	ids := []string{launch(t, c, "a").ID, launch(t, c, "b").ID, launch(t, c, "c").ID}
	_ = c.Close()
	if err := errors.Join(
		os.WriteFile(filepath.Join(cfg.MachineDir(ids[0]), "record.json"), []byte(`{"instance":`), 0o600),
		os.Remove(filepath.Join(cfg.MachineDir(ids[1]), "record.json")),
		os.RemoveAll(cfg.MachineDir(ids[2])),
	); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(left(t, cfg), "\n")
	for _, want := range []string{"(qemu-system-x86", "network device kip" + ids[2][2:14], "folder " + cfg.MachineDir(ids[0])} {
		if !strings.Contains(text, want) {
			t.Errorf("leftovers do not name %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "process "); n != 3 {
		t.Errorf("%d processes are left over, want 3:\n%s", n, text)
	}
	if err := Destroy(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if all, err := Leftovers(context.Background(), cfg); err != nil || len(all) > 0 {
		t.Errorf("left: %q, %v", all, err)
	}
}

func TestHowMachinesRunIsSaidAtTheStart(t *testing.T) {
	cfg := testHost(t)
	writeImage(t, filepath.Dir(cfg.Image), resets(noRoot)) // which a trial need not wait for
	var said journal.Log
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	_ = open(t, cfg).Close()
	if got := said.String(); !strings.Contains(got, "machines are emulated") || !strings.Contains(got, "the configuration says so") {
		t.Errorf("with %s: %s", cfg.Accelerator, got)
	}
	cfg.Accelerator = Auto
	c, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	got := said.String()
	cfg.Accelerator = vm.KVM
	c, err = New(context.Background(), cfg)
	if err == nil {
		_ = c.Close()
	}
	// Whichever this host can: both say the same.
	can := strings.Contains(got, "machines are virtualized")
	if can != (err == nil) || !can && strings.Count(got, "machines are emulated") != 2 {
		t.Errorf("KVM alone: %v; either: %s", err, got)
	}
	cfg.Accelerator = "xen"
	if _, err := New(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), `accelerator "xen"`) {
		t.Errorf("an accelerator that is none: %v", err)
	}
}

// A kernel of the tests' never ends by itself; these do, as one does that finds no root.
func TestAKernelIsTriedUntilItsMachineEnds(t *testing.T) {
	cfg := testHost(t)
	_ = open(t, cfg).Close()
	i, err := install(t.Context(), cfg.Image, cfg.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	linux := filepath.Join(i.dir, vm.LinuxFile)
	if err := os.WriteFile(linux, resets("VFS: "+noRoot+" on none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tryKernel(t.Context(), vm.TCG, vm.Program, i); err != nil {
		t.Errorf("one that finds no root: %v", err)
	}
	if err := os.WriteFile(linux, resets("invalid opcode\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = tryKernel(t.Context(), vm.TCG, vm.Program, i)
	if err == nil || !strings.Contains(err.Error(), "Unable to mount root fs") || !strings.HasSuffix(err.Error(), "invalid opcode") {
		t.Errorf("one that resets its machine before: %v", err)
	}
	if err := os.WriteFile(linux, []byte("no kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = tryKernel(t.Context(), vm.TCG, vm.Program, i)
	if err == nil || !strings.Contains(err.Error(), "the image's kernel does not run with tcg") {
		t.Errorf("one that is none: %v", err)
	}
	fails := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(fails, []byte("#!/bin/sh\necho KVM internal error. Suberror: 1 >&2\nexec sleep 3600\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	err = tryKernel(t.Context(), vm.KVM, fails, i)
	if err == nil || !strings.Contains(err.Error(), "does not run with kvm: KVM internal error. Suberror: 1") {
		t.Errorf("one that KVM gives up, which is not waited for: %v", err)
	}
}

func TestKVMIsTakenWhereBothTrialsWork(t *testing.T) {
	no := errors.New("no")
	for _, tc := range []struct {
		wanted            string
		processor, kernel error
		want              string
		why               error
	}{
		{Auto, nil, nil, vm.KVM, nil},
		{vm.KVM, nil, nil, vm.KVM, nil},
		{Auto, no, nil, vm.TCG, no},
		{Auto, nil, no, vm.TCG, no},
		{vm.KVM, nil, no, vm.TCG, no},
	} {
		trials := trials{
			func(context.Context, string, string) error { return tc.processor },
			func(_ context.Context, accelerator, _ string, _ image) error {
				if accelerator != vm.KVM || tc.processor != nil {
					t.Errorf("the kernel is tried with %s after %v", accelerator, tc.processor)
				}
				return tc.kernel
			},
		}
		if got, why := trials.accelerator(t.Context(), tc.wanted, "qemu", "", image{}); got != tc.want || why != tc.why {
			t.Errorf("wanted %s, the trials say %v and %v: it is %s, %v", tc.wanted, tc.processor, tc.kernel, got, why)
		}
	}
}

func TestATrialThatIsCalledOffSaysNothingOfKVM(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := try(ctx, time.Minute, vm.TCG, "a machine", 0, "", vm.Program); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// crash is a Kip that dies at a step; it returns only if it did not get there.
func crash(step, does string) error {
	slot, err := strconv.Atoi(os.Getenv(crashSlot))
	if err != nil {
		return err
	}
	cfg := configOf(network.QEMU.At(slot, testDir()))
	ctx := context.Background()
	var armed atomic.Bool
	armed.Store(does == "launch")
	cfg.Reached = func(s string) {
		if s == step && armed.Load() {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	c, err := New(ctx, cfg)
	if err != nil {
		return err
	}
	made, err := c.Launch(ctx, request("crash")).All()
	if err != nil {
		return err
	}
	id := made[0].ID
	for text, err := []byte(nil), error(nil); err == nil && !bytes.Contains(text, []byte("here")); text, err = c.Console(ctx, id) {
		time.Sleep(10 * time.Millisecond) // until it hears its power button
	}
	armed.Store(does != "start")
	switch does {
	case "terminate":
		err = c.Terminate(ctx, id).Err()
	case "stop":
		err = c.Stop(ctx, id).Err()
	case "start":
		if err = c.Stop(ctx, id).Err(); err == nil {
			armed.Store(true)
			err = c.Start(ctx, id).Err()
		}
	case "disk":
		err = diskLife(ctx, c, id)
	}
	return errors.Join(err, fmt.Errorf("never reached %q", step))
}

// die runs a Kip that dies at a step.
func die(t *testing.T, step, does string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashAt+"="+step, crashDoes+"="+does, crashSlot+"="+strconv.Itoa(ours(t).Slot))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.String() != "signal: killed" {
		t.Fatalf("the Kip that was to die at %q: %v\n%s", step, err, out)
	}
}

// crashes runs a test for each step at which Kip dies.
func crashes(t *testing.T, does string, steps []string, check func(t *testing.T, cfg Config, step string)) {
	tier.All(t)
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			die(t, step, does)
			check(t, cfg, step)
		})
	}
}

func TestKipThatDiesInLaunchLeavesNothingBehind(t *testing.T) {
	steps := []string{"folder", "recorded", "filled", "plugged", "limited", "spawned", "attached", "identified", "answers", "begun", "running"}
	gated := []string{"spawned", "attached", "identified"}
	crashes(t, "launch", steps, func(t *testing.T, cfg Config, step string) {
		if step == "running" {
			c, id := adopted(t, cfg)
			if err := c.Terminate(context.Background(), id).Err(); err != nil {
				t.Error(err)
			}
			onlyBridgeIsLeft(t, cfg)
			return
		}
		if slices.Contains(gated, step) {
			within(t, "what was to become QEMU ends", func() error {
				ids, err := running(filepath.Dir(cfg.MachineDir("any")))
				_, pids := groupsOf(t, cfg).Inspect()
				if err == nil && len(ids)+len(pids) > 0 {
					err = fmt.Errorf("QEMU of %v, processes %v in cgroups", ids, pids)
				}
				return err
			})
		}
		if step == "answers" {
			all, err := filepath.Glob(cfg.MachineDir("i-*"))
			if err != nil || len(all) != 1 {
				t.Fatalf("machines: %q, %v", all, err)
			}
			var status struct{ Status string }
			if tell(t, cfg, filepath.Base(all[0]), "query-status", nil, &status); status.Status != "prelaunch" {
				t.Errorf("before it is known to run, the machine is %q: want it to have done nothing", status.Status)
			}
		}
		c := open(t, cfg)
		if l := list(t, c); len(l) > 0 {
			t.Errorf("listed: %+v", l)
		}
		onlyBridgeIsLeft(t, cfg)
		says(t, c, launch(t, c, "crash").ID, "here\n")
	})
}

// adopted opens the cloud of a Kip that died when its only machine ran, and checks that the machine
// goes on, as the next Kip's. It returns both.
func adopted(t *testing.T, cfg Config) (*Cloud, string) {
	t.Helper()
	all, err := host.Recorded(cfg.Config)
	if err != nil || len(all) != 1 {
		t.Fatalf("records: %+v, %v; want one", all, err)
	}
	before, err := host.Inspect(cfg.Config, all[0].ID)
	if err != nil || before.PID == 0 {
		t.Fatalf("the machine has not outlived its Kip: %+v, %v", before, err)
	}
	c := open(t, cfg)
	i := only(t, c)
	if after, err := host.Inspect(cfg.Config, i.ID); err != nil || after != before || i.State != cloud.Running {
		t.Errorf("adopted %+v, %+v, %v; was %+v", i, after, err, before)
	}
	says(t, c, i.ID, "here\n")
	if again := launch(t, c, "crash"); again.ID != i.ID {
		t.Errorf("the token launched %s beside %s", again.ID, i.ID)
	}
	return c, i.ID
}

func TestKipThatDiesInTerminateFinishesItLater(t *testing.T) {
	crashes(t, "terminate", []string{"terminating", "killed", "unplugged", "emptied"}, func(t *testing.T, cfg Config, _ string) {
		c := open(t, cfg)
		if l := list(t, c); len(l) > 0 {
			t.Errorf("listed: %+v", l)
		}
		onlyBridgeIsLeft(t, cfg)
	})
}

func TestKipThatDiesInStopLeavesAStoppedMachine(t *testing.T) {
	crashes(t, "stop", []string{"stopping", "killed", "halted", "stopped"}, stopsAfterACrash)
}

func TestKipThatDiesInStartLeavesAStoppedMachine(t *testing.T) {
	steps := []string{"plugged", "limited", "spawned", "attached", "identified", "answers", "begun", "running"}
	crashes(t, "start", steps, func(t *testing.T, cfg Config, step string) {
		if step == "running" { // a stop ends it as if it had been launched
			c, id := adopted(t, cfg)
			if err := c.Stop(context.Background(), id).Err(); err != nil {
				t.Error(err)
			}
			_ = c.Close()
		}
		stopsAfterACrash(t, cfg, step)
	})
}

func stopsAfterACrash(t *testing.T, cfg Config, _ string) {
	c := open(t, cfg)
	within(t, "it is stopped", func() error {
		if i := only(t, c); i.State != cloud.Stopped {
			return fmt.Errorf("it is %s", i.State)
		}
		return nil
	})
	id := only(t, c).ID
	if l := left(t, cfg); !slices.Equal(l, []string{"folder " + cfg.MachineDir(id)}) {
		t.Errorf("left of a stopped machine: %q", l)
	}
	if err := c.Start(context.Background(), id).Err(); err != nil {
		t.Fatal(err)
	}
	says(t, c, id, "here\n")
}

func TestKipThatDiesWhileADiskIsPluggedInGoesOnWithIt(t *testing.T) {
	steps := []string{"disk attaching", "disk opened", "disk attached", "disk unplugged", "disk detached"}
	crashes(t, "disk", steps, func(t *testing.T, cfg Config, _ string) {
		c := open(t, cfg)
		ctx := context.Background()
		id, d := only(t, c).ID, onlyDisk(t, c).ID
		if err := c.AttachDisk(ctx, d, id); err != nil {
			t.Fatal(err)
		}
		if got := devices(t, cfg, id); len(got) != 1 {
			t.Errorf("attached: %q", got)
		}
		if err := c.DetachDisk(ctx, d, id); err != nil {
			t.Fatal(err)
		}
		if got := devices(t, cfg, id); len(got) > 0 {
			t.Errorf("detached: %q", got)
		}
		if err := errors.Join(c.AttachDisk(ctx, d, id), c.Terminate(ctx, id).Err(), c.DeleteDisk(ctx, d)); err != nil {
			t.Error(err)
		}
		onlyBridgeIsLeft(t, cfg)
	})
}

func TestKipThatDiesWhileADiskIsMadeOrRemovedLeavesAWholeOneOrNone(t *testing.T) {
	crashes(t, "disk", []string{"disk file", "disk recorded", "disk record removed"}, func(t *testing.T, cfg Config, step string) {
		c := open(t, cfg)
		ctx := context.Background()
		id := only(t, c).ID
		if step != "disk recorded" {
			if disks, err := c.ListDisks(ctx, "me"); err != nil || len(disks) > 0 {
				t.Errorf("listed: %+v, %v; want none", disks, err)
			}
			if found := diskFolders(t, cfg); len(found) > 0 {
				t.Errorf("left of the disk: %q", found)
			}
		} else {
			d := onlyDisk(t, c)
			file, err := os.Stat(cfg.Disk(d.ID).File)
			if want := diskRequest().SizeBytes; err != nil || file.Size() != want || d.SizeBytes != want || d.Instance != "" {
				t.Errorf("made %+v, its file %+v, %v; want %d bytes", d, file, err, want)
			}
		}
		// The same calls make, or go on with, one disk, and leave none.
		livesOn(t, cfg, c, id)
	})
}

// Until it is recorded, a disk is as it was to whoever asks.
func TestKipThatDiesWhileADiskGrowsGrowsItAgain(t *testing.T) {
	steps := []string{"disk file grown", "disk growing", "disk growth shown", "disk grown"}
	crashes(t, "disk", steps, func(t *testing.T, cfg Config, step string) {
		c := open(t, cfg)
		ctx := context.Background()
		id, d := only(t, c).ID, onlyDisk(t, c)
		want := diskRequest().SizeBytes
		if step == "disk grown" {
			want = grownBytes
		}
		if d.SizeBytes != want || d.Instance != id {
			t.Errorf("left: %+v; want %d bytes, at %s", d, want, id)
		}
		if grown, err := c.GrowDisk(ctx, d.ID, grownBytes); err != nil || grown.SizeBytes != grownBytes {
			t.Errorf("grown: %+v, %v; want %d bytes", grown, err, grownBytes)
		}
		hasGrown(t, cfg, c, id)
		livesOn(t, cfg, c, id) // the rest of it
	})
}
