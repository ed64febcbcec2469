package aws

import (
	"context"
	"fmt"
	"maps"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/elotl/kip/internal/cloud"
)

// groupTags are the tags of the group of an owner's cells. The cluster's tag is there only if GroupTags has it: of the
// groups of an interface exactly one may have that tag, or the AWS Load Balancer Controller fails the whole target group, and
// a group in cells.extraSecurityGroups may have it already. Source:
// https://github.com/kubernetes-sigs/aws-load-balancer-controller/issues/1897.
func (e *securityGroups) groupTags(owner string) map[string]string {
	return merged(e.cfg.Tags, e.cfg.GroupTags, map[string]string{cloud.TagOwner: owner, cloud.TagName: nameOfGroup(owner)})
}

// keepTags gives a group the tags that it lacks. It removes none, since others may have written them. Cells start without
// these tags, so a failure is no error.
func (e *securityGroups) keepTags(ctx context.Context, group foundGroup, owner string) {
	lacks := e.groupTags(owner)
	maps.DeleteFunc(lacks, func(key, value string) bool {
		has, there := group.tags[key]
		return there && has == value
	})
	if len(lacks) == 0 {
		return
	}
	_, err := e.api.CreateTags(ctx, &ec2.CreateTagsInput{Resources: []string{group.id}, Tags: tagsOf(lacks)})
	if err != nil && e.isNews("tags of "+group.id, fmt.Sprint(codeOf(err), lacks)) {
		e.cfg.Log.Warn("tag the security group of the cells", "group", group.id, "tags", fmt.Sprint(lacks), "err", classify(err, cloud.Scope{}))
	}
}
