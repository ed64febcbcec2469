package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// tagCluster begins the key of the tag by which tools know what belongs to a cluster; its name follows. Sources: EKS User
// Guide, "View Amazon EKS security group requirements"; the AWS cloud provider of Kubernetes, pkg/providers/v1/tags.go.
const tagCluster = "kubernetes.io/cluster/"

// configuredTags are those of all that Kip makes, in the call that makes it: policies of an organization may refuse a call
// without them.
func (cfg *Config) configuredTags() map[string]string {
	if cfg.Cluster == "" {
		return cfg.Tags
	}
	tags := map[string]string{tagCluster + cfg.Cluster: "owned"}
	maps.Copy(tags, cfg.Tags)
	return tags
}

// notConfigured returns those of an instance's tags that replace no configured one. A label of a pod may, which is left of a time when
// its key was not configured.
func (cfg *Config) notConfigured(tags map[string]string) map[string]string {
	kept := maps.Clone(tags)
	cloud.DropConfigured(kept, cfg.configuredTags())
	return kept
}

// merged are several sets of tags as one. The later ones win.
func merged(all ...map[string]string) map[string]string {
	tags := map[string]string{}
	for _, some := range all {
		maps.Copy(tags, some)
	}
	return tags
}

// launchTags are the tags of all that a launch makes. Kip's own win.
func launchTags(r cloud.LaunchRequest) map[string]string { return merged(r.Resolved.Tags, r.TagsOf(0)) }

// ownedBy are the root disk and the interface of an instance: what ends with it. Disks of claims have tags of their own.
func ownedBy(i types.Instance) (ids []string) {
	for _, d := range i.BlockDeviceMappings {
		if d.Ebs != nil && aws.ToBool(d.Ebs.DeleteOnTermination) && d.Ebs.VolumeId != nil {
			ids = append(ids, *d.Ebs.VolumeId)
		}
	}
	for _, n := range i.NetworkInterfaces {
		if n.Attachment != nil && aws.ToBool(n.Attachment.DeleteOnTermination) && n.NetworkInterfaceId != nil {
			ids = append(ids, *n.NetworkInterfaceId)
		}
	}
	return ids
}

// lacksRootDisk reports whether EC2 does not show the root disk of an instance yet. It shows none of a pending instance
// (aws/aws-sdk-php#2804), and may show it later still (hashicorp/packer#9480).
func lacksRootDisk(i types.Instance) bool {
	root := aws.ToString(i.RootDeviceName)
	return root != "" && !slices.ContainsFunc(i.BlockDeviceMappings, func(d types.InstanceBlockDeviceMapping) bool {
		return aws.ToString(d.DeviceName) == root
	})
}

// taggedCall is how many resources one call tags. Source: EC2 API reference, "CreateTags".
const taggedCall = 1000

// codesNoPart say that EC2 does not know a part of an instance.
var codesNoPart = []string{codeNoVolume, "InvalidNetworkInterfaceID.NotFound"}

// tagging tags instances and what belongs to them.
type tagging struct{ *base }

// tagResources writes tags on instances and on their parts. Where EC2 does not let Kip tag the parts, as with a narrower
// policy, it tags the instances alone: lists show their tags. It tags nothing and returns ErrNotYet if EC2 does not know
// a part: either CreateTags knows it later than lists do, or later lists do not show it. If IAM judges a part before EC2 knows it
// or its tags, EC2 says UnauthorizedOperation instead, since the policy asks for the part's tags. No source says which EC2 says
// first. So with whole it tags nothing after that answer either.
func (e *tagging) tagResources(ctx context.Context, ids, parts []string, tags []types.Tag, whole bool) error {
	err := e.createTags(ctx, slices.Concat(ids, parts), tags)
	if err == nil || len(parts) == 0 || !cloud.Refused(err) {
		return err
	}
	if said, ok := errors.AsType[*failed](err); ok && slices.Contains(codesNoPart, said.code) {
		return cloud.No(cloud.ErrNotYet, cloud.Scope{}, said)
	}
	if whole && errors.Is(err, cloud.ErrUnauthorised) {
		return err
	}
	if errors.Is(err, cloud.ErrUnauthorised) && e.isNews("tags of disks and interfaces", codeOf(err)) {
		e.cfg.Log.Warn("tag the disks and interfaces of cells: their instances are tagged alone", "err", err)
	}
	return e.createTags(ctx, ids, tags)
}

func (e *tagging) createTags(ctx context.Context, ids []string, tags []types.Tag) error {
	for some := range slices.Chunk(ids, taggedCall) {
		if _, err := e.api.CreateTags(ctx, &ec2.CreateTagsInput{Resources: some, Tags: tags}); err != nil {
			return classifyNamed(err)
		}
	}
	return nil
}

// Tag implements cloud.Tagger. A call has one set of tags, so instances with the same
// share one.
func (e *tagging) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
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
		tags, parts := cut(tagsOf(e.cfg.notConfigured(taggings[places[0]].Tags))), map[string][]string{}
		whole := map[string]bool{}
		for _, n := range places {
			parts[taggings[n].ID], whole[taggings[n].ID] = taggings[n].Owned, taggings[n].Whole
		}
		answered := each(ids, "tag", func(ids []string) cloud.Results {
			var theirs []string
			for _, id := range ids {
				theirs = append(theirs, parts[id]...)
			}
			all := slices.ContainsFunc(ids, func(id string) bool { return whole[id] })
			return cloud.Each(e.tagResources(ctx, ids, theirs, tags, all), ids...)
		})
		for i, n := range places {
			if results[n].Err = answered[i].Err; errors.Is(results[n].Err, cloud.ErrThrottled) {
				wantsFewer = results[n].Err
			}
		}
	}
	return results
}
