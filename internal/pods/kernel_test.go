package pods

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/placement"
)

// wholeKernel grants all that a pod may ask of its machine's kernel.
var wholeKernel = Grants{Namespaces: []NamespaceGrants{{Namespace: "*", HostSysctls: []string{"*"}, HostModules: []string{"*"}}}}

func annotated(annotations ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{}
		for i := 0; i < len(annotations); i += 2 {
			p.Annotations[annotations[i]] = annotations[i+1]
		}
	}
}

func TestWhatAPodAsksOfItsKernelIsItsCells(t *testing.T) {
	h := newHarness(t)
	h.restarted(func(c *Config) { c.Grants = wholeKernel })
	r, err := h.c.Choose(t.Context(), pod("a", annotated(placement.AnnotationHostSysctls, "vm.swappiness=1,net/core/rmem_max=2",
		placement.AnnotationHostModules, "br-netfilter")))
	want := &cells.KernelSettings{
		Modules: []string{"br_netfilter"}, Sysctls: []cells.Sysctl{{Name: "vm.swappiness", Value: "1"}, {Name: "net.core.rmem_max", Value: "2"}},
	}
	if err != nil || !reflect.DeepEqual(r.Kernel, want) || r.Special {
		t.Errorf("%+v (special %t), %v", r.Kernel, r.Special, err)
	}
	if r, err := h.c.Choose(t.Context(), pod("a")); err != nil || r.Kernel != nil || r.UnsafeSysctls != nil {
		t.Errorf("a pod that asks for nothing: %+v, %v, %v", r.Kernel, r.UnsafeSysctls, err)
	}
}

func TestTheHugePagesOfAPodAreItsCells(t *testing.T) {
	h := newHarness(t)
	asks := func(pages ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
			for i := 0; i < len(pages); i += 2 {
				list[corev1.ResourceName(pages[i])] = resource.MustParse(pages[i+1])
			}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		}
	}
	want := []cells.HugePages{{PageBytes: 2 << 20, Pages: 8}, {PageBytes: 32 << 20, Pages: 1}}
	r, err := h.c.Choose(t.Context(), pod("a", asks("hugepages-32Mi", "32Mi", "hugepages-2Mi", "16Mi")))
	if err != nil || !slices.Equal(r.HugePages, want) || r.Special || r.Kernel != nil || r.Needs.MemoryBytes != (64+32+16)<<20 {
		t.Errorf("%v, needs %+v (special %t, kernel %v), %v", r.HugePages, r.Needs, r.Special, r.Kernel, err)
	}
	if r, err := h.c.Choose(t.Context(), pod("a", asks())); err != nil || r.HugePages != nil {
		t.Errorf("a pod that asks for none: %v, %v", r.HugePages, err)
	}
}

func TestTheSwapThatAPodAsksForIsItsCells(t *testing.T) {
	h := newHarness(t)
	for value, want := range map[string]int64{"2Gi": 2 << 30, "0": 0} {
		r, err := h.c.Choose(t.Context(), pod("a", annotated(placement.AnnotationSwap, value)))
		if err != nil || r.SwapBytes != want || r.Special || r.Kernel != nil {
			t.Errorf("of %s it has %d (special %t, kernel %v), %v", value, r.SwapBytes, r.Special, r.Kernel, err)
		}
	}
}

func TestCellsThatShareAKernelChangeNothingOfOthers(t *testing.T) {
	h := newHarness(t)
	h.restarted(func(c *Config) { c.Grants, c.SharedKernel = wholeKernel, true })
	for n, tc := range []struct{ annotation, value, want string }{
		{placement.AnnotationSwap, "0", ""},
		{placement.AnnotationHostSysctls, "net.core.somaxconn=1,kernel.shmmax=1,kernel/sem=1 1 1 1,fs.mqueue.msg_max=1", ""},
		{placement.AnnotationHostSysctls, "net.core.somaxconn=1,vm/max_map_count=262144",
			`annotation pod.elotl.co/host-sysctls: "vm.max_map_count" is not possible on this cloud, since its cells share the kernel of their host, ` +
				`and this sysctl is not namespaced`},
		{placement.AnnotationHostModules, "br_netfilter",
			`annotation pod.elotl.co/host-modules: "br_netfilter" is not possible on this cloud, since its cells share the kernel of their host`},
		{placement.AnnotationSwap, "2Gi",
			`annotation pod.elotl.co/swap: "2Gi" is not possible on this cloud, since its cells share the kernel of their host, whose swap is no ` +
				`pod's: here it can be 0 only`},
	} {
		name := string(rune('a' + n))
		h.put(pod(name, annotated(tc.annotation, tc.value)))
		h.must(name)
		_, has := h.cells.ForPod(apiv1.Ref(pod(name)).UID)
		said := slices.Contains(h.events, "Warning AnnotationUnsupported") &&
			slices.ContainsFunc(h.messages, func(s string) bool { return strings.Contains(s, tc.want) })
		if has != (tc.want == "") || said != (tc.want != "") {
			t.Errorf("%s: a cell %t, and said %q", tc.value, has, h.messages)
		}
	}
}

func TestUnsafeSysctlsAreThoseThatTheNamespaceMaySet(t *testing.T) {
	all := Grants{Unrestricted: true, UnsafeSysctls: []string{"kernel.msg*"}}
	some := Grants{UnsafeSysctls: []string{"kernel.msgmax"}, Namespaces: []NamespaceGrants{
		{Namespace: "ns", UnsafeSysctls: []string{"net.core.*"}}, {Namespace: "other", UnsafeSysctls: []string{"fs.mqueue.*"}},
	}}
	for _, tc := range []struct {
		grants Grants
		asked  []string
		want   []string
	}{
		{Grants{}, []string{"kernel.msgmax"}, nil},
		{wholeKernel, []string{"kernel.msgmax"}, nil},
		{all, []string{"kernel.msgmax", "kernel/msgmni", "kernel.sem"}, []string{"kernel.msgmax", "kernel/msgmni"}},
		{some, []string{"kernel.msgmax", "net/core/somaxconn", "fs.mqueue.msg_max"}, []string{"kernel.msgmax", "net/core/somaxconn"}},
		// A kubelet with it does not start.
		{Grants{UnsafeSysctls: []string{"kernel.*", "vm.*"}}, []string{"kernel.panic", "vm.swappiness", "kernel.sem"}, []string{"kernel.sem"}},
	} {
		p := pod("a", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{}
			for _, name := range tc.asked {
				p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, corev1.Sysctl{Name: name, Value: "1"})
			}
		})
		if got := tc.grants.unsafeSysctls(p); !slices.Equal(got, tc.want) {
			t.Errorf("of %q are granted %q, want %q", tc.asked, got, tc.want)
		}
	}
}

// No machine is paid for again and again that refuses the same.
func TestAPodWhoseCellRefusedItsSettingsWaitsForAnotherAnnotationOrAnHour(t *testing.T) {
	for name, change := range map[string]bool{"the annotation changes": true, "an hour": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.restarted(func(c *Config) { c.Grants, c.MaxAttempts = wholeKernel, 1 })
			h.put(pod("a", annotated(placement.AnnotationHostSysctls, "vm.max_map_coun=1")))
			h.must("a")
			cell, has := h.cells.ForPod("uid-a")
			if !has {
				t.Fatal("it has no cell")
			}
			cell.Phase, cell.Instance, cell.Cause, cell.Reason = apiv1.Gone, &cloud.Instance{ID: "i-1"}, cells.CauseKernelRefused, "no such sysctl"
			h.cells.gone("uid-a")
			h.c.CellChanged(cell)
			if again := h.must("a"); again != refusedRetry {
				t.Errorf("it is looked at again after %s, want %s", again, refusedRetry)
			}
			wait := refusedRetry
			if change {
				h.put(pod("a", annotated(placement.AnnotationHostSysctls, "vm.max_map_count=1")))
				if wait = h.must("a"); wait != changeSettles {
					t.Errorf("after the change it is looked at again after %s, want %s", wait, changeSettles)
				}
			}
			h.clock.Step(wait - time.Second)
			h.must("a")
			if _, has := h.cells.ForPod("uid-a"); has {
				t.Error("it has a cell too soon")
			}
			h.clock.Step(time.Second)
			h.must("a")
			if _, has := h.cells.ForPod("uid-a"); !has {
				t.Error("it has no cell")
			}
		})
	}
}
