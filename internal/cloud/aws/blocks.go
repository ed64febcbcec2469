package aws

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// capacityBlocks finds the instances in Capacity Blocks that end.
type capacityBlocks struct {
	*base
	reservations *reservations
	instances    *instances
}

// lookAtBlocks tells of instances in Capacity Blocks that are about to end. It is worth no more than
// a word where it fails: the next look is in time.
func (w *watch) lookAtBlocks(ctx, look context.Context) {
	e := w.ec2
	if !e.cfg.reserves() {
		return
	}
	var now []cloud.Interruption
	err := w.l.Look(look, func(ctx context.Context) (err error) {
		now, err = e.blocks.inEndingBlocks(ctx)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			e.cfg.Log.Warn("look for Capacity Blocks that end; Kip asks again", "after", e.cfg.MaintenanceEvery, "err", err)
		}
		return
	}
	ending := map[string]bool{}
	for _, i := range now {
		if w.l.Mine != nil && !w.l.Mine(i.InstanceID) {
			continue
		}
		if ending[i.InstanceID] = true; !w.ending[i.InstanceID] {
			w.l.Notify(i)
		}
	}
	w.ending = ending
}

// inEndingBlocks are the cells in Capacity Blocks of which EC2 is about to end the instances.
func (e *capacityBlocks) inEndingBlocks(ctx context.Context) (all []cloud.Interruption, err error) {
	reserved, err := e.reservations.readReservations(ctx)
	if len(reserved) == 0 {
		return nil, err
	}
	if err != nil {
		e.cfg.Log.Warn("some of what is reserved is as it was known before", "err", err)
	}
	now := e.cfg.Clock.Now()
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(reserved)) {
		if r := reserved[id]; r.block && r.until.Sub(now) <= blockLead {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	found, err := e.inReservations(ctx, ids)
	for _, i := range found {
		id := i.Origin.Reservation
		all = append(all, cloud.Interruption{
			InstanceID: i.ID,
			At:         reserved[id].until,
			Reason:     "the Capacity Block " + id + " ends",
			Certain:    true,
		})
	}
	return all, err
}

// inReservations returns the instances in reservations that have not ended. If a zone does not answer, it returns all that EC2
// has shown there before.
func (e *capacityBlocks) inReservations(ctx context.Context, ids []string) (all []cloud.Instance, err error) {
	of := filter("tag-key", cloud.TagOwner)
	some, cancel := partOf(ctx, 3)
	all, whole := e.describe(some, &ec2.DescribeInstancesInput{
		Filters:    []types.Filter{of, filter("capacity-reservation-id", ids...), living},
		MaxResults: aws.Int32(pageSize),
	})
	cancel()
	if whole == nil || !mayBeZones(ctx, whole) {
		return all, whole
	}
	groups, err := e.instances.wantedByZone(ctx, of, func(s sighting) bool { return slices.Contains(ids, s.reservation) || s.at.IsZero() })
	if err != nil {
		return nil, errors.Join(whole, err)
	}
	all, failed, err := e.instances.inZones(ctx, groups)
	if err != nil {
		return nil, err
	}
	known := e.instances.seen.known()
	for _, zone := range failed {
		for _, id := range groups[zone] {
			all = append(all, cloud.Instance{ID: id, Origin: cloud.Origin{Reservation: known[id].reservation}})
		}
	}
	return slices.DeleteFunc(all, func(i cloud.Instance) bool {
		return !slices.Contains(ids, i.Origin.Reservation) || i.State == cloud.Gone || i.State == cloud.Unknown
	}), nil
}
