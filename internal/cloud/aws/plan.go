package aws

import (
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// terms are how EC2 sells a type.
type terms struct {
	onDemand, spot bool
}

// termsOf returns those of a type. Other types than these two are sold in Capacity Blocks alone, into which only a
// reservation leads. A list that is not there says nothing. Source: EC2 API reference, "InstanceTypeInfo".
func termsOf(t types.InstanceTypeInfo) terms {
	all := t.SupportedUsageClasses
	return terms{
		onDemand: len(all) == 0 || slices.Contains(all, types.UsageClassTypeOnDemand),
		spot:     len(all) == 0 || slices.Contains(all, types.UsageClassTypeSpot),
	}
}
