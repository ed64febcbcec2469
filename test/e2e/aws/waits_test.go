//go:build e2e

// Here are tests that wait for long and do little, which is beside others, and when those that restart Kip
// are over. Of tests that are parallel, those that come last start first.

package aws

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// cut takes the network cable of the machine behind a pod's instance out of the bridge, and returns
// what puts it back.
func (s *space) cut(pod string) (mend func()) {
	s.Helper()
	side, err := host.Inspect(host.Config{StateDir: filepath.Join(world.State, "cloud")}, s.machine(pod).Cell.Status.InstanceID)
	if err != nil {
		s.Fatal(err)
	}
	port, err := netlink.LinkByName(side.Device)
	if err != nil {
		s.Fatal(err)
	}
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		s.Fatal(err)
	}
	if err := netlink.LinkSetNoMaster(port); err != nil {
		s.Fatal(err)
	}
	return func() {
		if err := netlink.LinkSetMaster(port, link); err != nil {
			s.Fatal(err)
		}
	}
}

// impairedPatience is patience after what Kip waits for itself: until a cell counts as silent, until the
// next look at EC2's checks, and for two minutes of looks.
const impairedPatience = 5*time.Minute + namespace.Patience

// Of three pods that may be silent for a day one is cut off and its machine impaired. One is cut off alone, and
// one is on an impaired machine that is heard.
func TestASilentCellIsLostWhoseMachineFailsEC2sChecks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	names := []string{"lost", "silent", "heard"}
	for _, name := range names {
		s.Apply(pod(name, `{pod.elotl.co/healthcheck-healthy-timeout: "86400"}`))
	}
	before, on := map[string]*corev1.Pod{}, map[string]sim.Instance{}
	for _, name := range names {
		before[name] = s.WaitReady(name)
		on[name] = s.of(before[name])
	}
	s.order("impair", ec2.Impairment{Instance: on["lost"].ID, Check: ec2.CheckSystem})
	s.order("impair", ec2.Impairment{Instance: on["heard"].ID, Check: ec2.CheckInstance})
	s.cut("lost")
	mend := sync.OnceFunc(s.cut("silent"))
	defer mend() // whatever comes: others use the world as well

	ctx, cancel := context.WithTimeout(t.Context(), impairedPatience)
	defer cancel()
	if err := namespace.Poll(ctx, func(ctx context.Context) error {
		p, err := s.Pod(ctx, "lost")
		if err == nil && (p.UID != before["lost"].UID || p.Status.HostIP == before["lost"].Status.HostIP || !namespace.IsReady(p)) {
			err = fmt.Errorf("pod %s is on %s: %s", p.UID, p.Status.HostIP, namespace.States(p))
		}
		return err
	}); err != nil {
		t.Fatalf("the same pod is Ready on another instance: %v", err)
	}
	s.waitEvent("lost", events.CellLost, "the cloud's own checks have failed for")
	s.Eventually("the impaired instance is terminated", func(ctx context.Context) error {
		all := s.state(ctx).Instances
		n := slices.IndexFunc(all, func(i sim.Instance) bool { return i.ID == on["lost"].ID })
		if all[n].Cause != sim.Terminated {
			return fmt.Errorf("it is %+v", all[n])
		}
		return nil
	})
	mend()
	for _, name := range []string{"silent", "heard"} {
		s.Eventually("exec in pod "+name, s.ExecTrue(name))
		p := s.WaitReady(name)
		is, was := p.Status.ContainerStatuses[0], before[name].Status.ContainerStatuses[0]
		if now := s.of(p).ID; now != on[name].ID || is.ContainerID != was.ContainerID {
			t.Errorf("pod %s was on %s, and is on %s: %s", name, on[name].ID, now, namespace.States(p))
		}
	}
	if refused := s.state(t.Context()).Refused; len(refused) > 0 {
		t.Errorf("the policy allows too little: %v", refused)
	}
}
