package pods

import (
	"context"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// copiesOf are what cells run beside their pods, as a test says.
type copiesOf struct {
	sets   []*corev1.Pod
	copies []daemonsets.Copy
	has    bool
	hidden bool        // the cells do not know of a set's pod yet
	seen   func() bool // nil for yes
}

func (c *copiesOf) PodsSeen() bool { return c.seen == nil || c.seen() }

func (c *copiesOf) ObserveCopies(daemonsets.CopyObserver)       {}
func (c *copiesOf) SetsBeside(*corev1.Pod) []*corev1.Pod        { return c.sets }
func (c *copiesOf) Copies(types.UID) (all []daemonsets.Copy)    { return c.copies }
func (c *copiesOf) HasPod(types.UID) bool                       { return c.has }
func (c *copiesOf) Shown(types.UID) bool                        { return !c.hidden }
func besideRules(entries ...daemonsets.Entry) *daemonsets.Rules { return daemonsets.New(entries, nil) }
func (h *harness) beside(copies *copiesOf, r *daemonsets.Rules) {
	h.restarted(func(c *Config) { c.DaemonSets, c.Copies = r, copies })
}

// bound has a pod have a bound cell, of which Kip is told.
func (h *harness) bound(pod, id string) cells.Cell {
	uid := types.UID("uid-" + pod)
	h.cells.set(uid, func(c *cells.Cell) {
		c.ID, c.Phase, c.Pod = id, apiv1.Bound, apiv1.PodReference{Namespace: "ns", Name: pod, UID: uid}
	})
	cell, _ := h.cells.ForPod(uid)
	h.c.CellChanged(cell)
	return cell
}

func readyOf(p *corev1.Pod) (status corev1.ConditionStatus, message string) {
	k := conditionOf(p, corev1.PodReady)
	if k == nil {
		return "", ""
	}
	return k.Status, k.Message
}

func TestAPodOfADaemonSetIsReadyWhenItsCopiesAre(t *testing.T) {
	h := newHarness(t)
	copies := &copiesOf{has: true}
	h.beside(copies, besideRules(daemonsets.Entry{Namespace: "ns"}))
	h.put(pod("a", daemon))
	h.must("a")
	got := h.told("a")
	if s, _ := readyOf(got); s != corev1.ConditionTrue || got.Status.Phase != corev1.PodRunning || got.Status.PodIP != "" ||
		apiv1.WithoutMachine(got) == nil || apiv1.WithoutMachine(got).Reason != "BesidePods" {
		t.Errorf("without copies its status is %+v", got.Status)
	}
	h.want("requests", h.cells.requests)
	writes := h.writes()

	bad := daemonsets.Copy{
		Cell: "cell-1", Pod: apiv1.PodReference{Namespace: "shop", Name: "web"}, Reported: true, WasReady: true, Shown: h.clock.Now(),
		Why: "CrashLoopBackOff",
	}
	good := daemonsets.Copy{Cell: "cell-2", Reported: true, Ready: true, WasReady: true}
	copies.copies = []daemonsets.Copy{bad}
	h.clock.Step(standAgain)
	if again := h.must("a"); again != copiesAgain {
		t.Errorf("it is looked at again after %s", again)
	}
	got = h.told("a")
	const why = "The copies on 1 of 1 cells are not ready: cell-1 beside pod shop/web (CrashLoopBackOff)."
	if s, message := readyOf(got); s != corev1.ConditionFalse || message != why {
		t.Errorf("it is Ready %s: %s, want %s", s, message, why)
	}
	for range 3 {
		h.clock.Step(time.Minute)
		h.must("a")
		h.told("a")
	}
	if n := h.writes() - writes; n != 1 {
		t.Errorf("its status was written %d times, want once", n)
	}
	// After a restart of Kip nothing is heard of it yet: it stays as it was.
	copies.has, copies.copies = false, nil
	h.beside(copies, besideRules(daemonsets.Entry{Namespace: "ns"}))
	h.put(pod("web"))
	h.bound("web", "")
	h.must("a")
	if s, _ := readyOf(h.told("a")); s != corev1.ConditionFalse {
		t.Errorf("Kip does not know, and it is Ready %s", s)
	}
	copies.has, copies.copies = true, []daemonsets.Copy{good}
	h.clock.Step(readyAgain)
	h.must("a")
	if s, _ := readyOf(h.told("a")); s != corev1.ConditionTrue {
		t.Errorf("its copies are ready, and it is Ready %s", s)
	}
}

func TestOneCellDoesNotKeepADaemonSetFromBeingReady(t *testing.T) {
	h := newHarness(t)
	copies := &copiesOf{has: true}
	h.beside(copies, besideRules(daemonsets.Entry{Namespace: "ns"}))
	h.put(pod("a", daemon))
	h.put(pod("web"))
	web := apiv1.PodReference{Namespace: "ns", Name: "web", UID: "uid-web"}
	bad := daemonsets.Copy{Cell: "cell-1", Pod: web, Reported: true, WasReady: true, Shown: h.clock.Now(), Why: "Error: no image"}
	good := daemonsets.Copy{Cell: "cell-2", Pod: apiv1.PodReference{Namespace: "ns"}, Reported: true, Ready: true, WasReady: true}
	want := func(when string, ready corev1.ConditionStatus, message string) {
		t.Helper()
		h.clock.Step(standAgain)
		h.must("a")
		if s, m := readyOf(h.told("a")); s != ready || m != message {
			t.Errorf("%s it is Ready %s: %q, want %s: %q", when, s, m, ready, message)
		}
	}
	copies.copies = []daemonsets.Copy{bad, good}
	want("with a bad copy", corev1.ConditionTrue, "The copies on 1 of 2 cells are not ready: cell-1 beside pod ns/web (Error).")
	writes := h.writes()
	copies.copies[0].Why = "Other" // the cell may say another word each second
	h.clock.Step(readyAgain)
	h.must("a")
	if n := h.writes() - writes; n > 0 {
		t.Errorf("it was written %d times too soon", n)
	}
	copies.copies = []daemonsets.Copy{bad}
	want("with nothing but a bad copy", corev1.ConditionFalse,
		"The copies on 1 of 1 cells are not ready: cell-1 beside pod ns/web (Error).")
	cell := h.bound("web", "cell-1")
	h.clock.Step(standAgain)
	h.c.CellSilent(cell, time.Time{})
	h.must("a")
	if s, m := readyOf(h.told("a")); s != corev1.ConditionTrue {
		t.Errorf("with a cell that is silent it is Ready %s: %s", s, m)
	}
}

func TestWhatKipDoesNotHearOfACellKeepsADaemonSetForAWhile(t *testing.T) {
	h := newHarness(t)
	h.beside(&copiesOf{}, besideRules(daemonsets.Entry{Namespace: "ns"}))
	h.put(pod("a", daemon))
	h.put(pod("web"))
	h.bound("web", "cell-1")
	again := h.must("a")
	if s, m := readyOf(h.told("a")); s != corev1.ConditionFalse || again != daemonsets.StartsWithin {
		t.Errorf("at first it is Ready %s: %s, and looked at again after %s", s, m, again)
	}
	h.clock.Step(again)
	h.must("a")
	if s, m := readyOf(h.told("a")); s != corev1.ConditionTrue {
		t.Errorf("after %s it is Ready %s: %s", again, s, m)
	}
}

func TestAPodOfADaemonSetIsNotReadyBeforeCellsKnowOfIt(t *testing.T) {
	for name, shown := range map[string]bool{"they do soon": true, "they never do": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			copies := &copiesOf{has: true, hidden: true}
			h.beside(copies, besideRules(daemonsets.Entry{Namespace: "ns"}))
			h.put(pod("a", daemon, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(h.clock.Now()) }))
			again := h.must("a")
			if s, m := readyOf(h.told("a")); s != corev1.ConditionFalse || again != shownAgain {
				t.Errorf("at first it is Ready %s: %s, and looked at again after %s", s, m, again)
			}
			if shown {
				copies.hidden = false
				h.clock.Step(readyAgain)
			} else {
				h.clock.Step(daemonsets.StartsWithin)
			}
			h.must("a")
			if s, m := readyOf(h.told("a")); s != corev1.ConditionTrue {
				t.Errorf("it is Ready %s: %s", s, m)
			}
			// After a restart of Kip it stays as it was.
			copies.hidden = true
			h.beside(copies, besideRules(daemonsets.Entry{Namespace: "ns"}))
			h.must("a")
			if s, m := readyOf(h.told("a")); s != corev1.ConditionTrue {
				t.Errorf("after a restart of Kip it is Ready %s: %s", s, m)
			}
		})
	}
}

func TestADeletedPodOfADaemonSetWaitsForItsCopiesAndNotForEver(t *testing.T) {
	for name, ends := range map[string]bool{"they end": true, "one does not": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			copies := &copiesOf{has: true, copies: []daemonsets.Copy{{Cell: "cell-1", Ready: true}}}
			h.beside(copies, besideRules(daemonsets.Entry{Namespace: "ns"}))
			h.put(pod("a", daemon))
			h.must("a")
			grace := int64(5)
			h.told("a", func(p *corev1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: h.clock.Now()}, &grace
			})
			h.must("a")
			if !h.exists("a") {
				t.Fatal("it is gone before its copies")
			}
			if ends {
				copies.copies = []daemonsets.Copy{{Cell: "cell-2", LeftOut: true}}
			} else {
				h.clock.Step(5*time.Second + overdue)
			}
			h.must("a")
			if h.exists("a") {
				t.Error("it waits on")
			}
		})
	}
}

func TestASetThatMayNotRunBesidePodsStandsAndSaysWhy(t *testing.T) {
	h := newHarness(t)
	h.beside(&copiesOf{has: true}, besideRules())
	h.put(pod("a", daemon, func(p *corev1.Pod) { p.Annotations = map[string]string{placement.AnnotationBesidePods: "true"} }))
	h.must("a")
	h.want("events", h.events, "Warning DaemonSetLeftOut")
	if !strings.Contains(h.messages[0], "cells.grants.namespaces[].besidePods") {
		t.Errorf("the Event says %q", h.messages[0])
	}
	if s, _ := readyOf(h.told("a")); s != corev1.ConditionTrue {
		t.Errorf("it is Ready %s", s)
	}
}

func TestNoPodIsPlacedBeforeTheDaemonSetsAreKnown(t *testing.T) {
	h := newHarness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	h.beside(&copiesOf{has: true, seen: func() bool {
		asked++
		select {
		case <-h.c.Ready():
			t.Error("pods are reconciled before the DaemonSets are known")
		default:
		}
		return asked > 2
	}}, besideRules(daemonsets.Entry{Namespace: "ns"}))
	ended := make(chan error)
	go func() { ended <- h.c.Run(ctx) }()
	<-h.c.Ready()
	cancel()
	if err := <-ended; err != nil || asked < 3 {
		t.Errorf("it was asked %d times, want 3; Run returned %v", asked, err)
	}
}

// pluginOf is what a pod needs with a volume of a driver whose plugin DaemonSet logs has.
func pluginOf(driver string) volumes.Needs {
	return volumes.Needs{Plugins: []volumes.Plugin{{Driver: driver, Beside: true, DaemonSet: cache.NewObjectName("ns", "logs"), Volume: "v"}}}
}

func TestAPodWaitsForTheDaemonSetWithItsPlugin(t *testing.T) {
	h := newHarness(t)
	copies := &copiesOf{has: true}
	h.beside(copies, besideRules(daemonsets.Entry{Namespace: "ns", Drivers: []string{"a"}}))
	h.needs = pluginOf("a")
	h.put(pod("a"))
	h.must("a")
	if _, has := h.cells.ForPod("uid-a"); has {
		t.Error("the pod has a cell, on which no plugin runs")
	}
	if why := h.c.Waiting("uid-a"); !strings.Contains(why, "DaemonSet ns/logs with the node plugin of CSI driver a has no pod") {
		t.Errorf("it waits for %q", why)
	}
	copies.sets = []*corev1.Pod{pod("s", daemon)}
	h.must("a")
	h.clock.Step(time.Hour)
	h.must("a")
	if _, has := h.cells.ForPod("uid-a"); !has {
		t.Errorf("the pod has no cell; it waits for %q", h.c.Waiting("uid-a"))
	}
}

func TestAMachineHasRoomForTheDaemonSetsBesideItsPod(t *testing.T) {
	asks := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			}}}
		}
	}
	type offer struct {
		kind  string
		price float64
		most  int64 // that it has, in millicores
	}
	small, large := offer{"small", 1, 600}, offer{"large", 2, 2000}
	for name, tc := range map[string]struct {
		offers []offer
		grants Grants
		beyond string // the budget
		driver string // whose plugin the set has
		needs  volumes.Needs
		want   string
		events []string
	}{
		"there is one":  {offers: []offer{small, large}, want: "large", events: []string{"Normal CellRequested"}},
		"there is none": {offers: []offer{small}, want: "small"},
		"it costs more than is granted": {
			offers: []offer{small, large}, grants: Grants{MaxPricePerHour: 1}, want: "small",
		},
		"its type is not granted": {
			offers: []offer{small, large}, want: "small",
			grants: Grants{Namespaces: []NamespaceGrants{{Namespace: "ns", InstanceTypes: []string{"small"}}}},
		},
		"it is over the budget": {offers: []offer{small, large}, beyond: "large", want: "small"},
		"it serves volumes that the pod has": {
			offers: []offer{small, large}, driver: "a", needs: pluginOf("a"),
			want: "large", events: []string{"Normal CellRequested"},
		},
		"it serves others": {
			offers: []offer{small, large}, driver: "b", needs: pluginOf("a"),
			want: "small", events: []string{"Normal CellRequested"},
		},
	} {
		h := newHarness(t)
		h.cells.beyond = tc.beyond
		set, entry := pod("s", daemon, asks("250m")), daemonsets.Entry{Namespace: "ns"}
		if tc.driver != "" {
			entry.Drivers = []string{tc.driver}
		}
		h.beside(&copiesOf{has: true, sets: []*corev1.Pod{set, pod("t", daemon)}}, besideRules(entry))
		h.needs = tc.needs
		h.restarted(func(c *Config) { c.Grants = tc.grants })
		h.place = func(p *corev1.Pod) (list []offering.Offering, err error) {
			for _, o := range tc.offers {
				if placement.ResourcesOf(p).MilliCPU <= o.most {
					list = append(list, offering.Offering{InstanceType: o.kind, Zone: "local", PricePerHour: o.price})
				}
			}
			if len(list) == 0 {
				err = &placement.UnplaceableError{}
			}
			return list, err
		}
		h.put(pod("a", asks("500m")))
		h.must("a")
		if cell, has := h.cells.ForPod("uid-a"); !has || cell.Offering().InstanceType != tc.want {
			t.Errorf("%s: the pod gets %q, want %s; it waits for %q", name, cell.Offering(), tc.want, h.c.Waiting("uid-a"))
		}
		if tc.events == nil { // of the pod and of the set
			tc.events = []string{"Normal CellRequested", "Warning DaemonSetLeftOut", "Warning DaemonSetLeftOut"}
		}
		h.want(name+": events", h.events, tc.events...)
	}
}

func TestAMachineNeedsNoRoomForDaemonSetsThatServeOtherVolumes(t *testing.T) {
	for name, short := range map[string]bool{"a shortage": true, "no room": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			logs, plugin := pod("s", ofSet("logs"), requestsCPU("250m")), pod("t", ofSet("plugin"), requestsCPU("250m"))
			h.beside(&copiesOf{has: true, sets: []*corev1.Pod{logs, plugin}}, besideRules(
				daemonsets.Entry{Namespace: "ns", Name: "logs", MaxDelay: 2 * time.Minute},
				daemonsets.Entry{Namespace: "ns", Name: "plugin", MaxDelay: time.Minute, Drivers: []string{"b"}},
			))
			h.place = func(p *corev1.Pod) ([]offering.Offering, error) {
				switch fits := placement.ResourcesOf(p).MilliCPU <= 600; {
				case fits:
					return []offering.Offering{{InstanceType: "small", Zone: "local", PricePerHour: 1}}, nil
				case short:
					return nil, &placement.NoCapacityError{Need: "the pod", Types: []string{"large"}}
				}
				return nil, &placement.UnplaceableError{}
			}
			h.put(pod("a", requestsCPU("500m"), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(h.clock.Now()) }))
			h.must("a")
			if short {
				starts := h.clock.Now().Add(2 * time.Minute).UTC().Format(time.TimeOnly)
				if m := h.messages[0]; !strings.Contains(m, "room for DaemonSets ns/logs beside it") || !strings.Contains(m, "does at "+starts) {
					t.Errorf("the pod starts at %s, and the Event says %q", starts, m)
				}
				h.clock.Step(2*time.Minute + time.Second)
				h.must("a")
				h.events = h.events[1:] // the first one
			}
			h.want("events", h.events, "Normal CellRequested", "Warning DaemonSetLeftOut", "Warning DaemonSetLeftOut")
			for _, m := range h.messages {
				if strings.Contains(m, "ns/plugin") {
					t.Errorf("an Event speaks of a set that would never run beside the pod: %q", m)
				}
			}
		})
	}
}

// ofSet is a change of a pod: it is of the DaemonSet with this name.
func ofSet(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { daemon(p); p.OwnerReferences[0].Name = name }
}

func TestAPodGetsNoMachineWithoutRoomForThePluginOfItsVolumes(t *testing.T) {
	type offer struct {
		kind string
		most int64 // that it has, in millicores
	}
	small, medium, large := offer{"small", 600}, offer{"medium", 1000}, offer{"large", 2000}
	for name, tc := range map[string]struct {
		offers []offer
		short  string // the type that is out of capacity
		grants Grants
		beyond string // the budget
		logs   bool   // another set runs beside the pod
		named  bool   // cells.daemonSets names the set, too
		want   string // the type; "" where the pod waits
	}{
		"none has it":                  {offers: []offer{small}},
		"none has it, by another rule": {offers: []offer{small}, named: true},
		"it is out of capacity":        {offers: []offer{small, medium}, short: "medium"},
		"it costs too much":            {offers: []offer{small, medium}, grants: Grants{MaxPricePerHour: 700}},
		"it is over the budget":        {offers: []offer{small, medium}, beyond: "medium"},
		"none for another set":         {offers: []offer{small, medium}, logs: true, want: "medium"},
		"a shortage for another set":   {offers: []offer{small, medium, large}, short: "large", logs: true, want: "medium"},
		"no budget for another set":    {offers: []offer{small, medium, large}, beyond: "large", logs: true, want: "medium"},
	} {
		h := newHarness(t)
		h.cells.beyond, h.needs = tc.beyond, pluginOf("a")
		h.needs.Plugins[0].DaemonSet.Name = "plugin"
		sets := []*corev1.Pod{pod("t", ofSet("plugin"), requestsCPU("250m"))}
		rules := []daemonsets.Entry{{Namespace: "ns", Name: "logs"}}
		if tc.logs {
			sets = append(sets, pod("s", ofSet("logs"), requestsCPU("900m")))
		}
		if tc.named {
			rules = append(rules, daemonsets.Entry{Namespace: "ns", Name: "plugin"})
		}
		rules = append(rules, daemonsets.Entry{Namespace: "ns", Name: "plugin", MaxDelay: time.Minute, Drivers: []string{"a"}})
		h.beside(&copiesOf{has: true, sets: sets}, besideRules(rules...))
		h.restarted(func(c *Config) { c.Grants = tc.grants })
		h.place = func(p *corev1.Pod) (list []offering.Offering, err error) {
			err = &placement.UnplaceableError{}
			for _, o := range tc.offers {
				switch {
				case placement.ResourcesOf(p).MilliCPU > o.most:
				case o.kind == tc.short:
					err = &placement.NoCapacityError{Need: "the pod", Types: []string{o.kind}}
				default:
					list = append(list, offering.Offering{InstanceType: o.kind, Zone: "local", PricePerHour: float64(o.most)})
				}
			}
			if len(list) > 0 {
				return list, nil
			}
			return nil, err
		}
		h.put(pod("a", requestsCPU("500m"), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(h.clock.Now()) }))
		for range 3 { // longer than the plugin may delay the pod
			h.must("a")
			h.clock.Step(time.Hour)
		}
		got := ""
		if cell, has := h.cells.ForPod("uid-a"); has {
			got = cell.Offering().InstanceType
		}
		if got != tc.want || got == "" && h.c.Waiting("uid-a") == "" {
			t.Errorf("%s: the pod gets %q, want %q; it waits for %q", name, got, tc.want, h.c.Waiting("uid-a"))
		}
		for _, m := range h.messages {
			if strings.Contains(m, "ns/plugin") {
				t.Errorf("%s: the plugin of its volumes is left out: %q", name, m)
			}
		}
	}
}

func TestNothingIsKeptOfTheCopiesOfACellThatIsNotBoundAnyMore(t *testing.T) {
	h := newHarness(t)
	h.beside(&copiesOf{}, besideRules(daemonsets.Entry{Namespace: "ns"}))
	h.put(pod("web"))
	cell := h.bound("web", "cell-2")
	earlier := cell
	earlier.ID, earlier.Phase = "cell-1", apiv1.Gone
	h.c.CellChanged(earlier)
	if len(h.c.core.beside.unknown) != 1 {
		t.Errorf("of a bound cell %v is kept, want its pod", h.c.core.beside.unknown)
	}
	cell.Phase = apiv1.Terminating
	h.c.CellChanged(cell)
	if len(h.c.core.beside.unknown) != 0 {
		t.Errorf("of a cell that is not bound any more %v is kept", h.c.core.beside.unknown)
	}
}

// requestsCPU is a change of a pod: it requests so much.
func requestsCPU(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}
	}
}

func TestAShortageOfMachinesWithRoomForADaemonSetDelaysAPodForAsLongAsThatMay(t *testing.T) {
	type world struct {
		*harness
		short map[string]bool // the types that are out of capacity
	}
	start := func(t *testing.T, short ...string) world {
		w := world{harness: newHarness(t), short: map[string]bool{}}
		for _, name := range short {
			w.short[name] = true
		}
		shipper, agent := pod("s", ofSet("shipper"), requestsCPU("250m")), pod("t", ofSet("agent"), requestsCPU("900m"))
		w.beside(&copiesOf{has: true, sets: []*corev1.Pod{shipper, agent}}, besideRules(
			daemonsets.Entry{Namespace: "ns", Name: "agent"}, daemonsets.Entry{Namespace: "ns", Name: "shipper", MaxDelay: time.Minute},
		))
		w.place = func(p *corev1.Pod) (list []offering.Offering, err error) {
			var fits []string
			for _, o := range []struct {
				kind string
				most int64
			}{{"small", 600}, {"medium", 1000}, {"large", 2000}} {
				if placement.ResourcesOf(p).MilliCPU > o.most {
					continue
				}
				if fits = append(fits, o.kind); !w.short[o.kind] {
					list = append(list, offering.Offering{InstanceType: o.kind, Zone: "local", PricePerHour: float64(o.most)})
				}
			}
			if len(list) == 0 {
				err = &placement.NoCapacityError{Need: "the pod", Types: fits}
			}
			return list, err
		}
		w.put(pod("a", requestsCPU("500m"), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(w.clock.Now()) }))
		return w
	}
	got := func(w world) string {
		cell, has := w.cells.ForPod("uid-a")
		if !has {
			return ""
		}
		return cell.Offering().InstanceType
	}

	w := start(t)
	w.must("a")
	if got(w) != "large" {
		t.Errorf("there is capacity, and it gets %q", got(w))
	}

	// One that may delay nothing is left out at once, and the other has its room.
	w = start(t, "large")
	w.must("a")
	if got(w) != "medium" {
		t.Errorf("without large machines it gets %q", got(w))
	}
	w.want("events", w.events, "Normal CellRequested", "Warning DaemonSetLeftOut", "Warning DaemonSetLeftOut")
	if m := w.messages[1]; !strings.Contains(m, "without room for DaemonSet ns/agent") || !strings.Contains(m, "no capacity now for large") {
		t.Errorf("the Event says %q", m)
	}

	w = start(t, "large", "medium")
	for range 5 {
		again := w.must("a")
		if again <= 0 || again > time.Minute {
			t.Fatalf("it is looked at again after %s", again)
		}
		if got(w) != "" {
			t.Fatalf("it does not wait for room, and gets %q", got(w))
		}
		w.clock.Step(time.Second)
	}
	w.want("events", w.events, "Warning NoCapacity")
	if m := w.messages[0]; !strings.Contains(m, "with room for DaemonSets ns/shipper beside it; without them it could start, and does at ") {
		t.Errorf("the Event says %q", m)
	}
	w.clock.Step(time.Minute)
	w.must("a")
	if got(w) != "small" {
		t.Errorf("after a minute it gets %q", got(w))
	}
	if n := len(w.events); n != 6 { // of the pod, and of each set
		t.Errorf("the Events are %q", w.events)
	}

	// There is none for the pod itself.
	w = start(t, "small", "medium", "large")
	w.must("a")
	if m := w.messages[0]; got(w) != "" || !strings.Contains(m, "small") || strings.Contains(m, "DaemonSets") {
		t.Errorf("it gets %q, and the Event says %q", got(w), m)
	}
}
