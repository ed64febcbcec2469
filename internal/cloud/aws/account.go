package aws

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ssocreds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// Wanted is what cells are launched as, besides what Config has.
type Wanted struct {
	InstanceType   string   // of pods that name none
	SecurityGroups []string // besides Kip's own
	// DryRun are other types: launches of them are tried until EC2 takes one. They make nothing.
	DryRun []string
	Kip    finding.Kip
}

// Names of the checks that others need.
const (
	areaAccount      = "account"
	checkCredentials = "credentials"
	checkSubnets     = "subnets"
	checkImage       = "image"
)

const (
	// doctorsOwner is the owner's tag in dry runs, which make nothing, if no Kip has a controller ID yet.
	doctorsOwner = "kip-doctor-dry-run"
	// imageAges is how old an image is that wants a newer one: Debian's security updates are in it when it is built.
	imageAges = 90 * 24 * time.Hour
	// fewAddresses, in a subnet, are too few for one batch of cells; fewCPUs, in a quota, for some pods.
	fewAddresses, fewCPUs = 32, 8
)

// accountChecks checks the account of a configuration. It makes and changes nothing.
type accountChecks struct {
	c       *Cloud
	wanted  Wanted
	ownKeys bool // the keys that ask are those of provider.yaml

	// What the checks have found, for those after them.
	arn    string // who asks
	net    *network
	arch   string // of the wanted type; "" if it is not known
	subnet string // the first one where it is offered; "" if that is not known
	images map[string]image
}

// Checks returns the checks of the account, for whoever runs them: he need not be the Kip that is to use the account.
func Checks(ctx context.Context, cfg Config, wanted Wanted) []finding.Check {
	cfg.EndsOnly = true // nothing is launched, and it does not matter where this program runs
	if cfg.Endpoint != "" && cfg.VPC == "" && len(cfg.Subnets)+len(cfg.SubnetTags) == 0 {
		cfg.VPC = defaultVPC // as for a Kip
	}
	c, err := New(ctx, cfg)
	if err != nil {
		return []finding.Check{{Area: areaAccount, Name: checkCredentials, Run: func(context.Context) []finding.Finding {
			return []finding.Finding{noCredentials(cfg.Region, err)}
		}}}
	}
	a := &accountChecks{c: c, wanted: wanted, ownKeys: cfg.AccessKeyID != "", images: map[string]image{}}
	of := func(name, needs string, run func(context.Context) []finding.Finding) finding.Check {
		return finding.Check{Area: areaAccount, Name: name, Needs: needs, Run: run}
	}
	checks := []finding.Check{
		of(checkCredentials, "", a.credentials),
		of("region", checkCredentials, a.region),
		of(checkSubnets, checkCredentials, a.subnets),
		of("addresses", checkSubnets, a.addresses),
		of("security groups", checkSubnets, a.groups),
		of("instance type", checkSubnets, a.instanceType),
		of(checkImage, checkCredentials, a.image),
		of("quotas", checkCredentials, a.quotas),
		of("rights to read", checkCredentials, a.reads),
		of("rights to launch", checkImage, a.launches),
	}
	if len(wanted.DryRun) > 0 {
		checks = append(checks, of(finding.DryRun, checkImage, a.dryRun))
	}
	return checks
}

func only(f finding.Finding) []finding.Finding { return []finding.Finding{f} }

// errNoCredentials says that there are no credentials, whatever AWS would make of them.
var errNoCredentials = errors.New("find credentials of AWS")

// Codes of AWS for credentials that have expired, and for those that it does not know. Sources: IAM User Guide, "Troubleshoot temporary
// security credentials"; EC2 API reference, "Error codes"; STS API reference, "Common errors".
var (
	codesOfExpired = []string{"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
	codesOfUnknown = []string{"InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure"}
)

// Expired reports whether a code of AWS says that the caller's credentials have expired.
func Expired(code string) bool { return slices.Contains(codesOfExpired, code) }

// Unknown reports whether a code of AWS says that it does not know the caller's credentials.
func Unknown(code string) bool { return slices.Contains(codesOfUnknown, code) }

// noCredentials is the finding for credentials that are not found, or that AWS does not take.
func noCredentials(region string, err error) finding.Finding {
	const look = "aws sts get-caller-identity"
	code := codeOf(err)
	_, session := errors.AsType[*ssocreds.InvalidTokenError](err)
	switch {
	case session, Expired(code):
		return finding.Fail("aws sso login # or get new session keys as you got these", "your AWS session has expired: %v", err)
	case strings.Contains(os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"), wellknown.PodIdentityAddress) &&
		os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") == "" && errors.Is(err, errNoCredentials): // by EKS Pod Identity
		return finding.Fail("kubectl get daemonset -n kube-system "+wellknown.PodIdentityAgent+" # without it: "+
			wellknown.CreateAddon(region, "CLUSTER", wellknown.PodIdentityAgent)+
			"; else add this statement to the role's trust policy, and keep its others: "+wellknown.PodTrustStatement,
			"the EKS Pod Identity agent gives this pod no credentials: %v", err)
	case Unknown(code):
		return finding.Fail("aws configure # then: "+look, "AWS does not know the access key: %v", err)
	case code == "SignatureDoesNotMatch":
		return finding.Fail("aws configure # then: "+look, "the secret access key is wrong, or this machine's clock: %v", err)
	case strings.Contains(err.Error(), "AssumeRoleWithWebIdentity"): // of a service account
		role := cmp.Or(os.Getenv("AWS_ROLE_ARN"), "ROLE")
		return finding.Fail("aws iam get-role --role-name "+role[strings.LastIndexByte(role, '/')+1:]+" --query Role.AssumeRolePolicyDocument "+
			"# add this statement to the role's trust policy, and keep its others: "+trustOf(role, os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE")),
			"the trust policy of role %s does not let this service account assume it: %v", role, err)
	case code != "":
		return finding.Fail(look, "AWS refuses your credentials: %v", err)
	case strings.Contains(err.Error(), "cloud.aws."), errors.Is(err, errNoCredentials):
		return finding.Fail("aws configure # then: "+look, "%v", err) // it says what is missing
	}
	return finding.Fail("aws ec2 describe-regions --all-regions --query 'Regions[].RegionName'",
		"STS of the region %q does not answer: is cloud.aws.region right, and is there a way to the internet? %v", region, err)
}

// trustOf is the statement by which a role trusts the service account whose token a file has. What it does not find the reader fills in.
func trustOf(role, file string) string {
	claims := struct {
		Issuer  string `json:"iss"`
		Subject string `json:"sub"`
	}{}
	if token, err := os.ReadFile(file); err == nil {
		if parts := strings.Split(string(token), "."); len(parts) == 3 {
			if payload, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
				_ = json.Unmarshal(payload, &claims) // what it does not have stays empty
			}
		}
	}
	partition, account := "aws", "ACCOUNT"
	if parts := strings.Split(role, ":"); len(parts) == 6 {
		partition, account = parts[1], parts[4]
	}
	issuer := cmp.Or(strings.TrimPrefix(claims.Issuer, "https://"), "ISSUER")
	return wellknown.TrustStatement(fmt.Sprintf("arn:%s:iam::%s:oidc-provider/%s", partition, account, issuer), issuer,
		cmp.Or(claims.Subject, "system:serviceaccount:NAMESPACE:NAME"))
}

func (a *accountChecks) credentials(ctx context.Context) []finding.Finding {
	out, err := a.c.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return only(noCredentials(a.c.cfg.Region, err))
	}
	a.arn = aws.ToString(out.Arn)
	return only(finding.Fine("asked as %s; to check what Kip itself may, run this command with Kip's role", a.arn))
}

func (a *accountChecks) region(ctx context.Context) []finding.Finding {
	out, err := a.c.api.DescribeAvailabilityZones(ctx, &ec2.DescribeAvailabilityZonesInput{})
	region := a.c.cfg.Region
	switch code := codeOf(err); {
	case code == "OptInRequired" || code == "AuthFailure": // of a region that is off. Source: EC2 API reference, "Error codes"
		return only(finding.Fail("aws account enable-region --region-name "+region, "the account does not have region %s: %v", region,
			classify(err, cloud.Scope{})))
	case err != nil:
		return only(a.unanswered("list the zones of "+region, err))
	}
	return only(finding.Fine("region %s has %d zones for this account", region, len(out.AvailabilityZones)))
}

// unanswered is the finding for a call that EC2 refuses, or does not answer.
func (a *accountChecks) unanswered(what string, err error) finding.Finding {
	if launched, is := errors.AsType[*launchedError](err); is {
		return finding.Fail(a.command("terminate-instances --instance-ids %s", strings.Join(launched.ids, " ")), "%s: %v", what, err)
	}
	err = classify(err, cloud.Scope{})
	if cloud.CauseOf(err) == cloud.ErrUnauthorised {
		if !a.isKip() {
			f := finding.Unchecked("you are %s, not known to be Kip, and may not %s: run kipctl doctor in Kip's pod, or with Kip's role, which --role names: %v", a.arn, what, err)
			f.Cure = a.wanted.Kip.Ask
			return f
		}
		return finding.Fail(a.grant(), "%s may not %s: %v", a.arn, what, err)
	}
	return finding.Unchecked("%s: %v", what, err)
}

// isKip reports whether who asks is Kip, so that what he lacks Kip lacks: by Kip's pod, by the keys of provider.yaml, or by Kip's
// role. What a role or a user is called proves nothing.
func (a *accountChecks) isKip() bool {
	role := a.wanted.Kip.Role
	return a.wanted.Kip.Inside || a.ownKeys || role != "" && (a.arn == role || roleOf(a.arn) == unpathed(role))
}

// roleOf returns the ARN of the role that a caller has assumed, without its path, which STS does not tell; "" if it is no assumed role.
func roleOf(arn string) string {
	parts := strings.Split(arn, ":")
	account, kind, name := whoIs(arn)
	if kind != "assumed-role" {
		return ""
	}
	return "arn:" + parts[1] + ":iam::" + account + ":role/" + name
}

// unpathed returns the ARN of a role without its path. An account has no two roles of one name. Source: IAM User Guide, "IAM and AWS STS
// quotas", name requirements.
func unpathed(role string) string {
	before, path, is := strings.Cut(role, ":role/")
	if !is {
		return role
	}
	return before + ":role/" + path[strings.LastIndexByte(path, '/')+1:]
}

// whoIs takes the ARN of a caller apart: an assumed role's has the name of the session after its own, a user's has the path before it.
func whoIs(arn string) (account, kind, name string) {
	parts := strings.Split(arn, ":")
	if len(parts) != 6 {
		return "", "", ""
	}
	kind, name, _ = strings.Cut(parts[5], "/")
	if kind == "assumed-role" {
		name, _, _ = strings.Cut(name, "/")
	}
	return parts[4], kind, name[strings.LastIndexByte(name, '/')+1:]
}

// grant is the command that gives who asks the rights that Kip needs.
func (a *accountChecks) grant() string {
	partition, _, _ := strings.Cut(strings.TrimPrefix(a.arn, "arn:"), ":")
	id, kind, name := whoIs(a.arn)
	attach := "attach-role-policy --role-name ROLE"
	switch kind {
	case "user":
		attach = "attach-user-policy --user-name " + name
	case "assumed-role":
		attach = "attach-role-policy --role-name " + name
	}
	return fmt.Sprintf("aws iam create-policy --policy-name kip --policy-document file://kip.json && aws iam %s --policy-arn arn:%s:iam::%s:policy/kip "+
		"# kip.json: the policy of %s", attach, cmp.Or(partition, "aws"), cmp.Or(id, "ACCOUNT"), permissionsPage)
}

// command is one of EC2's in the region.
func (a *accountChecks) command(format string, args ...any) string {
	return "aws ec2 " + fmt.Sprintf(format, args...) + " --region " + a.c.cfg.Region
}

func (a *accountChecks) subnets(ctx context.Context) []finding.Finding {
	cfg := a.c.cfg
	if cfg.VPC == "" && len(cfg.Subnets)+len(cfg.SubnetTags) == 0 {
		return only(finding.Unchecked("provider.yaml names neither cloud.aws.subnetID nor subnetTags nor vpcID: cells go into the subnet of the instance that " +
			"Kip runs on"))
	}
	n, err := a.c.networks.where(ctx)
	if err != nil {
		if cloud.CauseOf(err) == cloud.ErrRefused { // it says what is not as it is configured
			return only(finding.Fail(a.command("describe-subnets --query 'Subnets[].[SubnetId,VpcId,AvailabilityZone,AvailableIpAddressCount]' --output table"),
				"%v", err))
		}
		return only(a.unanswered("find the subnets of the cells", err))
	}
	a.net = n
	var found []finding.Finding
	for _, id := range slices.Sorted(maps.Keys(n.subnets)) {
		s := n.subnets[id]
		var f finding.Finding
		switch {
		case s.public && !s.maps && !cfg.PublicAddress && !cfg.PrivateOnly:
			f = finding.Warn(a.command("modify-subnet-attribute --subnet-id %s --map-public-ip-on-launch", id),
				"subnet %s in %s leads to the internet by an internet gateway, and cells there get no public address: they pull no image from the internet. "+
					"cloud.aws.publicAddress: true gives them one, too", id, s.zone)
		case s.public:
			f = finding.Fine("subnet %s of %s is in %s, and public", id, n.vpc, s.zone)
		default:
			f = finding.Fine("subnet %s of %s is in %s, and private", id, n.vpc, s.zone)
		}
		f.Subnet = finding.Subnet{ID: id, Zone: s.zone, Public: s.public}
		found = append(found, f)
	}
	return found
}

func (a *accountChecks) addresses(ctx context.Context) []finding.Finding {
	all, err := a.c.networks.readSubnets(ctx)
	if err != nil {
		return only(a.unanswered("read the free addresses of the cells' subnets", err))
	}
	var found []finding.Finding
	for _, s := range all {
		id, zone := aws.ToString(s.SubnetId), aws.ToString(s.AvailabilityZone)
		cure := a.command("create-subnet --vpc-id %s --availability-zone %s --cidr-block CIDR", aws.ToString(s.VpcId), zone) +
			" # then name it in cloud.aws.subnetID"
		switch free := aws.ToInt32(s.AvailableIpAddressCount); {
		case s.AvailableIpAddressCount == nil:
			found = append(found, finding.Unchecked("EC2 does not tell how many addresses of subnet %s are free", id))
		case free < addressesOfCell:
			found = append(found, finding.Fail(cure, "subnet %s in %s has %d free addresses: a cell takes %d", id, zone, free, addressesOfCell))
		case free < fewAddresses:
			found = append(found, finding.Warn(cure, "subnet %s in %s has %d free addresses: room for %d cells", id, zone, free,
				free/addressesOfCell))
		default:
			found = append(found, finding.Fine("subnet %s has %d free addresses: room for %d cells", id, free, free/addressesOfCell))
		}
	}
	return found
}

func (a *accountChecks) groups(ctx context.Context) []finding.Finding {
	if len(a.wanted.SecurityGroups) == 0 {
		return only(finding.Fine("cells have the group that Kip makes, and no other"))
	}
	if _, err := a.c.groupIDs(ctx, a.net.vpc, a.wanted.SecurityGroups); err != nil {
		if cloud.CauseOf(err) == cloud.ErrRefused {
			return only(finding.Fail(a.command("describe-security-groups --filters Name=vpc-id,Values=%s --query 'SecurityGroups[].[GroupId,GroupName]' "+
				"--output table", a.net.vpc)+" # then change cells.extraSecurityGroups", "cells.extraSecurityGroups: %v", err))
		}
		return only(a.unanswered("find the security groups", err))
	}
	return only(finding.Fine("%s has the security groups %s", a.net.vpc, strings.Join(a.wanted.SecurityGroups, ", ")))
}

func (a *accountChecks) instanceType(ctx context.Context) []finding.Finding {
	name := a.wanted.InstanceType
	list := a.command("describe-instance-type-offerings --location-type availability-zone --query 'InstanceTypeOfferings[].[InstanceType,Location]' --output text") +
		" # then change cells.defaultInstanceType"
	out, err := a.c.api.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{
		InstanceTypes: []types.InstanceType{types.InstanceType(name)},
	})
	if codeOf(err) == "InvalidInstanceType" {
		return only(finding.Fail(list, "cells.defaultInstanceType: EC2 has no type %q in %s", name, a.c.cfg.Region))
	}
	if err != nil {
		return only(a.unanswered("read the instance type "+name, err))
	}
	for _, t := range out.InstanceTypes {
		one, ok := typeOf(t)
		if !ok {
			return only(finding.Fail(list, "cells.defaultInstanceType: %s can be no cell, which is of the Nitro system and boots by UEFI", name))
		}
		a.arch = one.Arch
	}
	offered, err := a.c.readOfferings(ctx)
	if err != nil {
		return only(a.unanswered("list what EC2 offers where", err))
	}
	var has, lacks []string
	for _, id := range slices.Sorted(maps.Keys(a.net.subnets)) {
		zone := a.net.subnets[id].zone
		if !offered[sold{name, zone}] {
			lacks = append(lacks, zone)
			continue
		}
		has, a.subnet = append(has, zone), cmp.Or(a.subnet, id)
	}
	slices.Sort(has)
	slices.Sort(lacks)
	if has = slices.Compact(has); len(has) == 0 {
		return only(finding.Fail(list, "cells.defaultInstanceType: EC2 offers %s in none of the zones %s of the cells' subnets", name,
			strings.Join(slices.Compact(lacks), ", ")))
	}
	return only(finding.Fine("EC2 offers %s in %s", name, strings.Join(has, ", ")))
}

// image looks for an image of each architecture. One is enough, if the wanted type has it.
func (a *accountChecks) image(ctx context.Context) []finding.Finding {
	var found, missing []finding.Finding
	for _, arch := range []string{archX86, "arm64"} {
		i, err := a.c.images.image(ctx, cloud.LaunchSpec{
			InstanceType: a.wanted.InstanceType,
			Arch:         arch,
			Options:      cloud.Options{Image: a.c.cfg.Image},
		})
		cure := a.publish(arch)
		switch cause := cloud.CauseOf(err); {
		case err == nil:
			a.images[arch] = i
			found = append(found, a.age(i, arch, cure))
		case cause != cloud.ErrUnfit && cause != cloud.ErrRefused:
			return only(a.unanswered("find the image of cells", err))
		case arch == a.arch:
			missing = append(missing, finding.Fail(cure, "no image for %s, which cells.defaultInstanceType %s has: %v", arch,
				a.wanted.InstanceType, err))
		default:
			missing = append(missing, finding.Warn(cure, "no image for %s, so cells are of no type with it: %v", arch, err))
		}
	}
	if len(found) == 0 {
		return only(finding.Fail(a.publish(cmp.Or(a.arch, archX86)), "%s", missing[0].Message))
	}
	return append(found, missing...)
}

// publish is the command that publishes a boot image.
func (a *accountChecks) publish(arch string) string {
	return fmt.Sprintf("kipctl image publish --region %s --arch %s # it fetches the image of its release; else add --from REGISTRY/kip-cell:TAG, or run "+
		"it where kip-cell-%s.tar.gz and .manifest.json are, or in a checkout after make image IMAGE_ARCH=%s", a.c.cfg.Region, arch, arch, arch)
}

// age says how old an image is.
func (a *accountChecks) age(i image, arch, cure string) finding.Finding {
	made, err := time.Parse(time.RFC3339, i.created)
	if i.deprecated != "" {
		return finding.Warn(cure, "image %s for %s is deprecated since %s: its owner may remove it at any time", i.id, arch, i.deprecated)
	}
	if err != nil {
		return finding.Unchecked("image %s for %s: EC2 does not tell when it was made: %q", i.id, arch, i.created)
	}
	days := int(a.c.cfg.Clock.Since(made) / (24 * time.Hour))
	if a.c.cfg.Clock.Since(made) > imageAges {
		return finding.Warn(cure, "image %s for %s is %d days old: it lacks the security updates of that time", i.id, arch, days)
	}
	return finding.Fine("image %s for %s is %d days old", i.id, arch, days)
}

func (a *accountChecks) quotas(ctx context.Context) []finding.Finding {
	family := familyOf(a.wanted.InstanceType)
	codes := slices.Sorted(maps.Keys(quotaCodes))
	quotas, err := a.c.quotas.listQuotas(ctx)
	if err != nil {
		return only(finding.Unchecked("the quotas of vCPUs, for want of the statement KipReadsQuotas or of a way to Service Quotas: %v", err))
	}
	used, err := a.c.quotas.cpuOf(ctx, func(types.Instance) bool { return true })
	if err != nil {
		return only(a.unanswered("list what the account runs", err))
	}
	var found []finding.Finding
	for _, class := range []catalog.Class{{Family: family}, {Family: family, Spot: true}} {
		kind := map[bool]string{false: "on-demand", true: "spot"}[class.Spot]
		most, known := quotas[class]
		if !known {
			found = append(found, finding.Unchecked("Service Quotas does not tell the quota of %s vCPUs of the family %s", kind, family))
			continue
		}
		code := codes[slices.IndexFunc(codes, func(code string) bool { return quotaCodes[code] == class })]
		cure := fmt.Sprintf("aws service-quotas request-service-quota-increase --region %s --service-code ec2 --quota-code %s --desired-value %d",
			a.c.cfg.Region, code, most/1000+64)
		left := max(0, most-used[class]) / 1000
		say := fmt.Sprintf("of %d %s vCPUs of the family %s %d are free", most/1000, kind, family, left)
		switch {
		case left == 0 && !class.Spot:
			found = append(found, finding.Fail(cure, "%s: no cell such as %s starts", say, a.wanted.InstanceType))
		case left < fewCPUs:
			found = append(found, finding.Warn(cure, "%s", say))
		default:
			found = append(found, finding.Fine("%s", say))
		}
	}
	return found
}

// codeDry is EC2's answer to a dry run of a call that who asks may make. Source: EC2 API reference, "RunInstances", DryRun.
const codeDry = "DryRunOperation"

// dry is a call that is not to have an effect.
type dry struct {
	action string
	ask    func(context.Context) error
}

// tried says which of the calls may be made.
func (a *accountChecks) tried(ctx context.Context, calls []dry) []finding.Finding {
	var found []finding.Finding
	var may []string
	for _, call := range calls {
		err := call.ask(ctx)
		switch {
		case codeOf(err) == codeDry:
			may = append(may, "ec2:"+call.action)
		case err == nil: // an API that does not know DryRun
			found = append(found, finding.Unchecked("ec2:%s: this API knows no dry runs", call.action))
		default:
			found = append(found, a.unanswered("dry-run ec2:"+call.action, err))
		}
	}
	if len(may) > 0 {
		found = append(found, finding.Fine("dry runs: may %s", strings.Join(may, ", ")))
	}
	return found
}

// reads tries the calls of the statement KipReads.
func (a *accountChecks) reads(ctx context.Context) []finding.Finding {
	api, yes := a.c.api, aws.Bool(true)
	ask := func(_ any, err error) error { return err }
	return a.tried(ctx, []dry{
		{"DescribeCapacityReservations", func(ctx context.Context) error {
			return ask(api.DescribeCapacityReservations(ctx, &ec2.DescribeCapacityReservationsInput{DryRun: yes}))
		}},
		{"DescribeInstanceStatus", func(ctx context.Context) error {
			return ask(api.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{DryRun: yes}))
		}},
		{"DescribeInstances", func(ctx context.Context) error {
			return ask(api.DescribeInstances(ctx, &ec2.DescribeInstancesInput{DryRun: yes}))
		}},
		{"DescribeInstanceTypes", func(ctx context.Context) error {
			return ask(api.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{DryRun: yes}))
		}},
		{"DescribeNetworkInterfaces", func(ctx context.Context) error {
			return ask(api.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{DryRun: yes}))
		}},
		{"DescribeRouteTables", func(ctx context.Context) error {
			return ask(api.DescribeRouteTables(ctx, &ec2.DescribeRouteTablesInput{DryRun: yes}))
		}},
		{"DescribeSecurityGroups", func(ctx context.Context) error {
			return ask(api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{DryRun: yes}))
		}},
		{"DescribeSpotInstanceRequests", func(ctx context.Context) error {
			return ask(api.DescribeSpotInstanceRequests(ctx, &ec2.DescribeSpotInstanceRequestsInput{DryRun: yes}))
		}},
		{"DescribeSpotPriceHistory", func(ctx context.Context) error {
			return ask(api.DescribeSpotPriceHistory(ctx, &ec2.DescribeSpotPriceHistoryInput{DryRun: yes}))
		}},
		{"DescribeVolumes", func(ctx context.Context) error {
			return ask(api.DescribeVolumes(ctx, &ec2.DescribeVolumesInput{DryRun: yes}))
		}},
		{"DescribeVolumesModifications", func(ctx context.Context) error {
			return ask(api.DescribeVolumesModifications(ctx, &ec2.DescribeVolumesModificationsInput{DryRun: yes}))
		}},
		{"DescribeVpcs", func(ctx context.Context) error {
			return ask(api.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{DryRun: yes}))
		}},
	})
}

// launches tries a launch, and what Kip makes besides. What Kip does to a cell or a disk that it has made cannot be tried before there
// is one.
func (a *accountChecks) launches(ctx context.Context) []finding.Finding {
	const notTried = "what Kip may do to cells and disks that it has made (the statements KipEnds, KipTagsCells, KipMovesDisks, KipKeepsItsGroup): there is none " +
		"to try it on"
	if a.net == nil {
		return only(finding.Unchecked("the subnet of the cells is not known"))
	}
	arch := cmp.Or(a.arch, slices.Sorted(maps.Keys(a.images))[0])
	boot, has := a.images[arch]
	if !has {
		return only(finding.Unchecked("there is no image for %s to launch", a.wanted.InstanceType))
	}
	subnet := cmp.Or(a.subnet, slices.Sorted(maps.Keys(a.net.subnets))[0])
	groups, err := a.c.groupIDs(ctx, a.net.vpc, a.wanted.SecurityGroups)
	if err != nil {
		return only(a.unanswered("find the security groups", err))
	}
	launch := a.launch(a.wanted.InstanceType, subnet, boot, groups)
	disk := merged(a.c.cfg.configuredTags(), map[string]string{cloud.TagOwner: a.owner(), tagDisk: doctorsOwner})
	found := a.tried(ctx, []dry{
		{"RunInstances", func(ctx context.Context) error { return a.dryLaunch(ctx, launch) }},
		{"CreateSecurityGroup", func(ctx context.Context) error {
			_, err := a.c.api.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
				DryRun:      aws.Bool(true),
				GroupName:   aws.String(doctorsOwner),
				Description: aws.String("A dry run of kipctl doctor"),
				VpcId:       aws.String(a.net.vpc),
				TagSpecifications: []types.TagSpecification{{
					ResourceType: types.ResourceTypeSecurityGroup,
					Tags:         tagsOf(a.c.groupTags(a.owner())),
				}},
			})
			return err
		}},
		{"CreateVolume", func(ctx context.Context) error {
			_, err := a.c.api.CreateVolume(ctx, &ec2.CreateVolumeInput{
				DryRun:           aws.Bool(true),
				AvailabilityZone: aws.String(a.net.subnets[subnet].zone),
				Size:             aws.Int32(1),
				VolumeType:       types.VolumeTypeGp3,
				Encrypted:        aws.Bool(true),
				TagSpecifications: []types.TagSpecification{{
					ResourceType: types.ResourceTypeVolume,
					Tags:         tagsOf(disk),
				}},
			})
			return err
		}},
	})
	return append(found, finding.Unchecked(notTried))
}
