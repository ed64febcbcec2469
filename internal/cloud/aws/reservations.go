package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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

// reservation is capacity that the account pays for whether it is used or not, as EC2 told it last: a
// capacity reservation, or a Dedicated Host.
type reservation struct {
	id, zone  string
	dedicated bool           // on hardware that no other account uses
	prepaid   bool           // its instances are billed with it, not by themselves
	block     bool           // a Capacity Block
	until     time.Time      // when EC2 begins to end the instances of a block; zero of others
	free      map[string]int // for so many instances more of each type, less those that were launched since
}

// Choice is of things that the account has: those with one of IDs, and those that have all of Tags.
type Choice struct {
	IDs  []string
	Tags map[string]string
}

func (c Choice) some() bool { return len(c.IDs)+len(c.Tags) > 0 }

// has says whether a thing is chosen.
func (c Choice) has(id string, tags []types.Tag) bool {
	if slices.Contains(c.IDs, id) {
		return true
	}
	for key, value := range c.Tags {
		if !slices.ContainsFunc(tags, func(t types.Tag) bool { return aws.ToString(t.Key) == key && aws.ToString(t.Value) == value }) {
			return false
		}
	}
	return len(c.Tags) > 0
}

// reserves says that capacity is configured that is paid for whether it is used or not.
func (cfg *Config) reserves() bool { return cfg.Reservations.some() || cfg.Hosts.some() }

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

// reservations knows the capacity reservations and the Dedicated Hosts that are configured.
type reservations struct {
	*base

	mu          sync.Mutex
	reserved    map[string]*reservation // by ID
	uselessTold string                  // what was told of those that are of no use
}

// readReservations reads the reservations and the hosts that are configured, active and of use. What
// is configured and is not, is told where that has changed. With an error it returns what is known all
// the same: of what could not be read, what was read before.
func (e *reservations) readReservations(ctx context.Context) (map[string]*reservation, error) {
	found := map[string]*reservation{}
	var not []string
	var errs []error
	e.mu.Lock()
	before := e.reserved
	e.mu.Unlock()
	for _, each := range []struct {
		of    Choice
		hosts bool
		read  func(context.Context, func(r *reservation, useless string)) error
	}{{e.cfg.Reservations, false, e.eachReservation}, {e.cfg.Hosts, true, e.eachHost}} {
		if !each.of.some() {
			continue
		}
		now, seen := map[string]*reservation{}, map[string]bool{}
		err := each.read(ctx, func(r *reservation, useless string) {
			if seen[r.id] = true; useless != "" {
				not = append(not, r.id+": "+useless)
				return
			}
			now[r.id] = r
		})
		if err != nil { // what was known of these before is better than nothing; the others are as they are
			errs = append(errs, err)
			now = maps.Clone(before)
			maps.DeleteFunc(now, func(id string, _ *reservation) bool { return isHost(id) != each.hosts })
		}
		maps.Copy(found, now)
		if err != nil {
			continue
		}
		for _, id := range each.of.IDs {
			if !seen[id] {
				not = append(not, id+": EC2 shows none that is active")
			}
		}
	}
	err := errors.Join(errs...)
	if err != nil && len(found) == 0 {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if told := strings.Join(not, "; "); told != e.uselessTold {
		e.uselessTold = told
		e.cfg.Log.Warn("capacity that is reserved, and that cells are not launched into", "reservations", told)
	}
	e.reserved = found
	return found, err
}

// eachReservation reads the capacity reservations that are configured, and why one is of no use.
func (e *reservations) eachReservation(ctx context.Context, do func(r *reservation, useless string)) error {
	pages := ec2.NewDescribeCapacityReservationsPaginator(e.api, &ec2.DescribeCapacityReservationsInput{
		Filters:    []types.Filter{filter("state", "active")},
		MaxResults: aws.Int32(pageSize),
	})
	err := eachPage(ctx, pages, func(page *ec2.DescribeCapacityReservationsOutput) {
		for _, r := range page.CapacityReservations {
			if !e.cfg.Reservations.has(aws.ToString(r.CapacityReservationId), r.Tags) {
				continue
			}
			one := &reservation{
				id:        aws.ToString(r.CapacityReservationId),
				zone:      aws.ToString(r.AvailabilityZone),
				dedicated: r.Tenancy == types.CapacityReservationTenancyDedicated,
				block:     r.ReservationType == types.CapacityReservationTypeCapacityBlock,
				free:      map[string]int{aws.ToString(r.InstanceType): int(aws.ToInt32(r.AvailableInstanceCount))},
			}
			if one.block {
				one.prepaid, one.until = true, aws.ToTime(r.EndDate).Add(-blockNotice)
			}
			do(one, useless(r))
		}
	})
	if err != nil {
		return fmt.Errorf("read the capacity reservations: %w", err)
	}
	return nil
}

// ends says that what is launched into it now would be ended soon.
func (r *reservation) ends(now time.Time) bool {
	return !r.until.IsZero() && r.until.Sub(now) <= blockLead
}

// withReserved returns types with the offerings of reservations, in each subnet of their zones. The
// types are not changed.
func (e *reservations) withReserved(all []catalog.InstanceType, n *network) []catalog.InstanceType {
	now := e.cfg.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	reserved := e.reserved
	all = slices.Clone(all)
	for _, id := range slices.Sorted(maps.Keys(reserved)) {
		r := reserved[id]
		if r.ends(now) {
			continue
		}
		for _, instanceType := range slices.Sorted(maps.Keys(r.free)) {
			at := slices.IndexFunc(all, func(t catalog.InstanceType) bool { return t.Name == instanceType })
			if at >= 0 && r.free[instanceType] > 0 {
				all[at].Offerings = r.offerings(all[at].Offerings, n)
			}
		}
	}
	return all
}

// offerings returns those of a type, with the reservation's own.
func (r *reservation) offerings(of []catalog.PurchaseOption, n *network) []catalog.PurchaseOption {
	of = slices.Clone(of)
	for _, subnet := range slices.Sorted(maps.Keys(n.subnets)) {
		if n.subnets[subnet].zone != r.zone {
			continue
		}
		o := catalog.PurchaseOption{
			Zone:        r.zone,
			Subnet:      subnet,
			Dedicated:   r.dedicated,
			Reservation: r.id,
			Unpriced:    true,
		}
		like := slices.IndexFunc(of, func(other catalog.PurchaseOption) bool {
			return other.Subnet == subnet && !other.Spot && other.Dedicated == r.dedicated && other.Reservation == ""
		})
		if like >= 0 && !r.prepaid {
			o.PricePerHour, o.Unpriced = of[like].PricePerHour, of[like].Unpriced
		}
		of = append(of, o)
	}
	return of
}

// inReservation resolves a launch into a reservation, or onto a host, which it refuses where that is
// known to be full, or to end.
func (e *reservations) inReservation(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	e.mu.Lock()
	all := e.reserved
	e.mu.Unlock()
	var err error
	if all == nil { // Kip has started with the stored catalogue
		if all, err = e.readReservations(ctx); all != nil {
			err = nil
		} else if err != nil && !cloud.Refused(err) {
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
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r := all[s.Reservation]; {
	case r == nil:
		return no("is not active, or not one of cloud.aws.capacityReservations or cloud.aws.dedicatedHosts")
	case r.free[s.InstanceType] <= 0:
		return no("is full")
	case r.ends(e.cfg.Clock.Now()):
		return no("ends soon")
	default:
		return cloud.Resolved{CapacityBlock: r.block, AtMost: r.free[s.InstanceType]}, nil
	}
}

// lost notes that a reservation, or a host, is not there, or takes nothing: until it is read again.
func (e *reservations) lost(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reserved = maps.Clone(e.reserved) // which others read, without the lock
	delete(e.reserved, id)
}

// took notes that so many instances of a type were launched into a reservation, or that it is full for
// that type. A host has as much less room for its other types, as near as is known before it is read again.
func (e *reservations) took(id, instanceType string, n int, full bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.reserved[id]
	if r == nil {
		return
	}
	before := r.free[instanceType]
	left := max(0, before-n)
	for other, free := range r.free {
		if other != instanceType && before > 0 {
			r.free[other] = free * left / before
		}
	}
	if r.free[instanceType] = left; full {
		r.free[instanceType] = 0
	}
}
