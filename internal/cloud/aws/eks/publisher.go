package eks

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"

	"github.com/elotl/kip/internal/cloud/aws/images"
)

// CheckPublisher says why the caller may not publish a boot image that the account does not have. What IAM does not say is a note.
func (a *Account) CheckPublisher(ctx context.Context, i images.Image) (f Findings) {
	unchecked := func(why any) { f.note("not checked: whether you, %s, may publish the boot image: %v", a.Caller, why) }
	source, err := a.callerInIAM(ctx)
	switch {
	case err != nil:
		unchecked(err)
		return f
	case source == "": // the account itself
		return f
	}
	probes := a.publishing(i)
	judged, err := a.simulated(ctx, Role{ARN: source}, probes)
	if err != nil {
		unchecked(err)
		return f
	}
	if lacking, _, _ := compare(probes, judged); len(lacking) > 0 {
		f.problem("you, %s, lack rights to publish the boot image:\n%s\nAsk for the policy deploy/aws/boot-image-policy.json (docs/boot-image.md#on-ec2), or "+
			"have somebody publish it who has these rights: kipctl image publish --region %s --arch %s\nIAM "+
			"simulates neither policies of a session nor all conditions. If you have the rights, leave this check out: --skip-rights",
			a.Caller, Listed(lacking), a.Region, i.Arch)
	}
	return f
}

// callerInIAM is the ARN of the user or the role that asks, as IAM takes it; "" for the account's root user, who may do all. STS tells
// a role without its path.
func (a *Account) callerInIAM(ctx context.Context) (string, error) {
	parts := strings.SplitN(a.Caller, ":", 6)
	if len(parts) < 6 {
		return "", fmt.Errorf("%q is no ARN", a.Caller)
	}
	kind, name, _ := strings.Cut(parts[5], "/")
	switch kind {
	case "root":
		return "", nil
	case "user":
		return a.Caller, nil
	case "assumed-role":
		name, _, _ = strings.Cut(name, "/")
		out, err := a.iam.GetRole(ctx, &iam.GetRoleInput{RoleName: aws.String(name)})
		if err != nil {
			return "", fmt.Errorf("get the role %s: %w", name, err)
		}
		return aws.ToString(out.Role.Arn), nil
	}
	return "", fmt.Errorf("IAM simulates for users and roles, and not for %s", kind)
}

// publishing are the calls that publish an image, with the statements of docs/boot-image.md that allow them. Those that remove what is
// older are not among them.
func (a *Account) publishing(i images.Image) []probe {
	about := func(key string) map[string][]string {
		return map[string][]string{key + images.TagArch: {i.Kind()}, "aws:RequestedRegion": {a.Region}}
	}
	const request, resource = "aws:RequestTag/", "aws:ResourceTag/"
	snapshot := strings.Join([]string{"arn", a.partition, "ec2", a.Region, "", "snapshot/snap-0123456789abcdef0"}, ":")
	image := strings.Join([]string{"arn", a.partition, "ec2", a.Region, "", "image/ami-0123456789abcdef0"}, ":")
	tagsImage := about(request)
	tagsImage["ec2:CreateAction"] = []string{"RegisterImage"}
	return []probe{
		{"Looks", "ec2:DescribeImages", "*", false, about(request)},
		{"Looks", "ec2:DescribeSnapshots", "*", false, about(request)},
		{"BeginsSnapshots", "ebs:StartSnapshot", snapshot, false, about(request)},
		{"WritesAndRemovesItsOwn", "ebs:PutSnapshotBlock", snapshot, false, about(resource)},
		{"WritesAndRemovesItsOwn", "ebs:CompleteSnapshot", snapshot, false, about(resource)},
		{"WritesAndRemovesItsOwn", "ec2:RegisterImage", snapshot, false, about(resource)},
		{"RegistersImages", "ec2:RegisterImage", image, false, about(request)},
		{"TagsImages", "ec2:CreateTags", image, false, tagsImage},
		{"TagsSnapshots", "ec2:CreateTags", snapshot, false, about(request)},
	}
}
