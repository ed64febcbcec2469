package cellapi

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

func TestAPodThatGoesWhileItsNodeIsListedIsNoSets(t *testing.T) {
	h, _ := setHouse(t)
	s := h.server.sets
	set := setPodOn("shipper", "shipper-1", func(p *corev1.Pod) { p.UID, p.ResourceVersion = "u1", "5" })
	beside := func() int { return len(s.beside(nodeName, podOn("web"))) }
	for name, gone := range map[string]func(){
		"deleted": func() { s.gone(set) },
		"ended": func() {
			ended := set.DeepCopy()
			ended.ResourceVersion, ended.Status.Phase = "6", corev1.PodFailed
			s.see(ended)
		},
	} {
		s.mu.Lock()
		delete(s.passed, nodeName)
		s.mu.Unlock()
		s.see(set)
		if beside() != 1 {
			t.Fatal("it is no set's")
		}
		s.mu.Lock()
		s.passed[nodeName] = map[types.UID]uint64{} // as list does
		s.mu.Unlock()
		gone()
		s.see(set) // as the list has it
		if beside() != 0 {
			t.Errorf("%s: it came back", name)
		}
	}
}

func TestASetsPodIsShownWhenAllCellsOfItsNodeKnowOfIt(t *testing.T) {
	h, _ := setHouse(t)
	for _, name := range []string{"c1", "c2"} {
		own := h.bindNew(newMachine(t, name).joinReady(h), podOn("web-"+name))
		eventually(t, "its kubelet may have its pod", func() bool { return len(h.server.cellOf(own.UID).shownPods()) == 1 })
	}
	set := setPodOn("shipper", "shipper-1", func(p *corev1.Pod) { p.UID, p.ResourceVersion = "u1", "5" })
	if h.server.Shown(set.UID) {
		t.Error("it is shown before Kip knows it")
	}
	s := h.server.sets
	copies := -1
	h.server.ObserveCopies(copyObserver(func() { // at the first cell that knows of it
		if copies < 0 {
			s.mu.Lock()
			if s.shown[set.UID] {
				t.Error("it is shown before its cells know of it")
			}
			s.mu.Unlock()
			copies = 0
		}
	}))
	s.see(set)
	if n := len(h.server.Copies(set.UID)); n != 2 || copies != 0 || !h.server.Shown(set.UID) {
		t.Errorf("it has %d copies, and is shown: %t", n, h.server.Shown(set.UID))
	}
	s.gone(set)
	if h.server.Shown(set.UID) {
		t.Error("it is gone, and shown")
	}
}

func TestWhatACellRunsIsUnknownUntilItsAgentSaysWhatItCan(t *testing.T) {
	h, _ := setHouse(t)
	c := newMachine(t, "c1").join(h)
	c.nodeAPI.reported(&corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}})
	own := h.bindNew(c, podOn("web"))
	eventually(t, "its kubelet may have its pod", func() bool { return len(h.server.cellOf(own.UID).shownPods()) == 1 })
	if !h.server.HasPod(own.UID) {
		t.Error("its pod has not started: it has no copy that could have been ready")
	}
	own.Status.StartTime = &metav1.Time{Time: time.Now()}
	h.up.put(own)
	eventually(t, "its pod has started", func() bool { return !h.server.HasPod(own.UID) })
	h.server.RunsBeside("c1", true)
	if !h.server.HasPod(own.UID) {
		t.Error("its agent runs copies, and they are unknown")
	}
}

type copyObserver func()

func (f copyObserver) CopyChanged(string, types.NamespacedName) { f() }

func TestASetsPodWithACellRunsBesideNoOther(t *testing.T) {
	h, _ := setHouse(t)
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	h.bindNew(newMachine(t, "c1").joinReady(h), podOn("web"))
	eventually(t, "the copy is there", func() bool { return len(h.server.Copies(set.UID)) == 1 })
	if err := newMachine(t, "c2").joinReady(h).Bind(set.Namespace, set.Name, set.UID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copy is gone", func() bool { return len(h.server.Copies(set.UID)) == 0 })
	h.up.put(set)
	h.server.sets.see(set)
	if n := len(h.server.sets.beside(nodeName, podOn("web"))); n != 0 {
		t.Errorf("%d sets run beside others", n)
	}
}

func TestTheOlderSetsComeFirst(t *testing.T) {
	port := func(born time.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(born)
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 9100}}
		}
	}
	h, _ := setHouse(t)
	now := time.Now().Truncate(time.Second)
	younger := h.up.put(setPodOn("a", "a-1", port(now))).(*corev1.Pod)
	older := h.up.put(setPodOn("b", "b-1", port(now.Add(-time.Hour)))).(*corev1.Pod)
	h.bindNew(newMachine(t, "c1").joinReady(h), podOn("web"))
	eventually(t, "both are seen to", func() bool { return len(h.server.CopiesOn("c1")) == 2 })
	if h.server.Copies(older.UID)[0].LeftOut || !h.server.Copies(younger.UID)[0].LeftOut {
		t.Errorf("%+v", h.server.CopiesOn("c1"))
	}
}

func TestAKubeletThatWatchesSeesManyCopiesComeAtOnce(t *testing.T) {
	h, _ := setHouse(t)
	m := newMachine(t, "c1")
	c := m.joinReady(h)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		h.up.put(setPodOn(name, name+"-1"))
	}
	version := c.pods.Version()
	h.bindNew(c, podOn("web"))
	eventually(t, "the copies are there", func() bool { return len(h.server.CopiesOn("c1")) == 7 })
	if _, ok := c.pods.Seek(version); !ok {
		t.Error("the kubelet's watch has missed some")
	}
}

func TestAKeptCellReadsNothingOfItsPodAndRunsNothingBesideIt(t *testing.T) {
	h, _ := setHouse(t)
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	for _, name := range []string{"shop/web-secret", "logging/shipper-1-secret"} {
		namespace, name, _ := strings.Cut(name, "/")
		h.up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	m := newMachine(t, "c1")
	c := m.joinReady(h)
	own := h.bindNew(c, podOn("web"))
	seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
	eventually(t, "the kubelet has both", func() bool { return seen.has("shop/web") && seen.has("logging/shipper-1") })
	kubelet := m.kubelet(t).CoreV1()
	if _, err := kubelet.Secrets("shop").Get(t.Context(), "web-secret", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	c.KeepPod()
	eventually(t, "the copy is gone", func() bool { return !seen.has("logging/shipper-1") && len(h.server.Copies(set.UID)) == 0 })
	if _, err := kubelet.Secrets("shop").Get(t.Context(), "web-secret", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the pod's secret: %v, want Forbidden", err)
	}
	if _, err := kubelet.ServiceAccounts("shop").CreateToken(t.Context(), "clerk", tokenFor(own),
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a token: %v, want Forbidden", err)
	}
	h.up.remove(own)
	again := own.DeepCopy()
	again.ResourceVersion, again.Labels = "1000000", map[string]string{"late": "yes"}
	h.server.podSeen(nil, again)
	if n := c.references(); n != 0 {
		t.Errorf("%d references", n)
	}
	if !seen.has("shop/web") {
		t.Error("the kubelet lost its pod")
	}
}
