package aws

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
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

// maxAnswer bounds an answer of EC2 in bytes: a page of a thousand instances with
// fifty tags each is below 20 MiB.
const maxAnswer = 64 << 20

// metadataPatience bounds what New asks the metadata service, which answers in
// milliseconds where there is one.
const metadataPatience = 3 * time.Second

// New returns EC2 in one region. It asks the metadata service where Kip runs, and
// nothing of EC2.
func New(ctx context.Context, cfg Config) (*Cloud, error) {
	cfg.setDefaults()
	sdk, err := loadSDK(ctx, cfg)
	if err != nil {
		return nil, err
	}
	here, unlocated := whereabouts{}, false
	if cfg.Endpoint == "" && (!cfg.EndsOnly || cmp.Or(cfg.Region, sdk.Region) == "") {
		if here, err = whereIsKip(ctx, cfg.metadata); err != nil {
			unlocated = true
			cfg.Log.Info("the metadata service of EC2 does not answer: Kip is taken to run outside of it", "err", err)
		}
	}
	if err := cfg.locate(sdk.Region, here); err != nil {
		return nil, err
	}
	if cfg.UseFIPS && strings.HasPrefix(cfg.Region, "cn-") {
		return nil, fmt.Errorf("cloud.aws.useFIPS: true is not valid in region %s: want false, since AWS has no such endpoints in China", cfg.Region)
	}
	cfg.CPUCredits = cmp.Or(cfg.CPUCredits, creditsBoot)
	if err := cfg.checkCredits(); err != nil {
		return nil, err
	}
	if currencyOf(cfg.Region) == yuan {
		cfg.Log.Warn("prices in China are in yuan: so is all that is shown, counted and bounded as dollars", "region", cfg.Region)
	}
	c := &Cloud{
		cfg:     cfg,
		api:     newAPI(sdk, cfg),
		sts:     newSTS(sdk, cfg),
		sdk:     sdk,
		pricing: newPricing(sdk, cfg),
		quotas:  newQuotas(sdk, cfg),
		images:  map[string]image{},
		groups:  map[string]string{},
		own:     map[string]cellsGroup{},
		zones:   map[string]bool{},
		shown:   map[string]time.Time{},
		making:  make(chan struct{}, 1),
		looks:   make(chan struct{}, 1),

		attempts:    map[string]attempt{},
		unexplained: map[string]bool{},
		barred:      map[string]barred{},
		trials:      map[[sha256.Size]byte]trial{},

		unlocated: unlocated,
	}
	// Who is elsewhere reaches instances at their public addresses only.
	inside := cfg.Endpoint != "" || here.vpc != "" && (cfg.VPC == "" || cfg.VPC == here.vpc || cfg.VPC == defaultVPC)
	c.dialPublic = !inside && !cfg.PrivateOnly && !cfg.EndsOnly
	if inside && cfg.Endpoint == "" {
		c.onInstance, c.kipGroups = true, here.groups
	}
	if c.dialPublic && len(cfg.ExtraCIDRs) == 0 && !slices.ContainsFunc(cfg.KipSources, isPublic) {
		return nil, fmt.Errorf("cells.extraCIDRs: there is no value, nor of cloud.aws.kipSources, and Kip runs %s: want the addresses from which "+
			"it dials them, such as 203.0.113.7/32", c.outside("the cells' VPC"))
	}
	if cfg.EndsOnly {
		if _, err := sdk.Credentials.Retrieve(ctx); err != nil {
			return nil, fmt.Errorf("%w: want AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile of ~/.aws (AWS_PROFILE), "+
				"or cloud.aws.accessKeyID and cloud.aws.secretAccessKey: %w", errNoCredentials, err)
		}
		return c, nil
	}
	if err := c.checkRules(); err != nil {
		return nil, err
	}
	return c, nil
}

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

// outside says where Kip is, for an error, and what is right where that is not true: a pod does not reach the
// metadata service of a node whose hop limit is 1, nor is there one on Fargate.
func (c *Cloud) outside(vpc string) string {
	if !c.unlocated {
		return "outside of " + vpc
	}
	return "outside of " + vpc + " (so it seems, since no metadata service answers: if it is inside, want cells.privateIPOnly: true)"
}

// loadSDK reads the settings of the SDK: who Kip is, and whom it asks.
func loadSDK(ctx context.Context, cfg Config) (aws.Config, error) {
	load := []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }), // Kip schedules its calls itself
		config.WithHTTPClient(awshttp.NewBuildableClient()),                // to which the SDK adds AWS_CA_BUNDLE
	}
	if cfg.Region != "" {
		// Of other services, too: STS turns a role's token into keys in the same partition.
		load = append(load, config.WithRegion(cfg.Region))
	}
	if cfg.UseFIPS {
		load = append(load, config.WithUseFIPSEndpoint(aws.FIPSEndpointStateEnabled))
	}
	if cfg.AccessKeyID != "" {
		load = append(load, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey, "")))
	}
	if cfg.Endpoint != "" {
		// Other services, too: STS turns a role's token into keys. What is said here wins over the
		// environment, for whichever service: so each has its own said again when its client is made.
		load = append(load, config.WithEC2IMDSClientEnableState(imds.ClientDisabled), config.WithBaseEndpoint(*cfg.endpointOf("STS")))
	}
	if cfg.SkipVerify && cfg.Endpoint != "" && cfg.Transport == nil {
		skip, err := skipVerify(cfg.Endpoint)
		if err != nil {
			return aws.Config{}, err
		}
		load = append(load, config.WithAPIOptions([]func(*middleware.Stack) error{skip}))
	}
	sdk, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return sdk, fmt.Errorf("read the settings of AWS: %w", err)
	}
	return sdk, nil
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

// newAPI is EC2's, whose refusals STS decodes.
func newAPI(sdk aws.Config, cfg Config) *ec2.Client {
	decode := newRefusals(newSTS(sdk, cfg), cfg)
	return ec2.NewFromConfig(sdk, func(o *ec2.Options) {
		o.APIOptions = append(slices.Clip(o.APIOptions), decode.add)
		o.Region = cfg.Region
		o.HTTPClient = cfg.bound(o.HTTPClient)
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(strings.TrimSuffix(cfg.Endpoint, "/"))
		}
	})
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

// newSTS is that of the region.
func newSTS(sdk aws.Config, cfg Config) *sts.Client {
	return sts.NewFromConfig(sdk, func(o *sts.Options) {
		o.Region = cfg.Region
		o.HTTPClient = cfg.bound(o.HTTPClient)
		if at := cfg.endpointOf("STS"); at != nil {
			o.BaseEndpoint = at
		}
	})
}

// bound is a client of the SDK's, or Transport in its place, whose answers are bounded.
func (cfg *Config) bound(client ec2.HTTPClient) ec2.HTTPClient {
	if cfg.Transport != nil {
		client = &http.Client{Transport: cfg.Transport}
	}
	return bounded{client}
}

// skipVerify has the calls to an endpoint sent by a client that takes any certificate, after all
// else that the SDK does with them: those to another host go on to the SDK's own. The SDK takes no
// client but its own where AWS_CA_BUNDLE is set, and TLS does not tell hosts apart that are IP addresses.
func skipVerify(endpoint string) (func(*middleware.Stack) error, error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cloud.aws.endpointURL: %w", err)
	}
	send := smithyhttp.NewClientHandlerWithOptions(bounded{&http.Client{
		Transport:     anyCertificate(at),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // which may be to another host
	}})
	return func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("SkipVerifyOfEndpoint", func(
			ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
		) (middleware.DeserializeOutput, middleware.Metadata, error) {
			if r, is := in.Request.(*smithyhttp.Request); !is || !strings.EqualFold(r.URL.Host, at.Host) {
				return next.HandleDeserialize(ctx, in)
			}
			response, metadata, err := send.Handle(ctx, in.Request)
			return middleware.DeserializeOutput{RawResponse: response}, metadata, err
		}), middleware.After)
	}, nil
}

// anyCertificate is a transport to one endpoint that takes any certificate of it. A proxy on the way
// that speaks TLS itself has to have a good one.
func anyCertificate(endpoint *url.URL) *http.Transport {
	transport := awshttp.NewBuildableClient().GetTransport()
	verified := tls.Config{MinVersion: tls.VersionTLS12}
	unverified := verified.Clone()
	unverified.InsecureSkipVerify = true //nolint:gosec // as it is configured
	// Of a connection within another, which net/http makes through a proxy, to the endpoint alone.
	transport.TLSClientConfig = unverified
	dial := transport.DialContext
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		plain, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		cfg := verified.Clone()
		if strings.EqualFold(host, endpoint.Hostname()) && port == cmp.Or(endpoint.Port(), "443") {
			cfg = unverified.Clone()
		}
		cfg.ServerName = host
		conn := tls.Client(plain, cfg)
		ctx, cancel := context.WithTimeout(ctx, transport.TLSHandshakeTimeout) // which net/http leaves to such a dialer
		defer cancel()
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = plain.Close() // the handshake has failed for a better reason
			return nil, err
		}
		return conn, nil
	}
	return transport
}

// bounded cuts off answers that are too long.
type bounded struct{ client ec2.HTTPClient }

func (b bounded) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		// The SDK closes the body once there is an answer. Its WriteTo then ends with EOF, which
		// net/http, where it still looks for more of the body, takes for an error: it breaks the
		// connection, and with it the answer. Without WriteTo it reads, and EOF is an end.
		sent := *r
		sent.Body = struct{ io.ReadCloser }{r.Body}
		r = &sent
	}
	resp, err := b.client.Do(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// whereabouts are those of the instance that Kip runs on; empty where it is on none.
type whereabouts struct {
	region, vpc, subnet string
	groups              []string
}

// whereIsKip asks the metadata service.
func whereIsKip(ctx context.Context, endpoint string) (here whereabouts, err error) {
	ctx, cancel := context.WithTimeout(ctx, metadataPatience)
	defer cancel()
	service := imds.New(imds.Options{Endpoint: endpoint, Retryer: aws.NopRetryer{}})
	read := func(path string) string {
		if err != nil {
			return ""
		}
		var out *imds.GetMetadataOutput
		if out, err = service.GetMetadata(ctx, &imds.GetMetadataInput{Path: path}); err != nil {
			return ""
		}
		defer out.Content.Close()
		var text []byte
		text, err = io.ReadAll(io.LimitReader(out.Content, 1<<10))
		return strings.TrimSpace(string(text))
	}
	region := read("placement/region")
	mac := "network/interfaces/macs/" + read("mac") + "/"
	here = whereabouts{
		region: region,
		vpc:    read(mac + "vpc-id"),
		subnet: read(mac + "subnet-id"),
		groups: strings.Fields(read(mac + "security-group-ids")),
	}
	if err != nil {
		return whereabouts{}, fmt.Errorf("ask the metadata service where Kip runs: %w", err)
	}
	return here, nil
}
