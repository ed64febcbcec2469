package pods

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func daemon(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", UID: "d", Controller: new(true)}}
}

func asks(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{placement.AnnotationMachine: value} }
}

// told has the watch tell of a pod what the API server has, changed.
func (h *harness) told(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	h.Helper()
	p, err := h.client.CoreV1().Pods("ns").Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	p = p.DeepCopy()
	for _, f := range change {
		f(p)
	}
	h.put(p)
	return p
}

// writes counts what is written of pods.
func (h *harness) writes() (n int) {
	for _, a := range h.client.Actions() {
		if a.GetVerb() != "get" {
			n++
		}
	}
	return n
}

func isTrue(p *corev1.Pod, condition corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(k corev1.PodCondition) bool {
		return k.Type == condition && k.Status == corev1.ConditionTrue && !k.LastTransitionTime.IsZero()
	})
}

func TestAPodOfADaemonSetStandsReadyWithoutAMachineAndIsWrittenOnce(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", daemon, func(p *corev1.Pod) {
		p.Generation = 3
		p.Status.QOSClass = corev1.PodQOSBurstable
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	}))
	h.must("a")
	got := h.told("a")
	s := got.Status
	if s.Phase != corev1.PodRunning || s.StartTime == nil || s.ObservedGeneration != 3 || len(s.ContainerStatuses) > 0 ||
		s.PodIP+s.HostIP != "" || s.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("its status is %+v", s)
	}
	for _, condition := range []corev1.PodConditionType{apiv1.NoMachine, corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized} {
		if !isTrue(got, condition) {
			t.Errorf("condition %s is not True: %+v", condition, s.Conditions)
		}
	}
	if len(s.Conditions) != 5 {
		t.Errorf("conditions %+v, want PodScheduled as well", s.Conditions)
	}
	const why = `Kip launches no machine for a pod of a DaemonSet, so its containers do not run. To get one, set the annotation ` +
		`pod.elotl.co/machine: "true" in the pod template of DaemonSet logs, and grant it to namespace ns ` +
		`(cells.grants.namespaces[].daemonSetMachines of provider.yaml).`
	if k := apiv1.WithoutMachine(got); k == nil || k.Message != why || k.Reason != "NoMachine" {
		t.Errorf("it says %+v, want %s", k, why)
	}
	h.want("events", h.events, "Normal NoMachine")
	if h.messages[0] != why {
		t.Errorf("the Event says %q, want %q", h.messages[0], why)
	}
	// Neither later nor by the next Kip, whatever that grants.
	h.clock.Step(time.Hour)
	h.must("a")
	h.restarted(func(c *Config) { c.Grants = Grants{Unrestricted: true, DaemonSetMachines: true} })
	h.told("a", asks("true"))
	h.must("a")
	// Its DaemonSet may be deleted without it, to be made anew and adopt it.
	h.told("a", func(p *corev1.Pod) { p.OwnerReferences = nil })
	h.must("a")
	if n := h.writes(); n != 1 {
		t.Errorf("its status was written %d times, want once", n)
	}
	h.want("events", h.events, "Normal NoMachine")
	h.want("requests", h.cells.requests)
	if waiting := h.c.WaitingPods(); len(waiting) > 0 || h.c.Waiting("uid-a") != "" {
		t.Errorf("it waits: %v", waiting)
	}
}

func TestWhichPodsOfADaemonSetGetAMachine(t *testing.T) {
	granted := Grants{Namespaces: []NamespaceGrants{{Namespace: "ns", DaemonSetMachines: true}}}
	elsewhere := Grants{Namespaces: []NamespaceGrants{{Namespace: "other", DaemonSetMachines: true}}}
	always := Grants{DaemonSetMachines: true}
	owner := func(change func(*metav1.OwnerReference)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			daemon(p)
			change(&p.OwnerReferences[0])
		}
	}
	const cell = "Normal CellRequested"
	for name, c := range map[string]struct {
		grants Grants
		change []func(*corev1.Pod)
		want   string // the Event
		says   string // in its message
	}{
		"it asks and may":                 {granted, []func(*corev1.Pod){daemon, asks("true")}, cell, ""},
		"everybody may":                   {Grants{Unrestricted: true}, []func(*corev1.Pod){daemon, asks(" True ")}, cell, ""},
		"it may and does not ask":         {granted, []func(*corev1.Pod){daemon}, "Normal NoMachine", "template of DaemonSet logs"},
		"it may and says no":              {granted, []func(*corev1.Pod){daemon, asks("false")}, "Normal NoMachine", ""},
		"it asks and may not":             {Grants{}, []func(*corev1.Pod){daemon, asks("true")}, "Warning NotGranted", "delete the pod"},
		"another namespace may":           {elsewhere, []func(*corev1.Pod){daemon, asks("true")}, "Warning NotGranted", "namespace ns"},
		"all do":                          {always, []func(*corev1.Pod){daemon}, cell, ""},
		"all do and it asks":              {always, []func(*corev1.Pod){daemon, asks("true")}, cell, ""},
		"all do but this one":             {always, []func(*corev1.Pod){daemon, asks("false")}, "Normal NoMachine", ""},
		"what it asks is not valid":       {granted, []func(*corev1.Pod){daemon, asks("yes")}, "Warning InvalidAnnotation", "want true or false"},
		"it is of an older version":       {Grants{}, []func(*corev1.Pod){owner(func(o *metav1.OwnerReference) { o.APIVersion = "apps/v1beta2" })}, "Normal NoMachine", ""},
		"it is another's kind":            {Grants{}, []func(*corev1.Pod){owner(func(o *metav1.OwnerReference) { o.APIVersion = "apps.kruise.io/v1" })}, cell, ""},
		"it is no DaemonSet's":            {Grants{}, []func(*corev1.Pod){owned}, cell, ""},
		"a DaemonSet does not control it": {Grants{}, []func(*corev1.Pod){owner(func(o *metav1.OwnerReference) { o.Controller = nil })}, cell, ""},
	} {
		h := newHarness(t)
		h.restarted(func(cfg *Config) { cfg.Grants = c.grants })
		h.place = func(p *corev1.Pod) ([]offering.Offering, error) {
			if _, err := placement.ParseAnnotations(p.Annotations); err != nil {
				return nil, err
			}
			return []offering.Offering{{InstanceType: "nano", Zone: "local", Reason: "cheapest"}}, nil
		}
		h.put(pod("a", c.change...))
		h.must("a")
		if !slices.Equal(h.events, []string{c.want}) || !strings.Contains(h.messages[0], c.says) {
			t.Errorf("%s: events %q, %q, want %s, with %q", name, h.events, h.messages, c.want, c.says)
			continue
		}
		if got := h.told("a"); (len(h.cells.requests) == 1) != (c.want == cell) || isTrue(got, apiv1.NoMachine) != strings.HasSuffix(c.want, "NoMachine") &&
			c.want != "Warning NotGranted" {
			t.Errorf("%s: requests %v, status %+v", name, h.cells.requests, got.Status)
		}
	}
}

// A node that is not Ready has its pods marked by the node controller, after each write of Kip's as well.
func TestAPodWithoutAMachineIsReadyAgainWithoutAFight(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", daemon))
	h.must("a")
	marked := func(p *corev1.Pod) {
		for i := range p.Status.Conditions {
			if k := &p.Status.Conditions[i]; k.Type == corev1.PodReady {
				k.Status, k.Reason = corev1.ConditionFalse, "NodeNotReady"
			}
		}
	}
	const fight = 10
	for range fight {
		h.told("a", marked)
		if again := h.must("a"); again <= 0 || again > standAgain {
			t.Fatalf("it is looked at again after %s, want %s at most", again, standAgain)
		}
		h.clock.Step(standAgain)
		h.must("a")
		if got := h.told("a"); !isTrue(got, corev1.PodReady) {
			t.Fatalf("it is not ready again: %+v", got.Status.Conditions)
		}
	}
	if n := h.writes(); n != 1+fight {
		t.Errorf("%d writes in %d times %s", n, fight, standAgain)
	}
	h.want("events", h.events, "Normal NoMachine")
}

func TestAPodOfADaemonSetKeepsTheCellThatItHas(t *testing.T) {
	h := newHarness(t)
	h.restarted(func(c *Config) { c.Grants.DaemonSetMachines = true })
	h.put(pod("a", daemon))
	h.must("a")
	h.restarted(func(c *Config) { c.Grants = Grants{} })
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
	h.put(pod("a", daemon, running, func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }))
	h.events = nil
	h.must("a")
	if n := h.writes(); n > 0 || len(h.events) > 0 || len(h.cells.released) > 0 {
		t.Fatalf("with its cell: %d writes, events %q, released %q", n, h.events, h.cells.released)
	}
	// A cell that Kip does not know of may still run it.
	h.cells.gone("uid-a")
	h.cells.other = "instance i-1 may run it"
	if again := h.must("a"); again <= 0 || h.writes() > 0 {
		t.Fatalf("%d writes while an instance may run it, and it is looked at again after %s", h.writes(), again)
	}
	h.cells.other, h.events = "", nil
	h.must("a")
	if got := h.told("a"); apiv1.WithoutMachine(got) == nil || got.Status.PodIP != "" || got.Status.Phase != corev1.PodRunning {
		t.Errorf("after its cell: %+v", got.Status)
	}
	h.want("events", h.events, "Normal NoMachine")
	h.want("requests", h.cells.requests, "uid-a#1")
	if h.c.Waiting("uid-a") != "" {
		t.Errorf("it waits for %q", h.c.Waiting("uid-a"))
	}
}

// Nothing has ever run it: what the cloud has to say of instances is not waited for.
func TestADeletedPodWithoutAMachineIsDeletedAtOnce(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", daemon))
	h.must("a")
	h.restarted(func(*Config) {})
	h.cells.behind, h.cells.unsure = "the instances are not listed", true
	h.told("a", deletedAt(h.clock.Now().Add(time.Minute)))
	h.must("a")
	if h.exists("a") {
		t.Error("it is there still")
	}
	for _, a := range h.client.Actions() {
		if d, is := a.(clienttesting.DeleteActionImpl); is {
			o := d.DeleteOptions
			if o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 0 || o.Preconditions == nil || *o.Preconditions.UID != "uid-a" {
				t.Errorf("it is deleted with %+v", o)
			}
		}
	}
	h.want("events", h.events, "Normal NoMachine")
}

func TestAPodIsToldThatItHasNoMachineOnlyIfThatIsWritten(t *testing.T) {
	h := newHarness(t)
	lost := errors.New("another leads")
	h.c.core.api.leadership = leads(func(context.Context) error { return lost })
	h.put(pod("a", daemon))
	if _, err := h.reconcile("a"); !errors.Is(err, lost) {
		t.Errorf("a Kip that does not lead: %v", err)
	}
	if n := h.writes(); n > 0 || len(h.events) > 0 {
		t.Errorf("a Kip that does not lead writes %d times, events %q", n, h.events)
	}
	h.c.core.api.leadership = nil
	answers := []error{apierrors.NewConflict(corev1.Resource("pods"), "a", nil), errors.New("no answer")}
	h.client.PrependReactor("update", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if len(answers) == 0 {
			return false, nil, nil
		}
		err := answers[0]
		answers = answers[1:]
		return true, nil, err
	})
	if again := h.must("a"); again != staleRetry {
		t.Errorf("after a conflict it is looked at again after %s", again)
	}
	if _, err := h.reconcile("a"); err == nil {
		t.Error("no error for a write that failed")
	}
	h.want("events before", h.events)
	h.must("a")
	h.want("events", h.events, "Normal NoMachine")
}
