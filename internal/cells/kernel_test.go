package cells

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// modelKernels are the kernels of the cells of a model.
type modelKernels struct {
	mu     sync.Mutex
	did    []string
	code   int // the answer to settings
	answer string
}

func (k *modelKernels) note(what string) {
	if len(k.did) == 0 || k.did[len(k.did)-1] != what {
		k.did = append(k.did, what)
	}
}

func (k *modelKernels) agents(r *http.Request) *http.Response {
	k.mu.Lock()
	defer k.mu.Unlock()
	code, answer := http.StatusOK, ""
	switch r.URL.Path {
	case agentapi.PathConfig:
		var c agentapi.Config
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			panic(err)
		}
		k.note(fmt.Sprintf("kubelet allows %q", c.UnsafeSysctls))
	case agentapi.PathKernel:
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		if code, answer = k.code, k.answer; code == http.StatusOK {
			k.note("kernel has " + string(b))
		}
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(answer))}
}

func (k *modelKernels) answers(code int, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.code, k.answer = code, text
}

func (k *modelKernels) done() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.did)
}

func withKernels(t *testing.T, more func(*setup), f func(t *testing.T, b *bubble, k *modelKernels), observers ...Observer) {
	k := &modelKernels{code: http.StatusOK}
	inBubble(t, func(c *setup) {
		links := c.APIs.(*modelLinks)
		links.agents = k.agents
		links.binds = func(string) { k.mu.Lock(); k.note("shown"); k.mu.Unlock() }
		more(c)
	}, nil, func(t *testing.T, b *bubble) { f(t, b, k) }, observers...)
}

func (b *bubble) requestKernel(pod string) {
	b.Helper()
	r := nano(pod)
	r.Kernel = &KernelSettings{Modules: []string{"br_netfilter"}, Sysctls: []Sysctl{{Name: "vm.swappiness", Value: "1"}}}
	r.UnsafeSysctls = []string{"kernel.msgmax"}
	if _, err := b.cells.Request(b.Context(), r); err != nil {
		b.Fatal(err)
	}
}

const (
	kernelHas     = `kernel has {"modules":["br_netfilter"],"sysctls":[{"name":"vm.swappiness","value":"1"}]}`
	kubeletAllows = `kubelet allows ["kernel.msgmax"]`
)

func TestTheKernelIsAsThePodAsksBeforeItIsShown(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "with a restart in between": true} {
		t.Run(name, func(t *testing.T) {
			withKernels(t, func(*setup) {}, func(t *testing.T, b *bubble, k *modelKernels) {
				k.answers(http.StatusServiceUnavailable, "not yet")
				b.requestKernel("a")
				b.later(10 * time.Second)
				if said := b.said("HostSettingsNotReady"); b.phase("a") != apiv1.Ready || len(said) > 0 {
					t.Fatalf("the cell is %s, said %q", b.phase("a"), said)
				}
				b.later(kernelSilence)
				if said := b.said("Warning HostSettingsNotReady", "not yet"); len(said) != 1 {
					t.Errorf("after a while is said %q", said)
				}
				if restart {
					b.stop()
					b.run()
				}
				k.answers(http.StatusOK, "")
				b.later(10 * time.Second)
				if b.phase("a") != apiv1.Bound {
					t.Fatalf("the cell is %s", b.phase("a"))
				}
				did := k.done()
				if restart {
					did = slices.Compact(did)
				}
				if want := []string{kubeletAllows, kernelHas, "shown"}; !slices.Equal(did, want) {
					t.Errorf("it did %q, want %q", did, want)
				}
			})
		})
	}
}

// The kubelet of a standby cell is another one before it is shown a pod that sets unsafe sysctls.
func TestAStandbyCellIsMadeAsItsPodAsks(t *testing.T) {
	withKernels(t, keep(1), func(t *testing.T, b *bubble, k *modelKernels) {
		b.later(10 * time.Second)
		before := k.done()
		k.mu.Lock()
		k.did = nil
		k.mu.Unlock()
		b.links.boots = func(string) bool { return false } // none that refills the pool
		b.requestKernel("a")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if want := []string{kubeletAllows, kernelHas, "shown"}; cell.Standby == "" || cell.Phase != apiv1.Bound || !slices.Equal(k.done(), want) {
			t.Errorf("cell %+v, did %q and then %q, want %q", cell, before, k.done(), want)
		}
	})
}

func TestACellWhoseMachineRefusesWhatItsPodAsksOfTheKernelEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		code         int
		answer, want string
	}{
		"its kernel has no such thing":    {http.StatusBadRequest, "set sysctl vm.swappiness=1: no such sysctl", "set sysctl vm.swappiness=1: no such sysctl"},
		"its agent does not know of that": {http.StatusNotFound, "404 page not found", "its agent is older than this Kip"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &seenEnds{}
			withKernels(t, func(*setup) {}, func(t *testing.T, b *bubble, k *modelKernels) {
				k.answers(tc.code, tc.answer)
				b.requestKernel("a")
				b.later(time.Minute)
				if b.phase("a") != "" || len(b.said("Warning HostSettingsRefused", tc.want)) != 1 || slices.Contains(k.done(), "shown") {
					t.Errorf("the cell is %q, said %q, did %q", b.phase("a"), b.said("Warning"), k.done())
				}
				if n, all := seen.of(CauseKernelRefused); n != 1 || all != 1 {
					t.Errorf("it ended for %+v", seen.all)
				}
			}, seen)
		})
	}
}
