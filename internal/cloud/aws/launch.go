package aws

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

const (
	gib = 1 << 30
	// maxUserData is EC2's bound, in bytes before base64 (EC2 User Guide, "Run commands
	// when you launch an EC2 instance with user data input").
	maxUserData = 16 << 10
	// maxToken is that of a ClientToken, in ASCII characters.
	maxToken = 64
)

// launches launches instances.
type launches struct {
	*base
	instances    *instances
	images       *bootImages
	groups       *securityGroups
	plan         *freePlan
	reservations *reservations
	trials       *addressTrials
	caches       *caches

	mu          sync.Mutex
	unexplained map[string]bool // codes that were told of
}

// Launch implements cloud.Cloud. A call has one subnet, so that its token, which EC2 keeps
// for each zone, cannot launch anywhere else.
func (e *launches) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	results, err := e.launch(ctx, r)
	if err != nil {
		return cloud.NotLaunched(len(r.Machines), fmt.Errorf("launch %d of %s in %s: %w", len(r.Machines), r.InstanceType, r.Subnet, err))
	}
	return results
}

func (e *launches) launch(ctx context.Context, r cloud.LaunchRequest) (cloud.LaunchResults, error) {
	if err := check(r); err != nil {
		return nil, cloud.No(cloud.ErrRefused, cloud.Scope{}, err)
	}
	if r.Resolved == nil {
		return nil, cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("it is not resolved"))
	}
	in := runInstances(r)
	out, err := e.api.RunInstances(ctx, in)
	switch {
	case r.Reservation == "":
	case err == nil:
		e.reservations.took(r.Reservation, r.InstanceType, len(out.Instances), false)
	case slices.Contains(codesNotThere[:], codeOf(err)):
		e.reservations.lost(r.Reservation)
	default:
		e.reservations.took(r.Reservation, r.InstanceType, 0, codeOf(err) == codeReservationFull || codeOf(err) == codeHostFull)
	}
	if no := e.byMessage(r, err); no != nil {
		return nil, no
	}
	if e.trials.triesPrefixes(r, in, err) {
		return nil, cloud.No(cloud.ErrStale, cloud.Scope{},
			fmt.Errorf("EC2 may refuse secondary addresses for several instances, so the next call asks for prefixes: %w", saidOf(err)))
	}
	switch {
	case codeOf(err) == codeNoGroup:
		if later := e.groups.notYet(ctx, r.Resolved.SecurityGroups, saidOf(err)); later != nil {
			return nil, later
		}
		return nil, e.stale(saidOf(err))
	case slices.Contains(codesStale, codeOf(err)):
		return nil, e.stale(saidOf(err))
	case codeOf(err) == codeTerminated:
		return e.ended(ctx, r, classify(err, cloud.Scope{}))
	case len(r.Machines) > 1 && slices.Contains(codesTogether, codeOf(err)):
		return nil, cloud.No(cloud.ErrTogether, cloud.Scope{Zone: r.Zone, Subnet: r.Subnet}, saidOf(err))
	case err != nil:
		e.tellUnexplained(err)
		if e.groups.isOwnGroup(r, err) {
			return nil, cloud.No(cloud.ErrRefused, cloud.Scope{}, saidOf(err))
		}
		return nil, classify(err, askedFor(r.LaunchSpec))
	}
	// EC2 does not say what it is short of, which may be the subnet's addresses or a quota: what is
	// launched next in another subnet is told. Of a reservation it is short alone.
	short, code := askedFor(r.LaunchSpec), "it does not say why no more"
	if short.Family = ""; r.Reservation != "" {
		if code = codeReservationFull; isHost(r.Reservation) {
			code = codeHostFull
		}
		short = scopeOf(meanings[code], short)
	}
	var launched []cloud.Instance
	for _, i := range out.Instances {
		launched = append(launched, instanceOf(i))
	}
	e.instances.seen.note(e.cfg.Clock.Now(), launched, false)
	return placed(r, launched, cloud.No(cloud.ErrCapacity, short,
		fmt.Errorf("EC2 has launched %d of %d: %s", len(out.Instances), len(r.Machines), code)))
}

// maxUnexplained bounds the codes that are remembered as told.
const maxUnexplained = 100

// tellUnexplained tells of a code that Kip does not know, once of each.
func (e *launches) tellUnexplained(err error) {
	said := saidOf(err)
	if said == nil || !ofEC2(err) || explained(said.code) {
		return
	}
	e.mu.Lock()
	told := e.unexplained[said.code] || len(e.unexplained) >= maxUnexplained
	if !told {
		e.unexplained[said.code] = true
	}
	e.mu.Unlock()
	if !told {
		e.cfg.Log.Error("EC2 refuses a launch with a code that this version of Kip does not know: that type in that subnet is left alone for a while",
			"code", said.code, "err", said)
	}
}

// ended answers for a token whose instances have been terminated: with those, as long as
// EC2 shows them, which is about an hour. What it does not show does not run.
func (e *launches) ended(ctx context.Context, r cloud.LaunchRequest, why error) (cloud.LaunchResults, error) {
	some, cancel := partOf(ctx, 3)
	// A terminated instance has no subnet any more, so the zone says where it was.
	all, whole := e.describe(some, &ec2.DescribeInstancesInput{
		Filters:    []types.Filter{filter("client-token", r.Token), filter("availability-zone", r.Zone)},
		MaxResults: aws.Int32(pageSize),
	})
	cancel()
	if whole == nil {
		return placed(r, all, why)
	}
	// Whatever these calls came to, the launch may have left instances that run.
	unknown := func(err error) error {
		return &cloud.Error{
			Cause: cloud.CauseOf(err),
			Scope: cloud.ScopeOf(err),
			Err:   fmt.Errorf("find the instances of a token, for %s: %w", why.Error(), err),
		}
	}
	if !mayBeZones(ctx, whole) {
		return nil, unknown(whole)
	}
	groups, err := e.instances.wantedByZone(ctx, filter("tag:"+cloud.TagOwner, r.TagsOf(0)[cloud.TagOwner]), func(s sighting) bool {
		return s.zone == r.Zone && (s.token == r.Token || s.at.IsZero())
	})
	if err != nil {
		return nil, unknown(errors.Join(whole, err))
	}
	all, _, err = e.instances.inZones(ctx, groups)
	if err != nil {
		return nil, unknown(err)
	}
	all = slices.DeleteFunc(all, func(i cloud.Instance) bool { return i.Origin.Token != r.Token })
	return placed(r, all, unknown(whole)) // there may be others, of which nothing is known
}

// placed gives each instance to the machine of its launch index. A machine without one
// has the error.
func placed(r cloud.LaunchRequest, all []cloud.Instance, without error) (cloud.LaunchResults, error) {
	results := cloud.NotLaunched(len(r.Machines), without)
	for _, i := range all {
		n, err := strconv.Atoi(cmp.Or(i.Place, cloud.PlaceOf(0)))
		if err != nil || n < 0 || n >= len(results) || results[n].Err == nil {
			return nil, fmt.Errorf("EC2 answered a launch of %d with instance %s at index %s", len(results), i.ID, i.Place)
		}
		i.Zone, i.Subnet = cmp.Or(i.Zone, r.Zone), cmp.Or(i.Subnet, r.Subnet)
		results[n] = cloud.LaunchResult{Instance: i}
	}
	return results, nil
}

var errNoOwner = fmt.Errorf("the tags have no %s: without it no list shows the instances", cloud.TagOwner)

// check refuses what EC2 cannot be asked in one call.
func check(r cloud.LaunchRequest) error {
	ascii := !strings.ContainsFunc(r.Token, func(c rune) bool { return c >= 0x80 })
	switch n := len(r.Machines); {
	case r.Token == "" || len(r.Token) > maxToken || !ascii:
		return fmt.Errorf("token %q: want 1 to %d ASCII characters", r.Token, maxToken)
	case n < 1 || n > cloud.MaxLaunch:
		return fmt.Errorf("the machines are %d: want 1 to %d", n, cloud.MaxLaunch)
	case r.Subnet == "":
		return errors.New("there is no subnet: want that of the offering")
	case r.Shared() && r.OwnData() || slices.ContainsFunc(r.Machines, func(m cloud.Machine) bool { return !same(m, r.Machines[0]) }):
		return errors.New("machines have user data or tags of their own: one call has one of each")
	case r.Reservation != "" && r.Spot():
		return fmt.Errorf("reservation %s is asked for by spot: want on-demand", r.Reservation)
	case r.TagsOf(0)[cloud.TagOwner] == "":
		return errNoOwner
	case len(r.UserDataOf(0)) > maxUserData:
		return fmt.Errorf("the user data has %d bytes: EC2 takes %d", len(r.UserDataOf(0)), maxUserData)
	}
	for _, to := range r.CloudRoutes {
		if !to.Addr().Is4() {
			return fmt.Errorf("pod.elotl.co/cloud-route has %s: want IPv4, which is all that cells on EC2 have", to)
		}
	}
	return nil
}

func same(a, b cloud.Machine) bool {
	return bytes.Equal(a.UserData, b.UserData) && maps.Equal(a.Tags, b.Tags)
}

// stale is the answer of EC2 to a launch of what is not there any more. The next one is resolved
// by what is there then.
func (e *launches) stale(said error) error {
	e.caches.forget()
	return cloud.No(cloud.ErrStale, cloud.Scope{}, said)
}
