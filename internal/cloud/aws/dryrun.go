package aws

import (
	"cmp"
	"context"
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
		Token:    doctorsOwner,
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

// dryRun asks EC2 whether it would launch an instance of the type. EC2 says so of the caller's rights, not of capacity. Source: EC2 API
// reference, "RunInstances", DryRun.
func (a *accountChecks) dryRun(ctx context.Context) []finding.Finding {
	name := a.wanted.DryRun
	list := a.command("describe-instance-type-offerings --location-type availability-zone --filters Name=instance-type,Values=%s", name)
	if a.net == nil {
		return only(finding.Unchecked("a launch of %s: the subnet of the cells is not known", name))
	}
	out, err := a.c.api.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{
		InstanceTypes: []types.InstanceType{types.InstanceType(name)},
	})
	if codeOf(err) == "InvalidInstanceType" {
		return only(finding.Fail(list, "EC2 has no type %q in %s", name, a.c.cfg.Region))
	}
	offered, unlisted := a.c.readOfferings(ctx)
	groups, ungrouped := a.c.groupIDs(ctx, a.net.vpc, a.wanted.SecurityGroups)
	for what, err := range map[string]error{"read the instance type " + name: err, "list what EC2 offers where": unlisted,
		"find the security groups": ungrouped} {
		if err != nil {
			return only(a.unanswered(what, err))
		}
	}
	var boot image
	has := false
	for _, t := range out.InstanceTypes {
		if one, fits := typeOf(t); fits && string(t.InstanceType) == name {
			if boot, has = a.images[one.Arch]; !has {
				return only(finding.Unchecked("a launch of %s: there is no image for %s", name, one.Arch))
			}
		}
	}
	if !has {
		return only(finding.Fail(list, "%s can be no cell, which is of the Nitro system and boots by UEFI", name))
	}
	subnets := slices.Sorted(maps.Keys(a.net.subnets))
	n := slices.IndexFunc(subnets, func(id string) bool { return offered[sold{name, a.net.subnets[id].zone}] })
	if n < 0 {
		return only(finding.Fail(list, "EC2 offers %s in no zone of the cells' subnets %s", name, strings.Join(subnets, ", ")))
	}
	zone := a.net.subnets[subnets[n]].zone
	_, err = a.c.api.RunInstances(ctx, a.launch(name, subnets[n], boot, groups))
	switch cause := cloud.CauseOf(classify(err, cloud.Scope{})); {
	case codeOf(err) == codeDry:
		return only(finding.Fine("EC2 would launch a %s in %s: a dry run, which asks for rights and not for capacity", name, zone))
	case err == nil:
		return only(finding.Unchecked("a launch of %s: this API knows no dry runs", name))
	case cause == cloud.ErrCapacity, cause == cloud.ErrQuota, cause == cloud.ErrUnfit, cause == cloud.ErrRefused:
		return only(finding.Fail(list, "EC2 refuses a dry run of a launch of %s in %s: %v", name, zone, err))
	}
	return only(a.unanswered("dry-run ec2:RunInstances of "+name, err))
}
