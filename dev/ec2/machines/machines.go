package machines

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/listen"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/sim"
)

// What the account has.
const (
	Region  = "us-east-1"
	Account = "123456789012"
	// AccessKeyID is the key whose holder has the rights of Config.Policy.
	AccessKeyID = "AKIAIOSFODNN7EXAMPLE"
	// AdministratorKeyID is the key of who may do everything: whoever else uses the account, such as
	// the controller of a CSI driver.
	AdministratorKeyID = "AKIAI44QH8DHBEXAMPLE"
	// VPC is the default one, with all of Subnets.
	VPC = "vpc-0123456789abcdef0"
	// Image is the name of the only image.
	Image = "kip-cell-local"
	// ImageRole is the role for images. It may read the repositories that begin like Readable.
	ImageRole = "arn:aws:iam::" + Account + ":role/kip-images"
	Readable  = "team/"

	imageGiB,
	gib = 4, 1 << 30
	// diskBytes is what a machine's disk takes at most.
	diskBytes = 16 * gib
	// port is preferred for the API.
	port = 5080
	// httpsPort is preferred for the API by HTTPS.
	httpsPort = 5443
	// least is the narrowest network: a machine has a /28 of its upper half.
	least = 20
)

// Subnets are one for each zone: a private one, and one with a route to an internet gateway. Machines of both are on
// one link, and their addresses are of one plan: the model tells nobody which network a subnet has.
var Subnets = []ec2.Subnet{
	{
		ID:      "subnet-0123456789abcdef0",
		VPC:     VPC,
		Zone:    Region + "a",
		Default: true,
	},
	{
		ID:      "subnet-0fedcba9876543210",
		VPC:     VPC,
		Zone:    Region + "b",
		Default: true,
		Public:  true,
		// As all of a default VPC have it. Source: Amazon VPC User Guide, "Default VPC components".
		MapPublic: true,
	},
}

// offered is what a type costs in each of them, in dollars an hour; spot at 0 is not sold.
func offered(price, spot float64) (all []catalog.Offering) {
	for _, s := range Subnets {
		all = append(all, catalog.Offering{Zone: s.Zone, Subnet: s.ID, PricePerHour: price})
		if spot > 0 {
			all = append(all, catalog.Offering{
				Zone:         s.Zone,
				Subnet:       s.ID,
				PricePerHour: spot,
				Spot:         true,
			})
		}
	}
	return all
}

// Repositories are those of the account's images: of two teams, of which one's are not for pods of
// all.
var Repositories = []string{Readable + "busybox", Readable + "other", "payroll/busybox"}

// ImageTag is that of the image in each of them.
const ImageTag = "1.36"

// Profiles are the instance profiles of the account.
var Profiles = []string{"of-all-cells", "of-one-pod"}

// Registry is the host in the names of the account's images.
func Registry() string { return ec2.RegistryHost(Account, Region) }

// Init is the first process of a local cell. It asks the metadata service for its user data.
var Init = []string{"/bin/itzo", "cell", "--user-data=ec2"}

// administrator is the policy of AdministratorKeyID.
const administrator = `{"Statement": [{"Sid": "Everything", "Effect": "Allow", "Action": "*", "Resource": "*"}]}`

// Config says where the machines are.
type Config struct {
	// Local is how they are made, on a bridge that is there; their Catalogue is the
	// account's own, and their Init is Init.
	Local local.Config
	// Boot has virtual machines stand behind the instances instead, with the StateDir, the Bridge, the
	// CIDR and the Nameservers of Local. Optional.
	Boot *Boot
	// Policy is what the holder of AccessKeyID may do, JSON.
	Policy []byte
	// ImagePolicy is what ImageRole may do, JSON.
	ImagePolicy []byte
	// Image is what each of Repositories has.
	Image v1.Image
	// Provider is whose tokens assume roles: the cluster's issuer of those of service accounts.
	Provider ec2.Provider
	// NAT says that this host translates the addresses of whoever is on the bridge, so that the private subnets have
	// a NAT gateway.
	NAT bool
	// Certificate has the API served by HTTPS on this host's address on the bridge as well, for a Kip that runs as a pod. Optional.
	Certificate *tls.Certificate
	Log         *slog.Logger
}

// Boot is the image of virtual machines.
type Boot struct {
	// Folder has it in the form raw, as make image writes it.
	Folder string
	// Program is kip-image, by which the account gets it as an AMI. Machines start from what was
	// uploaded.
	Program string
}

// Types are what the account can launch: of the sizes that EC2 sells, some of those that
// have no more processors than this host, of its architecture; and one with a GPU.
func Types() (all []catalog.InstanceType) {
	// The last, since what pods ask for is held against what a burstable type sustains.
	names := map[string][]string{
		"amd64": {"t3.micro", "t3.small", "t3.medium", "m6i.large"},
		"arm64": {"t4g.micro", "t4g.small", "t4g.medium", "m6g.large"},
	}
	const cpus = 2
	for n, name := range names[runtime.GOARCH] {
		if host.CPUs() < cpus {
			break // a kubelet cannot write what it is shown into a cpuset
		}
		price := 0.0104 * float64(int(1)<<n)
		all = append(all, catalog.InstanceType{
			Name:        name,
			MilliCPU:    cpus * 1000,
			MemoryBytes: gib << n,
			DiskBytes:   diskBytes,
			Arch:        runtime.GOARCH,
			Offerings:   offered(price, price/4),
		})
	}
	if len(all) > 0 {
		// EC2's have four processors, which this host may not; its GPU is a stand-in where a local cell is
		// the machine.
		withGPU := all[1]
		withGPU.Name = map[string]string{"amd64": "g4dn.xlarge", "arm64": "g5g.xlarge"}[runtime.GOARCH]
		withGPU.GPUs = []catalog.GPU{{Model: "T4", Count: 1}}
		withGPU.Offerings = offered(0.526, 0)
		all = append(all, withGPU)
	}
	return all
}

// EC2 is a model whose instances are real.
type EC2 struct {
	log      *slog.Logger
	model    *ec2.Model
	machines *host.Cloud
	link     *link
	gateway  *gateway
	api      *http.Server
	public   *http.Server
	secure   *http.Server
	metadata *http.Server
	url      string
	pods     string // URL of what pods reach
	remote   string // URL of the API on the bridge
	serving  sync.WaitGroup
	cancel   context.CancelFunc
	closing  atomic.Bool
	failed   chan error

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
	out ec2.Outbound
}

// Start serves an account without instances. Close it.
func Start(ctx context.Context, cfg Config) (_ *EC2, err error) {
	types := Types()
	switch {
	case len(types) == 0:
		return nil, fmt.Errorf("start EC2: no instance type is like this host, of %s with %d processors: want two or more",
			runtime.GOARCH, host.CPUs())
	case cfg.Local.CIDR.Bits() > least:
		return nil, fmt.Errorf("start EC2: the network %s is too small: want a /%d or larger", cfg.Local.CIDR, least)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e := &EC2{
		log:       cfg.Log,
		cancel:    cancel,
		instances: map[string]*instance{},
		failed:    make(chan error, 4),
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start EC2: %w", err), e.Close())
		}
	}()
	cfg.Local.Catalogue, cfg.Local.Init = types, Init
	if cfg.Boot == nil {
		c, err := local.New(cfg.Local)
		if err != nil {
			return nil, err
		}
		e.machines = c.Cloud
	}
	if e.model, err = e.account(cfg); err != nil {
		return nil, err
	}
	if e.link, err = plug(ctx, cfg.Local.Bridge); err != nil {
		return nil, err
	}
	e.gateway = openGateway(ctx, cfg.Local.Bridge, []netip.Prefix{managementNetwork(cfg.Local.CIDR), podNetwork(cfg.Local.CIDR)}, cfg.Log)
	l, err := listen.On(ctx, netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	if err != nil {
		return nil, err
	}
	e.url = "http://" + l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("/", e.model)
	mux.Handle(ec2.ControlPath, e.model.Control())
	e.api, e.metadata = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}, e.model.Metadata()
	e.serve(e.api, l)
	e.serve(e.metadata, e.link)
	e.serving.Go(func() {
		if err := tellTime(e.link.clock, time.Now); !errors.Is(err, net.ErrClosed) {
			e.failed <- fmt.Errorf("serve EC2: %w", err)
		}
	})
	bridge := cfg.Local.CIDR.Masked().Addr().Next()
	if err := errors.Join(e.openToPods(ctx, bridge), e.openByHTTPS(ctx, bridge, cfg.Certificate)); err != nil {
		return nil, err
	}
	for _, repository := range Repositories {
		if err := e.model.Push(ctx, l.Addr().String(), repository+":"+ImageTag, cfg.Image); err != nil {
			return nil, err
		}
	}
	if cfg.Boot != nil {
		if err := e.virtualize(serving, ctx, cfg); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// openToPods serves what proves who calls on this host's address on the bridge.
func (e *EC2) openToPods(ctx context.Context, address netip.Addr) error {
	l, err := listen.On(ctx, address, port)
	if err != nil {
		return err
	}
	e.pods = "http://" + l.Addr().String()
	e.public = &http.Server{Handler: e.model.Public(), ReadHeaderTimeout: time.Minute}
	e.serve(e.public, l)
	return nil
}

// openByHTTPS serves the API on this host's address on the bridge, if there is a certificate.
func (e *EC2) openByHTTPS(ctx context.Context, address netip.Addr, certificate *tls.Certificate) error {
	if certificate == nil {
		return nil
	}
	l, err := listen.On(ctx, address, httpsPort)
	if err != nil {
		return err
	}
	e.remote = "https://" + l.Addr().String()
	e.secure = &http.Server{
		Handler:           e.model,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
	e.serve(e.secure, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12}))
	return nil
}

// account is what is served. The bridge's network is large enough.
func (e *EC2) account(cfg Config) (*ec2.Model, error) {
	policy, err := ec2.ParsePolicy(cfg.Policy)
	everything, everythingErr := ec2.ParsePolicy([]byte(administrator))
	pulls, pullsErr := ec2.ParsePolicy(cfg.ImagePolicy)
	if err := errors.Join(err, everythingErr, pullsErr); err != nil {
		return nil, err
	}
	images := []ec2.Image{{
		ID:           "ami-0123456789abcdef0",
		Name:         Image,
		Owner:        "self",
		Created:      "2026-01-01T00:00:00.000Z",
		Architecture: ec2.Architecture(runtime.GOARCH), // that of its machines
		RootDevice:   "/dev/xvda",
		GiB:          imageGiB,
	}}
	if cfg.Boot != nil {
		images = nil // it is published
	}
	var routes []ec2.Route
	if cfg.NAT {
		routes = append(routes, ec2.NATRoute(VPC))
	}
	return ec2.New(ec2.Config{
		Region: Region,
		Sim: sim.Config{
			Catalogue: cfg.Local.Catalogue,
			Boot:      e.boot,
			End:       e.end,
			Log:       cfg.Log,
			// As many as there are /28s for their pods.
			ManagementCIDR: managementNetwork(cfg.Local.CIDR),
			Knobs: sim.Knobs{
				Pending:               sim.Distribution{Median: 500 * time.Millisecond},
				Termination:           sim.Distribution{Median: 500 * time.Millisecond},
				Stopping:              sim.Distribution{Median: 500 * time.Millisecond},
				ListLag:               sim.Distribution{Median: 100 * time.Millisecond, Spread: 2},
				UnknownFor:            sim.Distribution{Median: 50 * time.Millisecond, Spread: 2},
				RateLimits:            sim.EC2RateLimits(),
				StoppedKeepsAddresses: true,
			},
		},
		Subnets:      Subnets,
		Images:       images,
		Account:      Account,
		Policies:     map[string]*ec2.Policy{AccessKeyID: policy, AdministratorKeyID: everything},
		Roles:        map[string]*ec2.Policy{ImageRole: pulls},
		Profiles:     Profiles,
		Providers:    []ec2.Provider{cfg.Provider},
		Repositories: Repositories,
		Networks:     map[string][]netip.Prefix{VPC: {cfg.Local.CIDR.Masked()}},
		Routes:       routes,
		Pods:         podNetwork(cfg.Local.CIDR),
		Console:      e.console,
		Disks:        e,
	})
}

// managementNetwork is where instances have their own addresses, of which none is a guest's.
func managementNetwork(cidr netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(cidr.Addr(), cidr.Bits()+6)
}

// podNetwork is where their pods have theirs: the first half of the upper half.
func podNetwork(cidr netip.Prefix) netip.Prefix {
	upper := cidr.Addr().As4()
	upper[cidr.Bits()/8] |= 0x80 >> (cidr.Bits() % 8)
	return netip.PrefixFrom(netip.AddrFrom4(upper), cidr.Bits()+2)
}

func (e *EC2) serve(s *http.Server, l net.Listener) {
	e.serving.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			e.failed <- fmt.Errorf("serve EC2: %w", err)
		}
	})
}

// URL is that of the API, on this host alone.
func (e *EC2) URL() string { return e.url }

// HTTPSURL is that of the API on the bridge, "" without Config.Certificate.
func (e *EC2) HTTPSURL() string { return e.remote }

// PodsURL is that of images and of STS' AssumeRoleWithWebIdentity, on the bridge.
func (e *EC2) PodsURL() string { return e.pods }

// Failed tells why it serves no more, if nobody closed it.
func (e *EC2) Failed() <-chan error { return e.failed }

// Close ends what runs here. The machines run on: local.Destroy, or that of qemu, ends them.
func (e *EC2) Close() error {
	e.closing.Store(true)
	e.cancel()
	var errs []error
	for _, s := range []*http.Server{e.api, e.public, e.secure, e.metadata} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if e.link != nil {
		errs = append(errs, e.link.unplug())
	}
	e.serving.Wait()
	if e.model != nil {
		errs = append(errs, e.model.Close())
	}
	if e.machines != nil {
		errs = append(errs, e.machines.Close())
	}
	return errors.Join(errs...)
}

func (e *EC2) instance(id string) *instance {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.instances[id]
	if i == nil {
		i = &instance{}
		e.instances[id] = i
	}
	return i
}

// boot is an instance's, from its launch or start to its stop or end.
func (e *EC2) boot(ctx context.Context, i cloud.Instance, _ []byte) {
	one := e.instance(i.ID)
	boot, err := e.begin(ctx, one, i)
	if err != nil {
		if ctx.Err() == nil {
			e.log.Error("no machine stands behind an instance", "instance", i.ID, "err", err)
			e.vanish(i.ID)
		}
		return
	}
	select {
	case <-e.machines.Gone(one.machine):
		if ctx.Err() == nil {
			e.vanish(i.ID) // it has shut itself down
		}
	case <-ctx.Done():
		one.mu.Lock()
		defer one.mu.Unlock()
		if !one.over && one.boots == boot && !e.closing.Load() {
			e.stop(ctx, i.ID, one)
		}
	}
}

// begin makes the machine, or starts it again, and returns which boot that was.
func (e *EC2) begin(ctx context.Context, one *instance, i cloud.Instance) (boot int, err error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.over {
		return 0, context.Canceled
	}
	one.boots++
	if out, has := e.model.OutboundOf(i.ID); has && out != one.out {
		one.out = out
		e.gateway.plug(ctx, out)
	}
	if one.machine != "" {
		e.stop(ctx, i.ID, one)
		return one.boots, e.machines.Start(ctx, one.machine).Err()
	}
	spec := cloud.LaunchSpec{InstanceType: i.InstanceType, Zone: i.Zone, Subnet: i.Subnet}
	if i.Spot {
		spec.Market = cloud.Spot
	}
	made, err := e.machines.LaunchAt(ctx, cloud.LaunchRequest{
		Token:      i.ID,
		LaunchSpec: spec,
		Machines: []cloud.Machine{{
			Tags: map[string]string{cloud.TagOwner: "ec2", cloud.TagName: i.ID},
			// It asks the metadata service.
			UserData: []byte{},
		}},
	}, i.ManagementIP)
	one.machine = made.ID
	return one.boots, err
}

// stop ends a machine's processes, and keeps its disk.
func (e *EC2) stop(ctx context.Context, id string, one *instance) {
	if err := e.machines.Stop(context.WithoutCancel(ctx), one.machine).Err(); err != nil {
		e.log.Warn("stop the machine of an instance", "instance", id, "err", err)
	}
}

// end is that of an instance, which does not come again.
func (e *EC2) end(ctx context.Context, i cloud.Instance) {
	one := e.instance(i.ID)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.over = true
	if !e.closing.Load() { // else all of it goes
		e.gateway.unplug(ctx, one.out)
	}
	if one.machine == "" {
		return
	}
	if err := e.machines.Terminate(ctx, one.machine).Err(); err != nil && ctx.Err() == nil {
		e.log.Error("end the machine of an instance", "instance", i.ID, "err", err)
	}
}

func (e *EC2) vanish(id string) {
	// One that has ended meanwhile is gone already.
	if err := e.model.Machines().Vanish(id); err != nil {
		e.log.Debug("an instance has ended with its machine", "instance", id, "err", err)
	}
}

func (e *EC2) console(id string) ([]byte, error) {
	one := e.instance(id)
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.machine == "" {
		return nil, nil
	}
	return e.machines.Console(context.Background(), one.machine)
}
