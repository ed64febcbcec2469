package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/elotl/kip/internal/cloud"
)

// ending ends, stops and starts instances.
type ending struct {
	*base
	instances *instances
}

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
func (e *ending) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "terminate", func(ids []string) cloud.Results {
		err := e.terminate(ctx, ids)
		if !errors.Is(err, cloud.ErrNotFound) {
			return cloud.Each(err, ids...)
		}
		// One that EC2 does not know keeps it from ending the others. What it does not
		// show now either has ended, or is terminated when a list shows it.
		all, err := e.instances.Describe(ctx, ids...)
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
		if err = e.terminate(ctx, known); len(known) == 1 && errors.Is(err, cloud.ErrNotFound) {
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

func (e *ending) terminate(ctx context.Context, ids []string) error {
	_, err := e.api.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	return classifyNamed(err)
}

// Stop implements cloud.Stopper.
func (e *ending) Stop(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "stop", func(ids []string) cloud.Results {
		_, err := e.api.StopInstances(ctx, &ec2.StopInstancesInput{InstanceIds: ids})
		return cloud.Each(classifyNamed(err), ids...)
	})
}

// Start implements cloud.Stopper. Without capacity for all of a call none is started.
func (e *ending) Start(ctx context.Context, ids ...string) cloud.Results {
	return each(ids, "start", func(ids []string) cloud.Results {
		_, err := e.api.StartInstances(ctx, &ec2.StartInstancesInput{InstanceIds: ids})
		return cloud.Each(classifyNamed(err), ids...)
	})
}
