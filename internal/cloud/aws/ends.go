package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/elotl/kip/internal/cloud"
)

// each makes a call for some instances at a time, and answers for each of them. Where EC2 finds
// fault with one of a call it refuses the call, and does not say with which in a way that a program
// can read: then the answer is that for all, and whoever asks makes smaller calls.
func each(ids []string, what string, call func(ids []string) cloud.Results) cloud.Results {
	var results cloud.Results
	for some := range slices.Chunk(ids, instancesCall) {
		for _, r := range call(some) {
			if r.Err != nil {
				r.Err = fmt.Errorf("%s %s: %w", what, r.ID, r.Err)
			}
			results = append(results, r)
		}
	}
	return results
}

// Terminate implements cloud.Cloud. Interfaces and root disks end with their instances.
func (c *Cloud) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "terminate", func(ids []string) cloud.Results {
		err := c.terminate(ctx, ids)
		if !errors.Is(err, cloud.ErrNotFound) {
			return cloud.Each(err, ids...)
		}
		// One that EC2 does not know keeps it from ending the others. What it does not
		// show now either has ended, or is terminated when a list shows it.
		all, err := c.Describe(ctx, ids...)
		if err != nil {
			return cloud.Each(err, ids...)
		}
		var known []string
		for _, i := range all {
			if i.State != cloud.Unknown && i.State != cloud.Gone { // also where nobody could look
				known = append(known, i.ID)
			}
		}
		results := cloud.Each(nil, ids...)
		if len(known) == 0 {
			return results
		}
		if err = c.terminate(ctx, known); len(known) == 1 && errors.Is(err, cloud.ErrNotFound) {
			return results // it has ended since
		}
		for n, r := range results {
			if slices.Contains(known, r.ID) {
				results[n].Err = err
			}
		}
		return results
	})
}

func (c *Cloud) terminate(ctx context.Context, ids []string) error {
	_, err := c.api.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	return classifyNamed(err)
}

// Stop implements cloud.Stopper.
func (c *Cloud) Stop(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "stop", func(ids []string) cloud.Results {
		_, err := c.api.StopInstances(ctx, &ec2.StopInstancesInput{InstanceIds: ids})
		return cloud.Each(classifyNamed(err), ids...)
	})
}

// Start implements cloud.Stopper. Without capacity for all of a call none is started.
func (c *Cloud) Start(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "start", func(ids []string) cloud.Results {
		_, err := c.api.StartInstances(ctx, &ec2.StartInstancesInput{InstanceIds: ids})
		return cloud.Each(classifyNamed(err), ids...)
	})
}

// Tag implements cloud.Tagger. A call has one set of tags, so instances with the same
// share one.
func (c *Cloud) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	results := make(cloud.Results, len(taggings))
	groups := map[string][]int{} // places of taggings by their tags
	var order []string
	for n, t := range taggings {
		results[n].ID = t.ID
		key := fmt.Sprintf("%q", t.Tags) // maps are printed in order
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], n)
	}
	var wantsFewer error
	for _, key := range order {
		places := groups[key]
		if wantsFewer != nil {
			for _, n := range places {
				results[n].Err = wantsFewer
			}
			continue
		}
		ids := make([]string, len(places))
		for i, n := range places {
			ids[i] = taggings[n].ID
		}
		tags, parts := cut(tagsOf(c.cfg.notConfigured(taggings[places[0]].Tags))), map[string][]string{}
		whole := map[string]bool{}
		for _, n := range places {
			parts[taggings[n].ID], whole[taggings[n].ID] = taggings[n].Parts, taggings[n].Whole
		}
		answered := each(ids, "tag", func(ids []string) cloud.Results {
			var theirs []string
			for _, id := range ids {
				theirs = append(theirs, parts[id]...)
			}
			all := slices.ContainsFunc(ids, func(id string) bool { return whole[id] })
			return cloud.Each(c.tagResources(ctx, ids, theirs, tags, all), ids...)
		})
		for i, n := range places {
			if results[n].Err = answered[i].Err; errors.Is(results[n].Err, cloud.ErrThrottled) {
				wantsFewer = results[n].Err
			}
		}
	}
	return results
}
