package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/elotl/kip/internal/cloud"
)

// each makes a call for some instances at a time, and answers for each of them.
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
		if err != nil {
			err = classify(err, cloud.Scope{})
		}
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
			if i.State != cloud.Unknown && i.State != cloud.Gone {
				known = append(known, i.ID)
			}
		}
		failed := map[string]error{}
		if len(known) > 0 {
			for _, r := range apart(known, func(ids []string) error { return c.terminate(ctx, ids) }) {
				failed[r.ID] = r.Err
			}
		}
		results := cloud.Each(nil, ids...)
		for n, r := range results {
			if !errors.Is(failed[r.ID], cloud.ErrNotFound) {
				results[n].Err = failed[r.ID]
			}
		}
		return results
	})
}

func (c *Cloud) terminate(ctx context.Context, ids []string) error {
	_, err := c.api.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	return err
}

// Stop implements cloud.Stopper.
func (c *Cloud) Stop(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "stop", func(ids []string) cloud.Results {
		return apart(ids, func(ids []string) error {
			_, err := c.api.StopInstances(ctx, &ec2.StopInstancesInput{InstanceIds: ids})
			return err
		})
	})
}

// Start implements cloud.Stopper. Without capacity for all of a call none is started.
func (c *Cloud) Start(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "start", func(ids []string) cloud.Results {
		return apart(ids, func(ids []string) error {
			_, err := c.api.StartInstances(ctx, &ec2.StartInstancesInput{InstanceIds: ids})
			return err
		})
	})
}

// apart makes a call for all instances and, where EC2 finds fault with one of them, for
// each by itself: it does not say with which in a way that a program can read. Where EC2
// wants fewer calls it makes no more, and the answer is that for the others, too.
func apart(ids []string, call func(ids []string) error) cloud.Results {
	err := call(ids)
	if err == nil {
		return cloud.Each(nil, ids...)
	}
	err = classify(err, cloud.Scope{})
	if cause := cloud.CauseOf(err); len(ids) == 1 || cause != cloud.ErrNotFound && cause != cloud.ErrRefused {
		return cloud.Each(err, ids...)
	}
	results := cloud.Each(nil, ids...)
	for n, id := range ids {
		if err := call([]string{id}); err != nil {
			results[n].Err = classify(err, cloud.Scope{})
		}
		if errors.Is(results[n].Err, cloud.ErrThrottled) {
			for left := n + 1; left < len(ids); left++ {
				results[left].Err = results[n].Err
			}
			break
		}
	}
	return results
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
	for _, key := range order {
		places := groups[key]
		ids := make([]string, len(places))
		for i, n := range places {
			ids[i] = taggings[n].ID
		}
		tags := tagsOf(taggings[places[0]].Tags)
		answered := each(ids, "tag", func(ids []string) cloud.Results {
			return apart(ids, func(ids []string) error {
				_, err := c.api.CreateTags(ctx, &ec2.CreateTagsInput{Resources: ids, Tags: tags})
				return err
			})
		})
		for i, n := range places {
			results[n].Err = answered[i].Err
		}
	}
	return results
}
