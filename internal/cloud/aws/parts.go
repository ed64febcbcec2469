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

// ListParts implements cloud.Parts: the network interfaces, which end with their
// instances unless EC2 fails to, and the security group of the cells.
func (c *Cloud) ListParts(ctx context.Context, owner string) ([]cloud.Part, error) {
	if owner == "" {
		return nil, refused("owner is empty: want the value of tag %s", cloud.TagOwner)
	}
	var all []cloud.Part
	pages := ec2.NewDescribeNetworkInterfacesPaginator(c.api, &ec2.DescribeNetworkInterfacesInput{
		Filters:    []types.Filter{filter("tag:"+cloud.TagOwner, owner)},
		MaxResults: aws.Int32(pageSize),
	})
	err := eachPage(ctx, pages, func(page *ec2.DescribeNetworkInterfacesOutput) {
		for _, i := range page.NetworkInterfaces {
			part := cloud.Part{
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
		return nil, fmt.Errorf("list the network interfaces of %s: %w", owner, err)
	}
	return c.listGroups(ctx, owner, all)
}

// listGroups adds the groups of an owner to its parts.
func (c *Cloud) listGroups(ctx context.Context, owner string, all []cloud.Part) ([]cloud.Part, error) {
	pages := ec2.NewDescribeSecurityGroupsPaginator(c.api, &ec2.DescribeSecurityGroupsInput{
		Filters:    []types.Filter{filter("tag:"+cloud.TagOwner, owner)},
		MaxResults: aws.Int32(pageSize),
	})
	err := eachPage(ctx, pages, func(page *ec2.DescribeSecurityGroupsOutput) {
		for _, g := range page.SecurityGroups {
			all = append(all, cloud.Part{ID: aws.ToString(g.GroupId), Kind: "security group", Tags: mapOf(g.Tags)})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the security groups of %s: %w", owner, err)
	}
	return all, nil
}

// mapOf are tags in Kip's words.
func mapOf(tags []types.Tag) map[string]string {
	all := map[string]string{}
	for _, t := range tags {
		all[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return all
}

// DeleteParts implements cloud.Parts.
func (c *Cloud) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	results := cloud.Each(nil, ids...)
	for n, id := range ids {
		if n > 0 && errors.Is(results[n-1].Err, cloud.ErrThrottled) {
			results[n].Err = results[n-1].Err // EC2 wants fewer calls
			continue
		}
		var err error
		if strings.HasPrefix(id, "sg-") {
			c.forget()
			_, err = c.api.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: aws.String(id)})
		} else {
			_, err = c.api.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(id)})
		}
		if code := codeOf(err); err != nil && code != codeNoGroup && code != "InvalidNetworkInterfaceID.NotFound" {
			results[n].Err = fmt.Errorf("delete %s: %w", id, classify(err, cloud.Scope{}))
		}
	}
	return results
}
