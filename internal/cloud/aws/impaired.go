package aws

import (
	"context"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Impaired implements cloud.Checkup, for the whole account: no filter of this call knows tags, and
// one that names an instance which has gone is refused whole.
func (c *Cloud) Impaired(ctx context.Context) ([]string, error) {
	impaired := map[string]bool{}
	// EC2 shows what passes all filters of a call: of the machine, or of its host, are two questions.
	for _, check := range []string{"instance-status.status", "system-status.status"} {
		pages := ec2.NewDescribeInstanceStatusPaginator(c.api, &ec2.DescribeInstanceStatusInput{
			Filters:    []types.Filter{filter(check, string(types.SummaryStatusImpaired))},
			MaxResults: aws.Int32(pageSize),
		})
		if err := eachPage(ctx, pages, func(page *ec2.DescribeInstanceStatusOutput) {
			for _, status := range page.InstanceStatuses {
				impaired[aws.ToString(status.InstanceId)] = true
			}
		}); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(impaired)), nil
}
