package aws

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// Sizes of calls. Sources: EC2 API reference (2016-11-15), "DescribeInstances" (MaxResults
// at most 1,000; 200 values a filter, of "Filter your resources"), "TerminateInstances"
// (at most 1,000, and fewer are recommended).
const (
	pageSize      = 1000
	filterValues  = 200
	idsCall       = filterValues // the IDs of one description are a filter's values too
	instancesCall = 500
	// maxPages bounds what is read of one list: a million things.
	maxPages = 1000
)

// filter is one of a describing call.
func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

var errTooLong = fmt.Errorf("the answer has no end: more than %d pages", maxPages)

// paginator is one of the SDK's.
type paginator[Answer any] interface {
	HasMorePages() bool
	NextPage(context.Context, ...func(*ec2.Options)) (Answer, error)
}

// eachPage hands on all pages of an answer. Its error is classified.
func eachPage[Answer any](ctx context.Context, pages paginator[Answer], take func(Answer)) error {
	for n := 0; pages.HasMorePages(); n++ {
		if n == maxPages {
			return classify(errTooLong, cloud.Scope{})
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return classify(err, cloud.Scope{})
		}
		take(page)
	}
	return nil
}
