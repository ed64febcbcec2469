package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/host/cgroups"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/test/network"
	"github.com/elotl/kip/test/tier"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

// The environment with which this test binary runs itself as a Kip that dies:
// it does what crashDoes says until it reaches crashAt, and kills itself there.
const (
	crashAt   = "KIP_LOCAL_TEST_CRASH_AT"
	crashDoes = "KIP_LOCAL_TEST_CRASH_DOES"
	crashSlot = "KIP_LOCAL_TEST_CRASH_SLOT" // of its network
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == MachineCommand {
		MachineMain(os.Args[2:])
	}
	if step := os.Getenv(crashAt); step != "" {
		fmt.Fprintln(os.Stderr, crash(step, os.Getenv(crashDoes)))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// crash is a Kip that dies at a step; it returns only if it did not get there.
func crash(step, does string) error {
	slot, err := strconv.Atoi(os.Getenv(crashSlot))
	if err != nil {
		return err
	}
	cfg := configOf(network.Local.At(slot, testDir()))
	var armed atomic.Bool
	armed.Store(does == "launch" || does == "terminate" || does == "disk")
	cfg.Reached = func(s string) {
		if s == step && armed.Load() {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	c, err := New(cfg)
	if err != nil {
		return err
	}
	i, err := launchOne(context.Background(), c, request("crash"))
	if err != nil {
		return err
	}
	switch does {
	case "terminate":
		err = c.Terminate(context.Background(), i.ID).Err()
	case "stop":
		armed.Store(true)
		err = c.Stop(context.Background(), i.ID).Err()
	case "start":
		if err = c.Stop(context.Background(), i.ID).Err(); err == nil {
			armed.Store(true)
			err = c.Start(context.Background(), i.ID).Err()
		}
	case "disk":
		err = diskLife(context.Background(), c, i.ID)
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("never reached %q", step)
}

const initScript = `#!/bin/sh
trap 'exit 3' TERM
echo "console says hello"
httpd -p 8080 -h /srv
while :; do sleep 1000 & wait; done
`

const runScript = `#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
sh 2>&1
echo "exit=$?"
`

// testDir is what the name of a test's folder begins with.
func testDir() string { return filepath.Join(os.TempDir(), "kip-local-") }

var claimed = sync.OnceValues(func() (network.Network, error) {
	return network.Local.Claim(testDir(), func(earlier network.Network) error {
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

var testTypes = []catalog.InstanceType{
	{Name: "nano", MilliCPU: 250, MemoryBytes: 256 << 20, DiskBytes: 64 << 20, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "local"}}},
	{Name: "xlarge", MilliCPU: 4000, MemoryBytes: 3 << 30, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "local"}}},
}

func configOf(n network.Network) Config {
	return Config{
		Config: host.Config{
			StateDir:  filepath.Join(n.State, "state"),
			Bridge:    n.Bridge,
			CIDR:      n.CIDR,
			Catalogue: testTypes,
			Log:       slog.New(slog.DiscardHandler),
		},
		RootDir:     filepath.Join(n.State, "root"),
		Init:        []string{"/init"},
		Nameservers: []netip.Addr{n.Host()},
	}
}

// testHost is that of a test of make test-all.
func testHost(t testing.TB) Config {
	t.Helper()
	tier.All(t)
	return coreHost(t)
}

// coreHost makes the folder of a test and takes care that nothing is left of it:
// every test ends by looking.
func coreHost(t testing.TB) Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("machines need root")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("machines for tests are made of busybox: apt-get install busybox-static")
	}
	n := ours(t)
	cfg := configOf(n)
	n.Clear(t, func(ctx context.Context) error { return Destroy(ctx, cfg) },
		func(ctx context.Context) ([]string, error) { return Leftovers(ctx, cfg) })
	for _, d := range []string{"bin", "srv/cgi-bin", "proc"} {
		if err := os.MkdirAll(filepath.Join(cfg.RootDir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		"bin/busybox": string(binary), "init": initScript, "srv/cgi-bin/run": runScript,
	} {
		if err := os.WriteFile(filepath.Join(cfg.RootDir, path), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, applet := range []string{"sh", "httpd", "sleep", "cat", "ls", "mount", "date", "hostname", "mkdir", "kill", "wget", "ip", "nproc",
		"stat", "echo", "grep", "ps", "yes", "head", "dd", "touch"} {
		if err := os.Symlink("busybox", filepath.Join(cfg.RootDir, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	return cfg
}

func open(t testing.TB, cfg Config) *Cloud {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func request(token string) cloud.LaunchRequest {
	return cloud.LaunchRequest{
		Token: token, LaunchSpec: cloud.LaunchSpec{InstanceType: "nano", Zone: "local"},
		Machines: []cloud.Machine{{UserData: []byte("#cloud-config\nkip: {}\n"),
			Tags: map[string]string{cloud.TagOwner: "me", cloud.TagCell: "cell-" + token}}},
	}
}

// launchOne launches the only machine of a request.
func launchOne(ctx context.Context, c *Cloud, r cloud.LaunchRequest) (cloud.Instance, error) {
	list, err := c.Launch(ctx, r).All()
	if err != nil {
		return cloud.Instance{}, err
	}
	return list[0], nil
}

func launch(t testing.TB, c *Cloud, r cloud.LaunchRequest) cloud.Instance {
	t.Helper()
	i, err := launchOne(context.Background(), c, r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func list(t testing.TB, c *Cloud) []string {
	t.Helper()
	l, err := c.List(context.Background(), "me")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, i := range l.Instances {
		ids = append(ids, i.ID)
	}
	return ids
}

// within waits for a condition; the deadline only bounds a failing test.
func within(t testing.TB, what string, condition func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// run runs a shell script in the machine and returns what it prints.
func run(t testing.TB, ip netip.Addr, script string) string {
	t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	var out []byte
	within(t, "run in machine "+ip.String(), func() error {
		resp, err := client.Post(fmt.Sprintf("http://%s/cgi-bin/run", netip.AddrPortFrom(ip, 8080)), "text/plain", strings.NewReader(script))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		out, err = io.ReadAll(resp.Body)
		return err
	})
	text, status, ok := strings.Cut(string(out), "exit=")
	if !ok || strings.TrimSpace(status) != "0" {
		t.Errorf("in machine %s: %s\n%s", ip, script, out)
	}
	return strings.TrimSpace(text)
}

// powerOff makes the machine's init end; the answer is lost with the machine.
func powerOff(t testing.TB, ip netip.Addr) {
	t.Helper()
	run(t, ip, "true") // it is up
	resp, err := http.Post(fmt.Sprintf("http://%s:8080/cgi-bin/run", ip), "text/plain", strings.NewReader("kill -TERM 1"))
	if err == nil {
		resp.Body.Close()
	}
}

func TestMachineShowsItsType(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	panicBefore, err := os.ReadFile("/proc/sys/kernel/panic")
	if err != nil {
		t.Fatal(err)
	}
	// Like one that this process was started with: not closed on exec.
	var inherited [2]int
	if err := unix.Pipe(inherited[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited[0])
	defer unix.Close(inherited[1])
	for _, typ := range testTypes {
		r := request(typ.Name)
		r.InstanceType = typ.Name
		i := launch(t, c, r)
		n := cores(typ)
		for _, see := range []struct{ what, script, want string }{
			{"its name", "hostname; cat /etc/hostname", i.ID + "\n" + i.ID},
			{"itself in hosts", "grep " + i.ID + " /etc/hosts", i.ManagementIP.String() + " " + i.ID},
			{"the nameserver", "cat /etc/resolv.conf", "nameserver " + cfg.Nameservers[0].String()},
			{"its user data", "cat /var/lib/cloud/seed/user-data", strings.TrimSpace(string(r.Machines[0].UserData))},
			{"its user data closed to others", "stat -c %a:%u /var/lib/cloud/seed/user-data", "400:0"},
			{"its memory", "grep MemTotal /proc/meminfo | grep -o '[0-9]*'", strconv.FormatInt(typ.MemoryBytes/1024, 10)},
			{"no swap", "grep -c / /proc/swaps || true", "0"},
			{"its processors", "grep -c ^processor /proc/cpuinfo", strconv.Itoa(n)},
			{"its CPUs", "ls -d /sys/devices/system/cpu/cpu[0-9]* | grep -c .", strconv.Itoa(n)},
			{"its node's CPUs", "cat /sys/devices/system/node/node0/cpu*/topology/core_id | grep -c .", strconv.Itoa(n)},
			{"init as process 1", "cat /proc/1/comm", "init"},
			{"forwarding on", "cat /proc/sys/net/ipv4/ip_forward", "1"},
			{"its own kernel.panic", "echo 77 > /proc/sys/kernel/panic; cat /proc/sys/kernel/panic", "77"},
			{"a machine ID", "grep -c '^[0-9a-f]\\{32\\}$' /etc/machine-id", "1"},
			{"a kernel log", "head -c 0 /dev/kmsg && echo ok", "ok"},
			{"an open temporary folder", "stat -c %a /tmp", "1777"},
			{"disks that are no overlay",
				"grep -c '^overlay /var/lib/\\(containerd\\|kubelet\\) ' /proc/mounts; grep -c ' /var/lib/\\(containerd\\|kubelet\\) ' /proc/mounts",
				"0\n2"},
			{"shared mounts", "grep ' / / ' /proc/self/mountinfo | grep -c shared:", "1"},
			{"nothing of the host", "grep -c " + cfg.StateDir + "/machines/.*/root /proc/self/mountinfo || true", "0"},
			{"a /proc for user namespaces", "busybox unshare -r -m -p -f --mount-proc echo ok", "ok"},
			{"a /sys for user namespaces", "busybox unshare -r -m -n mount -t sysfs -o ro,nosuid,nodev,noexec sys /sys && echo ok", "ok"},
			{"no file of its launcher", "ls -l /proc/1/fd | grep -c pipe: || true", "0"},
			{"no way to set the clock", "date -s @1 2>&1 | grep -c permitted", "1"},
		} {
			if got := run(t, i.ManagementIP, see.script); got != see.want {
				t.Errorf("%s sees not %s: got %q, want %q", typ.Name, see.what, got, see.want)
			}
		}
		console, err := c.Console(context.Background(), i.ID)
		if err != nil || string(console) != "console says hello\n" {
			t.Errorf("console of %s: %q, %v", typ.Name, console, err)
		}
	}
	panicAfter, err := os.ReadFile("/proc/sys/kernel/panic")
	if err != nil || string(panicAfter) != string(panicBefore) {
		t.Errorf("host's kernel.panic: %q, want %q as before (%v)", panicAfter, panicBefore, err)
	}
}

func TestMachineIsHeldToItsLimitsAndMaySubdivideThem(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	groups, err := cgroups.Of(cfg.Group)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range groups.Hierarchies {
		name := "/sys/fs/cgroup/" + filepath.Base(h.Mount)
		if groups.PureV2() {
			name = "/sys/fs/cgroup"
		}
		for _, l := range groups.Limits(h, size(testTypes[0])) {
			got := run(t, i.ManagementIP, "cat "+name+"/"+l.Path+" 2> /dev/null || true")
			if got != l.Content && !(l.Optional && got == "") {
				t.Errorf("%s in %s: got %q, want %q", l.Path, name, got, l.Content)
			}
		}
		run(t, i.ManagementIP, "mkdir "+name+"/sub && ls "+name+"/sub/cgroup.procs")
		if n := run(t, i.ManagementIP,
			"grep -c . "+name+"/cgroup.procs "+name+"/init/cgroup.procs 2> /dev/null | grep -cv ':0$\\|^0$' || true"); n == "0" {
			t.Errorf("init is not in the machine's cgroup %s", name)
		}
	}
	// More memory than the type has ends the process that asks for it, by SIGKILL.
	for megabytes, want := range map[int]string{100: "0", 400: "137"} {
		out := run(t, i.ManagementIP, fmt.Sprintf("dd if=/dev/zero of=/dev/null bs=%dM count=1 2> /dev/null; echo $?", megabytes))
		if out != want {
			t.Errorf("a process with %d MB in a machine of 256 MB ends with %q, want %s", megabytes, out, want)
		}
	}
}

func TestMachinesReachEachOtherAndPodAddresses(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	a, b := launch(t, c, request("a")), launch(t, c, request("b"))
	run(t, b.ManagementIP, "echo from b > /srv/name; ip addr add "+b.PodIP.String()+"/32 dev eth0")
	for _, ip := range []netip.Addr{b.ManagementIP, b.PodIP} {
		if got := run(t, a.ManagementIP, fmt.Sprintf("wget -q -O - http://%s:8080/name", ip)); got != "from b" {
			t.Errorf("a asks %s: %q", ip, got)
		}
		if got := run(t, ip, "hostname"); got != b.ID {
			t.Errorf("host asks %s: %q, want %q", ip, got, b.ID)
		}
	}
}

func TestOneTokenLaunchesOneMachine(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	const callers = 8
	ids := make([]string, callers)
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			i, err := launchOne(context.Background(), c, request("same"))
			if err != nil {
				t.Error(err)
			}
			ids[n] = i.ID
		})
	}
	wg.Wait()
	if slices.Sort(ids); ids[0] != ids[callers-1] || ids[0] == "" {
		t.Errorf("one token launched %q", ids)
	}
	if l := list(t, c); len(l) != 1 {
		t.Errorf("list: %q", l)
	}
	other := request("same")
	other.InstanceType = "xlarge"
	if _, err := launchOne(context.Background(), c, other); err == nil || !strings.Contains(err.Error(), "cannot launch xlarge") {
		t.Errorf("the same token for another type: %v", err)
	}
	if l, err := c.List(context.Background(), "someone else"); err != nil || len(l.Instances) > 0 {
		t.Errorf("someone else's machines: %v, %v", l, err)
	}
}

func TestTenMachinesAtOnce(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	const n = 10
	machines := make([]cloud.Instance, n)
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() {
			i, err := launchOne(context.Background(), c, request(strconv.Itoa(k)))
			if err != nil {
				t.Error(err)
			}
			machines[k] = i
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	addresses := map[netip.Addr]bool{}
	var ids []string
	for _, i := range machines {
		addresses[i.ManagementIP], addresses[i.PodIP] = true, true
		ids = append(ids, i.ID)
		if got := run(t, i.ManagementIP, "hostname"); got != i.ID {
			t.Errorf("%s answers as %q, want %q", i.ManagementIP, got, i.ID)
		}
	}
	if len(addresses) != 2*n {
		t.Errorf("%d machines have %d addresses", n, len(addresses))
	}
	if err := c.Terminate(context.Background(), ids...).Err(); err != nil {
		t.Error(err)
	}
	if l := list(t, c); len(l) > 0 {
		t.Errorf("after termination: %q", l)
	}
	onlyBridgeIsLeft(t, cfg)
}

// isOfBridge says that what is left is there as long as the bridge is.
func isOfBridge(cfg Config, left string) bool {
	kind, name, _ := strings.Cut(left, " ")
	switch kind {
	case "cgroup":
		return filepath.Base(name) == "kip-"+cfg.Bridge
	case "nftables":
		return strings.HasSuffix(name, " kip-agents-"+cfg.Bridge)
	}
	return left == "network device "+cfg.Bridge
}

// onlyBridgeIsLeft checks the host itself, while the cloud is still open.
func onlyBridgeIsLeft(t testing.TB, cfg Config) {
	t.Helper()
	left, err := Leftovers(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	left = slices.DeleteFunc(left, func(s string) bool { return isOfBridge(cfg, s) })
	if len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestTerminateLeavesNothing(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	// What a real cell does: sub-cgroups with processes, mounts, files.
	run(t, i.ManagementIP, `
mount -t tmpfs tmpfs /var/lib/kubelet
for h in /sys/fs/cgroup /sys/fs/cgroup/*; do
  [ -f $h/cgroup.procs ] || continue
  mkdir -p $h/pods/pod || exit 1
  sleep 1000 > /dev/null 2>&1 &
  echo $! > $h/pods/pod/cgroup.procs
done
for n in 1 2 3; do touch /file$n; done`)
	if err := c.Terminate(context.Background(), i.ID, "i-0000000000000000").Err(); err != nil {
		t.Fatal(err)
	}
	if l := list(t, c); len(l) > 0 {
		t.Errorf("listed: %q", l)
	}
	onlyBridgeIsLeft(t, cfg)
	if err := c.Terminate(context.Background(), i.ID).Err(); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func TestFrozenProcessesAreEnded(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	groups, err := cgroups.Of(cfg.Group)
	if err != nil {
		t.Fatal(err)
	}
	group, freeze, frozen := "/sys/fs/cgroup/f", "1 > $f/cgroup.freeze", "'frozen 1' $f/cgroup.events"
	if !groups.PureV2() {
		if !slices.ContainsFunc(groups.Hierarchies, func(h cgroups.Hierarchy) bool { return h.Has("freezer") }) {
			t.Skip("this host has no freezer")
		}
		group, freeze, frozen = "/sys/fs/cgroup/freezer/f", "FROZEN > $f/freezer.state", "FROZEN $f/freezer.state"
	}
	script := "f=" + group + `
mkdir $f
sleep 1000 > /dev/null 2>&1 &
echo $! > $f/cgroup.procs && echo ` + freeze + `
until grep -q ` + frozen + `; do :; done`
	run(t, i.ManagementIP, script)
	if err := c.Terminate(context.Background(), i.ID).Err(); err != nil {
		t.Fatal(err)
	}
	onlyBridgeIsLeft(t, cfg)
}

func TestMachineWhoseInitEndsIsGone(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	powerOff(t, i.ManagementIP)
	within(t, "machine vanishes", func() error {
		if l := list(t, c); len(l) > 0 {
			return fmt.Errorf("listed: %q", l)
		}
		return nil
	})
	onlyBridgeIsLeft(t, cfg)
	if again := launch(t, c, request("a")); again.ID == i.ID {
		t.Errorf("the token returned %s, which is gone", i.ID)
	}
}

// die runs this binary as a Kip that kills itself at a step.
func die(t *testing.T, step, does string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashAt+"="+step, crashDoes+"="+does, crashSlot+"="+strconv.Itoa(ours(t).Slot))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the Kip that was to die at %q: %v\n%s", step, err, out)
	}
}

func TestMachineOutlivesKip(t *testing.T) {
	cfg := testHost(t)
	die(t, "running", "launch")
	all, err := host.Recorded(cfg.Config)
	if err != nil || len(all) != 1 {
		t.Fatalf("records: %v, %v", all, err)
	}
	before := all[0]
	run(t, before.ManagementIP, "echo still here > /srv/state")

	c := open(t, cfg)
	listing, err := c.List(context.Background(), "me")
	l := listing.Instances
	if err != nil || len(l) != 1 || l[0].ID != before.ID || l[0].State != cloud.Running || l[0].Tags[cloud.TagCell] != "cell-crash" {
		t.Fatalf("list after restart: %+v, %v", l, err)
	}
	if i := launch(t, c, request("crash")); i.ID != before.ID {
		t.Errorf("the token launched %s beside %s", i.ID, before.ID)
	}
	if got := run(t, l[0].ManagementIP, "cat /srv/state"); got != "still here" {
		t.Errorf("machine's state: %q", got)
	}
	// An adopted machine that ends is noticed too.
	powerOff(t, l[0].ManagementIP)
	within(t, "adopted machine vanishes", func() error {
		if l := list(t, c); len(l) > 0 {
			return fmt.Errorf("listed: %q", l)
		}
		return nil
	})
	onlyBridgeIsLeft(t, cfg)
}

func TestKipThatDiesInLaunchLeavesNothingBehind(t *testing.T) {
	tier.All(t)
	for _, step := range []string{"folder", "recorded", "spawned", "populated", "limited", "identified", "attached", "plugged", "released"} {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			die(t, step, "launch")
			c := open(t, cfg)
			if l := list(t, c); len(l) > 0 {
				t.Errorf("listed: %q", l)
			}
			onlyBridgeIsLeft(t, cfg)
			i := launch(t, c, request("crash"))
			if got := run(t, i.ManagementIP, "hostname"); got != i.ID {
				t.Errorf("launched afresh: %q, want %q", got, i.ID)
			}
		})
	}
}

func TestKipThatDiesInTerminateFinishesItLater(t *testing.T) {
	tier.All(t)
	for _, step := range []string{"terminating", "killed", "unplugged", "emptied"} {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			die(t, step, "terminate")
			c := open(t, cfg)
			if l := list(t, c); len(l) > 0 {
				t.Errorf("listed: %q", l)
			}
			onlyBridgeIsLeft(t, cfg)
		})
	}
}

func TestDestroyNeedsNoRecords(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	var ids []string
	for n := range 3 {
		ids = append(ids, launch(t, c, request(strconv.Itoa(n))).ID)
	}
	_ = c.Close()
	if err := os.WriteFile(filepath.Join(cfg.MachineDir(ids[0]), "record.json"), []byte(`{"instance":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(cfg.MachineDir(ids[1]), "record.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(cfg.MachineDir(ids[2])); err != nil {
		t.Fatal(err)
	}
	left, err := Leftovers(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(left, "\n")
	for _, want := range []string{"process ", "(init)", "cgroup ", "network device " + cfg.Bridge, "network device " + "kip" + ids[2][2:14],
		"folder " + cfg.MachineDir(ids[0])} {
		if !strings.Contains(text, want) {
			t.Errorf("leftovers do not name %q:\n%s", want, text)
		}
	}
	if err := Destroy(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if left, err = Leftovers(context.Background(), cfg); err != nil || len(left) > 0 {
		t.Errorf("after Destroy: %q, %v", left, err)
	}
}

func TestNewRemovesMachinesWithoutRecords(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	a, b := launch(t, c, request("a")), launch(t, c, request("b"))
	_ = c.Close()
	if err := os.WriteFile(filepath.Join(cfg.MachineDir(a.ID), "record.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(cfg.MachineDir(b.ID)); err != nil {
		t.Fatal(err)
	}
	c = open(t, cfg)
	if l := list(t, c); len(l) > 0 {
		t.Errorf("listed: %q", l)
	}
	onlyBridgeIsLeft(t, cfg)
}

func TestReusedPIDIsNotTheMachine(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	_ = c.Close()
	path := filepath.Join(cfg.MachineDir(i.ID), "record.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rec map[string]any
	if err := json.Unmarshal(data, &rec); err != nil {
		t.Fatal(err)
	}
	// As if the machine had died and its PID were this test's now.
	rec["process"].(map[string]any)["pid"] = os.Getpid()
	if data, err = json.Marshal(rec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if c = open(t, cfg); len(list(t, c)) > 0 {
		t.Error("another process was taken for the machine")
	}
}

func TestFailedLaunchSaysWhyAndLeavesNothing(t *testing.T) {
	tier.All(t)
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, cfg Config)
		want  string
	}{
		"init that cannot be run": {
			spoil: func(t *testing.T, cfg Config) {
				if err := os.Chmod(filepath.Join(cfg.RootDir, "init"), 0o644); err != nil {
					t.Fatal(err)
				}
			},
			want: "run init /init of the root in ",
		},
		"root that cannot be mounted on": {
			spoil: func(t *testing.T, cfg Config) {
				if err := os.RemoveAll(filepath.Join(cfg.RootDir, "proc")); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(cfg.RootDir, "proc"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			},
			want: "mount proc on /proc: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testHost(t)
			c := open(t, cfg)
			tc.spoil(t, cfg)
			_, err := launchOne(context.Background(), c, request("a"))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
			if l := list(t, c); len(l) > 0 {
				t.Errorf("listed: %q", l)
			}
			onlyBridgeIsLeft(t, cfg)
		})
	}
}

func TestCancelledLaunchLeavesNothing(t *testing.T) {
	tier.All(t)
	for _, step := range []string{"recorded", "limited", "plugged"} {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			ctx, cancel := context.WithCancel(context.Background())
			cfg.Reached = func(s string) {
				if s == step {
					cancel()
				}
			}
			c := open(t, cfg)
			if _, err := launchOne(ctx, c, request("a")); !errors.Is(err, context.Canceled) {
				t.Fatalf("error is %v", err)
			}
			within(t, "clean-up", func() error {
				if l := list(t, c); len(l) > 0 {
					return fmt.Errorf("listed: %q", l)
				}
				return nil
			})
			onlyBridgeIsLeft(t, cfg)
		})
	}
}

func TestNoAddressLeftIsNoCapacity(t *testing.T) {
	cfg := testHost(t)
	cfg.CIDR = netip.PrefixFrom(cfg.CIDR.Addr(), 28)
	c := open(t, cfg)
	var last cloud.Instance
	for n := range 5 {
		last = launch(t, c, request(strconv.Itoa(n)))
	}
	_, err := launchOne(context.Background(), c, request("one too many"))
	if !errors.Is(err, cloud.ErrCapacity) || cloud.ScopeOf(err) != (cloud.Scope{Zone: "local"}) {
		t.Fatalf("error is %v", err)
	}
	if err := c.Terminate(context.Background(), last.ID).Err(); err != nil {
		t.Fatal(err)
	}
	if i := launch(t, c, request("one too many")); i.ManagementIP != last.ManagementIP {
		t.Errorf("address %s, want the only free one, %s", i.ManagementIP, last.ManagementIP)
	}
}

func TestOneProcessHasTheCloud(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	if _, err := New(cfg); !errors.Is(err, host.ErrInUse) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second New: %v", err)
	}
	if err := Destroy(context.Background(), cfg); !errors.Is(err, host.ErrInUse) {
		t.Errorf("Destroy while it is open: %v", err)
	}
	_ = c.Close()
	if _, err := launchOne(context.Background(), c, request("a")); err == nil {
		t.Error("launched on a closed cloud")
	}
	open(t, cfg)
}

func TestForeignNetworkIsLeftAlone(t *testing.T) {
	cfg := testHost(t)
	foreign := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: cfg.Bridge, TxQLen: -1}}
	if err := netlink.LinkAdd(foreign); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(cfg.Bridge); err == nil && l.Attrs().Alias == "" {
			_ = netlink.LinkDel(l)
		}
	})
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "is not Kip's") {
		t.Errorf("New on a foreign device: %v", err)
	}
	if err := Destroy(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "is not Kip's") {
		t.Errorf("Destroy on a foreign device: %v", err)
	}
	if err := netlink.LinkDel(foreign); err != nil {
		t.Fatal(err)
	}
	if err := host.EnsureBridge(context.Background(), cfg.Config); err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.StateDir += "2"
	if err := host.EnsureBridge(context.Background(), other.Config); err == nil ||
		!strings.Contains(err.Error(), "belongs to the machines in "+cfg.StateDir) {
		t.Errorf("another cloud's bridge: %v", err)
	}
	other.Bridge += "-1"
	if err := host.EnsureBridge(context.Background(), other.Config); err == nil || !strings.Contains(err.Error(), "overlaps") {
		t.Errorf("an overlapping network: %v", err)
	}
}

func BenchmarkLaunchAndTerminate(b *testing.B) {
	cfg := testHost(b)
	c := open(b, cfg)
	ctx := context.Background()
	var launching, terminating time.Duration
	for n := 0; b.Loop(); n++ {
		start := time.Now()
		i, err := launchOne(ctx, c, request(strconv.Itoa(n)))
		if err != nil {
			b.Fatal(err)
		}
		launched := time.Now()
		if err := c.Terminate(ctx, i.ID).Err(); err != nil {
			b.Fatal(err)
		}
		launching += launched.Sub(start)
		terminating += time.Since(launched)
	}
	b.ReportMetric(float64(launching.Milliseconds())/float64(b.N), "ms/launch")
	b.ReportMetric(float64(terminating.Milliseconds())/float64(b.N), "ms/terminate")
}

func TestAMachineHasTheStandInsOfItsType(t *testing.T) {
	cfg := testHost(t)
	cfg.Catalogue = slices.Concat(testTypes, sizes.WithGPUs("amd64", 2, "local"))
	c := open(t, cfg)
	r := request("gpus")
	r.InstanceType = "medium-gpu"
	for ip, want := range map[netip.Addr]string{
		launch(t, c, r).ManagementIP:               "nvidia-uvm nvidia0 nvidia1 nvidiactl 666:1:3 stand-in",
		launch(t, c, request("none")).ManagementIP: "",
	} {
		got := run(t, ip, `exec 2> /dev/null
[ ! -e /proc/driver/nvidia/gpus ] || echo "those of the host"
grep -q ' /proc/devices ' /proc/self/mounts && grep -q ' mem$' /proc/devices || echo "the drivers of the host"
echo $(ls /dev | grep nvidia) $(stat -c %a:%t:%T /dev/nvidia1) $(grep -o stand-in /opt/nvidia/lib64/libcuda.so.1)`)
		if got != want {
			t.Errorf("the machine has %q: want %q", got, want)
		}
	}
}
