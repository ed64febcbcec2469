package machines

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/cloudmodel/hardware"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
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

// services are EC2's: the metadata service, the Amazon DNS server at 169.254.169.253, and the Amazon Time Sync Service. Sources: EC2 User
// Guide, "Use IMDS"; "Set the time"; VPC User Guide, "Amazon DNS server".
var services = hardware.Services{
	Network:  netip.MustParsePrefix("169.254.169.0/24"),
	Metadata: netip.MustParseAddrPort("169.254.169.254:80"),
	Clock:    netip.MustParseAddr("169.254.169.123"),
}

// clusterSubnets are those of an account with Config.Cluster: a private one in each of three zones, and a public one.
var clusterSubnets = []ec2.Subnet{
	{ID: "subnet-0a00000000000000a", VPC: VPC, Zone: Region + "a"},
	{ID: "subnet-0b00000000000000b", VPC: VPC, Zone: Region + "b"},
	{ID: "subnet-0c00000000000000c", VPC: VPC, Zone: Region + "c"},
	{ID: "subnet-0d00000000000000d", VPC: VPC, Zone: Region + "a", Public: true},
}

// ClusterName is what EKS calls Config.Cluster, and ClusterGroup its security group.
const ClusterName, ClusterGroup = "kip", "sg-0123456789abcdef0"

// offered is what a type costs in each of some subnets, in dollars an hour; spot at 0 is not sold.
func offered(subnets []ec2.Subnet, price, spot float64) (all []catalog.PurchaseOption) {
	for _, s := range subnets {
		all = append(all, catalog.PurchaseOption{Zone: s.Zone, Subnet: s.ID, PricePerHour: price})
		if spot > 0 {
			all = append(all, catalog.PurchaseOption{
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
	Provider cloudmodel.Provider
	// NAT says that this host translates the addresses of whoever is on the bridge, so that the private subnets have
	// a NAT gateway.
	NAT bool
	// Cluster is one of EKS, whose VPC, Subnets and Group Start chooses. The account has nothing else then: no boot image, and no default
	// VPC. Optional.
	Cluster *ec2.Cluster
	// Certificate has the API served by HTTPS on this host's address on the bridge as well, for a Kip that runs as a pod. Optional.
	Certificate *tls.Certificate
	Log         *slog.Logger
}

// Boot is the image of virtual machines.
type Boot struct {
	// Folder has it in the form raw, as make image writes it.
	Folder string
	// Program is kipctl, by which the account gets it as an AMI. Machines start from what was
	// uploaded.
	Program string
}

// Types are what the account can launch: of the sizes that EC2 sells, some of those that
// have no more processors than this host, of its architecture; and one with a GPU.
func Types() []catalog.InstanceType { return typesIn(Subnets) }

func typesIn(subnets []ec2.Subnet) (all []catalog.InstanceType) {
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
			Offerings:   offered(subnets, price, price/4),
		})
	}
	if len(all) > 0 {
		// EC2's have four processors, which this host may not; its GPU is a stand-in where a local cell is
		// the machine.
		withGPU := all[1]
		withGPU.Name = map[string]string{"amd64": "g4dn.xlarge", "arm64": "g5g.xlarge"}[runtime.GOARCH]
		withGPU.GPUs = []catalog.GPU{{Model: "T4", Count: 1}}
		withGPU.Offerings = offered(subnets, 0.526, 0)
		all = append(all, withGPU)
	}
	return all
}

// subnets are those of the account.
func (c *Config) subnets() []ec2.Subnet {
	if c.Cluster != nil {
		return clusterSubnets
	}
	return Subnets
}

// EC2 is a model whose instances are real.
type EC2 struct {
	model    *ec2.Model
	machines *hardware.Machines
	servers  *cloudmodel.Servers
	url      string
	pods     string // URL of what pods reach
	remote   string // URL of the API on the bridge
	cancel   context.CancelFunc
}

// Start serves an account without instances. Close it.
func Start(ctx context.Context, cfg Config) (_ *EC2, err error) {
	types := typesIn(cfg.subnets())
	switch {
	case len(types) == 0:
		return nil, fmt.Errorf("start EC2: no instance type is like this host, of %s with %d processors: want two or more",
			runtime.GOARCH, host.CPUs())
	case cfg.Local.CIDR.Bits() > least:
		return nil, fmt.Errorf("start EC2: the network %s is too small: want a /%d or larger", cfg.Local.CIDR, least)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e := &EC2{
		cancel:  cancel,
		servers: cloudmodel.NewServers("EC2", cfg.Log),
		machines: hardware.New(hardware.Config{
			Owner:    "ec2",
			Bridge:   cfg.Local.Bridge,
			Networks: []netip.Prefix{managementNetwork(cfg.Local.CIDR), podNetwork(cfg.Local.CIDR)},
			Services: services,
			Log:      cfg.Log,
		}),
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
		e.machines.Use(c.Cloud)
	}
	if e.model, err = e.account(cfg); err != nil {
		return nil, err
	}
	metadata, err := e.machines.Plug(ctx, e.model, e.servers)
	if err != nil {
		return nil, err
	}
	e.servers.Serve(metadata, e.model.Metadata.Handler())
	at, err := e.open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for _, repository := range Repositories {
		if err := e.model.Registry.Push(ctx, at, repository+":"+ImageTag, cfg.Image); err != nil {
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

// open serves the API on this host alone, with what tests and people do to it, and returns at which host and port. On this host's
// address on the bridge it serves what proves who calls; and the API by HTTPS, if there is a certificate.
func (e *EC2) open(ctx context.Context, cfg Config) (at string, err error) {
	api, bridge := http.NewServeMux(), cfg.Local.CIDR.Masked().Addr().Next()
	api.Handle("/", e.model)
	api.Handle(cloudmodel.ControlPath, e.model.Control())
	if at, err = e.servers.Listen(ctx, netip.AddrFrom4([4]byte{127, 0, 0, 1}), port, api, nil); err != nil {
		return "", err
	}
	pods, err := e.servers.Listen(ctx, bridge, port, e.model.Public(), nil)
	if err != nil {
		return "", err
	}
	e.url, e.pods = "http://"+at, "http://"+pods
	if cfg.Certificate == nil {
		return at, nil
	}
	remote, err := e.servers.Listen(ctx, bridge, httpsPort, e.model, cfg.Certificate)
	if err != nil {
		return "", err
	}
	e.remote = "https://" + remote
	return at, nil
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
	if cfg.Boot != nil || cfg.Cluster != nil {
		images = nil // it is published
	}
	var routes []ec2.Route
	if cfg.NAT || cfg.Cluster != nil { // a cluster of EKS needs one
		routes = append(routes, ec2.NATRoute(VPC))
	}
	clusters, groups := cfg.clusters()
	return ec2.New(ec2.Config{
		Region: Region,
		Sim: sim.Config{
			Catalogue: cfg.Local.Catalogue,
			Boot:      e.machines.Boot,
			End:       e.machines.End,
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
		Subnets:      cfg.subnets(),
		Groups:       groups,
		Clusters:     clusters,
		Images:       images,
		Account:      Account,
		Policies:     map[string]*ec2.Policy{AccessKeyID: policy, AdministratorKeyID: everything},
		Roles:        map[string]*ec2.Policy{ImageRole: pulls},
		Profiles:     Profiles,
		Providers:    []cloudmodel.Provider{cfg.Provider},
		Repositories: Repositories,
		Networks:     map[string][]netip.Prefix{VPC: {cfg.Local.CIDR.Masked()}},
		Routes:       routes,
		Pods:         podNetwork(cfg.Local.CIDR),
		Console:      e.machines.Console,
		Disks:        e.machines,
	})
}

// clusters are those of EKS, and groups what EKS makes for them.
func (c *Config) clusters() (clusters []ec2.Cluster, groups []ec2.Group) {
	if c.Cluster == nil {
		return nil, nil
	}
	one := *c.Cluster
	one.Name, one.VPC, one.Group, one.Subnets = ClusterName, VPC, ClusterGroup, nil
	for _, s := range clusterSubnets {
		one.Subnets = append(one.Subnets, s.ID)
	}
	return []ec2.Cluster{one}, []ec2.Group{{ID: ClusterGroup, Name: "eks-cluster-sg-" + one.Name, VPC: VPC}}
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

// URL is that of the API, on this host alone.
func (e *EC2) URL() string { return e.url }

// HTTPSURL is that of the API on the bridge, "" without Config.Certificate.
func (e *EC2) HTTPSURL() string { return e.remote }

// PodsURL is that of images and of STS' AssumeRoleWithWebIdentity, on the bridge.
func (e *EC2) PodsURL() string { return e.pods }

// Failed tells why it serves no more, if nobody closed it.
func (e *EC2) Failed() <-chan error { return e.servers.Failed() }

// Close ends what runs here. The machines run on: local.Destroy, or that of qemu, ends them.
func (e *EC2) Close() error {
	e.cancel()
	errs := []error{e.servers.Close(), e.machines.Unplug()}
	e.servers.Wait()
	if e.model != nil {
		errs = append(errs, e.model.Close())
	}
	return errors.Join(append(errs, e.machines.Close())...)
}
