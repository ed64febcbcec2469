package aws

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
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

// interruptions tells of instances that EC2 takes back.
type interruptions struct {
	*base
	blocks *capacityBlocks
}

// Interruptions implements cloud.Interrupter. It asks for spot requests that are marked,
// which needs no agent: two or three times within the notice would do. A look has a budget of its
// own: a line behind other calls would eat the notice. It asks for maintenance as well.
func (s *interruptions) Interruptions(ctx context.Context, l cloud.Listener) error {
	spot, maintenance := s.cfg.Clock.NewTicker(s.cfg.InterruptionsEvery), s.cfg.Clock.NewTicker(s.cfg.MaintenanceEvery)
	defer spot.Stop()
	defer maintenance.Stop()
	w := watch{
		ec2:  s,
		l:    l,
		told: map[string]bool{},
		soon: map[string]time.Time{},
	}
	if l.Planned != nil {
		for _, id := range l.Planned() {
			w.soon[id] = time.Time{} // told of, at a time that is not known here
		}
	}
	look := func(ctx context.Context) {
		w.lookAtSpot(ctx)
		w.lookAhead(ctx)
	}
	for {
		if err := ctx.Err(); err != nil { // select may choose a ticker that is due as well
			return err
		}
		look(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-spot.C():
			look = w.lookAtSpot
		case <-maintenance.C():
			look = w.lookAhead
		}
	}
}

// watch is what is known of interruptions while one listener hears of them.
type watch struct {
	ec2 *interruptions
	l   cloud.Listener
	// told are the instances that are marked now, soon when those are whose maintenance was told of,
	// and ending those in Capacity Blocks that end.
	told   map[string]bool
	soon   map[string]time.Time
	ending map[string]bool
	// failed and blind are how many of them have failed in a row.
	failed, blind int
}

// lookAhead looks at what is scheduled. Together that takes no longer than a look at spot, which waits
// for it.
func (w *watch) lookAhead(ctx context.Context) {
	look, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	w.lookAtMaintenance(ctx, look)
	w.lookAtBlocks(ctx, look)
}

// lookAtSpot tells of the spot instances that are marked since the last look. One that fails ends
// nothing, whatever EC2 says: rights may come back.
func (w *watch) lookAtSpot(ctx context.Context) {
	e := w.ec2
	look, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var now []cloud.Interruption
	err := w.l.Look(look, func(ctx context.Context) (err error) {
		now, err = e.interrupted(ctx)
		return err
	})
	if err != nil {
		passes := cloud.CauseOf(err) == cloud.ErrThrottled || errors.Is(err, context.DeadlineExceeded)
		w.failed++
		if (w.failed%looksTold == 0 || w.failed == 1 && !passes) && ctx.Err() == nil {
			e.cfg.Log.Warn("look for spot instances that are taken back, retrying", "failed", w.failed, "err", err)
		}
	} else {
		w.failed = 0
	}
	seen := map[string]bool{}
	for _, i := range now {
		if w.l.Mine != nil && !w.l.Mine(i.InstanceID) {
			continue // it may be one whose launch is not known yet
		}
		seen[i.InstanceID] = true
		if !w.told[i.InstanceID] {
			w.l.Notify(i)
		}
	}
	if err == nil {
		w.told = seen
	}
}

func (s *interruptions) interrupted(ctx context.Context) (all []cloud.Interruption, err error) {
	pages := ec2.NewDescribeSpotInstanceRequestsPaginator(s.api, &ec2.DescribeSpotInstanceRequestsInput{
		Filters:    []types.Filter{filter("tag-key", cloud.TagOwner), filter("status-code", marked)},
		MaxResults: aws.Int32(pageSize),
	})
	err = eachPage(ctx, pages, func(page *ec2.DescribeSpotInstanceRequestsOutput) {
		now, told := middleware.GetServerTime(page.ResultMetadata)
		for _, r := range page.SpotInstanceRequests {
			i := cloud.Interruption{InstanceID: aws.ToString(r.InstanceId), Reason: marked}
			if r.Status != nil {
				i.At = aws.ToTime(r.Status.UpdateTime).Add(spotNotice)
				if told {
					i.Left = cmp.Or(i.At.Sub(now), -1)
				}
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
