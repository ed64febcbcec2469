package aws

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// maxHosts is the most that a page of DescribeHosts has (EC2 API reference, "DescribeHosts").
const maxHosts = 500

// isHost says that what a launch is into is a Dedicated Host, by the form of its ID.
func isHost(reservation string) bool { return strings.HasPrefix(reservation, "h-") }

// uselessHost says why no cell can be launched onto a host; "" where one can.
func uselessHost(h types.Host) string {
	switch {
	case h.State != types.AllocationStateAvailable:
		return fmt.Sprintf("it is %s", h.State)
	case aws.ToBool(h.MemberOfServiceLinkedResourceGroup):
		return "it is in a host resource group, which places instances by itself"
	case aws.ToString(h.OutpostArn) != "":
		return "it is on an Outpost"
	}
	return ""
}

// eachHost reads the Dedicated Hosts that are configured, and why one is of no use. A host has room for
// some of each of its types, which share it.
func (e *reservations) eachHost(ctx context.Context, do func(r *reservation, useless string)) error {
	pages := ec2.NewDescribeHostsPaginator(e.api, &ec2.DescribeHostsInput{MaxResults: aws.Int32(maxHosts)})
	err := eachPage(ctx, pages, func(page *ec2.DescribeHostsOutput) {
		for _, h := range page.Hosts {
			if !e.cfg.Hosts.has(aws.ToString(h.HostId), h.Tags) {
				continue
			}
			one := &reservation{
				id:        aws.ToString(h.HostId),
				zone:      aws.ToString(h.AvailabilityZone),
				dedicated: true,
				prepaid:   true,
				free:      map[string]int{},
			}
			if h.AvailableCapacity != nil {
				for _, room := range h.AvailableCapacity.AvailableInstanceCapacity {
					if e.cfg.CPUCredits == creditsUnlimited && burstable(aws.ToString(room.InstanceType)) {
						continue // there they have standard ones alone, and pods may need more
					}
					one.free[aws.ToString(room.InstanceType)] = int(aws.ToInt32(room.AvailableCapacity))
				}
			}
			do(one, uselessHost(h))
		}
	})
	if err != nil {
		return fmt.Errorf("read the dedicated hosts: %w", err)
	}
	return nil
}
