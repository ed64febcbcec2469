package daemonsets

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/elotl/kip/internal/placement"
)

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// setPod is a pod of DaemonSet logs in namespace logging.
func setPod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "logging", Name: "logs-1", Labels: map[string]string{"app": "logs"}, Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", Controller: new(true)}},
	}}
	for _, f := range change {
		f(p)
	}
	return p
}

func TestWhichSetsRunBesideWhichPods(t *testing.T) {
	asks := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[Annotation] = value }
	}
	granted := func(namespace string) bool { return namespace == "granted" }
	in := func(namespace string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = namespace } }
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	host := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	role := map[string]string{placement.AnnotationAllowMetadata: "true"}
	quiet := map[string]string{"logs": "none"}
	for name, tc := range map[string]struct {
		entries []Entry
		set     *corev1.Pod
		pod     map[string]string // its labels

		annotations map[string]string
		want        string // by what, "" for not
		why         string
	}{
		"by namespace":                  {entries: []Entry{{Namespace: "logging"}}, set: setPod(), want: "cells.daemonSets[0]"},
		"by name":                       {entries: []Entry{{Namespace: "logging", Name: "other"}, {Namespace: "logging", Name: "logs"}}, set: setPod(), want: "cells.daemonSets[1]"},
		"by label":                      {entries: []Entry{{Namespace: "logging", Selector: selector(t, "app=logs")}}, set: setPod(), want: "cells.daemonSets[0]"},
		"another label":                 {entries: []Entry{{Namespace: "logging", Selector: selector(t, "app=x")}}, set: setPod()},
		"another namespace":             {entries: []Entry{{Namespace: "logging", Name: "logs"}}, set: setPod(in("team"))},
		"no DaemonSet":                  {entries: []Entry{{Namespace: "logging"}}, set: setPod(func(p *corev1.Pod) { p.OwnerReferences = nil })},
		"beside chosen pods":            {entries: []Entry{{Namespace: "logging", Pods: selector(t, "logs!=none")}}, set: setPod(), want: "cells.daemonSets[0]"},
		"not beside the others":         {entries: []Entry{{Namespace: "logging", Pods: selector(t, "logs!=none")}}, set: setPod(), pod: quiet},
		"beside pods of its namespaces": {entries: []Entry{{Namespace: "logging", Namespaces: []string{"x", "team"}}}, set: setPod(), want: "cells.daemonSets[0]"},
		"beside pods of another":        {entries: []Entry{{Namespace: "logging", Namespaces: []string{"x"}}}, set: setPod()},
		"with the network of a role":    {set: setPod(in("granted"), asks("true"), host), annotations: role},
		"with the network of none":      {set: setPod(in("granted"), asks("true"), host), want: "annotation " + Annotation},
		"beside a role":                 {set: setPod(in("granted"), asks("true")), annotations: role, want: "annotation " + Annotation},
		"named, with the network":       {entries: []Entry{{Namespace: "logging"}}, set: setPod(host), annotations: role, want: "cells.daemonSets[0]"},
		"it asks and may":               {set: setPod(in("granted"), asks(" True ")), want: "annotation " + Annotation},
		"it says no":                    {set: setPod(in("granted"), asks("false"))},
		"it asks and may not":           {set: setPod(asks("true")), why: "not granted to namespace logging"},
		"it has a claim": {
			entries: []Entry{{Namespace: "logging"}}, why: "volume v is of a PersistentVolumeClaim",
			set: setPod(volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}})),
		},
		"it has a CSI volume": {
			entries: []Entry{{Namespace: "logging"}}, why: "volume v is of a CSI driver",
			set: setPod(volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}})),
		},
		"it reads its machine": {
			entries: []Entry{{Namespace: "logging"}}, want: "cells.daemonSets[0]",
			set: setPod(volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}})),
		},
	} {
		terms, runs, why := New(tc.entries, granted).Of(tc.set)
		runs = runs && terms.Beside(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Labels: tc.pod, Annotations: tc.annotations,
		}})
		if runs != (tc.want != "") || runs && terms.By != tc.want {
			t.Errorf("%s: %t by %q, want %q", name, runs, terms.By, tc.want)
		}
		if (why != nil) != (tc.why != "") || why != nil && !strings.Contains(why.Error(), tc.why) {
			t.Errorf("%s: %v, want %q", name, why, tc.why)
		}
	}
	var none *Rules
	if _, runs, why := none.Of(setPod()); runs || why != nil {
		t.Error("without rules a set runs beside pods")
	}
}

func TestTwoPodsConflictByAHostPort(t *testing.T) {
	ports := func(host bool, all ...corev1.ContainerPort) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: host, Containers: []corev1.Container{{Ports: all}}}}
	}
	exporter := ports(true, corev1.ContainerPort{ContainerPort: 9100})
	for name, tc := range map[string]struct {
		other *corev1.Pod
		want  string
	}{
		"the same":            {ports(false, corev1.ContainerPort{HostPort: 1}, corev1.ContainerPort{HostPort: 9100, Protocol: corev1.ProtocolTCP}), "TCP 9100"},
		"of its own network":  {ports(false, corev1.ContainerPort{ContainerPort: 9100}), ""},
		"of another protocol": {ports(false, corev1.ContainerPort{HostPort: 9100, Protocol: corev1.ProtocolUDP}), ""},
		"none":                {ports(true), ""},
	} {
		if got := Conflict(exporter, tc.other); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestHowCopiesFareTogether(t *testing.T) {
	now := time.Now()
	at := func(c Copy, age time.Duration) Copy {
		c.Shown = now.Add(-age)
		return c
	}
	of := func(namespace string, c Copy) Copy {
		c.Pod.Namespace = namespace
		return c
	}
	times := func(n int, c Copy) []Copy { return slices.Repeat([]Copy{c}, n) }
	ready := Copy{Reported: true, Ready: true, WasReady: true}
	broken := Copy{Reported: true, WasReady: true}
	for name, tc := range map[string]struct {
		copies   []Copy
		notReady int
		failing  bool
		pending  bool
		again    time.Duration
	}{
		"none":                          {},
		"all ready":                     {copies: times(2, ready)},
		"an update has yet to start":    {copies: append(times(4, ready), times(2, at(Copy{}, 0))...), pending: true, again: StartsWithin},
		"an update starts":              {copies: times(2, at(Copy{Reported: true}, 0)), pending: true, again: StartsWithin},
		"an update never starts":        {copies: times(2, at(Copy{Reported: true}, StartsWithin)), notReady: 2, failing: true},
		"an update starts but on one":   {copies: []Copy{ready, at(Copy{Reported: true}, StartsWithin)}, notReady: 1},
		"one cell does not tell":        {copies: []Copy{ready, ready, at(Copy{}, 0)}, again: StartsWithin},
		"a new cell starts":             {copies: []Copy{ready, at(Copy{Reported: true, Newer: true}, time.Minute)}, again: StartsWithin - time.Minute},
		"a new cell starts late":        {copies: []Copy{at(Copy{Reported: true, Newer: true}, StartsWithin)}, notReady: 1, failing: true},
		"a new cell's was ready":        {copies: []Copy{at(Copy{Reported: true, Newer: true, WasReady: true}, 0)}, notReady: 1, failing: true},
		"a cell says nothing":           {copies: []Copy{at(Copy{}, StartsWithin)}, notReady: 1, failing: true},
		"one is left out":               {copies: []Copy{ready, {LeftOut: true}}},
		"one fails, the other left out": {copies: []Copy{broken, {LeftOut: true}}, notReady: 1, failing: true},
		"one fails beside a new cell":   {copies: []Copy{broken, at(Copy{Newer: true}, 0)}, notReady: 1, failing: true, again: StartsWithin},
		"one of two fails":              {copies: []Copy{ready, broken}, notReady: 1},
		"one of many fails":             {copies: append(times(30, ready), broken), notReady: 1},
		"one fails, another starts":     {copies: []Copy{ready, broken, at(Copy{}, 0)}, notReady: 1, pending: true, again: StartsWithin},
		"a few of many fail":            {copies: append(times(18, ready), times(2, broken)...), notReady: 2},
		"more than a few of many fail":  {copies: append(times(17, ready), times(2, broken)...), notReady: 2, failing: true},
		"all of one tenant's fail":      {copies: append(times(3, of("a", ready)), times(9, of("b", broken))...), notReady: 9},
		"those of two tenants fail": {
			copies: append(times(3, of("a", ready)), of("b", broken), of("c", broken)), notReady: 2, failing: true,
		},
		"Kip has started and knows no state": {copies: []Copy{at(Copy{}, 0), at(Copy{}, time.Second)}, pending: true, again: StartsWithin - time.Second},
	} {
		s := Sum(tc.copies, now)
		if len(s.NotReady) != tc.notReady || s.Failing != tc.failing || s.Pending != tc.pending || s.Again != tc.again {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestASetWithANodePluginServesPodsWithVolumesOfItsDrivers(t *testing.T) {
	for name, tc := range map[string]struct {
		entry   Entry
		volumes []string // the drivers of the pod's
		serves  bool
		by      string
	}{
		"its driver":      {Entry{By: "cells.csiDrivers[1]", Drivers: []string{"a", "b"}}, []string{"x", "b"}, true, "cells.csiDrivers[1]"},
		"another's":       {Entry{By: "cells.csiDrivers[1]", Drivers: []string{"a", "b"}}, []string{"x"}, false, "cells.csiDrivers[1]"},
		"no volumes":      {Entry{By: "cells.csiDrivers[1]", Drivers: []string{"a", "b"}}, nil, false, "cells.csiDrivers[1]"},
		"a set of others": {Entry{}, nil, true, "cells.daemonSets[0]"},
	} {
		tc.entry.Namespace = "logging"
		terms, runs, err := New([]Entry{tc.entry}, nil).Of(setPod())
		if err != nil || !runs || terms.By != tc.by || terms.Serves(tc.volumes) != tc.serves {
			t.Errorf("%s: %t, %q, %t (%v)", name, runs, terms.By, terms.Serves(tc.volumes), err)
		}
		if has := terms.HasPlugin(tc.volumes); has != (tc.serves && tc.entry.Drivers != nil) {
			t.Errorf("%s: it has a plugin of the pod's volumes: %t", name, has)
		}
		// Another entry that names the set has it run beside all pods, and it has its plugins.
		terms, _, _ = New([]Entry{{Namespace: "logging"}, tc.entry}, nil).Of(setPod())
		if has := terms.HasPlugin(tc.volumes); !terms.Serves(nil) || has != (tc.serves && tc.entry.Drivers != nil) {
			t.Errorf("%s: beside all pods it has a plugin of the pod's volumes: %t", name, has)
		}
	}
}
