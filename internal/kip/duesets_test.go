package kip

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
)

// dueWorld is a cluster with DaemonSets, and what was told of them.
type dueWorld struct {
	*dueSets
	client *fake.Clientset

	mu    sync.Mutex
	names []string // of Kip's nodes
	on    []*corev1.Pod
	due   map[string][]string // by node: namespace/set
	told  []string
	warns []string
}

func (w *dueWorld) is(node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.due[node], " ")
}

func (w *dueWorld) heard() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.told
	w.told = nil
	slices.Sort(all)
	return all
}

func newDueWorld(rules *daemonsets.Rules, objects ...runtime.Object) *dueWorld {
	w := &dueWorld{client: fake.NewClientset(objects...), due: map[string][]string{}, names: []string{"kip-0"}}
	w.dueSets = &dueSets{
		rules:  rules,
		client: w.client,
		nodes:  func() []string { w.mu.Lock(); defer w.mu.Unlock(); return slices.Clone(w.names) },
		pods:   func() ([]*corev1.Pod, error) { w.mu.Lock(); defer w.mu.Unlock(); return w.on, nil },
		expect: func(node string, pods []*corev1.Pod) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.due[node] = nil
			for _, p := range pods {
				w.due[node] = append(w.due[node], p.Namespace+"/"+metav1.GetControllerOf(p).Name)
			}
		},
		event: func(node string, e events.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, node+": "+e.Reason+": "+e.Message)
		},
		clock: clock.RealClock{},
		warn:  func(err error) { w.mu.Lock(); defer w.mu.Unlock(); w.warns = append(w.warns, err.Error()) },
		first: make(chan struct{}),
	}
	return w
}

func kipsNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"type": "virtual-kubelet"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "kip", Effect: corev1.TaintEffectNoSchedule}}}}
}

func setOf(namespace, name string, tolerates bool) *appsv1.DaemonSet {
	s := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if tolerates {
		s.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	return s
}

func podOfSet(set *appsv1.DaemonSet, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: set.Name + "-1", OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}}, Spec: corev1.PodSpec{NodeName: node}}
}

func TestANamedSetWithoutAPodOnANodeIsReportedOnceWithWhatBarsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fits, barred, other := setOf("logging", "fits", true), setOf("logging", "barred", false), setOf("team", "other", false)
		w := newDueWorld(daemonsets.New([]daemonsets.Entry{{Namespace: "logging"}, {Namespace: "agents", Name: "missing"}}, nil),
			kipsNode("kip-0"), fits, barred, other)
		w.on = []*corev1.Pod{podOfSet(fits, "kip-0"), podOfSet(barred, "machine")}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.run(ctx) }()
		w.ready(ctx)
		if got := w.is("kip-0"); got != "logging/fits" {
			t.Errorf("due are %q", got)
		}
		if told := w.heard(); told != nil {
			t.Errorf("after the first look: %q", told)
		}
		<-w.clock.After(2 * dueEvery)
		synctest.Wait()
		told := w.heard()
		if len(told) != 2 ||
			!strings.Contains(told[1], "kip-0: DaemonSetAbsent: DaemonSet logging/barred (cells.daemonSets[0]) runs beside no pod of this node, since it has "+
				"no pod here: it does not tolerate the taint virtual-kubelet.io/provider=kip:NoSchedule.") ||
			!strings.Contains(told[0], "DaemonSet agents/missing (cells.daemonSets[1]) runs beside no pod of this node, since it has no pod here: there is no such DaemonSet") {
			t.Errorf("told %q", told)
		}
		<-w.clock.After(4 * dueEvery)
		if told := w.heard(); told != nil {
			t.Errorf("told again: %q", told)
		}
		// It fits, and its controller makes no pod.
		sets := appsv1.SchemeGroupVersion.WithResource("daemonsets")
		if err := w.client.Tracker().Update(sets, setOf("logging", "barred", true), "logging"); err != nil {
			t.Fatal(err)
		}
		<-w.clock.After(3 * dueEvery)
		synctest.Wait()
		if told := w.heard(); len(told) != 1 || !strings.Contains(told[0], "its controller has made none") {
			t.Errorf("told %q", told)
		}
		// A new node is looked at soon, and one that is not registered yet is no new one for ever.
		w.mu.Lock()
		w.names = append(w.names, "kip-0-2")
		w.mu.Unlock()
		<-w.clock.After(2 * dueSoon)
		if err := w.client.Tracker().Add(kipsNode("kip-0-2")); err != nil {
			t.Fatal(err)
		}
		<-w.clock.After(2 * dueSoon)
		synctest.Wait()
		if got := w.is("kip-0-2"); got != "logging/barred logging/fits" {
			t.Errorf("due on the new node are %q", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, a := range w.client.Actions() {
			if a.GetVerb() != "list" && a.GetVerb() != "get" {
				t.Errorf("Kip did %s %s", a.GetVerb(), a.GetResource().Resource)
			}
		}
	})
}

// The rights of an older installation let Kip read DaemonSets by their names alone.
func TestSetsThatCannotBeReadAreNobodysToWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDueWorld(daemonsets.New([]daemonsets.Entry{{Namespace: "logging"}, {Namespace: "agents", Name: "agent"}}, nil),
			kipsNode("kip-0"), setOf("logging", "fits", true), setOf("agents", "agent", true))
		w.client.PrependReactor("list", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("forbidden")
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.run(ctx) }()
		w.ready(ctx)
		<-w.clock.After(3 * dueEvery)
		if got := w.is("kip-0"); got != "agents/agent" {
			t.Errorf("due are %q", got)
		}
		w.mu.Lock()
		if len(w.warns) != 1 || !strings.Contains(w.warns[0], "list the DaemonSets of namespace logging: forbidden") {
			t.Errorf("warned %q", w.warns)
		}
		w.mu.Unlock()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
