package aws

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecr"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// imageSession is how long a session lives. Each role allows an hour, and no more where
	// Kip itself is a role (STS API reference, "AssumeRole").
	imageSession = time.Hour
	// imageSessionName is what CloudTrail shows of who reads images.
	imageSessionName = "kip-images"
	// maxRepositoryName bounds a repository's name in bytes (ECR API reference,
	// "CreateRepository").
	maxRepositoryName = 256
)

// partition is a part of AWS that shares no accounts with another.
type partition struct {
	name string
	// regions is how the names of its regions begin.
	regions string
	// suffix ends the hosts of its registries, dual those that have IPv6, too; "" where it
	// has none.
	suffix, dual string
}

// partitions are AWS' own; the last is of all other regions. Sources: AWS General Reference,
// "Amazon ECR endpoints and quotas"; ECR User Guide, "Getting started with making requests
// over IPv6"; the partitions in the SDK's endpoint rules.
var partitions = []partition{
	{"aws-cn", "cn-", "amazonaws.com.cn", "on.amazonwebservices.com.cn"},
	{"aws-us-gov", "us-gov-", "amazonaws.com", "on.aws"},
	{"aws-iso", "us-iso-", "c2s.ic.gov", ""},
	{"aws-iso-b", "us-isob-", "sc2s.sgov.gov", ""},
	{"aws-iso-e", "eu-isoe-", "cloud.adc-e.uk", ""},
	{"aws-iso-f", "us-isof-", "csp.hci.ic.gov", ""},
	{"aws-eusc", "eusc-", "amazonaws.eu", ""},
	{"aws", "", "amazonaws.com", "on.aws"},
}

// partitionOf is that of a region.
func partitionOf(region string) partition {
	return partitions[slices.IndexFunc(partitions, func(p partition) bool { return strings.HasPrefix(region, p.regions) })]
}

// registry is one of ECR's private registries: an account's in a region.
type registry struct {
	account, region string
	partition       partition
	fips            bool
}

// registries lends the credentials by which cells pull images from ECR.
type registries struct {
	*base
	sts *sts.Client
	sdk aws.Config // of which the clients of registries are made
}

var registryHost = regexp.MustCompile(`^([0-9]{12})\.dkr([.-])ecr(-fips)?\.([a-z]+(?:-[a-z]+)+-[0-9]+)\.([a-z0-9.-]+)$`)

// registryOf reads the host in the names of images; false for one that is none of ECR's.
func registryOf(host string) (registry, bool) {
	m := registryHost.FindStringSubmatch(host)
	if m == nil {
		return registry{}, false
	}
	r := registry{account: m[1], region: m[4], fips: m[3] != ""}
	r.partition = partitionOf(r.region)
	suffix := r.partition.suffix
	if m[2] == "-" {
		suffix = r.partition.dual
	}
	return r, suffix != "" && suffix == m[5]
}

// Images implements cloud.Registries: all that registryOf reads, and more, which it refuses.
func (e *registries) Images() (all []string) {
	for _, p := range partitions {
		all = append(all, "*.dkr.ecr.*."+p.suffix, "*.dkr.ecr-fips.*."+p.suffix)
		if p.dual != "" {
			all = append(all, "*.dkr-ecr.*."+p.dual, "*.dkr-ecr-fips.*."+p.dual)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// repositoryName is the form of a repository's name (OCI Distribution Specification, "Pulling
// manifests"); none of its characters means more to IAM than itself.
var repositoryName = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)

// arn is that of a repository.
func (r registry) arn(repository string) string {
	return "arn:" + r.partition.name + ":ecr:" + r.region + ":" + r.account + ":repository/" + repository
}

// mayPull is the policy of a session: all that its holder may do, if the role may, too. What a
// policy does not allow a repository's own may: one that lets in any principal whose
// aws:PrincipalArn is the role's is bounded by nothing but what is denied (IAM User Guide, "AWS
// JSON policy elements: Principal"). So the bounds are the two that deny, and what is allowed
// is no more than what they leave; the long names stand there once. fills lets a pull fill ECR's pull through cache, and
// make the repository for that.
func (r registry) mayPull(repositories []string, fills bool) string {
	arns := make([]string, len(repositories))
	for n, name := range repositories {
		arns[n] = r.arn(name)
	}
	all, actions := []string{"*"}, imageActions
	if fills {
		actions = slices.Concat(imageActions, fillActions)
	}
	text, err := json.Marshal(document{Version: policyVersion, Statement: []statement{
		{Sid: "A", Effect: "Allow", Action: []string{"ecr:*"}, Resource: all},
		{Sid: "B", Effect: "Deny", NotAction: actions, Resource: all},
		{Sid: "C", Effect: "Deny", NotAction: []string{tokenAction}, NotResource: arns},
	}})
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}

// lends refuses what no credentials are given for, whatever AWS would say.
func (e *registries) lends(host string, repositories []string) (registry, error) {
	refused := func(format string, args ...any) (registry, error) {
		return registry{}, cloud.No(cloud.ErrRefused, cloud.Scope{}, fmt.Errorf(format, args...))
	}
	if e.cfg.ImageRole == "" {
		return refused("cloud.aws.ecr.roleARN: there is no value, so that cells get no credentials for ECR: " +
			"want the role that Kip is to assume for them")
	}
	r, ok := registryOf(host)
	if !ok {
		return refused("%q is no registry of ECR's: want such as 123456789012.dkr.ecr.us-east-1.amazonaws.com", host)
	}
	_, of, _ := strings.Cut(e.cfg.ImageRole, ":")
	if of, _, _ = strings.Cut(of, ":"); of != r.partition.name {
		return refused("%s is in the partition %s, and cloud.aws.ecr.roleARN in %s: a role reads images of its own partition only",
			host, r.partition.name, of)
	}
	if len(repositories) == 0 || len(repositories) > cloud.MaxPulled {
		return refused("%d repositories are named: want 1 to %d", len(repositories), cloud.MaxPulled)
	}
	for _, name := range repositories {
		if len(name) > maxRepositoryName || !repositoryName.MatchString(name) {
			return refused("%.100q is no name of a repository", name)
		}
	}
	return r, nil
}

// PullCredentials implements cloud.Registries: a token of ECR's has the rights of whom it was
// given to, for twelve hours. So it is asked for as a session of ImageRole that may only pull
// from these repositories.
func (e *registries) PullCredentials(ctx context.Context, host string, repositories ...string) (cloud.PullCredentials, error) {
	r, err := e.lends(host, repositories)
	if err != nil {
		return cloud.PullCredentials{}, err
	}
	session, err := e.sts.AssumeRole(ctx, &sts.AssumeRoleInput{
		RoleArn:         aws.String(e.cfg.ImageRole),
		RoleSessionName: aws.String(imageSessionName),
		Policy:          aws.String(r.mayPull(repositories, e.cfg.PullThrough)),
		DurationSeconds: aws.Int32(int32(imageSession / time.Second)),
	})
	if err != nil {
		return cloud.PullCredentials{}, fmt.Errorf("assume the role %s: %w", e.cfg.ImageRole, classifyBeside(err))
	}
	keys := session.Credentials
	if keys == nil || aws.ToString(keys.SessionToken) == "" {
		return cloud.PullCredentials{}, fmt.Errorf("assume the role %s: STS answered without a session", e.cfg.ImageRole)
	}
	as := puller{e.newECR(r, credentials.NewStaticCredentialsProvider(
		aws.ToString(keys.AccessKeyId), aws.ToString(keys.SecretAccessKey), aws.ToString(keys.SessionToken)))}
	out, err := as.ecr.GetAuthorizationToken(ctx, &ecr.GetAuthorizationTokenInput{})
	if err != nil {
		return cloud.PullCredentials{}, fmt.Errorf("get a token for %s: %w", host, classifyBeside(err))
	}
	if len(out.AuthorizationData) != 1 {
		return cloud.PullCredentials{}, fmt.Errorf("get a token for %s: ECR answered with %d, want 1", host, len(out.AuthorizationData))
	}
	token := out.AuthorizationData[0]
	// Never shown: it is the password.
	text, err := base64.StdEncoding.DecodeString(aws.ToString(token.AuthorizationToken))
	user, password, found := strings.Cut(string(text), ":")
	if err != nil || !found || password == "" {
		return cloud.PullCredentials{}, fmt.Errorf("get a token for %s: %w", host, errBadToken)
	}
	// Two times of AWS' clock: a token outlives its session, or else counts for less.
	lifetime := imageSession
	if keys.Expiration != nil && token.ExpiresAt != nil && token.ExpiresAt.Before(*keys.Expiration) {
		lifetime -= keys.Expiration.Sub(*token.ExpiresAt)
	}
	return cloud.NewPullCredentials(user, password, lifetime), nil
}

var errBadToken = errors.New("ECR's answer is not a name and a password")

// puller is a session that may pull.
type puller struct{ ecr *ecr.Client }

// newECR asks the registry's own region, with the keys of a session and no others.
func (e *registries) newECR(r registry, keys aws.CredentialsProvider) *ecr.Client {
	return ecr.NewFromConfig(e.sdk, func(o *ecr.Options) {
		o.Region = r.region
		o.Credentials = keys
		o.HTTPClient, o.BaseEndpoint = e.cfg.reach("ECR", o.HTTPClient, o.BaseEndpoint)
		if r.fips && o.BaseEndpoint == nil { // which says whom to ask
			o.EndpointOptions.UseFIPSEndpoint = aws.FIPSEndpointStateEnabled
		}
	})
}
