package aws

import (
	"net/netip"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// living are the states of instances that a list shows.
var living = filter("instance-state-name", "pending", "running", "shutting-down", "stopping", "stopped")

// states are EC2's, as far as Kip cares.
var states = map[types.InstanceStateName]cloud.State{
	types.InstanceStateNamePending:      cloud.Pending,
	types.InstanceStateNameRunning:      cloud.Running,
	types.InstanceStateNameShuttingDown: cloud.Terminating,
	types.InstanceStateNameTerminated:   cloud.Gone,
	types.InstanceStateNameStopping:     cloud.Stopping,
	types.InstanceStateNameStopped:      cloud.Stopped,
}

// instanceOf is an instance in Kip's words. What EC2 leaves out stays empty; a state that
// nobody knows is Unknown, which proves nothing.
func instanceOf(i types.Instance) cloud.Instance {
	out := cloud.Instance{
		ID:           aws.ToString(i.InstanceId),
		InstanceType: string(i.InstanceType),
		Subnet:       aws.ToString(i.SubnetId),
		Spot:         i.InstanceLifecycle == types.InstanceLifecycleTypeSpot,
		State:        cloud.Unknown,
		ManagementIP: address(i.PrivateIpAddress),
		PublicIP:     address(i.PublicIpAddress),
		PodIP:        podAddress(i.NetworkInterfaces),
		Launched:     aws.ToTime(i.LaunchTime),
		Tags:         mapOf(i.Tags),
		Owned:        ownedBy(i),
		OwnedLate:    lacksRootDisk(i),
		Origin:       cloud.Origin{Token: aws.ToString(i.ClientToken), Reservation: aws.ToString(i.CapacityReservationId)},
	}
	if i.Placement != nil {
		out.Zone = aws.ToString(i.Placement.AvailabilityZone)
		out.Origin.Dedicated = i.Placement.Tenancy == types.TenancyDedicated || i.Placement.Tenancy == types.TenancyHost
		if i.Placement.Tenancy == types.TenancyHost {
			out.Origin.Reservation = aws.ToString(i.Placement.HostId)
		}
	}
	if i.State != nil && states[i.State.Name] != "" {
		out.State = states[i.State.Name]
	}
	if i.AmiLaunchIndex != nil {
		out.Place = cloud.PlaceOf(int(*i.AmiLaunchIndex))
	}
	// EC2 stops again what it has started without capacity.
	if out.State == cloud.Gone || out.State == cloud.Terminating || out.State == cloud.Stopped {
		asked := cloud.LaunchSpec{InstanceType: out.InstanceType, Zone: out.Zone, Reservation: out.Origin.Reservation}
		if out.Origin.Dedicated {
			asked.CapacityType = cloud.Dedicated
		}
		out.Fault = faultOf(i.StateReason, cloud.Scope{
			InstanceType: out.InstanceType,
			Zone:         out.Zone,
			Spot:         &out.Spot,
			Pool:         asked.Pool(),
		})
	}
	return out
}

func address(text *string) netip.Addr {
	a, err := netip.ParseAddr(aws.ToString(text))
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// podAddress is the pod's of the first interface: its secondary address, or the first one
// of its prefix.
func podAddress(all []types.InstanceNetworkInterface) netip.Addr {
	for _, n := range all {
		if n.Attachment == nil || aws.ToInt32(n.Attachment.DeviceIndex) != 0 {
			continue
		}
		for _, a := range n.PrivateIpAddresses {
			if !aws.ToBool(a.Primary) {
				return address(a.PrivateIpAddress)
			}
		}
		for _, p := range n.Ipv4Prefixes {
			if prefix, err := netip.ParsePrefix(aws.ToString(p.Ipv4Prefix)); err == nil {
				return prefix.Addr()
			}
		}
	}
	return netip.Addr{}
}
