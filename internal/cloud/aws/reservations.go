package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

const (
	// reservationsEvery is how often is read what is free of reservations.
	reservationsEvery = 5 * time.Minute
	// blockNotice is how long before the end of a Capacity Block EC2 begins to terminate its
	// instances (EC2 User Guide, "Capacity Blocks for ML").
	blockNotice = 30 * time.Minute
	// blockLead is how long before that an instance of it counts as taken back, and nothing is
	// launched into it any more. With a look each five minutes that is ten minutes' notice.
	blockLead = 15 * time.Minute
)

// reservation is capacity that the account pays for whether it is used or not, as EC2 told it last.
type reservation struct {
	id, instanceType, zone string
	dedicated              bool
	block                  bool      // a Capacity Block
	until                  time.Time // when EC2 begins to end the instances of a block; zero of others
	free                   int       // for so many instances more, less those that were launched since
}

// reserves says that some reservations are configured.
func (cfg *Config) reserves() bool { return len(cfg.ReservationIDs)+len(cfg.ReservationTags) > 0 }

// names says whether a reservation is configured.
func (cfg *Config) names(r types.CapacityReservation) bool {
	if slices.Contains(cfg.ReservationIDs, aws.ToString(r.CapacityReservationId)) {
		return true
	}
	for key, value := range cfg.ReservationTags {
		if !slices.ContainsFunc(r.Tags, func(t types.Tag) bool { return aws.ToString(t.Key) == key && aws.ToString(t.Value) == value }) {
			return false
		}
	}
	return len(cfg.ReservationTags) > 0
}

// useless says why no cell can be launched into a reservation; "" where one can.
func useless(r types.CapacityReservation) string {
	switch {
	case r.InstancePlatform != types.CapacityReservationInstancePlatformLinuxUnix:
		return fmt.Sprintf("its platform is %s: want %s", r.InstancePlatform, types.CapacityReservationInstancePlatformLinuxUnix)
	case aws.ToString(r.PlacementGroupArn) != "":
		return "it is in a cluster placement group, in which Kip launches nothing"
	case aws.ToString(r.OutpostArn) != "":
		return "it is on an Outpost"
	case aws.ToBool(r.Interruptible):
		return "it is interruptible, and its owner would end cells"
	}
	return ""
}

// readReservations reads those that are configured, active and of use. What is configured and is
// not, is told where that has changed.
func (c *Cloud) readReservations(ctx context.Context) (map[string]*reservation, error) {
	found, seen := map[string]*reservation{}, map[string]bool{}
	var not []string
	pages := ec2.NewDescribeCapacityReservationsPaginator(c.api, &ec2.DescribeCapacityReservationsInput{
		Filters:    []types.Filter{filter("state", "active")},
		MaxResults: aws.Int32(pageSize),
	})
	err := eachPage(ctx, pages, func(page *ec2.DescribeCapacityReservationsOutput) {
		for _, r := range page.CapacityReservations {
			if !c.cfg.names(r) {
				continue
			}
			one := &reservation{
				id:           aws.ToString(r.CapacityReservationId),
				instanceType: aws.ToString(r.InstanceType),
				zone:         aws.ToString(r.AvailabilityZone),
				dedicated:    r.Tenancy == types.CapacityReservationTenancyDedicated,
				block:        r.ReservationType == types.CapacityReservationTypeCapacityBlock,
				free:         int(aws.ToInt32(r.AvailableInstanceCount)),
			}
			if one.block {
				one.until = aws.ToTime(r.EndDate).Add(-blockNotice)
			}
			if seen[one.id] = true; useless(r) != "" {
				not = append(not, one.id+": "+useless(r))
				continue
			}
			found[one.id] = one
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the capacity reservations: %w", err)
	}
	for _, id := range c.cfg.ReservationIDs {
		if !seen[id] {
			not = append(not, id+": EC2 shows none that is active")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if told := strings.Join(not, "; "); told != c.uselessTold {
		c.uselessTold = told
		c.cfg.Log.Warn("capacity reservations that cells are not launched into", "reservations", told)
	}
	c.reserved = found
	return found, nil
}

// launchable says that instances can be launched into it that are not ended at once.
func (r *reservation) launchable(now time.Time) bool {
	return r.free > 0 && (r.until.IsZero() || r.until.Sub(now) > blockLead)
}

// withReserved returns types with the offerings of reservations, in each subnet of their zones. The
// types are not changed.
func (c *Cloud) withReserved(all []catalog.InstanceType, n *network) []catalog.InstanceType {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	reserved := c.reserved
	all = slices.Clone(all)
	for _, id := range slices.Sorted(maps.Keys(reserved)) {
		r := reserved[id]
		at := slices.IndexFunc(all, func(t catalog.InstanceType) bool { return t.Name == r.instanceType })
		if at < 0 || !r.launchable(now) {
			continue
		}
		t := &all[at]
		t.Offerings = slices.Clone(t.Offerings)
		for _, subnet := range slices.Sorted(maps.Keys(n.subnets)) {
			if n.subnets[subnet].zone != r.zone {
				continue
			}
			o := catalog.Offering{
				Zone:        r.zone,
				Subnet:      subnet,
				Dedicated:   r.dedicated,
				Reservation: r.id,
				Unpriced:    true,
			}
			like := slices.IndexFunc(t.Offerings, func(other catalog.Offering) bool {
				return other.Subnet == subnet && !other.Spot && other.Dedicated == r.dedicated && other.Reservation == ""
			})
			if like >= 0 && !r.block { // which is paid in advance, at a price of its own
				o.PricePerHour, o.Unpriced = t.Offerings[like].PricePerHour, t.Offerings[like].Unpriced
			}
			t.Offerings = append(t.Offerings, o)
		}
	}
	return all
}

// inReservation resolves a launch into a reservation, which it refuses where that is known to be
// full, or to end.
func (c *Cloud) inReservation(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	c.mu.Lock()
	all := c.reserved
	c.mu.Unlock()
	var err error
	if all == nil { // Kip has started with the stored catalogue
		if all, err = c.readReservations(ctx); err != nil && !cloud.Refused(err) {
			return cloud.Resolved{}, err
		}
	}
	no := func(why string) (cloud.Resolved, error) {
		return cloud.Resolved{}, cloud.No(cloud.ErrCapacity, scopeOf(meanings[codeReservationFull], askedFor(s)), fmt.Errorf("reservation %s %s",
			s.Reservation, why))
	}
	if err != nil { // such as a right that is missing to read them, which says nothing of launches
		return no(fmt.Sprintf("cannot be read: %v", err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := all[s.Reservation]; {
	case r == nil:
		return no("is not active, or not one of cloud.aws.capacityReservations")
	case r.free <= 0:
		return no("is full")
	case !r.launchable(c.cfg.Clock.Now()):
		return no("ends soon")
	default:
		return cloud.Resolved{CapacityBlock: r.block, AtMost: r.free}, nil
	}
}

// took notes that so many instances were launched into a reservation, or that it is full.
func (c *Cloud) took(id string, n int, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.reserved[id]; r != nil {
		if r.free = max(0, r.free-n); full {
			r.free = 0
		}
	}
}

// lookAtBlocks tells of instances in Capacity Blocks that are about to end. It is worth no more than
// a word where it fails: the next look is in time.
func (w *watch) lookAtBlocks(ctx, look context.Context) {
	c := w.c
	if !c.cfg.reserves() {
		return
	}
	var now []cloud.Interruption
	err := w.l.Look(look, func(ctx context.Context) (err error) {
		now, err = c.inEndingBlocks(ctx)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			c.cfg.Log.Warn("look for Capacity Blocks that end; Kip asks again", "after", c.cfg.MaintenanceEvery, "err", err)
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
func (c *Cloud) inEndingBlocks(ctx context.Context) (all []cloud.Interruption, err error) {
	reserved, err := c.readReservations(ctx)
	if err != nil {
		return nil, err
	}
	now := c.cfg.Clock.Now()
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(reserved)) {
		if r := reserved[id]; r.block && r.until.Sub(now) <= blockLead {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	pages := ec2.NewDescribeInstancesPaginator(c.api, &ec2.DescribeInstancesInput{
		Filters:    []types.Filter{filter("tag-key", cloud.TagOwner), filter("capacity-reservation-id", ids...), living},
		MaxResults: aws.Int32(pageSize),
	})
	err = eachPage(ctx, pages, func(page *ec2.DescribeInstancesOutput) {
		for _, one := range page.Reservations {
			for _, i := range one.Instances {
				id := aws.ToString(i.CapacityReservationId)
				if reserved[id] == nil {
					continue
				}
				all = append(all, cloud.Interruption{
					InstanceID: aws.ToString(i.InstanceId),
					At:         reserved[id].until,
					Reason:     "the Capacity Block " + id + " ends",
					Certain:    true,
				})
			}
		}
	})
	return all, err
}
