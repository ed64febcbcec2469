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

// modelPlugins are the plugins of the cells of a model. Kubelets register their
// drivers when they work.
type modelPlugins struct {
	mu         sync.Mutex
	did        []string
	registered []string
	works      bool
	unknown    bool // which drivers are registered
	mounted    bool
	trouble    string
}

func (p *modelPlugins) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); len(p.did) == 0 || p.did[len(p.did)-1] != s {
		p.did = append(p.did, s)
	}
}

func (p *modelPlugins) agents(r *http.Request) *http.Response {
	p.mu.Lock()
	defer p.mu.Unlock()
	code := http.StatusOK
	switch r.URL.Path {
	case agentapi.PathConfig:
		var c agentapi.Config
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			panic(err)
		}
		p.note("plugins in the configuration: %t", c.Plugins)
	case agentapi.PathPlugins:
		var list agentapi.Plugins
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			panic(err)
		}
		if len(list.Plugins) == 0 && p.mounted {
			p.note("asked to let go")
			code = http.StatusServiceUnavailable
			break
		}
		var names []string
		for _, plugin := range list.Plugins {
			names = append(names, plugin.Driver+" "+string(plugin.Pod))
			if p.works {
				p.registered = append(p.registered, plugin.Driver)
			}
		}
		p.note("agent has %v", names)
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(""))}
}

// mount says whether a volume is mounted.
func (p *modelPlugins) mount(is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mounted = is
}

func (p *modelPlugins) done() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.did), func(s string) bool { return strings.HasPrefix(s, "plugins in") })
}

func withPlugins(t *testing.T, f func(t *testing.T, b *bubble, p *modelPlugins)) {
	p := &modelPlugins{works: true}
	inBubble(t, func(c *setup) {
		links := c.APIs.(*modelLinks)
		links.agents = p.agents
		links.binds = func(string) { p.mu.Lock(); p.note("shown"); p.mu.Unlock() }
		links.drivers = func() ([]string, bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return slices.Clone(p.registered), !p.unknown
		}
		links.trouble = func() string { p.mu.Lock(); defer p.mu.Unlock(); return p.trouble }
	}, nil, func(t *testing.T, b *bubble) { f(t, b, p) })
}

func (b *bubble) requestPlugin(pod string) {
	b.Helper()
	r := nano(pod)
	r.Plugins = []Plugin{{Driver: "nfs", Pod: json.RawMessage(`{"a":1}`)}}
	if _, err := b.cells.Request(b.Context(), r); err != nil {
		b.Fatal(err)
	}
}

// releaseMounted lets the cell of pod a go while a volume is mounted, which is unmounted later.
func (b *bubble) releaseMounted(p *modelPlugins) {
	b.Helper()
	p.mount(true)
	b.cells.Release(ref("a").UID, "done", true)
	b.later(5 * time.Second)
	if got := b.phase("a"); got != apiv1.Draining {
		b.Errorf("the cell is %s while a volume is mounted: want Draining", got)
	}
	p.mount(false)
	b.later(10 * time.Second)
}

func TestPluginsWorkBeforeThePodIsShownAndUntilItsVolumesAreGone(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "with a restart in between": true} {
		t.Run(name, func(t *testing.T) {
			withPlugins(t, func(t *testing.T, b *bubble, p *modelPlugins) {
				p.works, p.trouble = false, "Failed: no such image"
				b.requestPlugin("a")
				b.later(10 * time.Second)
				if got := b.phase("a"); got != apiv1.Ready {
					t.Fatalf("the cell is %s while its driver is not registered: want Ready", got)
				}
				if said := b.said("Warning CSIDriverNotReady", "CSI driver nfs", "no such image"); len(said) != 1 {
					t.Errorf("why the driver is not there was said as %q", said)
				}
				p.mu.Lock()
				p.registered = []string{"another", "nfs"}
				p.mu.Unlock()
				b.later(10 * time.Second)
				if restart {
					b.stop()
					b.run()
					b.later(10 * time.Second)
				}
				if got := b.phase("a"); got != apiv1.Bound {
					t.Fatalf("the cell is %s; it was said %q", got, b.said())
				}
				b.releaseMounted(p)
				want := []string{`agent has [nfs {"a":1}]`, "shown", "asked to let go", "agent has []"}
				if got := p.done(); !slices.Equal(got, want) { // after a restart it is shown again, and given nothing
					t.Errorf("done %q: want %q", got, want)
				}
				if left := b.cloud.running(); len(left) != 0 {
					t.Errorf("%v are left", left)
				}
			})
		})
	}
}

func TestACellWhoseKubeletRegisteredWithAnEarlierKipIsBound(t *testing.T) {
	withPlugins(t, func(t *testing.T, b *bubble, p *modelPlugins) {
		p.works = false
		b.requestPlugin("a")
		b.later(10 * time.Second)
		p.mu.Lock()
		p.unknown = true
		p.mu.Unlock()
		b.stop()
		b.run()
		b.later(10 * time.Second)
		if got := b.phase("a"); got != apiv1.Bound {
			t.Errorf("the cell is %s: want Bound", got)
		}
	})
}

func TestOnlyACellThatMayHavePluginsIsToldSo(t *testing.T) {
	withPlugins(t, func(t *testing.T, b *bubble, p *modelPlugins) {
		if _, err := b.cells.Request(b.Context(), nano("a")); err != nil {
			t.Fatal(err)
		}
		b.later(10 * time.Second)
		if want := "plugins in the configuration: false"; !slices.Contains(p.did, want) {
			t.Errorf("done %q: want %q", p.did, want)
		}
		b.requestPlugin("b")
		b.later(10 * time.Second)
		if want := "plugins in the configuration: true"; !slices.Contains(p.did, want) {
			t.Errorf("done %q: want %q", p.did, want)
		}
	})
}

func TestAPluginThatNeverRegistersIsTold(t *testing.T) {
	withPlugins(t, func(t *testing.T, b *bubble, p *modelPlugins) {
		p.works = false
		b.requestPlugin("a")
		b.later(15 * time.Second)
		if said := b.said("CSIDriverNotReady"); len(said) != 0 {
			t.Errorf("at once it was said %q", said)
		}
		b.later(time.Minute)
		if said := b.said("Warning CSIDriverNotReady", "CSI driver nfs", "not registered"); len(said) != 1 {
			t.Errorf("after a minute it was said %q", said)
		}
		if !b.cells.ReleaseUnbound(ref("a").UID, "deleted") {
			t.Error("a cell that waits for a plugin counts as bound")
		}
		b.later(10 * time.Second)
		if left := b.cloud.running(); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	})
}

// What runs beside the pod is shown to the kubelet with it.
func TestAPluginBesideThePodIsNotTheAgentsButItsVolumesAreFreed(t *testing.T) {
	for name, tc := range map[string]struct {
		plugins []Plugin
		want    []string
	}{
		"alone": {[]Plugin{{Driver: "secrets", Beside: true}}, []string{"shown", "asked to let go", "agent has []"}},
		"with another": {
			[]Plugin{{Driver: "secrets", Beside: true}, {Driver: "nfs", Pod: json.RawMessage(`{"a":1}`)}},
			[]string{`agent has [nfs {"a":1}]`, "shown", "asked to let go", "agent has []"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			withPlugins(t, func(t *testing.T, b *bubble, p *modelPlugins) {
				r := nano("a")
				r.Plugins = tc.plugins
				if _, err := b.cells.Request(b.Context(), r); err != nil {
					t.Fatal(err)
				}
				b.later(10 * time.Second)
				if got := b.phase("a"); got != apiv1.Bound {
					t.Fatalf("the cell is %s; it was said %q", got, b.said())
				}
				b.releaseMounted(p)
				if got := p.done(); !slices.Equal(got, tc.want) {
					t.Errorf("done %q: want %q", got, tc.want)
				}
			})
		})
	}
}
