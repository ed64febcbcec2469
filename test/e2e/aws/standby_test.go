//go:build e2e

package aws

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// kept waits until the standby pools are full: of those of a Kip which dies while it stops one, one
// instance runs and one is stopped.
func (s *space) kept(before ec2.State) (running, stopped sim.Instance) {
	s.Helper()
	s.Eventually("a standby cell is ready, and another is stopped", func(ctx context.Context) error {
		list, err := world.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, item := range list.Items {
			if cell, err := namespace.AsCell(&item); err != nil || cell.Status.Phase != apiv1.Ready {
				return fmt.Errorf("cell %s is %s (%v)", cell.Name, cell.Status.Phase, err)
			}
		}
		all := s.since(ctx, before)
		runs := slices.IndexFunc(all, func(i sim.Instance) bool { return i.State == cloud.Running })
		stops := slices.IndexFunc(all, func(i sim.Instance) bool { return i.State == cloud.Stopped })
		if len(all) != 2 || len(list.Items) != 2 || runs < 0 || stops < 0 {
			return fmt.Errorf("there are %d cells with the instances %+v", len(list.Items), all)
		}
		running, stopped = all[runs], all[stops]
		return nil
	})
	return running, stopped
}

func TestPodsTakeStandbyInstancesThatRunAndThatAreStopped(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	before := s.state(t.Context())
	types := machines.Types()
	var restore func()
	s.killAt(true, func() {
		restore = namespace.Reconfigure(t, world, func(provider map[string]any) {
			provider["cells"].(map[string]any)["standbyCells"] = []any{
				map[string]any{"instanceType": types[0].Name, "count": 1},
				map[string]any{"instanceType": types[1].Name, "count": 1, "stopped": true},
			}
		})
	}, "StopInstances")
	running, stopped := s.kept(before)
	if running.InstanceType != types[0].Name || stopped.InstanceType != types[1].Name {
		t.Errorf("of the standby instances a %s runs, and a %s is stopped", running.InstanceType, stopped.InstanceType)
	}
	s.Apply(pod("on-running", "{}"))
	if i := s.of(s.WaitReady("on-running")); i.ID != running.ID {
		t.Errorf("the pod is on %+v, want %s", i, running.ID)
	}
	s.killAt(true, func() { s.Apply(pod("on-stopped", "{pod.elotl.co/instance-type: "+types[1].Name+"}")) }, "StartInstances")
	if i := s.of(s.WaitReady("on-stopped")); i.ID != stopped.ID {
		t.Errorf("the pod is on %+v, want %s", i, stopped.ID)
	}
	restore()
	for _, name := range []string{"on-running", "on-stopped"} {
		if log := s.Kubectl("logs", name); log != "hello\n" {
			t.Errorf("pod %s has started more than once: its log is %q", name, log)
		}
		s.Kubectl("delete", "pod", name, "--wait=false")
	}
	for _, name := range []string{"on-running", "on-stopped"} {
		s.waitOver(name, before)
	}
	for _, i := range s.since(t.Context(), before) {
		if i.Cause != sim.Terminated {
			t.Errorf("instance %+v has not been terminated", i)
		}
	}
}
