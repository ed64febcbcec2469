package sim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// launched is what a token stands for.
type launched struct {
	fingerprint [sha256.Size]byte // of the request
	machines    []*machine        // nil where there was no capacity
	short       error             // why some are nil
	use         int               // counts how often the token was used anew
}

// known says whether the token still stands for its machines.
func (l *launched) known(now time.Time, life time.Duration) bool {
	var last time.Time
	for _, m := range l.machines {
		switch {
		case m == nil:
		case m.Ended.IsZero():
			return true
		case m.Ended.After(last):
			last = m.Ended
		}
	}
	return now.Before(last.Add(life))
}

// launches launches machines.
type launches struct {
	*base
	calls         *calls
	machines      *machines
	holdings      *holdings
	charges       *charges
	courses       *courses
	interruptions *interruptions

	tokens map[string]*launched
}

// Launch implements cloud.Cloud.
//
// A token is known for Knobs.TokenLife. A repeated call is answered with the same
// machines as they are now, those that have ended included: they are Terminating
// and have no addresses. The same token with another request is refused. A
// request that started nothing leaves its token unused.
func (c *launches) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	return c.LaunchAtLeast(ctx, r, 1)
}

// LaunchAtLeast is Launch, but starts nothing where there is no room for so many.
func (c *launches) LaunchAtLeast(ctx context.Context, r cloud.LaunchRequest, least int) cloud.LaunchResults {
	text, err := json.Marshal(r) // a copy that is ours
	if err != nil {
		return cloud.NotLaunched(len(r.Machines), fmt.Errorf("read the request: %w", err))
	}
	var own cloud.LaunchRequest
	if err := json.Unmarshal(text, &own); err != nil {
		return cloud.NotLaunched(len(r.Machines), fmt.Errorf("read the request: %w", err))
	}
	o := offering{
		instanceType: own.InstanceType,
		zone:         own.Zone,
		subnet:       own.Subnet,
		spot:         own.Spot(),
		pool:         own.Pool(),
	}
	var results cloud.LaunchResults
	err = c.calls.do(ctx, Call{Kind: KindLaunch, Launch: &own}, func(now time.Time) (err error) {
		results, err = c.launch(own, least, sha256.Sum256(text), o, now)
		return err
	})
	if err != nil {
		return cloud.NotLaunched(len(own.Machines), fmt.Errorf("launch %d of %s: %w", len(own.Machines), o, err))
	}
	return results
}

func (c *launches) launch(r cloud.LaunchRequest, least int, sum [sha256.Size]byte, o offering, now time.Time) (cloud.LaunchResults, error) {
	if err := checkToken(r.Token); err != nil {
		return nil, fmt.Errorf("%w: %w", cloud.ErrRefused, err)
	}
	if l := c.tokens[r.Token]; l != nil && l.known(now, c.knobs.tokenLife()) {
		if l.fingerprint != sum {
			return nil,
				&cloud.Error{Cause: cloud.ErrMismatch, Err: fmt.Errorf("IdempotentParameterMismatch: token %q was used for another request", r.Token)}
		}
		return l.answer()
	}

	if s := r.Resolved; s != nil && !slices.Contains(c.knobs.Images, s.Image) {
		return nil, cloud.No(cloud.ErrStale, cloud.Scope{}, fmt.Errorf("there is no image %q", s.Image))
	}
	price, err := c.checkRequest(r, o)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cloud.ErrRefused, err)
	}
	if err := c.calls.takeResources(KindLaunch, len(r.Machines), now); err != nil {
		return nil, err
	}
	vcpus := c.offered.vcpus[o.instanceType]
	if err := c.holdings.checkQuotas(o, len(r.Machines), vcpus); err != nil {
		return nil, err
	}
	room, short := c.holdings.room(o, true)
	if room < max(1, least) {
		return nil, short
	}

	l := &launched{fingerprint: sum, machines: make([]*machine, len(r.Machines)), short: short}
	if before := c.tokens[r.Token]; before != nil {
		l.use = before.use + 1
	}
	c.tokens[r.Token] = l
	// Which of them find room is the cloud's affair, so callers must not count
	// on the first ones.
	order := c.rand("places", r.Token, l.use).Perm(len(r.Machines))
	if c.cfg.LikeEC2 {
		slices.Sort(order)
	}
	lucky := order[:min(room, len(order))]
	slices.Sort(lucky)
	for _, n := range lucky {
		l.machines[n] = c.create(r, l, n, o, price, vcpus, now)
	}
	return l.answer()
}

func (l *launched) answer() (cloud.LaunchResults, error) {
	answer := make(cloud.LaunchResults, len(l.machines))
	partial := false
	for n, m := range l.machines {
		if m == nil {
			partial = true
			answer[n].Err = l.short
			continue
		}
		answer[n].Instance = m.public()
	}
	if partial {
		return answer, errPartial
	}
	return answer, nil
}

const maxToken = 64 // of cloud.LaunchRequest

func checkToken(token string) error {
	if token == "" || len(token) > maxToken {
		return fmt.Errorf("token %q has %d characters: want 1 to %d", token, len(token), maxToken)
	}
	for _, r := range token {
		if r >= 0x80 {
			return fmt.Errorf("token %q has the character %q: want ASCII only", token, r)
		}
	}
	return nil
}

// checkRequest refuses what can never succeed, and returns the price.
func (c *launches) checkRequest(r cloud.LaunchRequest, o offering) (float64, error) {
	sale := o
	sale.pool = "" // which costs what that costs which all accounts share
	price, ok := c.offered.prices[sale]
	_, sold := c.offered.vcpus[o.instanceType]
	switch {
	case !sold:
		return 0, fmt.Errorf("InstanceType is %q: want one of the catalogue", o.instanceType)
	case !ok:
		return 0, fmt.Errorf("%s is not offered: want an offering of the type in the catalogue", o)
	case r.CapacityType == cloud.Dedicated && !c.cfg.LikeEC2:
		return 0, fmt.Errorf("the capacity type is %q: want one that the type is offered in", r.CapacityType)
	case len(r.Machines) < 1 || len(r.Machines) > cloud.MaxLaunch:
		return 0, fmt.Errorf("the machines are %d: want 1 to %d", len(r.Machines), cloud.MaxLaunch)
	case r.Shared() && !c.Capabilities().SharedUserData:
		return 0, errors.New("the machines share their user data: want some for each")
	case r.Shared() && r.OwnData():
		return 0, errors.New("the machines share their user data, and have some or tags of their own")
	case c.Capabilities().SharedUserData && len(r.Machines) > 1 && r.OwnData():
		return 0, errors.New("the machines have user data or tags of their own: one call has one of each")
	}
	for n := range r.Machines {
		if r.TagsOf(n)[cloud.TagOwner] == "" && !c.cfg.LikeEC2 {
			return 0, fmt.Errorf("the tags of machine %d have no %s: without it List never shows the instance", n, cloud.TagOwner)
		}
	}
	return price, nil
}

// create launches the nth machine of a request.
func (c *launches) create(r cloud.LaunchRequest, l *launched, n int, o offering, price float64, vcpus int64, now time.Time) *machine {
	m := &machine{
		offering: o,
		vcpus:    vcpus,
		userData: r.UserDataOf(n),
		events:   map[*event]bool{},
	}
	m.Instance = Instance{Token: r.Token, Instance: cloud.Instance{
		ID:           c.newID(l, r.Token, n),
		InstanceType: o.instanceType,
		Zone:         o.zone,
		Subnet:       o.subnet,
		Spot:         o.spot,
		Launched:     now,
		Tags:         r.TagsOf(n),
		Place:        cloud.PlaceOf(n),
	}}
	fate := c.rand("fate", m.ID, 0)
	m.known = now.Add(c.knobs.UnknownFor.draw(fate))
	m.charge = c.charges.chargeFor(o, price)
	m.charge.instances++
	c.courses.add(m, now)
	if mean := c.knobs.MTBF; mean > 0 {
		c.courses.at(m, now.Add(exponential(fate, mean)), false, func(now time.Time) { c.courses.end(m, now, Vanished) })
	}
	if mean := c.knobs.SpotMTBF; mean > 0 && o.spot {
		c.courses.at(m, now.Add(exponential(fate, mean)), false, func(now time.Time) { c.interruptions.interrupt(m, now) })
	}
	return m
}

// newID looks like EC2's.
func (c *launches) newID(l *launched, token string, n int) string {
	r := c.rand("id", token, l.use*cloud.MaxLaunch+n)
	for {
		id := fmt.Sprintf("i-%017x", r.Uint64())
		if c.machines.byID[id] == nil {
			return id
		}
	}
}
