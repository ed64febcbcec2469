package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/elotl/kip/internal/agent/gpus"
	"github.com/elotl/kip/internal/agentapi"
)

const (
	// kubeletSocket is where the kubelet takes registrations, in its folder of plugins.
	kubeletSocket = "kubelet.sock"
	// ownSocket is where it finds this plugin, in the same folder.
	ownSocket = "kip-nvidia.sock"
	// registerTimeout bounds a registration, in which the kubelet dials the plugin.
	registerTimeout = 15 * time.Second
	// maxMessage bounds what is read of a request, in bytes: names of GPUs.
	maxMessage = 64 << 10
)

// Options of a Plugin. New fills in what is zero, but for Machine and Log.
type Options struct {
	Machine gpus.Machine
	// Dir is the kubelet's folder of device plugins.
	Dir string
	// LookEvery is how often the machine's GPUs are looked at: 5 s.
	LookEvery time.Duration
	// WatchEvery is how often it is looked whether the kubelet has been started, again or at
	// all: 200 ms. The pod waits for it.
	WatchEvery time.Duration
	Log        *slog.Logger
}

// Plugin offers the GPUs of one machine.
type Plugin struct {
	o Options

	// Of Run alone.
	triedUVM bool
	written  *cdi.Spec // what the runtime was told
	serving  *service  // nil while no kubelet has it
	troubles map[string]string

	mu      sync.Mutex
	devices []device
	changed chan struct{} // closed and replaced when devices change
}

// device is a GPU that was there once.
type device struct {
	gpus.GPU
	healthy bool // it is there now
}

// New returns a plugin that Run runs.
func New(o Options) *Plugin {
	if o.Dir == "" {
		o.Dir = api.DevicePluginPath
	}
	if o.LookEvery == 0 {
		o.LookEvery = 5 * time.Second
	}
	if o.WatchEvery == 0 {
		o.WatchEvery = 200 * time.Millisecond
	}
	return &Plugin{o: o, troubles: map[string]string{}, changed: make(chan struct{})}
}

// Run offers the GPUs to whatever kubelet runs, until ctx ends. It registers when there is
// one: a kubelet that knows the resource but has no device refuses a pod for good.
func (p *Plugin) Run(ctx context.Context) {
	defer func() { p.serving.stop() }()
	look, watch := time.NewTicker(p.o.LookEvery), time.NewTicker(p.o.WatchEvery)
	defer look.Stop()
	defer watch.Stop()
	p.look(ctx)
	for {
		p.keepRegistered(ctx)
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			p.look(ctx)
		case <-watch.C:
		}
	}
}

// note logs what keeps the plugin from something, once as long as it stays the same.
func (p *Plugin) note(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if p.troubles[what] == text {
		return
	}
	p.troubles[what] = text
	if err != nil {
		p.o.Log.Warn(what, "err", err)
	}
}

// look finds the machine's GPUs, describes them to the container runtime, and tells the
// kubelet of a change.
func (p *Plugin) look(ctx context.Context) {
	if err := p.loadUVM(ctx); err != nil {
		p.o.Log.Warn("load the module by which CUDA shares memory with a GPU", "err", err)
	}
	p.note("make the nodes of the GPUs", p.o.Machine.MakeNodes())
	found := p.o.Machine.GPUs()
	if len(found) == 0 && len(p.devices) == 0 {
		p.note("look for GPUs", fmt.Errorf("none can be used: %w", p.o.Machine.Lacks()))
		return
	}
	spec := p.o.Machine.Spec(found)
	// One may have gone since it was found.
	found = slices.DeleteFunc(found, func(g gpus.GPU) bool {
		return !slices.ContainsFunc(spec.Devices, func(d cdi.Device) bool { return d.Name == g.Name })
	})
	// A description without devices is an error to a runtime. Nobody is given those of the old one.
	if len(found) > 0 && (p.written == nil || !reflect.DeepEqual(*p.written, spec)) {
		err := p.o.Machine.Write(spec)
		p.note("tell containerd of the GPUs", err)
		if err != nil {
			return
		}
		p.written = &spec
	}
	p.become(found)
}

// become makes the GPUs that were found those that there are. One that was there before is
// kept, and is unhealthy.
func (p *Plugin) become(found []gpus.GPU) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make([]device, 0, len(found))
	for _, g := range found {
		next = append(next, device{g, true})
	}
	for _, d := range p.devices {
		if !slices.Contains(found, d.GPU) {
			next = append(next, device{d.GPU, false})
		}
	}
	slices.SortFunc(next, func(a, b device) int { return a.Minor - b.Minor })
	if slices.Equal(next, p.devices) {
		return
	}
	p.devices = next
	close(p.changed)
	p.changed = make(chan struct{})
	healthy := slices.DeleteFunc(slices.Clone(next), func(d device) bool { return !d.healthy })
	p.o.Log.Info("GPUs", "healthy", len(healthy), "of", len(next), "libraries", p.o.Machine.HasLibraries())
}

// known returns the GPUs, and what is closed when they change.
func (p *Plugin) known() ([]device, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.devices, p.changed // replaced, never changed
}

// keepRegistered registers with a kubelet that does not know the plugin. A kubelet removes
// all sockets of plugins when it starts, and makes its own anew.
func (p *Plugin) keepRegistered(ctx context.Context) {
	if devices, _ := p.known(); len(devices) == 0 {
		return
	}
	kubelet, err := identify(filepath.Join(p.o.Dir, kubeletSocket))
	if err != nil {
		p.serving.stop()
		p.serving = nil
		return
	}
	if p.serving != nil && p.serving.kubelet == kubelet {
		if own, err := identify(p.serving.path); err == nil && own == p.serving.socket {
			return
		}
	}
	p.serving.stop()
	p.serving = nil
	p.look(ctx) // one that has gone meanwhile would be given to a pod
	s, err := p.serve(kubelet)
	p.note("serve the kubelet", err)
	if err != nil {
		return
	}
	err = p.register(ctx)
	if ctx.Err() != nil {
		s.stop()
		return
	}
	p.note("register with the kubelet", err)
	if err != nil {
		s.stop()
		return
	}
	p.serving = s
	p.o.Log.Info("registered with the kubelet", "resource", agentapi.ResourceGPU)
}

// identity tells a file from another that later has its path.
type identity struct {
	device, inode uint64
	changed       unix.Timespec
}

func identify(path string) (identity, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return identity{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return identity{s.Dev, s.Ino, s.Ctim}, nil
}

// service is the plugin's server, for one kubelet.
type service struct {
	path            string
	socket, kubelet identity
	server          *grpc.Server
	done            chan struct{}
}

// stop ends the service, which may be nil, and all that it does.
func (s *service) stop() {
	if s != nil {
		s.server.Stop() // removes the socket
		<-s.done
	}
}

func (p *Plugin) serve(kubelet identity) (*service, error) {
	path := filepath.Join(p.o.Dir, ownSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier plugin: %w", err)
	}
	lis, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	socket, err := identify(path)
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	s := &service{
		path:    path,
		socket:  socket,
		kubelet: kubelet,
		server:  grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.WaitForHandlers(true)),
		done:    make(chan struct{}),
	}
	api.RegisterDevicePluginServer(s.server, &answers{plugin: p})
	go func() {
		defer close(s.done)
		_ = s.server.Serve(lis) // that it ended is seen by its socket
	}()
	return s, nil
}

// register tells the kubelet of the plugin. The kubelet has connected to it when it answers.
func (p *Plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.o.Dir, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     ownSocket,
		ResourceName: agentapi.ResourceGPU,
		Options:      &api.DevicePluginOptions{},
	})
	return err
}

// answers is what the kubelet asks.
type answers struct {
	api.UnimplementedDevicePluginServer
	plugin *Plugin
}

// GetDevicePluginOptions says that neither a preference among GPUs nor a call before each
// start of a container is wanted.
func (*answers) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the GPUs, and again at each change.
func (a *answers) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		devices, changed := a.plugin.known()
		list := &api.ListAndWatchResponse{}
		for _, d := range devices {
			health := api.Unhealthy
			if d.healthy {
				health = api.Healthy
			}
			list.Devices = append(list.Devices, &api.Device{ID: d.Name, Health: health})
		}
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// Allocate names to the container runtime what each container gets.
func (a *answers) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	devices, _ := a.plugin.known()
	answer := &api.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		container := &api.ContainerAllocateResponse{}
		for _, id := range c.DevicesIds {
			i := slices.IndexFunc(devices, func(d device) bool { return d.Name == id })
			if i < 0 || !devices[i].healthy {
				return nil, status.Errorf(codes.FailedPrecondition, "there is no GPU %q on this cell: it has %s", id, names(devices))
			}
			container.CdiDevices = append(container.CdiDevices, &api.CDIDevice{Name: devices[i].CDIName()})
		}
		answer.ContainerResponses = append(answer.ContainerResponses, container)
	}
	return answer, nil
}

// names are the GPUs, for people.
func names(devices []device) string {
	var list []string
	for _, d := range devices {
		if d.healthy {
			list = append(list, d.Name)
		} else {
			list = append(list, d.Name+" (not any more)")
		}
	}
	return strings.Join(list, ", ")
}
