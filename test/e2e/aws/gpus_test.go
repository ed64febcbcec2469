//go:build e2e

package aws

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// The GPU is a stand-in, and what EC2 says of its type is the model's; all between is as with a real one.
func TestAPodOnEC2GetsItsGPU(t *testing.T) {
	s := newSpace(t)
	const gpu = "nvidia.com/gpu"
	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["kubelet"].(map[string]any)["capacity"].(map[string]any)[gpu] = "1"
	})
	s.Eventually("the virtual node has a GPU", func(ctx context.Context) error {
		node, err := world.Admin.CoreV1().Nodes().Get(ctx, harness.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := node.Status.Allocatable[gpu]; got.Value() != 1 {
			return fmt.Errorf("it has %s", got.String())
		}
		return nil
	})
	s.Apply(strings.Replace(pod("one", "{}"), "{requests: {", "{limits: {"+gpu+": 1, ", 1))
	i := s.of(s.WaitReady("one"))
	if types := machines.Types(); i.InstanceType != types[len(types)-1].Name {
		t.Errorf("the pod is on a %s", i.InstanceType)
	}
	const look = `cd /dev; echo $(ls | grep nvidia) = "$NVIDIA_VISIBLE_DEVICES"`
	if got := s.Kubectl("exec", "one", "--", "sh", "-c", look); got != "nvidia-uvm nvidia0 nvidiactl = void\n" {
		t.Errorf("the container sees %q", got)
	}
	s.Kubectl("delete", "pod", "one", "--wait=false")
	s.Eventually("no cell is left", s.NoCells)
	restore()
}
