package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/finding"
)

// launch is the dry run of a launch of one cell.
func (a *accountChecks) launch(instanceType, subnet string, boot image, groups []string) *ec2.RunInstancesInput {
	launch := runInstances(cloud.LaunchRequest{
		Token:    doctorsOwner + "-" + instanceType,
		Machines: []cloud.Machine{{}},
		LaunchSpec: cloud.LaunchSpec{
			InstanceType: instanceType,
			Zone:         a.net.subnets[subnet].zone,
			Subnet:       subnet,
			Tags:         map[string]string{cloud.TagOwner: a.owner()},
			Resolved: &cloud.Resolved{
				Image:          boot.id,
				RootDevice:     boot.rootDevice,
				RootDiskBytes:  int64(boot.gib) * gib,
				Key:            a.c.cfg.KMSKey,
				SecurityGroups: groups,
				Tags:           a.c.cfg.configuredTags(),
			},
		},
	})
	launch.DryRun = aws.Bool(true)
	return launch
}

// owner is the owner's tag in dry runs. A narrowed policy allows Kip's own alone.
func (a *accountChecks) owner() string { return cmp.Or(a.wanted.Kip.Owner, doctorsOwner) }

// mostDryRuns bounds the launches that one check tries.
const mostDryRuns = 8

// try is a launch that a dry run may try.
type try struct {
	instanceType, zone, subnet string
	arch                       string
	milliCPU                   int64
}

// dryRun asks EC2 whether it would launch an instance of one of the types in a zone of the cells: the first of them, and while EC2 refuses,
// those that its answer is not about. EC2 answers for the caller's rights, not for capacity. Source: EC2 API reference,
// "RunInstances", DryRun.
func (a *accountChecks) dryRun(ctx context.Context) []finding.Finding {
	wanted := strings.Join(a.wanted.DryRun, ", ")
	list := a.command("describe-instance-type-offerings --location-type availability-zone --filters Name=instance-type,Values=%s",
		strings.Join(a.wanted.DryRun, ","))
	if a.net == nil {
		return only(finding.Unchecked("a launch of %s: the subnet of the cells is not known", wanted))
	}
	offered, err := a.c.readOfferings(ctx)
	if err != nil {
		return only(a.unanswered("list what EC2 offers where", err))
	}
	all := a.offered(offered)
	if len(all) == 0 {
		return only(finding.Fail(list, "EC2 offers none of %s in a zone of the cells' subnets %s", wanted,
			strings.Join(slices.Sorted(maps.Keys(a.net.subnets)), ", ")))
	}
	groups, err := a.c.groupIDs(ctx, a.net.vpc, a.wanted.SecurityGroups)
	if err != nil {
		return only(a.unanswered("find the security groups", err))
	}
	all, unfit, err := a.launchable(ctx, all, list)
	switch {
	case err != nil:
		return only(a.unanswered("read the instance types "+wanted, err))
	case len(all) == 0:
		return only(unfit)
	}
	return a.tryEach(ctx, all, groups, list)
}

// tryEach makes dry runs until EC2 takes one.
func (a *accountChecks) tryEach(ctx context.Context, all []try, groups []string, list string) []finding.Finding {
	var refusals []string
	var noRight *finding.Finding
	tried, more := 0, ""
	var about []func(try) bool // what EC2 has refused
	for _, one := range all {
		if slices.ContainsFunc(about, func(is func(try) bool) bool { return is(one) }) {
			continue
		}
		if tried++; tried > mostDryRuns {
			more = "; others were not tried"
			break
		}
		what := one.instanceType + " in " + one.zone
		err := a.dryLaunch(ctx, a.launch(one.instanceType, one.subnet, a.images[one.arch], groups))
		if codeOf(err) == codeDry {
			return only(finding.Fine("EC2 would launch a %s: a dry run, which asks for rights and not for capacity", what))
		}
		if err == nil {
			return only(finding.Unchecked("a launch of %s: this API knows no dry runs", what))
		}
		said, _ := errors.AsType[*cloud.Error](classify(err, cloud.Scope{
			InstanceType: one.instanceType, Family: familyOf(one.instanceType), Zone: one.zone, Subnet: one.subnet,
		}))
		switch {
		case said == nil, said.Cause == cloud.ErrThrottled, said.Scope.Account: // it says nothing of the launch, or of any other, too
			return only(a.unanswered("dry-run ec2:RunInstances of "+what, err))
		case said.Cause == cloud.ErrUnauthorised && noRight == nil:
			noRight = new(a.unanswered("dry-run ec2:RunInstances of "+what, err))
		case said.Cause != cloud.ErrUnauthorised:
			refusals = append(refusals, fmt.Sprintf("%s: %v", what, err))
		}
		about = append(about, sameAs(said, one))
	}
	var found []finding.Finding
	if len(refusals) > 0 {
		found = append(found, finding.Fail(list, "EC2 refuses dry runs of launches: %s%s", strings.Join(refusals, "; "), more))
	}
	if noRight != nil {
		found = append(found, *noRight)
	}
	return found
}

// sameAs returns whether a refusal of one launch is about another, too. One that says nothing of what EC2 sells is about the type.
func sameAs(said *cloud.Error, one try) func(try) bool {
	of := said.Scope
	if said.Cause == cloud.ErrUnauthorised {
		of.Subnet = ""
	}
	if !of.Says() {
		of = cloud.Scope{InstanceType: one.instanceType}
	}
	return func(other try) bool {
		return (of.InstanceType == "" || of.InstanceType == other.instanceType) &&
			(of.Family == "" || of.Family == familyOf(other.instanceType)) &&
			(!of.ByCPU || other.milliCPU >= one.milliCPU) &&
			(of.Zone == "" || of.Zone == other.zone) &&
			(of.Subnet == "" || of.Subnet == other.subnet)
	}
}

// launchable returns the launches of types that can be cells and that have an image. unfit says of the first of the others why it is none.
func (a *accountChecks) launchable(ctx context.Context, all []try, list string) (some []try, unfit finding.Finding, err error) {
	var names []types.InstanceType
	for _, one := range all {
		if name := types.InstanceType(one.instanceType); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	out, err := a.c.api.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{InstanceTypes: names})
	if err != nil {
		return nil, unfit, err
	}
	no := func(f finding.Finding) {
		if unfit.Message == "" {
			unfit = f
		}
	}
	for _, one := range all {
		n := slices.IndexFunc(out.InstanceTypes, func(t types.InstanceTypeInfo) bool { return string(t.InstanceType) == one.instanceType })
		if n < 0 {
			no(finding.Unchecked("a launch of %s: EC2 does not describe it", one.instanceType))
			continue
		}
		described, fits := typeOf(out.InstanceTypes[n])
		one.arch, one.milliCPU = described.Arch, described.MilliCPU
		_, has := a.images[one.arch]
		switch {
		case !fits:
			no(finding.Fail(list, "%s can be no cell, which is of the Nitro system and boots by UEFI", one.instanceType))
		case !has:
			no(finding.Unchecked("a launch of %s: there is no image for %s", one.instanceType, one.arch))
		default:
			some = append(some, one)
		}
	}
	return some, unfit, nil
}

// launchedError says that an API that knows no dry runs has launched instances.
type launchedError struct {
	ids   []string
	ended error // why they may not be ended; nil if they are being ended
}

func (e *launchedError) Error() string {
	if e.ended != nil {
		return fmt.Sprintf("this API knows no dry runs: it launched %s, and does not end them: %v", strings.Join(e.ids, ", "), e.ended)
	}
	return fmt.Sprintf("this API knows no dry runs: it launched %s, which are being ended", strings.Join(e.ids, ", "))
}

func (e *launchedError) Unwrap() error { return e.ended }

// dryLaunch makes the dry run of a launch. Of an API that knows none it ends what was launched, which is a *launchedError.
func (a *accountChecks) dryLaunch(ctx context.Context, launch *ec2.RunInstancesInput) error {
	launched, err := a.c.api.RunInstances(ctx, launch)
	if err != nil || len(launched.Instances) == 0 {
		return err
	}
	e := &launchedError{}
	for _, i := range launched.Instances {
		e.ids = append(e.ids, aws.ToString(i.InstanceId))
	}
	_, e.ended = a.c.api.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: e.ids})
	return e
}

// offered returns the launches that may be tried, by type in their order: in each subnet of the cells where the type is offered.
func (a *accountChecks) offered(sells map[sold]bool) (all []try) {
	for _, name := range a.wanted.DryRun {
		for _, id := range slices.Sorted(maps.Keys(a.net.subnets)) {
			if zone := a.net.subnets[id].zone; sells[sold{name, zone}] {
				all = append(all, try{instanceType: name, zone: zone, subnet: id})
			}
		}
	}
	return all
}
