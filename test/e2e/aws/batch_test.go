//go:build e2e

package aws

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// What waits for its turn while EC2 throttles launches is launched together: the instances of one call have one
// token. No other test may launch beside this: Kip makes calls smaller that are throttled for long.
func TestEqualPodsAreLaunchedInOneCall(t *testing.T) {
	s := newSpace(t)
	usual := sim.EC2RateLimits()[cloud.CallLaunch].Requests
	lift := func() {
		s.order("throttle", cloudmodel.Throttle{Call: cloud.CallLaunch, Capacity: usual.Capacity, Refill: usual.Refill})
	}
	s.order("throttle", cloudmodel.Throttle{Call: cloud.CallLaunch, Capacity: 0.5}) // no call ever has the token that it takes
	defer lift()
	before := s.state(t.Context()).Calls["RunInstances"]
	s.Apply(pod("first", "{}"))
	s.Eventually("Kip waits for seconds until it launches again", func(ctx context.Context) error {
		if n := s.state(ctx).Calls["RunInstances"] - before; n < 3 {
			return fmt.Errorf("it has been throttled %d times", n)
		}
		return nil
	})
	names := []string{"a", "b", "c"}
	s.Apply(pod("a", "{}") + "---\n" + pod("b", "{}") + "---\n" + pod("c", "{}"))
	s.Eventually("each pod has a cell that is to be launched", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err == nil && len(cells) < 1+len(names) {
			err = fmt.Errorf("there are %d cells", len(cells))
		}
		return err
	})
	lift()

	together, taken := map[string][]*corev1.Pod{}, map[string]string{}
	for _, name := range names {
		p := s.WaitReady(name)
		token := s.of(p).Token
		together[token] = append(together[token], p)
		for _, address := range []string{p.Status.HostIP, p.Status.PodIP} {
			if other := taken[address]; address == "" || other != "" {
				t.Errorf("pod %s has the address %q of pod %q", name, address, other)
			}
			taken[address] = name
		}
		if log := s.Kubectl("logs", name); log != "hello\n" {
			t.Errorf("the log of pod %s is %q", name, log)
		}
		if out := s.Kubectl("exec", name, "--", "hostname"); out != name+"\n" {
			t.Errorf("exec in pod %s prints %q", name, out)
		}
	}
	several := 0
	for _, of := range together {
		if len(of) < 2 {
			continue
		}
		several++
		for _, p := range of { // by which load balancers find it
			if is := s.described(p); is.Prefix != "" || !slices.Contains(is.Addresses, p.Status.PodIP) {
				t.Errorf("pod %s has the address %s, its instance the addresses %q and the prefix %q", p.Name, p.Status.PodIP, is.Addresses, is.Prefix)
			}
		}
	}
	if several == 0 {
		t.Error("each pod's instance was launched by a call of its own")
	}
}
