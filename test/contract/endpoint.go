package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/cloudtest"
)

// endpoint is a cloud at an address, and what it has that a launch needs.
type endpoint struct {
	options
	*witness
	cloud    cloud.Cloud
	kind     catalog.InstanceType
	offering catalog.PurchaseOption
	image    map[string]string
	others   cloud.Options     // what else it has
	unable   map[string]bool   // what it was seen not to keep, by the name of the check
	unseen   map[string]string // what it cannot be asked for, and by what that is known
}

// open looks whether the endpoint answers. Who Kip is, the SDK's chain knows.
func open(ctx context.Context, o options) (e *endpoint, err error) {
	e = &endpoint{
		options: o,
		witness: newWitness(o.pause, o.patience),
		unable:  map[string]bool{},
		unseen:  map[string]string{},
	}
	if e.cloud, err = e.driver(ctx); err != nil {
		return nil, err
	}
	if _, err := e.cloud.List(ctx, cloudtest.Owners[0]); err != nil && e.cannot() == "" {
		return nil, fmt.Errorf("ask %s, with the keys of the environment such as AWS_ACCESS_KEY_ID: %w", o.endpoint, err)
	}
	return e, nil
}

// driver is a Kip's of its own, which remembers nothing of the others.
func (e *endpoint) driver(ctx context.Context, extra ...netip.Prefix) (cloud.Cloud, error) {
	return aws.New(ctx, aws.Config{
		Endpoint:   e.endpoint,
		VPC:        e.vpc,
		Subnets:    e.subnets,
		ExtraCIDRs: extra,
		Transport:  e.witness,
		Log:        slog.New(slog.DiscardHandler),
	})
}

// images are those that are looked for, of the arch of most machines: Kip's own, Amazon's, and
// whatever an account has.
func images(arch string) []map[string]string {
	linux := map[string]string{"amd64": "x86_64", "arm64": "arm64"}[arch]
	return []map[string]string{
		{"name": "kip-cell-" + arch + "-*"},
		{"name": "kip-cell-*"},
		{"name": "al2023-ami-2023.*-" + linux, "owner": "amazon"},
		{"name": "amzn2-ami-hvm-*-" + linux + "-gp2", "owner": "amazon"},
		{"name": "al2023-ami-*-" + linux, "owner": "amazon"},
		{"name": "*"},
	}
}

// find finds what a launch needs. What an endpoint cannot answer is said as such.
func (e *endpoint) find(ctx context.Context) error {
	err := e.choose(ctx)
	if err == nil {
		return nil
	}
	if no := e.cannot(); no != "" {
		err = fmt.Errorf("%w (cannot be answered by this endpoint: %s)", err, no)
	}
	return fmt.Errorf("find at %s what a launch needs: %w", e.endpoint, err)
}

// choose chooses the type, on-demand so that its instances can be stopped, and looks for images and groups.
func (e *endpoint) choose(ctx context.Context) error {
	types, err := e.cloud.Catalogue(ctx)
	if err != nil {
		return err
	}
	fit := types[:0:0]
	for _, t := range types {
		t.Offerings = slices.DeleteFunc(slices.Clone(t.Offerings), func(o catalog.PurchaseOption) bool { return o.Spot })
		if len(t.Offerings) > 0 && t.Name == cmp.Or(e.instanceType, t.Name) && (t.Arch == "amd64" || e.instanceType != "") {
			fit = append(fit, t)
		}
	}
	if e.kind, e.offering = cloudtest.Cheapest(fit); e.kind.Name == "" {
		return fmt.Errorf("of %d types none is sold on demand that is %s: want another -type", len(types), cmp.Or(e.instanceType, "of amd64"))
	}
	candidates := images(e.kind.Arch)
	if e.imageID != "" {
		candidates = slices.Insert(candidates, 0, map[string]string{"imageID": e.imageID})
	}
	var first string
	for _, spec := range candidates {
		found, err := e.resolve(ctx, cloud.Options{Image: spec})
		switch {
		case errors.Is(err, cloud.ErrRefused) && (e.imageID == "" || e.image != nil):
			continue
		case err != nil:
			return err
		case e.image == nil:
			// A choice only where the subnet gives public addresses.
			e.image, first, e.others.PrivateIPOnly = spec, found.Image, found.PublicAddress
		case found.Image != first && e.others.Image == nil:
			e.others.Image = spec
		}
	}
	if e.image == nil {
		return errors.New("there is no image of Kip's, of Amazon's or of the account: want the ID of one as -image")
	}
	_, err = e.resolve(ctx, cloud.Options{Image: e.image, SecurityGroups: []string{"default"}})
	if err == nil {
		e.others.SecurityGroups = []string{"default"}
	} else if !errors.Is(err, cloud.ErrRefused) {
		return err
	}
	e.others.InstanceProfile = e.profile
	return nil
}

func (e *endpoint) resolve(ctx context.Context, o cloud.Options) (cloud.Resolved, error) {
	return e.cloud.Optional().Resolver.Resolve(ctx, cloud.LaunchSpec{
		InstanceType: e.kind.Name,
		Zone:         e.offering.Zone,
		Subnet:       e.offering.Subnet,
		Options:      o,
		Tags:         map[string]string{cloud.TagOwner: cloudtest.Owners[0]},
	})
}

// asked is the endpoint's cloud as the checks ask it: what it sells is read once more, and then
// remembered, and a launch that names no image has one and is resolved.
type asked struct {
	cloud.Cloud
	*endpoint
	sells []catalog.InstanceType
}

func (a *asked) Catalogue(ctx context.Context) (_ []catalog.InstanceType, err error) {
	if a.sells == nil {
		a.sells, err = a.Cloud.Catalogue(ctx)
	}
	return a.sells, err
}

func (a *asked) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	if r.Image == nil {
		r.Image = a.image
	}
	return cloudtest.Launch(ctx, struct {
		cloud.Cloud
		cloud.Resolver
	}{a.Cloud, a.Optional().Resolver}, r)
}

// subject is the endpoint for the checks.
func (e *endpoint) subject() cloudtest.Subject {
	return cloudtest.Subject{
		Offering: func([]catalog.InstanceType) (catalog.InstanceType, catalog.PurchaseOption) { return e.kind, e.offering },
		UserData: []byte("#cloud-config\n"),
		Patience: e.patience,
		// EC2 does.
		ComparesRequests: true,
		Others:           &e.others,
		OneAddress:       e.unable[cloudtest.PodAddresses],
		OneByOne:         e.unable[cloudtest.Batches],
	}
}

// keepsRules looks by the calls of three Kips that the rules of the cells' group are kept, and
// shown as they were made: the second is elsewhere, and the third has nothing to change.
func (e *endpoint) keepsRules(t cloudtest.T) {
	const make, remove = "AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"
	owner := cloudtest.Owners[0]
	e.forget()
	if _, err := e.resolve(t.Context(), cloud.Options{Image: e.image}); err != nil {
		t.Fatal(err)
	}
	if e.count(make) == 0 {
		t.Errorf("the group of the cells was made without a call of %s", make)
	}
	// TEST-NET-2, of RFC 5737.
	elsewhere := netip.MustParsePrefix("198.51.100.0/24")
	for _, kip := range []struct {
		what           string
		extra          []netip.Prefix
		makes, removes int
	}{
		{"the same rules are wanted again", nil, 0, 0},
		{"another network is to be let in", []netip.Prefix{elsewhere}, 1, 0},
		{"that one is wanted again", []netip.Prefix{elsewhere}, 0, 0},
		{"it is wanted no more", nil, 0, 1},
		{"and again not", nil, 0, 0},
	} {
		c, err := e.driver(t.Context(), kip.extra...)
		if err != nil {
			t.Fatal(err)
		}
		e.forget()
		if err := c.Optional().Admitter.Admit(t.Context(), owner); err != nil {
			t.Fatalf("%s: %v", kip.what, err)
		}
		if e.count(make) != kip.makes || e.count(remove) != kip.removes {
			t.Errorf("%s: %d calls made rules and %d removed some: want %d and %d, or the group is not shown as it was made", kip.what,
				e.count(make), e.count(remove), kip.makes, kip.removes)
		}
	}
}

// sweep removes all that the checks' owners have, and says what it removed and what is left.
func (e *endpoint) sweep(ctx context.Context) (removed, left []string) {
	// A look that has begun comes to its end, unless the endpoint hangs.
	ctx, cancel := context.WithTimeout(ctx, e.patience+time.Minute)
	defer cancel()
	gone := map[string]bool{}
	for until := time.Now().Add(e.patience); ; {
		left = nil
		for _, owner := range cloudtest.Owners {
			left = append(left, e.sweepOnce(ctx, owner, func(what string) { gone[what] = true })...)
		}
		if len(left) == 0 || time.Now().After(until) || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(e.patience / 300): // there is no other news than the next list
		case <-ctx.Done():
		}
	}
	for what := range gone {
		removed = append(removed, what)
	}
	slices.Sort(removed)
	return removed, left
}

// sweepOnce removes what can be removed now, and returns what was there, or may be: that it is
// gone, only the next look shows. What the endpoint has no action to look for is noted.
func (e *endpoint) sweepOnce(ctx context.Context, owner string, removed func(string)) (left []string) {
	look := func(what string, list func() error) {
		e.forget()
		err := list()
		switch no := e.cannot(); {
		case err != nil && no != "":
			e.unseen[what] = no
		case err != nil:
			left = append(left, fmt.Sprintf("perhaps %s of %s: %v", what, owner, err))
		}
	}
	listed := func(what string, err error) {
		removed(what)
		said := "it is listed though it was removed"
		if err != nil {
			said = err.Error()
		}
		left = append(left, what+": "+said)
	}
	look("instances", func() error {
		listing, err := e.cloud.List(ctx, owner)
		if err != nil {
			return err
		}
		for _, i := range listing.Instances {
			listed("instance "+i.ID, e.cloud.Terminate(ctx, i.ID).Err())
		}
		if !listing.Complete() {
			return fmt.Errorf("the list lacks the zones %s", strings.Join(listing.Missing, ", "))
		}
		return nil
	})
	look("disks", func() error {
		disks, err := e.cloud.Optional().Disks.ListDisks(ctx, owner)
		for _, d := range disks {
			listed("disk "+d.ID, e.cloud.Optional().Disks.DeleteDisk(ctx, d.ID))
		}
		return err
	})
	look("interfaces and groups", func() error {
		parts, err := e.cloud.Optional().OwnedResources.ListOwned(ctx, owner)
		for _, p := range parts {
			err := fmt.Errorf("it is that of instance %s", p.Instance)
			if p.Instance == "" { // else it goes with the instance
				err = e.cloud.Optional().OwnedResources.DeleteOwned(ctx, p.ID).Err()
			}
			listed(p.Kind+" "+p.ID, err)
		}
		return err
	})
	return left
}
