package aws

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// ownedResources finds what Kip has beside instances, and deletes it.
type ownedResources struct {
	*base
	volumes *volumes
	caches  *caches
}

// ListOwned implements cloud.OwnedResources: the network interfaces, which end with their
// instances unless EC2 fails to, and the security group of the cells.
func (e *ownedResources) ListOwned(ctx context.Context, owner string) ([]cloud.OwnedResource, error) {
	if owner == "" {
		return nil, refused("owner is empty: want the value of tag %s", cloud.TagOwner)
	}
	all, err := e.partsWith(ctx, filter("tag:"+cloud.TagOwner, owner))
	if err != nil {
		return nil, fmt.Errorf("list what %s has beside instances: %w", owner, err)
	}
	return all, nil
}

// partsWith returns the network interfaces and the security groups that match.
func (e *ownedResources) partsWith(ctx context.Context, tags types.Filter) (all []cloud.OwnedResource, err error) {
	interfaces := ec2.NewDescribeNetworkInterfacesPaginator(e.api, &ec2.DescribeNetworkInterfacesInput{
		Filters:    []types.Filter{tags},
		MaxResults: aws.Int32(pageSize),
	})
	err = eachPage(ctx, interfaces, func(page *ec2.DescribeNetworkInterfacesOutput) {
		for _, i := range page.NetworkInterfaces {
			part := cloud.OwnedResource{
				ID:   aws.ToString(i.NetworkInterfaceId),
				Kind: "network interface",
				Zone: aws.ToString(i.AvailabilityZone),
				Tags: mapOf(i.TagSet),
			}
			if i.Attachment != nil {
				part.Instance = aws.ToString(i.Attachment.InstanceId)
			}
			all = append(all, part)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read network interfaces: %w", err)
	}
	groups, err := e.groupsWith(ctx, tags)
	return append(all, groups...), err
}

// groupsWith returns the security groups that match.
func (e *ownedResources) groupsWith(ctx context.Context, tags types.Filter) (all []cloud.OwnedResource, err error) {
	pages := ec2.NewDescribeSecurityGroupsPaginator(e.api, &ec2.DescribeSecurityGroupsInput{
		Filters:    []types.Filter{tags},
		MaxResults: aws.Int32(pageSize),
	})
	err = eachPage(ctx, pages, func(page *ec2.DescribeSecurityGroupsOutput) {
		for _, g := range page.SecurityGroups {
			all = append(all, cloud.OwnedResource{ID: aws.ToString(g.GroupId), Kind: "security group", Tags: mapOf(g.Tags)})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read security groups: %w", err)
	}
	return all, nil
}

// ListOwners implements cloud.Owners.
func (e *ownedResources) ListOwners(ctx context.Context) ([]cloud.Owner, error) {
	owned := filter("tag-key", cloud.TagOwner)
	instances, err := e.describe(ctx, &ec2.DescribeInstancesInput{Filters: []types.Filter{owned, living}, MaxResults: aws.Int32(pageSize)})
	if err != nil {
		return nil, fmt.Errorf("list the instances of every Kip: %w", err)
	}
	parts, err := e.partsWith(ctx, owned)
	if err != nil {
		return nil, fmt.Errorf("list what every Kip has beside instances: %w", err)
	}
	volumes, err := e.volumes.volumes(ctx, owned, filter("tag-key", tagDisk), existing)
	if err != nil {
		return nil, fmt.Errorf("list the disks of every Kip: %w", err)
	}
	disks := make([]cloud.Disk, len(volumes))
	for n, v := range volumes {
		disks[n] = diskOf(v)
	}
	return cloud.ByOwner(instances, parts, disks), nil
}

// mapOf are tags in Kip's words.
func mapOf(tags []types.Tag) map[string]string {
	all := map[string]string{}
	for _, t := range tags {
		all[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return all
}

// DeleteOwned implements cloud.OwnedResources.
func (e *ownedResources) DeleteOwned(ctx context.Context, ids ...string) cloud.Results {
	results := cloud.Each(nil, ids...)
	for n, id := range ids {
		if n > 0 && errors.Is(results[n-1].Err, cloud.ErrThrottled) {
			results[n].Err = results[n-1].Err // EC2 wants fewer calls
			continue
		}
		var err error
		if strings.HasPrefix(id, "sg-") {
			e.caches.forget()
			_, err = e.api.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: aws.String(id)})
		} else {
			_, err = e.api.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(id)})
		}
		if code := codeOf(err); err != nil && code != codeNoGroup && code != "InvalidNetworkInterfaceID.NotFound" {
			results[n].Err = fmt.Errorf("delete %s: %w", id, classify(err, cloud.Scope{}))
		}
	}
	return results
}
