package eks

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud/aws/images"
)

// architectures are EC2's words, and Kip's.
var architectures = map[string]string{string(types.ArchitectureTypeX8664): "amd64", string(types.ArchitectureTypeArm64): "arm64"}

// Images are the boot images that the account has by a name, or by an ID: the newest of each architecture, in Kip's words.
func (a *Account) Images(ctx context.Context, spec string) (map[string]string, error) {
	in := &ec2.DescribeImagesInput{IncludeDeprecated: aws.Bool(true)}
	if strings.HasPrefix(spec, "ami-") {
		in.Filters = []types.Filter{filter("image-id", spec)}
	} else {
		in.Owners, in.Filters = []string{"self"}, []types.Filter{filter("name", spec), filter("state", "available")}
	}
	out, err := a.ec2.DescribeImages(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("find the boot images %s: %w", spec, explain(err, a.Region))
	}
	slices.SortFunc(out.Images, func(x, y types.Image) int {
		return cmp.Compare(aws.ToString(x.CreationDate), aws.ToString(y.CreationDate))
	})
	found := map[string]string{}
	for _, i := range out.Images {
		found[cmp.Or(architectures[string(i.Architecture)], string(i.Architecture))] = aws.ToString(i.ImageId)
	}
	return found, nil
}

// Architecture is that of an instance type, in Kip's words.
func (a *Account) Architecture(ctx context.Context, instanceType string) (string, error) {
	pages := ec2.NewDescribeInstanceTypesPaginator(a.ec2, &ec2.DescribeInstanceTypesInput{
		InstanceTypes: []types.InstanceType{types.InstanceType(instanceType)},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if codeOf(err) == "InvalidInstanceType" {
			return "", fmt.Errorf("EC2 has no instance type %q in %s", instanceType, a.Region)
		}
		if err != nil {
			return "", fmt.Errorf("describe the instance type %s: %w", instanceType, explain(err, a.Region))
		}
		for _, t := range page.InstanceTypes {
			for _, arch := range t.ProcessorInfo.SupportedArchitectures {
				if string(t.InstanceType) == instanceType && architectures[string(arch)] != "" {
					return architectures[string(arch)], nil
				}
			}
		}
	}
	return "", fmt.Errorf("EC2 has no instance type %q in %s that is for amd64 or arm64", instanceType, a.Region)
}

// Publish uploads a boot image, as kipctl image publish does, and returns its ID. It waits by pause.
func (a *Account) Publish(ctx context.Context, image images.Image, say func(format string, args ...any),
	pause func(context.Context, time.Duration) error,
) (string, error) {
	p, err := images.New(ctx, images.Config{Region: a.Region, Say: say, Pause: pause})
	if err != nil {
		return "", err
	}
	return p.Publish(ctx, image)
}
