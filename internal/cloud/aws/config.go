package aws

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
)

// Config is where instances are launched, and as whom.
type Config struct {
	// Region is that of all subnets. When empty: that of the environment (AWS_REGION, or the SDK's files),
	// then that of the instance that Kip runs on.
	Region string
	// AccessKeyID and SecretAccessKey are for those who have no role. When empty: the
	// SDK's chain, which knows the environment, web identity tokens (IRSA), EKS Pod
	// Identity and the instance's role.
	AccessKeyID, SecretAccessKey string
	// VPC is that of the subnets: an ID, or "default" for the account's default VPC.
	// When empty: that of the subnets that are named, or of the instance that Kip runs on; with
	// Endpoint, "default".
	VPC string
	// Subnets are the IDs of where cells are launched. When empty: all of VPC if it is
	// set, else the one that Kip runs in.
	Subnets []string
	// RootDiskInitRate is how fast EBS fills the root disks of cells from their image, in MiB a
	// second; 0 for no rate, which costs nothing.
	RootDiskInitRate int32
	// CPUCredits are those of burstable instances: standard, unlimited, or boot, which is unlimited until their pods run.
	// boot when empty.
	CPUCredits string
	// KMSKey encrypts the disks that Kip makes: the ID, the ARN or an alias of a key; "" for the account's default.
	KMSKey string
	// Dedicated offers instances on hosts that no other account shares. It makes the catalogue half
	// as large again.
	Dedicated bool
	// SubnetTags are what the subnets of the cells are tagged with, in place of Subnets; all of
	// VPC if that is set. A value may have * and ?, as EC2's filters have.
	SubnetTags map[string]string
	// Image is what cells boot, as in cloud.Options: nothing is offered where it does not boot.
	Image map[string]string
	// Reservations are the capacity reservations, Capacity Blocks among them, and Hosts the Dedicated
	// Hosts, into and onto which cells are launched first.
	Reservations, Hosts Choice
	// ImageRole is the ARN of the role that is assumed for the credentials by which cells
	// pull images from ECR. Without one no cell is given any.
	ImageRole string
	// PullThrough lets these credentials fill ECR's pull through cache as well.
	PullThrough bool
	// Endpoint is the URL of another EC2 API. With it nothing else is asked, neither
	// AWS nor the metadata service: other services are expected there, too, unless Endpoints
	// or, as to the SDK's own tools, the environment (AWS_ENDPOINT_URL_STS and its like) says
	// otherwise.
	Endpoint string
	// Endpoints are where other services are asked; only with Endpoint.
	Endpoints Endpoints
	// SkipVerify takes any certificate of Endpoint's host, and of no other.
	SkipVerify bool
	// UseFIPS asks the endpoints that are validated for FIPS 140, of EC2 and of whoever gives
	// credentials. Not with Endpoint, nor in China.
	UseFIPS bool
	// ExtraCIDRs may reach cells, besides the VPC.
	ExtraCIDRs []netip.Prefix
	// KipSources are where Kip dials cells from, networks or IDs of security groups; none where that is
	// to be found out.
	KipSources []string
	// PrivateOnly says that no cell has a public address, unless its pod asks for one.
	PrivateOnly bool
	// PublicAddress says that cells have a public address in each subnet with a route to an internet gateway, and
	// not only in those that give one by themselves. PrivateOnly wins.
	PublicAddress bool

	// EndsOnly says that nothing is launched: what there is is listed and ended. It needs no subnets, and reaches no agents.
	EndsOnly bool

	// Owner is the value of the owner's tag of what is this Kip's. Without it each owner's counts as Kip's own.
	Owner string
	// AgentsOpen reports to the operator that rules of others let more than Kip reach the agents: once, and again if the rules
	// change. It does not block. Optional.
	AgentsOpen func(group string, port int, rules string)
	// Facts are what has turned out of the account. Optional: Kip finds out again after each start.
	Facts cloud.Facts

	// Tags are those of all that Kip makes, besides its own. GroupTags are those of the security group of the cells, besides Tags.
	Tags, GroupTags map[string]string
	// Cluster is the name of the cluster in the tag kubernetes.io/cluster/NAME of cells and disks; none if it is empty.
	Cluster string

	// InterruptionsEvery is how often spot instances are looked at that are about to
	// be taken back; 5 seconds when 0. The notice is 2 minutes.
	InterruptionsEvery time.Duration
	// MaintenanceEvery is how often instances are looked at for which EC2 has scheduled
	// maintenance; 5 minutes when 0.
	MaintenanceEvery time.Duration
	// VolumesEvery is how often a volume is looked at that is being made or detached, which
	// takes EC2 some seconds; a second when 0.
	VolumesEvery time.Duration
	// Clock is time itself when nil.
	Clock clock.WithTicker
	Log   *slog.Logger

	// Transport carries the calls of EC2, in place of the SDK's own. Optional.
	Transport http.RoundTripper

	// metadata is another metadata service, for tests.
	metadata string
}

// defaultVPC is the value of Config.VPC that stands for the account's own.
const defaultVPC = "default"

// setDefaults sets what holds where nothing is said.
func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Facts == nil {
		c.Facts = &memory{clock: c.Clock, until: map[string]time.Time{}}
	}
	c.InterruptionsEvery = cmp.Or(c.InterruptionsEvery, 5*time.Second)
	c.MaintenanceEvery = cmp.Or(c.MaintenanceEvery, 5*time.Minute)
	c.VolumesEvery = cmp.Or(c.VolumesEvery, time.Second)
}

// isPublic says that a source is a network whose addresses reach public ones as what they are: what a group has
// come there by others, as private ones do.
func isPublic(source string) bool {
	p, err := netip.ParsePrefix(source)
	return err == nil && p.Addr().IsGlobalUnicast() && !p.Addr().IsPrivate()
}

// locate finds the region, and the subnet or the VPC where none is configured. A configured region wins over the SDK's, which
// is that of AWS_REGION: EKS' webhook for IRSA sets that in Kip's pod without being asked.
func (cfg *Config) locate(sdkRegion string, here whereabouts) error {
	if env := cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")); cfg.Region != "" && env != "" && env != cfg.Region {
		cfg.Log.Warn("cloud.aws.region wins over AWS_REGION and AWS_DEFAULT_REGION of the environment", "region", cfg.Region, "environment", env)
	}
	cfg.Region = cmp.Or(cfg.Region, sdkRegion, here.region)
	if cfg.Region == "" && cfg.Endpoint != "" {
		cfg.Region = "us-east-1" // as the SDK's own tools: a signature needs some name
	}
	if cfg.Region == "" {
		return errors.New("cloud.aws.region: there is no value, and no metadata service that tells one: want a region such as us-east-1")
	}
	switch {
	case cfg.EndsOnly || cfg.VPC != "" || len(cfg.Subnets)+len(cfg.SubnetTags) > 0:
	case cfg.Endpoint != "":
		cfg.VPC = defaultVPC // nothing there tells where Kip runs
	case here.subnet == "":
		return errors.New("cloud.aws.subnetID: there is no value, nor cloud.aws.subnetTags or cloud.aws.vpcID, " +
			"and no metadata service that tells where Kip runs: want the subnets of the cells")
	default:
		cfg.Subnets = []string{here.subnet}
	}
	return nil
}

// Endpoints are the URLs of services besides EC2; "" for that of EC2.
type Endpoints struct{ STS, ECR, Pricing string }

// endpointOf is where a service besides EC2 is expected, which the environment says as it does to
// the SDK's own tools; nil where AWS' own is asked. The name is that of the variable.
func (cfg *Config) endpointOf(service string) *string {
	if cfg.Endpoint == "" {
		return nil
	}
	own := map[string]string{
		"STS":     cfg.Endpoints.STS,
		"ECR":     cfg.Endpoints.ECR,
		"PRICING": cfg.Endpoints.Pricing,
	}[service]
	return aws.String(strings.TrimSuffix(cmp.Or(os.Getenv("AWS_ENDPOINT_URL_"+service), own, cfg.Endpoint), "/"))
}
