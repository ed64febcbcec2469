package aws

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// ListParts implements cloud.Parts: the network interfaces, which end with their
// instances unless EC2 fails to.
func (c *Cloud) ListParts(ctx context.Context, owner string) ([]cloud.Part, error) {
	if owner == "" {
		return nil, refused("owner is empty: want the value of tag %s", cloud.TagOwner)
	}
	var all []cloud.Part
	pages := ec2.NewDescribeNetworkInterfacesPaginator(c.api, &ec2.DescribeNetworkInterfacesInput{
		Filters:    []types.Filter{filter("tag:"+cloud.TagOwner, owner)},
		MaxResults: aws.Int32(pageSize),
	})
	for n := 0; pages.HasMorePages(); n++ {
		if n == maxPages {
			return nil, errTooLong
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the network interfaces of %s: %w", owner, classify(err, cloud.Scope{}))
		}
		for _, i := range page.NetworkInterfaces {
			part := cloud.Part{
				ID:   aws.ToString(i.NetworkInterfaceId),
				Kind: "network interface",
				Zone: aws.ToString(i.AvailabilityZone),
				Tags: map[string]string{},
			}
			if i.Attachment != nil {
				part.Instance = aws.ToString(i.Attachment.InstanceId)
			}
			for _, t := range i.TagSet {
				part.Tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
			}
			all = append(all, part)
		}
	}
	return all, nil
}

// DeleteParts implements cloud.Parts.
func (c *Cloud) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	results := cloud.Each(nil, ids...)
	for n, id := range ids {
		_, err := c.api.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(id)})
		if err != nil && codeOf(err) != "InvalidNetworkInterfaceID.NotFound" {
			results[n].Err = fmt.Errorf("delete network interface %s: %w", id, classify(err, cloud.Scope{}))
		}
	}
	return results
}
