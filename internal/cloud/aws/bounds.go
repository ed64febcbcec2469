package aws

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// bounds reads how many machines fit: by the addresses of subnets and the quotas of the account.
type bounds struct {
	*base
	networks *networks
	quotas   *quotas
}

// Bounds implements cloud.Bounder: the free addresses of the cells' subnets, and the quotas of vCPUs less what others in the account
// run. Source: EC2 API reference, "Subnet": AvailableIpAddressCount counts the addresses of stopped instances as taken.
func (e *bounds) Bounds(ctx context.Context, owner string) (catalog.Bounds, error) {
	b, err := e.bounds(ctx, owner)
	if err != nil {
		return catalog.Bounds{}, fmt.Errorf("read the free addresses of the cells' subnets: %w", err)
	}
	return b, nil
}

func (e *bounds) bounds(ctx context.Context, owner string) (catalog.Bounds, error) {
	n, err := e.networks.where(ctx)
	if err != nil {
		return catalog.Bounds{}, err
	}
	subnets, err := e.networks.readSubnets(ctx)
	if err != nil {
		return catalog.Bounds{}, err
	}
	b := catalog.Bounds{Machines: map[string]int64{}}
	each := int64(addressesOfCell)
	if e.holds(factNoSecondaries) {
		each = addressesWithPrefix
	}
	for _, s := range subnets {
		if _, is := n.subnets[aws.ToString(s.SubnetId)]; is && s.AvailableIpAddressCount != nil {
			b.Machines[*s.SubnetId] = int64(*s.AvailableIpAddressCount) / each
		}
	}
	of := filter("tag:"+cloud.TagOwner, owner)
	own, err := e.describe(ctx, &ec2.DescribeInstancesInput{Filters: []types.Filter{of, living}, MaxResults: aws.Int32(pageSize)})
	if err != nil {
		return catalog.Bounds{}, err
	}
	for _, i := range own {
		if _, known := b.Machines[i.Subnet]; known {
			b.Machines[i.Subnet]++
		}
	}
	b.MilliCPU = e.quotas.readQuotas(ctx)
	for class, milliCPU := range e.quotas.readOthers(ctx, owner) {
		if most, known := b.MilliCPU[class]; known {
			b.MilliCPU[class] = max(0, most-milliCPU)
		}
	}
	return b, nil
}
