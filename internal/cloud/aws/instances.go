package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/elotl/kip/internal/cloud"
)

// How EC2 answers while an Availability Zone has a service disruption (EC2 API reference,
// "DescribeInstances"): a call that names no instance ID fails, whatever its filters. A call that names IDs
// fails if one of them is in the affected zone. A call with IDs of other zones works.
//
// So Kip asks by IDs, zone by zone. It knows the zones from earlier answers, and from network interfaces. The
// reference has no such limit for DescribeNetworkInterfaces. If that call fails too, Kip has no list. Whether it shows all
// interfaces of a disrupted zone, no source says. So a zone where Kip has subnets, and of which it shows none, counts as not looked at:
// only an instance that EC2 describes proves that EC2 answers for its zone. A zone counts for nothing if Kip has neither subnets nor
// interfaces there, and EC2 has shown no instance of it.

const codeNoInstance = "InvalidInstanceID.NotFound"

// instances shows the instances of Kip.
type instances struct {
	*base
	networks *networks
	seen     *sightings
}

// List implements cloud.Cloud.
func (e *instances) List(ctx context.Context, owner string) (cloud.Listing, error) {
	if owner == "" {
		return cloud.Listing{}, cloud.No(cloud.ErrRefused, cloud.Scope{}, fmt.Errorf("owner is empty: want the value of tag %s", cloud.TagOwner))
	}
	list, err := e.list(ctx, owner)
	if err != nil {
		return cloud.Listing{}, fmt.Errorf("list the instances of %s: %w", owner, err)
	}
	return list, nil
}

func (e *instances) list(ctx context.Context, owner string) (cloud.Listing, error) {
	of := filter("tag:"+cloud.TagOwner, owner)
	// An impaired endpoint answers late rather than with an error.
	some, cancel := partOf(ctx, 3)
	all, whole := e.describe(some, &ec2.DescribeInstancesInput{Filters: []types.Filter{of, living}, MaxResults: aws.Int32(pageSize)})
	cancel()
	if whole == nil {
		e.seen.note(e.cfg.Clock.Now(), all, true)
		return cloud.Listing{Instances: all}, nil
	}
	if !mayBeZones(ctx, whole) {
		return cloud.Listing{}, whole
	}
	some, cancel = partOf(ctx, 3)
	zones, err := e.networks.zonesOfCells(some)
	cancel()
	if err != nil {
		return cloud.Listing{}, errors.Join(whole, err)
	}
	groups, err := e.wantedByZone(ctx, of, func(sighting) bool { return true })
	if err != nil {
		return cloud.Listing{}, errors.Join(whole, err)
	}
	all, failed, err := e.inZones(ctx, groups)
	switch {
	case err != nil:
		return cloud.Listing{}, err
	case len(failed) == len(groups) && len(groups) > 0 && len(all) == 0:
		return cloud.Listing{}, whole
	}
	answered := map[string]bool{}
	for _, i := range all {
		answered[i.Zone] = true
	}
	for zone := range groups {
		zones[zone] = true
	}
	maps.Copy(zones, answered)
	anywhere := slices.Contains(failed, "") // so may be those whose zone is not known
	failed = slices.DeleteFunc(failed, func(zone string) bool { return zone == "" })
	list := cloud.Listing{Silent: failed, Missing: slices.Clone(failed), Looked: []string{}}
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		switch {
		case zone == "" || slices.Contains(failed, zone):
		case anywhere || !answered[zone]:
			list.Missing = append(list.Missing, zone)
		default:
			list.Looked = append(list.Looked, zone)
		}
	}
	for _, i := range all {
		// As the filters of the whole list: a call with IDs shows instances that have ended, and those of others.
		if i.Tags[cloud.TagOwner] == owner && i.State != cloud.Gone && i.State != cloud.Unknown {
			list.Instances = append(list.Instances, i)
		}
	}
	return list, nil
}

// wantedByZone returns the IDs of the wanted instances by their zones, of those that EC2 has shown, and of those with network
// interfaces that match.
func (e *instances) wantedByZone(ctx context.Context, of types.Filter, wanted func(sighting) bool) (map[string][]string, error) {
	some, cancel := partOf(ctx, 2)
	zones, err := e.interfaces(some, of)
	cancel()
	if err != nil {
		return nil, err
	}
	known := e.seen.known() // an interface may be missing in that list
	for id, zone := range zones {
		if _, is := known[id]; !is {
			known[id] = sighting{zone: zone}
		}
	}
	maps.DeleteFunc(known, func(_ string, s sighting) bool { return !wanted(s) })
	return byZone(slices.Sorted(maps.Keys(known)), known), nil
}

// mayBeZones reports whether a call may have failed by what is wrong with a zone.
func mayBeZones(ctx context.Context, err error) bool {
	return ctx.Err() == nil && cloud.CauseOf(err) == "" && !errors.Is(err, errTooLong)
}

// partOf returns a context with a share of the time that is left, so that a call that hangs leaves time for the next.
func partOf(ctx context.Context, shares int) (context.Context, context.CancelFunc) {
	end, has := ctx.Deadline()
	if !has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(shares))
}

// Describe implements cloud.Cloud.
func (e *instances) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	known, unseen := map[string]cloud.Instance{}, map[string]bool{}
	for some := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(ids))), idsCall) {
		found, silent, err := e.find(ctx, some)
		if err != nil {
			return nil, fmt.Errorf("describe %d instances: %w", len(ids), err)
		}
		for _, i := range found {
			known[i.ID] = i
		}
		for _, id := range silent {
			unseen[id] = true
		}
	}
	var answer []cloud.Instance
	for _, id := range ids {
		i, ok := known[id]
		switch {
		case !ok && unseen[id]: // it may be in a zone that does not answer
			i = cloud.Instance{ID: id}
		case !ok:
			i = cloud.Instance{ID: id, State: cloud.Unknown}
		}
		i.Tags = maps.Clone(i.Tags) // an ID may be asked for twice
		answer = append(answer, i)
	}
	return answer, nil
}

// find returns the instances with these IDs, and the IDs for which nothing answers.
func (e *instances) find(ctx context.Context, ids []string) (found []cloud.Instance, silent []string, err error) {
	some, cancel := partOf(ctx, 3)
	found, whole := e.together(some, ids)
	cancel()
	if whole == nil {
		return found, nil, nil
	}
	if !mayBeZones(ctx, whole) {
		return nil, nil, whole
	}
	known := e.seen.known()
	if lost := byZone(ids, known)[""]; len(lost) > 0 {
		some, cancel = partOf(ctx, 3)
		placed, err := e.interfaces(some, filter("attachment.instance-id", lost...))
		cancel()
		if err != nil {
			e.cfg.Log.Warn("read the zones of instances from their network interfaces", "instances", len(lost), "err", err)
		}
		for id, zone := range placed {
			known[id] = sighting{zone: zone}
		}
	}
	groups := byZone(ids, known)
	found, failed, err := e.inZones(ctx, groups)
	switch {
	case err != nil:
		return nil, nil, err
	case len(failed) == len(groups):
		return nil, nil, whole
	}
	for _, zone := range failed {
		silent = append(silent, groups[zone]...)
	}
	// An ID without a known zone may be in the zone that does not answer.
	silent = append(silent, groups[""]...)
	return found, silent, nil
}

// inZones reads instances by their IDs, zone by zone. It returns the zones that fail, and an error if EC2 says that the fault
// is not a zone's.
func (e *instances) inZones(ctx context.Context, groups map[string][]string) (found []cloud.Instance, failed []string, err error) {
	zones := slices.Sorted(maps.Keys(groups))
	for i, zone := range zones {
		some, cancel := partOf(ctx, len(zones)-i)
		all, err := e.named(some, groups[zone])
		cancel()
		found = append(found, all...)
		switch {
		case err == nil:
			continue
		case !mayBeZones(ctx, err):
			return nil, nil, err
		}
		e.cfg.Log.Warn("read the instances of a zone", "zone", zone, "instances", len(groups[zone]), "err", err)
		failed = append(failed, zone)
	}
	return found, failed, nil
}

// named reads the instances with these IDs, some in each call. A call that fails is made once more, since the fault may pass, and
// not be the zone's. With an error it returns those that it has read.
func (e *instances) named(ctx context.Context, ids []string) (all []cloud.Instance, err error) {
	for some := range slices.Chunk(ids, idsCall) {
		found, err := e.together(ctx, some)
		if err != nil && mayBeZones(ctx, err) {
			found, err = e.together(ctx, some)
		}
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// instanceIDs finds the IDs in a message of EC2.
var instanceIDs = regexp.MustCompile(`i-[0-9a-f]+`)

// together reads the instances with these IDs in one call, if EC2 knows all of them. EC2 refuses a call that names an ID
// which it does not know, and its message names these: "The instance IDs 'i-…, i-…' do not exist". (Sources: moto,
// tests/test_ec2/test_instances.py; a lambda of ClickHouse's CI reads the message.) Kip asks for the others. If the message names
// none of them, Kip halves the call.
func (e *instances) together(ctx context.Context, ids []string) ([]cloud.Instance, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	found, err := e.describe(ctx, &ec2.DescribeInstancesInput{InstanceIds: ids}) // which has no pages
	switch {
	case codeOf(err) != codeNoInstance:
		e.seen.note(e.cfg.Clock.Now(), found, false)
		return found, err
	case len(ids) == 1:
		return nil, nil
	}
	var unknown []string
	if said, is := errors.AsType[smithy.APIError](err); is {
		unknown = instanceIDs.FindAllString(said.ErrorMessage(), -1) // all of it: Kip cuts what it logs
	}
	known := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(unknown, id) })
	if len(known) < len(ids) {
		return e.together(ctx, known)
	}
	half := len(ids) / 2
	first, err := e.together(ctx, ids[:half])
	if err != nil {
		return nil, err
	}
	second, err := e.together(ctx, ids[half:])
	return append(first, second...), err
}

// interfaces returns the zones of instances by their IDs, from the network interfaces that match.
func (e *instances) interfaces(ctx context.Context, by types.Filter) (map[string]string, error) {
	zones := map[string]string{}
	pages := ec2.NewDescribeNetworkInterfacesPaginator(e.api, &ec2.DescribeNetworkInterfacesInput{
		Filters:    []types.Filter{by},
		MaxResults: aws.Int32(pageSize),
	})
	err := eachPage(ctx, pages, func(page *ec2.DescribeNetworkInterfacesOutput) {
		for _, i := range page.NetworkInterfaces {
			if i.Attachment != nil && i.Attachment.InstanceId != nil {
				zones[*i.Attachment.InstanceId] = aws.ToString(i.AvailabilityZone)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read network interfaces: %w", err)
	}
	return zones, nil
}
