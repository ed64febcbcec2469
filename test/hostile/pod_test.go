//go:build e2e

package hostile

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/test/harness"
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

// bomb is a pod that starts processes until no more can be, once it is told to. They stay. On a cell of the local cloud
// they take 2 GiB, so that memory is not what bounds them.
const bomb = `apiVersion: v1
kind: Pod
metadata: {name: bomb}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'until [ -e /tmp/go ]; do sleep 0.1; done; seq 50000 | xargs -n 1 -P 50000 sleep 9999']
    resources: {requests: {cpu: "2", memory: 3Gi}}
  - name: other
    image: busybox:1.36
    command: [sh, -c, 'echo started; exec sleep infinity']
---
`

func TestAForkBombLeavesTheAgentTheTasksThatItNeeds(t *testing.T) {
	tier.All(t)
	s, b := begin(t, bomb, "bomb")
	m := s.machine("bomb")
	bound, err := tasks(m, "max")
	if err != nil || bound > 1<<14 {
		t.Fatalf("the cell's cgroup is bounded to %d tasks (%v): want at most 16384, or the bomb would take this machine", bound, err)
	}
	s.Kubectl("exec", "bomb", "-c", "main", "--", "touch", "/tmp/go")
	s.Eventually("the bomb can start no more", func(ctx context.Context) error {
		log, code, said := s.Attempt(ctx, "logs", "bomb", "-c", "main")
		if code != 0 || !strings.Contains(log, "Resource temporarily unavailable") {
			run, err := tasks(m, "current")
			return fmt.Errorf("beside %d tasks (%w) its log is %q: %s", run, err, log, said)
		}
		return nil
	})
	b.while(t, "a fork bomb", func(ctx context.Context, answers *counts) {
		for first := true; first || ctx.Err() == nil; first = false {
			run, err := tasks(m, "current")
			if err != nil || run < bound/2 || run > bound-100 {
				t.Errorf("%d tasks run on the cell (%v): want most of %d, and some left to the agent", run, err, bound)
			}
			log, code, said := s.Try("logs", "bomb", "-c", "other")
			if code != 0 || log != "started\n" {
				t.Errorf("the log of the other container is %q: %s", log, said)
			}
			answers.add("gets a log of its pod")
		}
	})
	if pod, err := s.Pod(t.Context(), "bomb"); err != nil || !namespace.IsReady(pod) || strings.Contains(namespace.States(pod), "1 restarts") {
		t.Errorf("the pod of the bomb is %v (%v)", pod, err)
	}
	s.Kubectl("delete", "pod", "bomb")
	s.Eventually("the cell of the bomb has ended", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err == nil && len(cells) > 1 {
			err = fmt.Errorf("there are %d cells", len(cells))
		}
		return err
	})
}

// A pod asks Kip's kubelet port with tokens that are none, each of which the API server has to be asked about.
func TestAPodThatFloodsTheKubeletPortHoldsUpNoOther(t *testing.T) {
	tier.All(t)
	s, b := begin(t, sleeper("a", "", ""), "a")
	m := s.machine("a")
	node, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = net.JoinHostPort(a.Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
		}
	}
	const connections = 400
	var said *counts
	b.while(t, "a flood of the kubelet port with random tokens", func(ctx context.Context, answers *counts) {
		said = answers
		var wg sync.WaitGroup
		for range connections {
			wg.Go(func() {
				transport := &http.Transport{
					TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
					DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
						err = m.Inside(func() (err error) {
							conn, err = net.DialTimeout(network, address, 5*time.Second)
							return err
						})
						return conn, err
					},
				}
				defer transport.CloseIdleConnections()
				for seen := false; ctx.Err() == nil || !seen && t.Context().Err() == nil; {
					asking, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					req, err := http.NewRequestWithContext(asking, http.MethodGet, "https://"+address+"/pods", nil)
					if err != nil {
						t.Error(err)
						cancel()
						return
					}
					req.Header.Set("Authorization", "Bearer "+rand.Text())
					resp, err := transport.RoundTrip(req)
					if err != nil {
						answers.add("not answered")
					} else {
						answers.add(resp.Status)
						_ = resp.Body.Close()
					}
					cancel()
					seen = answers.has("401")
				}
			})
		}
		wg.Wait()
	})
	if !said.has("401") || said.has("200") {
		t.Errorf("the attack was none: %s", said)
	}
}

// Pods wait for a claim that nobody makes, and each of them is looked at again and again: those with the node's name, which the scheduler
// does not keep back.
func TestPodsThatWaitForAClaimHoldUpNoOther(t *testing.T) {
	tier.All(t)
	s, b := begin(t, "")
	others := &space{namespace.New(t, world)}
	const pods = 300
	var manifest strings.Builder
	const waits = "  nodeName: " + harness.Node + "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: none}}]\n"
	for n := range pods {
		manifest.WriteString(sleeper(fmt.Sprint("waits-", n), "", waits))
	}
	others.Apply(manifest.String())
	others.Eventually("a pod waits for its claim", func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Events(others.NS).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + events.VolumeNotReady})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("none says so")
		}
		return err
	})
	b.while(t, fmt.Sprint(pods, " pods that wait for a claim"), func(ctx context.Context, answers *counts) {
		for n := 0; n == 0 || ctx.Err() == nil; n++ {
			name, began := fmt.Sprint("new-", n), time.Now()
			s.Apply(sleeper(name, "", ""))
			s.WaitReady(name)
			answers.add(fmt.Sprintf("a new pod of another namespace runs after %d ms", time.Since(began).Milliseconds()))
			s.Kubectl("delete", "pod", name)
		}
	})
}

// tasks reads a file of the pids controller of a machine's cgroup.
func tasks(m namespace.Machine, file string) (n int, err error) {
	text, err := os.ReadFile(m.Path("sys/fs/cgroup/pids." + file))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = os.ReadFile(m.Path("sys/fs/cgroup/pids/pids." + file))
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
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
