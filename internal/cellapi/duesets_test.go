package cellapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/daemonsets"
)

// dueSet is a pod as the controller of a DaemonSet would make it.
func dueSet(set string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := setPodOn(set, "", change...)
	p.UID, p.ResourceVersion = "", ""
	return p
}

// says has the kubelet of a machine say that the copy of a set's pod is Ready.
func (m *machine) says(t *testing.T, set *corev1.Pod) {
	t.Helper()
	if _, err := m.kubelet(t).CoreV1().Pods(set.Namespace).Patch(t.Context(), set.Name, types.StrategicMergePatchType,
		fmt.Appendf(nil, readyStatus, set.UID), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

func TestAPodWaitsForTheNextPodOfASet(t *testing.T) {
	deleted := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(1))
	}
	for name, before := range map[string]*corev1.Pod{
		"while the one before is deleted": setPodOn("shipper", "shipper-1", deleted),
		"on a new node":                   nil,
	} {
		t.Run(name, func(t *testing.T) {
			h, told := setHouse(t, daemonsets.Entry{Namespace: "logging", MaxDelay: time.Minute})
			h.clock.(*stepped).hold(true)
			defer h.clock.(*stepped).hold(false)
			h.server.ExpectSets(nodeName, []*corev1.Pod{dueSet("shipper")})
			if before != nil {
				h.up.put(before)
				eventually(t, "Kip has heard of it", func() bool { return h.server.HasSet(nodeName, "logging", "shipper") })
			}
			if room := h.server.SetsBeside(podOn("web")); len(room) != 1 {
				t.Errorf("room is made for %d sets", len(room))
			}
			m := newMachine(t, "c1")
			h.bindNew(m.joinReady(h), podOn("web"))
			seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
			eventually(t, "the kubelet has listed its pods", func() bool { return seen.synced() > 0 })
			if before != nil {
				h.up.remove(before)
				eventually(t, "the old pod is gone", func() bool { return !h.server.HasSet(nodeName, "logging", "shipper") })
			}
			if seen.has("shop/web") {
				t.Fatal("the pod does not wait for the next pod of the set")
			}
			next := h.up.put(setPodOn("shipper", "shipper-2")).(*corev1.Pod)
			eventually(t, "the kubelet has the copy", func() bool { return seen.has("logging/shipper-2") })
			if seen.has("shop/web") {
				t.Fatal("the pod does not wait until the copy is ready")
			}
			m.says(t, next)
			eventually(t, "the kubelet has its pod", func() bool { return seen.has("shop/web") })
			if n := told.about("shop/web", "DaemonSetNotReady"); n > 0 {
				t.Errorf("Events: %q", told.all)
			}
		})
	}
}

func TestAPodWaitsNoLongerForASetThatHasNoPodThanItMay(t *testing.T) {
	entries := []daemonsets.Entry{{Namespace: "logging", MaxDelay: time.Minute}}
	elsewhere := daemonsets.Entry{Namespace: "logging", MaxDelay: time.Minute, Namespaces: []string{"x"}}
	huge := func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = cpus("900") }
	for name, tc := range map[string]struct {
		entries []daemonsets.Entry
		due     *corev1.Pod
		ends    bool // it is due no longer
		waits   bool
	}{
		"for as long as it may":      {entries: entries, due: dueSet("shipper"), waits: true},
		"until it is due no longer":  {entries: entries, due: dueSet("shipper"), ends: true, waits: true},
		"one that may not delay it":  {entries: []daemonsets.Entry{{Namespace: "logging"}}, due: dueSet("shipper")},
		"one that is beside others":  {entries: []daemonsets.Entry{elsewhere}, due: dueSet("shipper")},
		"one that has no room there": {entries: entries, due: dueSet("shipper", huge)},
		"one that is not named":      {entries: entries, due: dueSet("shipper", func(p *corev1.Pod) { p.Namespace = "team" })},
	} {
		t.Run(name, func(t *testing.T) {
			h, told := setHouse(t, tc.entries...)
			clk := h.clock.(*stepped)
			clk.hold(true)
			defer clk.hold(false)
			h.server.ExpectSets(nodeName, []*corev1.Pod{tc.due})
			m := newMachine(t, "c1")
			h.bindNew(m.joinReady(h), podOn("web"))
			seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
			eventually(t, "the kubelet has listed its pods", func() bool { return seen.synced() > 0 })
			late := 0
			switch {
			case tc.waits && seen.has("shop/web"):
				t.Fatal("the pod does not wait")
			case tc.ends:
				h.server.ExpectSets(nodeName, nil)
			case tc.waits:
				late = 1
				clk.hold(false)
			}
			eventually(t, "the kubelet has its pod", func() bool { return seen.has("shop/web") })
			if n := told.about("shop/web", "DaemonSetNotReady"); n != late || told.about("shop/web", "WaitsForDaemonSets") != late ||
				late > 0 && !strings.Contains(strings.Join(told.all, "\n"), "its node has no pod of it") {
				t.Errorf("Events: %q", told.all)
			}
			// It gets the copy when there is one.
			if tc.waits {
				h.up.put(setPodOn("shipper", "shipper-1"))
				eventually(t, "the kubelet has the copy", func() bool { return seen.has("logging/shipper-1") })
			}
		})
	}
}

func cpus(n string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
}
