//go:build e2e

package hostile

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// flood is a pod that opens connections to an agent as fast as it can.
func flood(name, spec, address string, port int) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  " + `nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
` + spec + fmt.Sprintf(`  containers:
  - name: main
    image: busybox:1.36
    command:
    - sh
    - -c
    - |
      for i in $(seq 24); do
        while :; do sleep 3 | nc -w 3 %s %d >/dev/null 2>&1; done &
      done
      trap "kill $(jobs -p); exit 0" TERM
      while :; do sleep 0.1; done
---
`, address, port)
}

// A pod of the host's network attacks the agent of its own cell, an ordinary one that of
// another, which a cloud without a rule of its own would let it do, while Kip is killed and started again: Kip comes back to all cells.
func TestPodsDoNotKeepKipOutOfACell(t *testing.T) {
	tier.All(t)
	s, b := begin(t, sleeper("own", "", "  hostNetwork: true\n"), "own")
	own := s.machine("own")
	s.Apply(flood("host", "  hostNetwork: true\n", "127.0.0.1", agentapi.Port) +
		flood("ordinary", "", own.Cell.Status.ManagementIP, own.OpenDoor(t)))
	s.WaitReady("host")
	s.WaitReady("ordinary")
	attacked := map[string]namespace.Machine{"host": s.machine("host"), "own": own}
	for pod, m := range attacked {
		s.Eventually("connections of the flood at the agent of pod "+pod, func(context.Context) error {
			n, err := connections(m)
			if err == nil && n < 12 {
				err = fmt.Errorf("there are %d", n)
			}
			return err
		})
	}
	began := time.Now()
	if err := world.KillKip(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := world.StartKip(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := map[string]time.Duration{}
	for _, pod := range []string{"own", "host", "ordinary", "bystander"} {
		s.Eventually("Kip comes back to the cell of pod "+pod, s.ExecTrue(pod))
		took[pod] = time.Since(began)
	}
	var err error
	if b.kip, err = world.KipPID(); err != nil {
		t.Fatal(err)
	}
	b.while(t, "floods of connections at the agents of two cells", func(ctx context.Context, answers *counts) {
		<-ctx.Done()
		for pod, m := range attacked {
			n, err := connections(m)
			if err != nil {
				t.Error(err)
			}
			answers.add(fmt.Sprintf("%d connections at the agent of pod %s; back to it %d ms after it was killed", n, pod, took[pod].Milliseconds()))
		}
	})
}

// connections are how many are open at the machine's agent, Kip's included.
func connections(m namespace.Machine) (n int, err error) {
	const established = "01"
	for _, table := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(procFile(m.PID, "net/"+table))
		if err != nil {
			return 0, err
		}
		for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n")[1:] {
			if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", agentapi.Port)) && f[3] == established {
				n++
			}
		}
	}
	return n, nil
}
