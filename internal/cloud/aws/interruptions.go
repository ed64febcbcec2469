package aws

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// spotNotice is how long a spot instance that is marked goes on (EC2 User Guide, "Spot
// Instance interruption notices").
const spotNotice = 2 * time.Minute

// marked is the status of a spot request whose instance is about to be terminated (EC2
// User Guide, "Spot request status codes").
const marked = "marked-for-termination"

const (
	// lookTimeout bounds one look, so that several fit within the notice.
	lookTimeout = 20 * time.Second
	// looksTold is after how many looks in a row that fail this is told, again and again.
	looksTold = 3
)

// Interruptions implements cloud.Interrupter. It asks for spot requests that are marked,
// which needs no queue and no agent: two or three times within the notice would do. A look
// has no budget but its pace, one at a time: a line behind other calls would eat the notice.
func (c *Cloud) Interruptions(ctx context.Context, notice func(cloud.Interruption)) error {
	every := c.cfg.Clock.NewTicker(c.cfg.InterruptionsEvery)
	defer every.Stop()
	told, failed := map[string]bool{}, 0
	for {
		look, cancel := context.WithTimeout(ctx, lookTimeout)
		now, err := c.interrupted(look)
		cancel()
		switch {
		case err == nil:
			failed = 0
		case ctx.Err() != nil:
			return ctx.Err()
		case cloud.CauseOf(err) != cloud.ErrThrottled && !errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("look for spot instances that are taken back: %w", err)
		default:
			if failed++; failed%looksTold == 0 {
				c.cfg.Log.Warn("look for spot instances that are taken back, retrying", "failed", failed, "err", err)
			}
		}
		seen := map[string]bool{}
		for _, i := range now {
			seen[i.InstanceID] = true
			if !told[i.InstanceID] {
				notice(i)
			}
		}
		if err == nil {
			told = seen
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C():
		}
	}
}

func (c *Cloud) interrupted(ctx context.Context) (all []cloud.Interruption, err error) {
	pages := ec2.NewDescribeSpotInstanceRequestsPaginator(c.api, &ec2.DescribeSpotInstanceRequestsInput{
		Filters:    []types.Filter{filter("tag-key", cloud.TagOwner), filter("status-code", marked)},
		MaxResults: aws.Int32(pageSize),
	})
	err = eachPage(ctx, pages, func(page *ec2.DescribeSpotInstanceRequestsOutput) {
		for _, r := range page.SpotInstanceRequests {
			i := cloud.Interruption{InstanceID: aws.ToString(r.InstanceId), Reason: marked}
			if r.Status != nil {
				i.At = aws.ToTime(r.Status.UpdateTime).Add(spotNotice)
				message := aws.ToString(r.Status.Message)
				i.Reason += ": " + message[:min(len(message), maxMessage)]
			}
			all = append(all, i)
		}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
