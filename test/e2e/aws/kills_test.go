//go:build e2e

package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
)

// killAt does what makes Kip call EC2, and has Kip die at the next call of each of these actions, in
// whatever order they come. Each has worked by then and its answer is lost, if after says so; else it
// has not been carried out.
func (s *space) killAt(after bool, do func(), actions ...string) {
	s.Helper()
	before := len(s.state(s.Context()).Hung)
	for _, action := range actions {
		s.order("hang", ec2.Hang{Action: action, Nth: 1, After: after})
	}
	do()
	var hung []string
	for len(hung) < len(actions) {
		s.Eventually(fmt.Sprintf("Kip calls EC2, and hangs: of %v it has died at %v", actions, hung), func(ctx context.Context) error {
			now := s.state(ctx).Hung[before:]
			if len(now) == len(hung) {
				return fmt.Errorf("it has died at %v", now)
			}
			return nil
		})
		if err := world.KillKip(s.Context()); err != nil {
			s.Fatal(err)
		}
		hung = s.state(s.Context()).Hung[before:]
		if err := world.StartKip(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
	if slices.Sort(hung); !slices.Equal(hung, slices.Sorted(slices.Values(actions))) {
		s.Errorf("Kip has died at %v, want %v", hung, actions)
	}
}

// withoutGroup removes the security group of the cells, of which there are none.
func (s *space) withoutGroup() {
	s.Helper()
	s.Eventually("there is no security group", func(ctx context.Context) error {
		for _, g := range s.state(ctx).Groups {
			if _, code := s.account(ctx, "DeleteSecurityGroup", "GroupId="+g.ID); code != "" {
				return fmt.Errorf("delete %s: %s", g.ID, code)
			}
		}
		return nil
	})
}

// Of a pod with a disk, the calls that change something until it runs, when its claim asks for more,
// and from then on.
var (
	untilItRuns = []string{
		"CreateVolume", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "RunInstances", "CreateTags", "AttachVolume",
	}
	asItGrows     = []string{"ModifyVolume"}
	untilItIsGone = []string{"DetachVolume", "TerminateInstances", "DeleteVolume"}
)

func TestKipIsKilledAtEachCallOfAPodsLife(t *testing.T) {
	s := newSpace(t)
	for name, after := range map[string]bool{"carried-out": true, "not-carried-out": false} {
		s.withoutGroup() // so that the first launch makes it
		before := s.state(t.Context())
		manifest := strings.Replace(onClaim(name), "echo hello", "echo started >>/data/starts", 1)
		s.killAt(after, func() { s.Apply(claimed + manifest) }, untilItRuns...)
		volume := s.attachedBy(before, s.WaitReady(name))
		if i := s.only(before); i.ID != volume.Instance {
			t.Errorf("the instance is %s, the volume is %+v", i.ID, volume)
		}
		if out := s.Kubectl("exec", name, "--", "cat", "/data/starts"); out != "started\n" {
			t.Errorf("%s: the pod has started more than once, or not at all: %q", name, out)
		}
		s.killAt(after, func() { s.expand("data", "2Gi") }, asItGrows...)
		s.waitSize("data", volume.ID, 2)
		if out := s.Kubectl("exec", name, "--", "cat", "/data/starts"); out != "started\n" {
			t.Errorf("%s: when its volume has grown the pod has started %q", name, out)
		}
		s.killAt(after, func() {
			s.Kubectl("delete", "pod", name, "--wait=false")
			s.Kubectl("delete", "pvc", "data", "--wait=false")
		}, untilItIsGone...)
		s.waitOver(name, before)
		if i := s.only(before); i.Cause != sim.Terminated {
			t.Errorf("%s: the instance has ended by %q, want it terminated", name, i.Cause)
		}
		s.waitDeleted(volume.ID)
		if now := s.state(t.Context()); len(now.Groups) != 1 || len(now.Interfaces) > 0 || len(now.Volumes) != len(before.Volumes) {
			t.Errorf("%s: left are the groups %+v, of which one is Kip's, the interfaces %+v, the volumes %+v",
				name, now.Groups, now.Interfaces, now.Volumes)
		}
		for action, n := range s.state(t.Context()).Calls {
			asks := strings.HasPrefix(action, "Describe") || strings.HasPrefix(action, "Get") || strings.HasPrefix(action, "Receive")
			if !asks && n > before.Calls[action] && !slices.Contains(slices.Concat(untilItRuns, asItGrows, untilItIsGone), action) {
				t.Errorf("%s: Kip has made the call %s, and was not killed at it", name, action)
			}
		}
	}
}
