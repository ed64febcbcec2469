package aws

import (
	"cmp"
	"context"
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

// dryRun asks EC2 whether it would launch an instance of the first of the types that it offers in a zone of the cells. EC2 says so of the
// caller's rights, not of capacity. Source: EC2 API reference, "RunInstances", DryRun.
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
	name, subnet := a.offered(offered)
	if name == "" {
		return only(finding.Fail(list, "EC2 offers none of %s in a zone of the cells' subnets %s", wanted,
			strings.Join(slices.Sorted(maps.Keys(a.net.subnets)), ", ")))
	}
	groups, err := a.c.groupIDs(ctx, a.net.vpc, a.wanted.SecurityGroups)
	if err != nil {
		return only(a.unanswered("find the security groups", err))
	}
	out, err := a.c.api.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{
		InstanceTypes: []types.InstanceType{types.InstanceType(name)},
	})
	if err != nil {
		return only(a.unanswered("read the instance type "+name, err))
	}
	n := slices.IndexFunc(out.InstanceTypes, func(t types.InstanceTypeInfo) bool { return string(t.InstanceType) == name })
	if n < 0 {
		return only(finding.Unchecked("a launch of %s: EC2 does not describe it", name))
	}
	one, fits := typeOf(out.InstanceTypes[n])
	boot, has := a.images[one.Arch]
	switch {
	case !fits:
		return only(finding.Fail(list, "%s can be no cell, which is of the Nitro system and boots by UEFI", name))
	case !has:
		return only(finding.Unchecked("a launch of %s: there is no image for %s", name, one.Arch))
	}
	zone := a.net.subnets[subnet].zone
	err = a.dryLaunch(ctx, a.launch(name, subnet, boot, groups))
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

// offered returns the first of the types whose launch is tried that is offered where a subnet of the cells is, and that subnet.
func (a *accountChecks) offered(all map[sold]bool) (instanceType, subnet string) {
	for _, name := range a.wanted.DryRun {
		for _, id := range slices.Sorted(maps.Keys(a.net.subnets)) {
			if all[sold{name, a.net.subnets[id].zone}] {
				return name, id
			}
		}
	}
	return "", ""
}
