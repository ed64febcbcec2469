package aws

import (
	"cmp"
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// runInstances is the one call of a launch. It says all that costs money or is a right, so
// that no default of an account or an image decides on it.
func runInstances(r cloud.LaunchRequest) *ec2.RunInstancesInput {
	in := &ec2.RunInstancesInput{
		ClientToken:  aws.String(r.Token),
		MinCount:     aws.Int32(1),
		MaxCount:     aws.Int32(int32(min(len(r.Machines), cmp.Or(r.Resolved.AtMost, cloud.MaxLaunch)))),
		InstanceType: types.InstanceType(r.InstanceType),
		ImageId:      aws.String(r.Resolved.Image),
		UserData:     aws.String(base64.StdEncoding.EncodeToString(r.UserDataOf(0))),
		BlockDeviceMappings: []types.BlockDeviceMapping{{
			DeviceName: aws.String(r.Resolved.RootDevice),
			Ebs: &types.EbsBlockDevice{
				VolumeType:          types.VolumeTypeGp3,
				VolumeSize:          aws.Int32(int32((max(r.RootDiskBytes, r.Resolved.RootDiskBytes) + gib - 1) / gib)),
				Encrypted:           aws.Bool(true),
				DeleteOnTermination: aws.Bool(true),
			},
		}},
		NetworkInterfaces: []types.InstanceNetworkInterfaceSpecification{nic(r)},
		// A cell that shuts itself down has ended.
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		MetadataOptions: &types.InstanceMetadataOptionsRequest{
			HttpEndpoint:            types.InstanceMetadataEndpointStateEnabled,
			HttpTokens:              types.HttpTokensStateRequired,
			HttpPutResponseHopLimit: aws.Int32(hops(r)),
			// The tags name the pod, and whoever else the bill is for.
			InstanceMetadataTags: types.InstanceMetadataTagsStateDisabled,
		},
		TagSpecifications: tagSpecifications(r),
	}
	if rate := r.Resolved.RootDiskInitRate; rate > 0 {
		in.BlockDeviceMappings[0].Ebs.VolumeInitializationRate = aws.Int32(rate)
	}
	if key := r.Resolved.Key; key != "" {
		in.BlockDeviceMappings[0].Ebs.KmsKeyId = aws.String(key)
	}
	if burstable(r.InstanceType) {
		in.CreditSpecification = &types.CreditSpecificationRequest{CpuCredits: aws.String(r.Resolved.CPUCredits)}
	}
	switch {
	case isHost(r.Reservation):
		in.Placement = &types.Placement{Tenancy: types.TenancyHost, HostId: aws.String(r.Reservation)}
	case r.CapacityType == cloud.Dedicated:
		in.Placement = &types.Placement{Tenancy: types.TenancyDedicated}
	}
	switch profile := r.InstanceProfile; {
	case strings.HasPrefix(profile, "arn:"):
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Arn: aws.String(profile)}
	case profile != "":
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String(profile)}
	}
	if r.Reservation != "" && !isHost(r.Reservation) {
		in.CapacityReservationSpecification = &types.CapacityReservationSpecification{
			CapacityReservationTarget: &types.CapacityReservationTarget{CapacityReservationId: aws.String(r.Reservation)},
		}
	}
	if r.Resolved.CapacityBlock {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeCapacityBlock}
	}
	if r.Spot() {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{
			MarketType: types.MarketTypeSpot,
			SpotOptions: &types.SpotMarketOptions{
				SpotInstanceType:             types.SpotInstanceTypeOneTime,
				InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate,
			},
		}
	}
	return in
}

// hops is how far answers of the metadata service travel: one hop ends on the machine,
// two reach a pod that may have them.
func hops(r cloud.LaunchRequest) int32 {
	if r.AllowMetadata {
		return 2
	}
	return 1
}

// tagSpecifications put the tags on all that a launch makes.
func tagSpecifications(r cloud.LaunchRequest) (all []types.TagSpecification) {
	made := []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume, types.ResourceTypeNetworkInterface}
	if r.Spot() {
		made = append(made, types.ResourceTypeSpotInstancesRequest)
	}
	for _, kind := range made {
		all = append(all, types.TagSpecification{ResourceType: kind, Tags: tagsOf(launchTags(r))})
	}
	return all
}

// cut bounds the values of tags for people, rather than have all of them refused.
func cut(tags []types.Tag) []types.Tag {
	for i, t := range tags {
		if text := []rune(aws.ToString(t.Value)); len(text) > maxTagValue {
			tags[i].Value = aws.String(string(text[:maxTagValue]))
		}
	}
	return tags
}

// tagsOf are tags in EC2's words, in an order of their own: what is sent again must be the
// same.
func tagsOf(tags map[string]string) (all []types.Tag) {
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, types.Tag{Key: aws.String(k), Value: aws.String(tags[k])})
	}
	return all
}
