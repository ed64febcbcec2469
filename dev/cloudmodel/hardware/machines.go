package hardware

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Model is whose instances the machines are behind.
type Model interface {
	// Machines are the simulated ones.
	Machines() *sim.Cloud
	// OutboundOf says what of an instance reaches the internet, and whether there is such an instance.
	OutboundOf(instance string) (cloudmodel.Outbound, bool)
}

// Config says where the machines are.
type Config struct {
	// Owner is of whom they are tagged to be.
	Owner  string
	Bridge string
	// Networks are those of the instances and of their pods.
	Networks []netip.Prefix
	Services Services
	Log      *slog.Logger
}

// Machines stand behind the instances of a model. Boot, End and Console are for its sim.Config, and they are its cloudmodel.Disks.
type Machines struct {
	cfg     Config
	of      *host.Cloud
	model   Model
	link    *link
	gateway *gateway
	closing atomic.Bool

	mu        sync.Mutex
	instances map[string]*instance
}

// instance is what stands behind one. mu is held while its machine is made or ended.
type instance struct {
	mu      sync.Mutex
	machine string // its ID; empty before the first boot
	boots   int
	over    bool
	// out is what the gateway lets pass of it.
	out cloudmodel.Outbound
}

// New returns machines. Before the first instance is launched, Plug and Use are called; at the end Unplug, and then Close.
func New(cfg Config) *Machines {
	return &Machines{cfg: cfg, instances: map[string]*instance{}}
}

// Plug has the bridge led to the model, and returns where it is asked for metadata. The time is told by servers.
func (m *Machines) Plug(ctx context.Context, model Model, servers *cloudmodel.Servers) (metadata net.Listener, err error) {
	m.model = model
	if m.link, err = plug(ctx, m.cfg.Bridge, m.cfg.Services); err != nil {
		return nil, err
	}
	m.gateway = openGateway(ctx, m.cfg.Bridge, m.cfg.Networks, m.cfg.Log)
	servers.Go(func() error { return tellTime(m.link.clock, time.Now) })
	return m.link, nil
}

// Use has the machines made by a cloud on this host, which it takes over.
func (m *Machines) Use(of *host.Cloud) { m.of = of }

// Known reports whether an instance that has not ended has an address.
func (m *Machines) Known(address netip.Addr) bool {
	return slices.ContainsFunc(m.model.Machines().Truth(), func(i sim.Instance) bool { return i.ManagementIP == address })
}

// Unplug takes the bridge back. From now on the machines run on when the model's instances end with it.
func (m *Machines) Unplug() error {
	m.closing.Store(true)
	if m.link == nil {
		return nil
	}
	return m.link.unplug()
}

// Close ends what makes machines, and leaves the machines.
func (m *Machines) Close() error {
	if m.of == nil {
		return nil
	}
	return m.of.Close()
}

func (m *Machines) instance(id string) *instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.instances[id]
	if i == nil {
		i = &instance{}
		m.instances[id] = i
	}
	return i
}

// Boot is an instance's, from its launch or start to its stop or end. Its machine asks the metadata service for the user data.
func (m *Machines) Boot(ctx context.Context, i cloud.Instance, _ []byte) {
	one := m.instance(i.ID)
	boot, err := m.begin(ctx, one, i)
	if err != nil {
		if ctx.Err() == nil {
			m.cfg.Log.Error("no machine stands behind an instance", "instance", i.ID, "err", err)
			m.vanish(i.ID)
		}
		return
	}
	select {
	case <-m.of.Gone(one.machine):
		if ctx.Err() == nil {
			m.vanish(i.ID) // it has shut itself down
		}
	case <-ctx.Done():
		one.mu.Lock()
		defer one.mu.Unlock()
		if !one.over && one.boots == boot && !m.closing.Load() {
			m.stop(ctx, i.ID, one)
		}
	}
}

// begin makes the machine, or starts it again, and returns which boot that was.
func (m *Machines) begin(ctx context.Context, one *instance, i cloud.Instance) (boot int, err error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.over {
		return 0, context.Canceled
	}
	one.boots++
	if out, has := m.model.OutboundOf(i.ID); has && out != one.out {
		one.out = out
		m.gateway.plug(ctx, out)
	}
	if one.machine != "" {
		m.stop(ctx, i.ID, one)
		return one.boots, m.of.Start(ctx, one.machine).Err()
	}
	spec := cloud.LaunchSpec{InstanceType: i.InstanceType, Zone: i.Zone, Subnet: i.Subnet}
	if i.Spot {
		spec.CapacityType = cloud.Spot
	}
	made, err := m.of.LaunchAt(ctx, cloud.LaunchRequest{
		Token:      i.ID,
		LaunchSpec: spec,
		Machines: []cloud.Machine{{
			Tags: map[string]string{cloud.TagOwner: m.cfg.Owner, cloud.TagName: i.ID},
			// It asks the metadata service.
			UserData: []byte{},
		}},
	}, i.ManagementIP)
	one.machine = made.ID
	return one.boots, err
}

// stop ends a machine's processes, and keeps its disk.
func (m *Machines) stop(ctx context.Context, id string, one *instance) {
	if err := m.of.Stop(context.WithoutCancel(ctx), one.machine).Err(); err != nil {
		m.cfg.Log.Warn("stop the machine of an instance", "instance", id, "err", err)
	}
}

// End is that of an instance, which does not come again.
func (m *Machines) End(ctx context.Context, i cloud.Instance) {
	one := m.instance(i.ID)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.over = true
	if !m.closing.Load() { // else all of it goes
		m.gateway.unplug(ctx, one.out)
	}
	if one.machine == "" {
		return
	}
	if err := m.of.Terminate(ctx, one.machine).Err(); err != nil && ctx.Err() == nil {
		m.cfg.Log.Error("end the machine of an instance", "instance", i.ID, "err", err)
	}
}

func (m *Machines) vanish(id string) {
	// One that has ended meanwhile is gone already.
	if err := m.model.Machines().Interrupter.Vanish(id); err != nil {
		m.cfg.Log.Debug("an instance has ended with its machine", "instance", id, "err", err)
	}
}

// Console returns what the machine of an instance wrote to its console; nil before it has one.
func (m *Machines) Console(id string) ([]byte, error) {
	machine := m.machineOf(id)
	if machine == "" {
		return nil, nil
	}
	return m.of.Console(context.Background(), machine)
}
