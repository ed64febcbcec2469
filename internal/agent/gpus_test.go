package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agent/configs"
)

func (m *machine) gpu() {
	m.t.Helper()
	if err := os.MkdirAll(m.path("dev"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", m.path("dev/nvidia0")); err != nil {
		m.t.Fatal(err)
	}
}

// components are the names of those that run.
func components(a *Agent) (names []string) {
	for _, c := range a.Status().Components {
		if c.PID != 0 {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestTheGPUsOfAMachineAreOfferedFromWhenItHasSome(t *testing.T) {
	for _, init := range []bool{false, true} {
		t.Run(fmt.Sprintf("init=%t", init), func(t *testing.T) {
			m := newMachine(t)
			a := m.agent(init)
			stop := m.run(a)
			eventually(t, "containerd runs", m.didIt("containerd started"))
			if got := a.Status().Components; len(got) != 2 {
				t.Errorf("without GPUs it has the parts %+v", got)
			}
			m.gpu()
			eventually(t, "they are offered", m.didIt("device-plugin started"))
			eventually(t, "that is told", func() bool { return slices.Contains(components(a), configs.DevicePlugin) })
			stop()
			did := m.did()
			if offered, containerd := slices.Index(did, "device-plugin stopped"), slices.Index(did, "containerd stopped"); offered < 0 ||
				offered > containerd {
				t.Errorf("what offered them was not stopped before containerd: %q", did)
			}
		})
	}
}

func TestTheKubeletOfAMachineWithGPUsIsToldSo(t *testing.T) {
	for _, has := range []bool{false, true} {
		m := newMachine(t)
		if has {
			m.gpu()
		}
		a := m.agent(false)
		m.run(a)
		put(t, a, config())
		b, err := os.ReadFile(m.path(configs.KubeletConfig))
		if err != nil || strings.Contains(string(b), "nodeStatusUpdateFrequency: 1s") != has {
			t.Errorf("with GPUs %t the kubelet is to do: %v\n%s", has, err, b)
		}
	}
}
