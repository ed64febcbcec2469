package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/elotl/kip/internal/agent/gpus"
)

// patience is how long a test waits for what is to come.
const patience = time.Minute

// kubelet does with device plugins what the kubelet does, on real sockets.
type kubelet struct {
	api.UnimplementedRegistrationServer
	t    *testing.T
	dir  string
	news chan string // registrations, and lists of devices
	// starts is how often it was started.
	starts int

	mu      sync.Mutex
	refuse  error
	crashes bool // what it listens on stays when it ends
	keeps   bool // it removes no sockets of others when it starts
	server  *grpc.Server
	tasks   *sync.WaitGroup
	end     context.CancelFunc
	plugin  api.DevicePluginClient
	ctx     context.Context
}

// start removes what is in the folder, as a kubelet that starts does, and serves.
func (k *kubelet) start() {
	k.t.Helper()
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, e := range entries {
		if k.keeps && e.Name() != kubeletSocket {
			continue
		}
		if err := os.Remove(filepath.Join(k.dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			k.t.Fatal(err)
		}
	}
	lis, err := net.Listen("unix", filepath.Join(k.dir, kubeletSocket))
	if err != nil {
		k.t.Fatal(err)
	}
	lis.(*net.UnixListener).SetUnlinkOnClose(!k.crashes)
	for len(k.news) > 0 {
		<-k.news // of the kubelet before, which has ended
	}
	k.starts++
	server, tasks := grpc.NewServer(grpc.WaitForHandlers(true)), &sync.WaitGroup{}
	api.RegisterRegistrationServer(server, k)
	ctx, end := context.WithCancel(context.Background())
	k.mu.Lock()
	k.server, k.tasks, k.ctx, k.end = server, tasks, ctx, end
	k.mu.Unlock()
	tasks.Go(func() { _ = server.Serve(lis) })
}

// stop ends it.
func (k *kubelet) stop() {
	k.mu.Lock()
	server, tasks, end := k.server, k.tasks, k.end
	k.server = nil
	k.mu.Unlock()
	if server != nil {
		end()
		server.Stop()
		tasks.Wait()
	}
}

// Register connects to the plugin, as a kubelet does, before it answers.
func (k *kubelet) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refuse; err != nil {
		k.refuse = nil
		k.news <- "refused"
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	k.plugin = api.NewDevicePluginClient(conn)
	stream, err := k.plugin.ListAndWatch(k.ctx, &api.Empty{})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	k.news <- r.Version + " " + r.ResourceName
	k.tasks.Go(func() {
		defer conn.Close()
		for {
			list, err := stream.Recv()
			if err != nil {
				return
			}
			var has []string
			for _, d := range list.Devices {
				has = append(has, d.ID+" "+d.Health)
			}
			k.news <- strings.Join(has, ", ")
		}
	})
	return &api.Empty{}, nil
}

// hears wants these news next. A plugin that registers while a kubelet starts anew cannot tell
// which of the two it has reached, and registers again.
func (k *kubelet) hears(want ...string) {
	k.t.Helper()
	for _, w := range want {
		got := k.next(w)
		for k.starts > 1 && got == registered && w != registered {
			got = k.next(w)
		}
		if got != w {
			k.t.Fatalf("the kubelet heard %q: want %q", got, w)
		}
	}
}

// next is what it hears next, for which want is wanted.
func (k *kubelet) next(want string) string {
	k.t.Helper()
	select {
	case got := <-k.news:
		return got
	case <-time.After(patience):
		k.t.Fatalf("the kubelet never heard %q", want)
		return ""
	}
}

// machine has a plugin that runs, and a kubelet that does not yet.
type machine struct {
	*testing.T
	root string
	*kubelet
	log *strings.Builder
	// ends the plugin.
	end func()
}

func newMachine(t *testing.T, devices ...string) *machine {
	t.Helper()
	return newMachineThatLooks(t, 5*time.Millisecond, devices...)
}

func newMachineThatLooks(t *testing.T, every time.Duration, devices ...string) *machine {
	t.Helper()
	m := &machine{T: t, root: t.TempDir(), log: &strings.Builder{}}
	for _, dir := range []string{"dev", "plugins", "proc"} {
		if err := os.Mkdir(filepath.Join(m.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.root, "proc/devices"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	m.add(devices...)
	m.kubelet = &kubelet{t: t, dir: filepath.Join(m.root, "plugins"), news: make(chan string, 100)}
	t.Cleanup(m.stop)
	ctx, cancel := context.WithCancel(context.Background())
	p := New(Options{
		Machine:    gpus.Machine{Root: m.root},
		Dir:        m.dir,
		LookEvery:  every,
		WatchEvery: 2 * time.Millisecond,
		Log:        slog.New(slog.NewTextHandler(m.log, nil)),
	})
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	m.end = sync.OnceFunc(func() {
		cancel()
		run.Wait()
	})
	t.Cleanup(m.end)
	return m
}

func (m *machine) add(devices ...string) {
	m.Helper()
	for _, d := range devices {
		if err := os.Symlink("/dev/null", filepath.Join(m.root, "dev", d)); err != nil {
			m.Fatal(err)
		}
	}
}

func (m *machine) remove(device string) {
	m.Helper()
	if err := os.Remove(filepath.Join(m.root, "dev", device)); err != nil {
		m.Fatal(err)
	}
}

const (
	registered = "v1beta1 nvidia.com/gpu"
	first      = "nvidia0 Healthy"
	both       = "nvidia0 Healthy, nvidia1 Healthy"
)

func TestAKubeletThatStartsIsToldOfTheGPUs(t *testing.T) {
	m := newMachine(t, "nvidia1", "nvidia0", "nvidiactl")
	for _, m.crashes = range []bool{false, true, true} {
		m.start()
		m.hears(registered, both)
		m.stop()
	}
	m.keeps = true
	for range 2 {
		m.start()
		m.hears(registered, both)
		m.stop()
	}
}

func TestAPluginWhoseSocketIsRemovedRegistersAgain(t *testing.T) {
	m := newMachine(t, "nvidia0")
	m.start()
	m.hears(registered, first)
	if err := os.Remove(filepath.Join(m.dir, ownSocket)); err != nil {
		t.Fatal(err)
	}
	m.hears(registered, first)
}

func TestAGPUThatComesLateIsOffered(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.add("nvidia0")
	m.hears(registered, first)
	m.add("nvidia1")
	m.hears(both)
}

func TestAGPUThatVanishesIsUnhealthyUntilItIsBack(t *testing.T) {
	m := newMachine(t, "nvidia0", "nvidia1")
	m.start()
	m.hears(registered, both)
	m.remove("nvidia0")
	m.hears("nvidia0 Unhealthy, nvidia1 Healthy")
	_, err := m.allocate("nvidia0")
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "nvidia0 (not any more), nvidia1") {
		t.Errorf("a GPU that is gone: %v", err)
	}
	m.remove("nvidia1")
	m.hears("nvidia0 Unhealthy, nvidia1 Unhealthy")
	// One without devices is an error to containerd.
	if spec, err := os.ReadFile(filepath.Join(m.root, gpus.SpecFile)); err != nil || !strings.Contains(string(spec), `"name": "nvidia1"`) {
		t.Errorf("the description, when no GPU is left: %v\n%s", err, spec)
	}
	m.add("nvidia0")
	m.hears("nvidia0 Healthy, nvidia1 Unhealthy")
}

func TestAGPUThatVanishesBeforeTheKubeletStartsIsNotOffered(t *testing.T) {
	m := newMachineThatLooks(t, time.Hour, "nvidia0", "nvidia1")
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(m.root, gpus.SpecFile)); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it never looked")
		}
	}
	m.remove("nvidia0")
	m.start()
	m.hears(registered, "nvidia0 Unhealthy, nvidia1 Healthy")
}

func (m *machine) allocate(ids ...string) (*api.AllocateResponse, error) {
	m.mu.Lock()
	plugin := m.plugin
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	r := &api.AllocateRequest{}
	for _, id := range ids {
		r.ContainerRequests = append(r.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: strings.Fields(id)})
	}
	return plugin.Allocate(ctx, r)
}

func TestAContainerGetsItsGPUsByTheirNamesInCDI(t *testing.T) {
	m := newMachine(t, "nvidia0", "nvidia1")
	m.start()
	m.hears(registered, both)
	answer, err := m.allocate("nvidia1", "nvidia0 nvidia1")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range answer.ContainerResponses {
		var names []string
		for _, d := range c.CdiDevices {
			names = append(names, d.Name)
		}
		got = append(got, fmt.Sprint(names))
		if len(c.Devices)+len(c.Mounts)+len(c.Envs) != 0 {
			t.Errorf("a container gets beside them %v", c)
		}
	}
	if want := "[kip.elotl.co/gpu=nvidia1] [kip.elotl.co/gpu=nvidia0 kip.elotl.co/gpu=nvidia1]"; strings.Join(got, " ") != want {
		t.Errorf("the containers get %s: want %s", got, want)
	}
	// What is named is described by then.
	if spec, err := os.ReadFile(filepath.Join(m.root, gpus.SpecFile)); err != nil || !strings.Contains(string(spec), `"name": "nvidia1"`) {
		t.Errorf("the description: %v\n%s", err, spec)
	}
	if _, err := m.allocate("nvidia7"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), `"nvidia7"`) {
		t.Errorf("a GPU that never was: %v", err)
	}
}

func TestAKubeletThatRefusesIsAskedAgain(t *testing.T) {
	m := newMachine(t, "nvidia0")
	m.refuse = errors.New("not now")
	m.start()
	m.hears("refused", registered, first)
	m.end()
	if n := strings.Count(m.log.String(), "not now"); n != 1 {
		t.Errorf("that it refused was logged %d times:\n%s", n, m.log)
	}
}

func TestWithoutAGPUNothingIsRegistered(t *testing.T) {
	m := newMachine(t, "nvidiactl", "nvidia-uvm")
	m.start()
	m.end() // after a look
	select {
	case got := <-m.news:
		t.Errorf("the kubelet heard %q", got)
	default:
	}
	if n := strings.Count(m.log.String(), "none can be used"); n != 1 {
		t.Errorf("why was logged %d times:\n%s", n, m.log)
	}
}

func TestNoGPUIsOfferedThatIsNotDescribed(t *testing.T) {
	root := t.TempDir()
	// A file where the folder of descriptions is to be.
	if err := os.WriteFile(filepath.Join(root, "var"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", filepath.Join(root, "dev/nvidia0")); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	p := New(Options{Machine: gpus.Machine{Root: root}, Dir: root, Log: slog.New(slog.NewTextHandler(&log, nil))})
	p.look(t.Context())
	if devices, _ := p.known(); len(devices) != 0 {
		t.Errorf("offered are %v", devices)
	}
	if err := os.Remove(filepath.Join(root, "var")); err != nil {
		t.Fatal(err)
	}
	p.look(t.Context())
	if devices, _ := p.known(); len(devices) != 1 || !strings.Contains(log.String(), "tell containerd") {
		t.Errorf("offered are %v; the log says\n%s", devices, log.String())
	}
}
