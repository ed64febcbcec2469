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

// Launch implements cloud.Cloud.
//
// A token is known for Knobs.TokenLife. A repeated call is answered with the same
// machines as they are now, those that have ended included: they are Terminating
// and have no addresses. The same token with another request is refused. A
// request that started nothing leaves its token unused.
func (c *Cloud) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	return c.LaunchAtLeast(ctx, r, 1)
}

// LaunchAtLeast is Launch, but starts nothing where there is no room for so many.
func (c *Cloud) LaunchAtLeast(ctx context.Context, r cloud.LaunchRequest, least int) cloud.LaunchResults {
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
	err = c.do(ctx, Call{Kind: KindLaunch, Launch: &own}, func(now time.Time) (err error) {
		results, err = c.launch(own, least, sha256.Sum256(text), o, now)
		return err
	})
	if err != nil {
		return cloud.NotLaunched(len(own.Machines), fmt.Errorf("launch %d of %s: %w", len(own.Machines), o, err))
	}
	return results
}

func (c *Cloud) launch(r cloud.LaunchRequest, least int, sum [sha256.Size]byte, o offering, now time.Time) (cloud.LaunchResults, error) {
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
	if err := c.takeResources(KindLaunch, len(r.Machines), now); err != nil {
		return nil, err
	}
	vcpus := c.shop.vcpus[o.instanceType]
	if err := c.checkQuotas(o, len(r.Machines), vcpus); err != nil {
		return nil, err
	}
	room, short := c.room(o, true)
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

// Resolve implements cloud.Resolver.
func (c *Cloud) Resolve(ctx context.Context, s cloud.LaunchSpec) (resolved cloud.Resolved, err error) {
	err = c.do(ctx, Call{Kind: KindResolve, Owner: s.Tags[cloud.TagOwner]}, func(time.Time) error {
		if len(c.knobs.Images) == 0 {
			return cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("there is no image"))
		}
		resolved.Image = c.knobs.Images[len(c.knobs.Images)-1]
		return nil
	})
	if err != nil {
		return cloud.Resolved{}, fmt.Errorf("resolve a launch: %w", err)
	}
	return resolved, nil
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
func (c *Cloud) checkRequest(r cloud.LaunchRequest, o offering) (float64, error) {
	sale := o
	sale.pool = "" // which costs what that costs which all accounts share
	price, ok := c.shop.prices[sale]
	_, sold := c.shop.vcpus[o.instanceType]
	switch {
	case !sold:
		return 0, fmt.Errorf("InstanceType is %q: want one of the catalogue", o.instanceType)
	case !ok:
		return 0, fmt.Errorf("%s is not offered: want an offering of the type in the catalogue", o)
	case r.CapacityType == cloud.Dedicated && !c.cfg.LikeEC2:
		return 0, fmt.Errorf("the capacity type is %q: want one that the type is offered in", r.CapacityType)
	case len(r.Machines) < 1 || len(r.Machines) > cloud.MaxLaunch:
		return 0, fmt.Errorf("the machines are %d: want 1 to %d", len(r.Machines), cloud.MaxLaunch)
	case r.Shared() && !c.Traits().SharedUserData:
		return 0, errors.New("the machines share their user data: want some for each")
	case r.Shared() && r.OwnData():
		return 0, errors.New("the machines share their user data, and have some or tags of their own")
	case c.Traits().SharedUserData && len(r.Machines) > 1 && r.OwnData():
		return 0, errors.New("the machines have user data or tags of their own: one call has one of each")
	}
	for n := range r.Machines {
		if r.TagsOf(n)[cloud.TagOwner] == "" && !c.cfg.LikeEC2 {
			return 0, fmt.Errorf("the tags of machine %d have no %s: without it List never shows the instance", n, cloud.TagOwner)
		}
	}
	return price, nil
}

// checkQuotas says whether n more machines exceed a quota.
func (c *Cloud) checkQuotas(o offering, n int, vcpus int64) error {
	for _, q := range c.knobs.Quotas {
		applies := func(o offering) bool {
			return matches(q.Types, o.instanceType) && (q.Family == "" || q.Family == c.shop.family[o.instanceType]) &&
				(q.Spot == nil || *q.Spot == o.spot)
		}
		if !applies(o) {
			continue
		}
		var sum holding
		for other, h := range c.held {
			if applies(other) {
				sum.instances += h.instances
				sum.vcpus += h.vcpus
			}
		}
		if more := int64(n) * vcpus; q.VCPUs > 0 && sum.vcpus+more > q.VCPUs {
			scope := q.scope()
			scope.ByCPU = scope.Says()
			return cloud.No(cloud.ErrQuota, scope, fmt.Errorf("%w: %q allows %d vCPUs; %d are in use and %d are requested",
				CodeVCPULimit, q.Name, q.VCPUs, sum.vcpus, more))
		}
		if q.Instances > 0 && sum.instances+n > q.Instances {
			return cloud.No(cloud.ErrQuota, q.scope(), fmt.Errorf("%w: %q allows %d instances; %d run and %d are requested",
				CodeInstanceLimit, q.Name, q.Instances, sum.instances, n))
		}
	}
	return nil
}

// scope is what an error says of the quota: nothing where it is for a pattern of
// types, which no cloud can name.
func (q Quota) scope() cloud.Scope {
	if q.Types != "" {
		return cloud.Scope{}
	}
	return cloud.Scope{Family: q.Family, Spot: clonePointer(q.Spot), Account: q.Family == ""}
}

// room returns for how many machines there is room, and what is short when that
// is none.
func (c *Cloud) room(o offering, addresses bool) (int, error) {
	n, short := cloud.MaxLaunch, error(nil)
	bound := func(free int, scope cloud.Scope, err error) {
		if free < n {
			n, short = free, cloud.No(cloud.ErrCapacity, scope, err)
		}
	}
	for _, p := range c.knobs.Capacity {
		if !p.has(o) {
			continue
		}
		free := p.Instances
		for other, h := range c.held {
			if p.has(other) {
				free -= h.instances
			}
		}
		bound(free, cloud.Scope{
			InstanceType: p.InstanceType,
			Zone:         p.Zone,
			Subnet:       p.Subnet,
			Spot:         clonePointer(p.Spot),
			Pool:         p.Apart,
		},
			CodeInsufficientCapacity)
	}
	if addresses {
		if most, ok := c.knobs.SubnetAddresses[o.subnet]; ok {
			bound(most-c.addresses[o.subnet], cloud.Scope{Zone: o.zone, Subnet: o.subnet}, CodeNoAddress)
		}
		bound(c.plan.free(), cloud.Scope{Account: true}, CodeNoAddress)
	}
	return n, short
}

func clonePointer(b *bool) *bool {
	if b == nil {
		return nil
	}
	v := *b
	return &v
}
