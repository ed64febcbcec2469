package aws

import (
	"fmt"
	"strings"

	"github.com/elotl/kip/internal/cloud"
)

// messages are answers to a launch whose code alone would mislead: EC2 has the code for several things, and
// only the message tells them apart. The first that matches counts.
var messages = []struct {
	code, says string // what the code begins with, and what the message has
	means      func(*launches, cloud.LaunchRequest, *failed) error
}{
	// An account on AWS' Free plan may launch few images. Source: https://github.com/bitnami/vms/issues/1838.
	{"InvalidParameter", "image is not eligible for Free Tier", barring("upgrade the account to AWS' Paid plan, or name another image")},
	// It may launch few types. Sources: https://github.com/LinkedInLearning/learning-terraform-3087701/issues/345,
	// https://github.com/aws/karpenter-provider-aws/pull/9004.
	{"InvalidParameter", "is not eligible for Free Tier", func(e *launches, r cloud.LaunchRequest, said *failed) error {
		return e.plan.notInPlan(r, said)
	}},
	// AuthFailure is mostly of the credentials. Source: EC2 API reference, "Error codes", AuthFailure: also of
	// "an AMI for which you do not have permissions". Message: https://github.com/Orange-Cyberdefense/GOAD/issues/304.
	{"AuthFailure", "Not authorized for image", barring("ask the owner to share the image with this account, or name another image")},
	// OptInRequired is mostly of an account that is new. Message: https://github.com/awslabs/harmonix/issues/22.
	{"OptInRequired", "AWS Marketplace", barring("subscribe to the product in AWS Marketplace, or name another image")},
	// A type is not sold so, such as one that is sold in Capacity Blocks alone. Source of the message:
	// https://github.com/terraform-aws-modules/terraform-aws-ec2-instance/pull/404.
	{"InvalidParameter", "market type (purchasing) option is not valid", func(_ *launches, r cloud.LaunchRequest, said *failed) error {
		return cloud.No(cloud.ErrRefused, scopeOf(meaning{about: offering}, askedFor(r.LaunchSpec)), said)
	}},
}

// byMessage returns what EC2's answer to a launch means if its message decides that; nil otherwise.
func (e *launches) byMessage(r cloud.LaunchRequest, err error) error {
	said := saidOf(err)
	if said == nil || !ofEC2(err) || !refusal(err) {
		return nil
	}
	for _, m := range messages {
		if strings.HasPrefix(said.code, m.code) && strings.Contains(said.message, m.says) {
			return m.means(e, r, said)
		}
	}
	return nil
}

// barring returns what an answer means that finds fault with the image. Kip forgets which images there are, so that
// Resolve finds another one if it can. It refuses this one for a while, and says what to do.
func barring(cure string) func(*launches, cloud.LaunchRequest, *failed) error {
	return func(e *launches, r cloud.LaunchRequest, said *failed) error {
		e.caches.forget()
		e.images.bar(r.Resolved.Image, fmt.Sprintf("cells.bootImageSpec: image %s: %s; %s", r.Resolved.Image, said.Error(), cure))
		return e.images.mayBoot(r.Resolved.Image, r.InstanceType)
	}
}
