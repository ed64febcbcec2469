package cellapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
)

// toldEvents are the Events that were reported, as "pod: reason: message".
type toldEvents struct {
	mu  sync.Mutex
	all []string
}

func (e *toldEvents) Event(pod apiv1.PodReference, event events.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf("%s: %s: %s", pod, event.Reason, event.Message))
}

func (e *toldEvents) about(pod, reason string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, said := range e.all {
		if strings.HasPrefix(said, pod+": "+reason+":") {
			n++
		}
	}
	return n
}

// setHouse is a house in which the sets of namespace logging run beside pods.
func setHouse(t *testing.T, entries ...daemonsets.Entry) (*house, *toldEvents) {
	told := &toldEvents{}
	if entries == nil {
		entries = []daemonsets.Entry{{Namespace: "logging"}}
	}
	h := newHouseAt(t, steppedClock(t), func(h *house) {
		h.sets, h.events = daemonsets.New(entries, nil), told
	})
	return h, told
}

// setPodOn returns a pod of a DaemonSet of namespace logging.
func setPodOn(set, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := podOn(name)
	p.Namespace, p.Spec.ServiceAccountName, p.Spec.Volumes = "logging", set, []corev1.Volume{tokenVolume("logs", nil)}
	p.Labels = map[string]string{"app": set}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set, UID: "d", Controller: new(true)}}
	p.Spec.Containers[0].EnvFrom[1].ConfigMapRef.Name = set
	for _, f := range change {
		f(p)
	}
	return p
}

// joinReady makes the machine a cell whose kubelet is ready, and whose agent can run copies.
func (m *machine) joinReady(h *house) *Cell {
	c := m.join(h)
	c.nodeAPI.reported(&corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}})
	h.server.RunsBeside(m.id, true)
	return c
}

const readyStatus = `{"metadata":{"uid":%q},"status":{"phase":"Running","podIP":"169.254.66.7","podIPs":[{"ip":"169.254.66.7"}],` +
	`"conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"main","ready":true,"restartCount":2,` +
	`"state":{"running":{"startedAt":"2026-01-02T03:04:05Z"}}}]}}`

func TestACopyIsTheSetsOwnPodWithTheStatusOfItsCell(t *testing.T) {
	ctx := context.Background()
	h, _ := setHouse(t)
	set := h.up.put(setPodOn("shipper", "shipper-1", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: apiv1.NoMachine, Status: "True"}}}
	})).(*corev1.Pod)
	h.up.put(setPodOn("other", "other-1", func(p *corev1.Pod) { p.Namespace = "elsewhere" }))
	m := newMachine(t, "c1")
	c := m.joinReady(h)
	own := h.bindNew(c, podOn("web"))
	seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
	eventually(t, "the kubelet has both pods", func() bool { return seen.has("shop/web") && seen.has("logging/shipper-1") })
	if keys := seen.ListKeys(); len(keys) != 2 {
		t.Errorf("the kubelet sees %q", keys)
	}
	pods := m.kubelet(t).CoreV1().Pods("logging")
	got, err := pods.Get(ctx, "shipper-1", metav1.GetOptions{})
	if err != nil || got.UID != set.UID || got.Status.Phase != corev1.PodPending || len(got.Status.Conditions) > 0 ||
		got.Spec.NodeName != nodeName {
		t.Fatalf("the copy is %+v (%v)", got, err)
	}
	if all := h.server.Copies(set.UID); len(all) != 1 || all[0].Ready || all[0].Reported || all[0].Cell != "c1" || all[0].Pod.UID != own.UID {
		t.Errorf("before a word of the kubelet: %+v", all)
	}
	got, err = pods.Patch(ctx, "shipper-1", types.StrategicMergePatchType, fmt.Appendf(nil, readyStatus, set.UID),
		metav1.PatchOptions{}, "status")
	if err != nil || got.Status.PodIP != "169.254.66.7" || got.Status.Phase != corev1.PodRunning {
		t.Fatalf("patch: %+v, %v", got, err)
	}
	eventually(t, "the kubelet sees what it has said", func() bool {
		o, _, _ := seen.GetByKey("logging/shipper-1")
		return o.(*corev1.Pod).Status.Phase == corev1.PodRunning
	})
	if all := h.server.CopiesOn("c1"); len(all) != 1 || !all[0].Ready || all[0].Restarts != 2 || all[0].Why != "" {
		t.Errorf("%+v", all)
	}
	// The pod of the API server stands for all cells: none writes it.
	if sent := h.up.asked(func(r apiRequest) bool {
		return r.verb == "patch" || r.verb == "delete" || r.name == "shipper-1" && r.verb == "get"
	}); len(sent) > 0 {
		t.Errorf("passed on: %+v", sent)
	}
	// What Kip writes of its status is no cell's.
	changes := seen.changes.Load()
	set.Status.Message = "for people"
	set = h.up.put(set).(*corev1.Pod)
	eventually(t, "Kip has heard of it", func() bool {
		o, _, _ := h.server.pods.GetStore().GetByKey("logging/shipper-1")
		return o.(*corev1.Pod).Status.Message != ""
	})
	h.up.put(own)
	if n := seen.changes.Load() - changes; n > 1 {
		t.Errorf("the kubelet heard of %d changes", n)
	}

	// Its set is updated: the kubelet ends the copy, and says so.
	set.DeletionTimestamp, set.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(1))
	if err := pods.Delete(ctx, "shipper-1", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a cell deletes the pod of a set: %v, want Forbidden", err)
	}
	h.up.put(set)
	eventually(t, "the kubelet is to end the copy", func() bool {
		o, _, _ := seen.GetByKey("logging/shipper-1")
		return o.(*corev1.Pod).DeletionTimestamp != nil
	})
	fresh := newMachine(t, "c2")
	h.bindNew(fresh.joinReady(h), podOn("later"))
	if err := pods.Delete(ctx, "shipper-1",
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
		t.Errorf("delete of another UID: %v, want Conflict", err)
	}
	if all := h.server.Copies(set.UID); len(all) != 1 || all[0].Cell != "c1" {
		t.Errorf("a cell that came later has the pod that is being deleted: %+v", all)
	}
	if err := pods.Delete(ctx, "shipper-1", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(set.UID))}); err != nil {
		t.Errorf("delete: %v", err)
	}
	eventually(t, "the copy is gone", func() bool { return !seen.has("logging/shipper-1") && len(h.server.Copies(set.UID)) == 0 })
	if sent := h.up.asked(func(r apiRequest) bool { return r.verb == "delete" }); len(sent) > 0 {
		t.Errorf("passed on: %+v", sent)
	}
	h.up.remove(set)
	next := h.up.put(setPodOn("shipper", "shipper-2")).(*corev1.Pod)
	eventually(t, "the next pod of the set runs", func() bool { return seen.has("logging/shipper-2") && len(h.server.Copies(next.UID)) == 2 })
	if !seen.has("shop/web") || seen.emptyLists() > 0 {
		t.Errorf("the kubelet lost its pod")
	}
}

func TestASetWithANodePluginRunsBesidePodsWithItsVolumes(t *testing.T) {
	h, _ := setHouse(t, daemonsets.Entry{Namespace: "logging", Drivers: []string{"secrets.example.com"}})
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	for id, drivers := range map[string][]string{"c1": {"nfs.example.com", "secrets.example.com"}, "c2": {"nfs.example.com"}, "c3": nil} {
		c := newMachine(t, id).joinReady(h)
		c.Reserve(nil, drivers)
		h.bindNew(c, podOn("web-"+id))
	}
	eventually(t, "it runs beside the one", func() bool { return len(h.server.Copies(set.UID)) > 0 })
	if all := h.server.Copies(set.UID); len(all) != 1 || all[0].Cell != "c1" {
		t.Errorf("it runs on %+v", all)
	}
}

func TestTheNodePluginOfAPodsVolumesHasRoomBeforeOtherSets(t *testing.T) {
	h, _ := setHouse(t, daemonsets.Entry{Namespace: "logging", Name: "logs"},
		daemonsets.Entry{Namespace: "logging", Name: "plugin", Drivers: []string{"secrets.example.com"}})
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	asks := func(age time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.UID, p.CreationTimestamp = types.UID(p.Name), metav1.NewTime(made.Add(-age))
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}
	}
	logs := h.up.put(setPodOn("logs", "logs-1", asks(time.Hour))).(*corev1.Pod) // older, and first by name
	plugin := h.up.put(setPodOn("plugin", "plugin-1", asks(0))).(*corev1.Pod)
	c := newMachine(t, "c1").joinReady(h)
	c.Reserve(nil, []string{"secrets.example.com"})
	h.bindNew(c, podOn("web"))
	eventually(t, "both are seen to", func() bool { return len(h.server.Copies(logs.UID))+len(h.server.Copies(plugin.UID)) == 2 })
	if !h.server.Copies(logs.UID)[0].LeftOut || h.server.Copies(plugin.UID)[0].LeftOut {
		t.Errorf("of two, one of which fits, these run: %+v, %+v", h.server.Copies(logs.UID), h.server.Copies(plugin.UID))
	}
}

func TestWhatIsASetsIsNoOthers(t *testing.T) {
	ctx := context.Background()
	quiet, err := labels.Parse("logs=none")
	if err != nil {
		t.Fatal(err)
	}
	h, _ := setHouse(t, daemonsets.Entry{Namespace: "logging", Name: "shipper"}, daemonsets.Entry{Namespace: "logging", Name: "quiet",
		Pods: quiet})
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	other := h.up.put(setPodOn("quiet", "quiet-1")).(*corev1.Pod)
	for _, o := range []struct{ namespace, name string }{
		{"logging", "shipper-1-secret"}, {"logging", "quiet-1-secret"}, {"shop", "web-secret"}, {"shop", "shipper-1-secret"},
		{"logging", "web-secret"},
	} {
		h.up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.name}})
	}
	m := newMachine(t, "c1")
	c := m.joinReady(h)
	own := h.bindNew(c, podOn("web"))
	eventually(t, "the copy is there", func() bool { return len(h.server.Copies(set.UID)) == 1 })
	kubelet := m.kubelet(t).CoreV1()
	for name, tc := range map[string]struct {
		namespace, name string
		may             bool
	}{
		"the pod's":                           {"shop", "web-secret", true},
		"the copy's":                          {"logging", "shipper-1-secret", true},
		"of a set that does not run here":     {"logging", "quiet-1-secret", false},
		"of the copy's name, the pod's space": {"shop", "shipper-1-secret", false},
		"of the pod's name, the copy's space": {"logging", "web-secret", false},
	} {
		_, err := kubelet.Secrets(tc.namespace).Get(ctx, tc.name, metav1.GetOptions{})
		if tc.may && err != nil || !tc.may && !apierrors.IsForbidden(err) {
			t.Errorf("secret %s: %v, want %t", name, err, tc.may)
		}
	}
	token := func(audience string, of *corev1.Pod) *authenticationv1.TokenRequest {
		r := tokenFor(of)
		r.Spec.Audiences = []string{audience}
		return r
	}
	for name, tc := range map[string]struct {
		namespace, account string
		request            *authenticationv1.TokenRequest
		may                bool
	}{
		"the pod's":                       {"shop", "clerk", token("api", own), true},
		"the copy's":                      {"logging", "shipper", token("logs", set), true},
		"the pod's, bound to the copy":    {"shop", "clerk", token("api", set), false},
		"the copy's, bound to the pod":    {"logging", "shipper", token("logs", own), false},
		"the copy's, for the pod's use":   {"logging", "shipper", token("api", set), false},
		"the pod's, for the copy's use":   {"shop", "clerk", token("logs", own), false},
		"of a set that does not run here": {"logging", "quiet", token("logs", other), false},
	} {
		_, err := kubelet.ServiceAccounts(tc.namespace).CreateToken(ctx, tc.account, tc.request, metav1.CreateOptions{})
		if tc.may && err != nil || !tc.may && !apierrors.IsForbidden(err) {
			t.Errorf("token %s: %v, want %t", name, err, tc.may)
		}
	}
	for name, of := range map[string]*corev1.Pod{"a copy's address": set, "of a set that does not run here": other} {
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"podIP":"10.0.0.9"}}`, of.UID)
		_, err := kubelet.Pods("logging").Patch(ctx, of.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("patch %s: %v", name, err)
		}
	}
	if sent := h.up.asked(func(r apiRequest) bool {
		return r.resource == "pods" && (r.verb == "patch" || r.verb == "delete")
	}); len(sent) > 0 {
		t.Errorf("passed on: %+v", sent)
	}
	// Events about a copy would be those of all cells at once.
	for _, of := range []*corev1.Pod{set, other} {
		_, err := kubelet.Events("logging").Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "logging", Name: "e-" + of.Name},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "logging", Name: of.Name, UID: of.UID},
			Type:           corev1.EventTypeWarning, Reason: "Failed", Message: "no such image",
		}, metav1.CreateOptions{})
		if of == set && err != nil || of == other && !apierrors.IsForbidden(err) {
			t.Errorf("event about %s: %v", of.Name, err)
		}
	}
	if all := h.server.Copies(set.UID); len(all) != 1 || all[0].Why != "Failed: no such image" {
		t.Errorf("%+v", all)
	}
	if sent := h.up.asked(func(r apiRequest) bool { return r.resource == "events" }); len(sent) > 0 {
		t.Errorf("passed on: %+v", sent)
	}
}

func TestACellWhoseAgentCannotRunsItsPodAlone(t *testing.T) {
	h, _ := setHouse(t)
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	m := newMachine(t, "c1")
	c := m.joinReady(h)
	h.server.RunsBeside("c1", false)
	h.bindNew(c, podOn("web"))
	seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
	eventually(t, "the kubelet has its pod", func() bool { return seen.has("shop/web") })
	if seen.has("logging/shipper-1") || len(h.server.Copies(set.UID)) > 0 {
		t.Errorf("it has %q", seen.ListKeys())
	}
}

// A kubelet ends what its list lacks.
func TestNoListLacksTheCopiesAfterARestartOfKip(t *testing.T) {
	h, _ := setHouse(t)
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	m := newMachine(t, "c1")
	own := h.bindNew(m.joinReady(h), podOn("web"))
	seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
	eventually(t, "the kubelet has both pods", func() bool { return seen.has("shop/web") && seen.has("logging/shipper-1") })
	if _, err := m.kubelet(t).CoreV1().Pods("logging").Patch(context.Background(), "shipper-1", types.StrategicMergePatchType,
		fmt.Appendf(nil, readyStatus, set.UID), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		m.cut()
		h.stop()
		h.start()
		c := h.server.AddCell(m.id, info)
		if err := c.Bind(own.Namespace, own.Name, own.UID); err != nil {
			t.Fatal(err)
		}
		m.handler.Store(c)
		closed(t, "the pod is known", c.bound().known)
		if h.server.HasPod(own.UID) {
			t.Error("what runs beside the pod is known before its agent has said anything")
		}
		lists := seen.synced()
		h.server.RunsBeside(m.id, true)
		if h.server.HasPod(own.UID) {
			t.Error("what runs beside the pod is known before its kubelet has said what the machine has")
		}
		c.nodeAPI.reported(&corev1.NodeStatus{})
		eventually(t, "the kubelet lists anew", func() bool { return seen.synced() > lists })
		if all := h.server.Copies(set.UID); len(all) != 1 || all[0].Reported || all[0].Ready {
			t.Errorf("a new process believes %+v", all)
		}
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, keys := range seen.lists {
		if len(keys) != 0 && (!slices.Contains(keys, "logging/shipper-1") || !slices.Contains(keys, "shop/web")) {
			t.Errorf("a list was %q", keys)
		}
	}
}

func TestASetThatDoesNotFitIsLeftOutAndItsPodRuns(t *testing.T) {
	port := func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 9100}} }
	asks := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
	}
	pages := func(size string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			all := corev1.ResourceList{"hugepages-2Mi": resource.MustParse(size)}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
		}
	}
	template := func(p *corev1.Pod) {
		pages("64Mi")(p)
		p.Spec.Containers[0].Resources.Requests = nil
	}
	for name, tc := range map[string]struct {
		own, set func(*corev1.Pod)
		pages    string // that the cell has; "" for none
		why      string
	}{
		"the host port of the pod":     {port, port, "", "host port TCP 9100 is that of pod shop/web"},
		"more than the cell has":       {asks("1"), asks("1"), "", "it asks for cpu 1, and 1 of the 1900m of the cell are taken"},
		"more than static pods leave":  {asks("800m"), asks("1"), "", "it asks for cpu 1, and 1 of the 1900m of the cell are taken"},
		"as much as the cell has left": {asks("1"), asks("900m"), "", ""},
		"huge pages, and there are none": {asks("1"), pages("64Mi"), "",
			"it asks for hugepages-2Mi 64Mi, and the cell has none"},
		"huge pages by its limits alone": {asks("1"), template, "",
			"it asks for hugepages-2Mi 64Mi, and the cell has none"},
		"more huge pages than the pod leaves": {pages("64Mi"), pages("128Mi"), "128Mi",
			"it asks for hugepages-2Mi 128Mi, and 64Mi of the 128Mi of the cell are taken"},
		"as many huge pages as the pod leaves": {pages("64Mi"), pages("64Mi"), "128Mi", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, told := setHouse(t)
			set := h.up.put(setPodOn("shipper", "shipper-1", tc.set)).(*corev1.Pod)
			pod := podOn("web")
			tc.own(pod)
			m := newMachine(t, "c1")
			if tc.pages != "" {
				m.has.Allocatable = maps.Clone(m.has.Allocatable)
				m.has.Allocatable["hugepages-2Mi"] = resource.MustParse(tc.pages)
			}
			c := m.joinReady(h)
			if name == "more than static pods leave" {
				c.Reserve(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")}, nil)
			}
			h.bindNew(c, pod)
			seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
			eventually(t, "the kubelet has its pod", func() bool { return seen.has("shop/web") })
			eventually(t, "the set is seen to", func() bool { return len(h.server.Copies(set.UID)) == 1 })
			is := h.server.Copies(set.UID)[0]
			if is.LeftOut != (tc.why != "") || tc.why != "" && !strings.HasPrefix(is.Why, tc.why) {
				t.Errorf("%+v, want %q", is, tc.why)
			}
			events := 1
			if tc.why == "" {
				events = 0
			}
			for _, about := range []string{"shop/web", "logging/shipper-1"} {
				if n := told.about(about, "DaemonSetLeftOut"); n != events {
					t.Errorf("%d Events about %s, want %d: %q", n, about, events, told.all)
				}
			}
		})
	}
}

func TestAPodWaitsForTheCopiesBesideItNoLongerThanItMay(t *testing.T) {
	for name, ready := range map[string]bool{"a copy becomes ready": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			h, told := setHouse(t, daemonsets.Entry{Namespace: "logging", MaxDelay: time.Minute})
			h.clock.(*stepped).hold(true)
			set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
			m := newMachine(t, "c1")
			h.bindNew(m.joinReady(h), podOn("web"))
			seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
			eventually(t, "the kubelet has the copy", func() bool { return seen.has("logging/shipper-1") })
			if seen.has("shop/web") {
				t.Fatal("the pod does not wait")
			}
			if ready {
				if _, err := m.kubelet(t).CoreV1().Pods("logging").Patch(t.Context(), "shipper-1", types.StrategicMergePatchType,
					fmt.Appendf(nil, readyStatus, set.UID), metav1.PatchOptions{}, "status"); err != nil {
					t.Fatal(err)
				}
			} else {
				h.clock.(*stepped).hold(false)
			}
			eventually(t, "the kubelet has its pod", func() bool { return seen.has("shop/web") })
			late := 1
			if ready {
				late = 0
			}
			if n := told.about("shop/web", "DaemonSetNotReady"); n != late || told.about("shop/web", "WaitsForDaemonSets") != late {
				t.Errorf("Events: %q", told.all)
			}
			h.clock.(*stepped).hold(false)
		})
	}
}

func TestACopyThatHasFailedIsStartedAgain(t *testing.T) {
	h, _ := setHouse(t)
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	m := newMachine(t, "c1")
	h.bindNew(m.joinReady(h), podOn("web"))
	seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
	eventually(t, "the kubelet has both pods", func() bool { return seen.has("shop/web") && seen.has("logging/shipper-1") })
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Failed","reason":"NodePorts","message":"taken"}}`, set.UID)
	if _, err := m.kubelet(t).CoreV1().Pods("logging").Patch(t.Context(), "shipper-1", types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if all := h.server.Copies(set.UID); len(all) != 1 || all[0].Ready || all[0].Why != "NodePorts: taken" {
		t.Errorf("%+v", all)
	}
	eventually(t, "it is shown as new", func() bool {
		o, is, _ := seen.GetByKey("logging/shipper-1")
		return is && o.(*corev1.Pod).Status.Phase == corev1.PodPending
	})
	if !seen.has("shop/web") {
		t.Error("the kubelet lost its pod")
	}
}

func TestTheHostPortsOfACellAreThoseOfCopiesOfItsNetwork(t *testing.T) {
	ports := func(host bool, all ...int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.HostNetwork = host
			for _, n := range all {
				p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: n, HostPort: n})
			}
		}
	}
	h, _ := setHouse(t)
	changed := portsOf{changes: make(chan string, 16)}
	h.server.ObservePorts(changed)
	set := h.up.put(setPodOn("exporter", "exporter-1", ports(true, 9100, 6421, 10250, 80))).(*corev1.Pod)
	h.up.put(setPodOn("shipper", "shipper-1", ports(false, 2020)))
	m := newMachine(t, "c1")
	h.bindNew(m.joinReady(h), podOn("web"))
	eventually(t, "both run", func() bool { return len(h.server.CopiesOn("c1")) == 2 })
	want := []agentapi.Ports{{Protocol: "TCP", First: 80, Last: 80}, {Protocol: "TCP", First: 9100, Last: 9100}}
	if got := h.server.HostPorts("c1"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	h.up.remove(set)
	eventually(t, "they are gone with the copy", func() bool { return len(h.server.HostPorts("c1")) == 0 })
	if n := len(changed.changes); n != 2 || h.server.HostPorts("other") != nil {
		t.Errorf("told of %d changes, want 2", n)
	}
}

type portsOf struct{ changes chan string }

func (p portsOf) HostPortsChanged(cell string) { p.changes <- cell }

func TestWhatACellSaysOfACopyIsBounded(t *testing.T) {
	h, _ := setHouse(t)
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	m := newMachine(t, "c1")
	h.bindNew(m.joinReady(h), podOn("web"))
	eventually(t, "the copy is there", func() bool { return len(h.server.Copies(set.UID)) == 1 })
	pods := m.kubelet(t).CoreV1().Pods("logging")
	patch := func(status string) (*corev1.Pod, error) {
		body := fmt.Sprintf(`{"metadata":{"uid":%q},"status":%s}`, set.UID, status)
		return pods.Patch(t.Context(), "shipper-1", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")
	}
	long := strings.Repeat("x", 30<<10)
	got, err := patch(fmt.Sprintf(`{"phase":"Running","message":%q,"conditions":[{"type":"Ready","status":"False","message":%q}],`+
		`"containerStatuses":[{"name":"main","state":{"waiting":{"reason":"Bad","message":%q}}}]}`, long, long, long))
	if err != nil || got.Status.Size() > heldOfCopy(set) || got.Status.Phase != corev1.PodRunning {
		t.Fatalf("a status with long messages: %v", err)
	}
	if why := h.server.Copies(set.UID)[0].Why; len(why) > maxCopyWhy || !strings.HasPrefix(why, "Bad: xxx") {
		t.Errorf("it says %d bytes: %.40s", len(why), why)
	}
	var addresses []string
	for i := range 8 {
		addresses = append(addresses, fmt.Sprintf(`{"ip":"169.254.66.%d"}`, i+1))
	}
	for status, what := range map[string]string{
		`{"containerStatuses":[{"name":"a"},{"name":"b"}]}`:                       "more containers than it has",
		`{"podIP":"10.0.128.5"}`:                                                  "the address of the cell's pod",
		`{"hostIP":"10.9.9.9"}`:                                                   "another host",
		`{"podIPs":[` + strings.Join(append(addresses, addresses...), ",") + `]}`: "many addresses",
		`{"phase":"Fine"}`:                                                        "no phase",
	} {
		if _, err := patch(status); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want Invalid", what, err)
		}
	}
	if got, err := pods.Get(t.Context(), "shipper-1", metav1.GetOptions{}); err != nil || got.Labels["app"] != "shipper" ||
		len(got.Status.PodIPs) > 0 {
		t.Errorf("the copy is %+v (%v)", got, err)
	}
}

func TestCopiesEndBeforeTheCellOfAPodThatHasEnded(t *testing.T) {
	for name, ends := range map[string]bool{"they end": true, "they do not": false} {
		t.Run(name, func(t *testing.T) {
			h, _ := setHouse(t, daemonsets.Entry{Namespace: "logging", Name: "shipper", Linger: 5 * time.Second},
				daemonsets.Entry{Namespace: "logging"})
			set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
			h.up.put(setPodOn("other", "other-1"))
			m := newMachine(t, "c1")
			c := m.joinReady(h)
			own := h.bindNew(c, podOn("web"))
			seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
			eventually(t, "the kubelet has all", func() bool { return len(seen.ListKeys()) == 3 })
			h.up.remove(own)
			eventually(t, "the pod is gone", func() bool { return !seen.has("shop/web") })
			h.clock.(*stepped).hold(ends)
			ended := make(chan struct{})
			go func() { defer close(ended); c.EndCopies(t.Context()) }()
			if ends {
				eventually(t, "the copy is told to end", func() bool {
					o, is, _ := seen.GetByKey("logging/shipper-1")
					return is && o.(*corev1.Pod).DeletionTimestamp != nil && *o.(*corev1.Pod).DeletionGracePeriodSeconds == 5
				})
				if o, _, _ := seen.GetByKey("logging/other-1"); o.(*corev1.Pod).DeletionTimestamp != nil {
					t.Error("a copy that is to end with the machine is told so, too")
				}
				if err := m.kubelet(t).CoreV1().Pods("logging").Delete(t.Context(), "shipper-1",
					metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(set.UID))}); err != nil {
					t.Error(err)
				}
			}
			closed(t, "the cell may end", ended)
			if sent := h.up.asked(func(r apiRequest) bool { return r.verb == "delete" }); len(sent) > 0 {
				t.Errorf("passed on: %+v", sent)
			}
			h.clock.(*stepped).hold(false)
		})
	}
}

// A list that lacks copies ends them; but a deletion is to reach the kubelet.
func TestTheDeletionOfAPodIsSeenWhateverIsKnownOfTheCopiesBesideIt(t *testing.T) {
	for name, none := range map[string]bool{"its agent says that there are none": true, "its agent says nothing": false} {
		t.Run(name, func(t *testing.T) {
			h, _ := setHouse(t)
			h.up.put(setPodOn("shipper", "shipper-1"))
			m := newMachine(t, "c1")
			own := h.bindNew(m.join(h), podOn("web")) // of an earlier process: its kubelet has not said yet that it is ready
			seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
			if none {
				h.server.RunsNone("c1")
				eventually(t, "the kubelet has its pod", func() bool { return seen.has("shop/web") })
			}
			own = own.DeepCopy() // the API server still sends the other
			own.DeletionTimestamp, own.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(1))
			h.up.put(own)
			eventually(t, "the kubelet sees the deletion", func() bool {
				o, is, _ := seen.GetByKey("shop/web")
				return is && o.(*corev1.Pod).DeletionTimestamp != nil
			})
		})
	}
}

func TestANodePluginOfThePodsVolumesMayHaveARoomThatIsHeld(t *testing.T) {
	h, _ := setHouse(t, daemonsets.Entry{Namespace: "logging", Name: "logs"},
		daemonsets.Entry{Namespace: "logging", Name: "plugin", Drivers: []string{"secrets.example.com"}})
	asks := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	}
	logs := h.up.put(setPodOn("logs", "logs-1", asks)).(*corev1.Pod)
	c := newMachine(t, "c1").joinReady(h)
	c.Reserve(nil, []string{"secrets.example.com"})
	h.bindNew(c, podOn("web"))
	eventually(t, "it runs", func() bool { return len(h.server.Copies(logs.UID)) == 1 })
	h.server.sets.gone(logs)
	h.up.remove(logs)
	plugin := h.up.put(setPodOn("plugin", "plugin-1", asks)).(*corev1.Pod)
	eventually(t, "the plugin is seen to", func() bool { return len(h.server.Copies(plugin.UID)) == 1 })
	if is := h.server.Copies(plugin.UID)[0]; is.LeftOut {
		t.Errorf("it is left out for a set that has no pod: %+v", is)
	}
}

func TestASetThatIsLeftOutIsToldForWhomAPlaceIsKept(t *testing.T) {
	for name, tc := range map[string]struct {
		asks func(*corev1.Pod)
		why  string
	}{
		"a host port": {func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 9100}} },
			"host port TCP 9100 is kept there for the next pod of DaemonSet logging/shipper"},
		"room": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}, "it asks for cpu 1, and 1 of the 1900m of the cell are taken, or kept for the next pods of DaemonSets"},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := setHouse(t)
			set := h.up.put(setPodOn("shipper", "shipper-1", tc.asks)).(*corev1.Pod)
			h.bindNew(newMachine(t, "c1").joinReady(h), podOn("web"))
			eventually(t, "it runs", func() bool { return len(h.server.Copies(set.UID)) == 1 })
			clk := h.clock.(*stepped)
			clk.hold(true) // the place stays kept
			t.Cleanup(func() { clk.hold(false) })
			h.server.sets.gone(set)
			h.up.remove(set)
			other := h.up.put(setPodOn("other", "other-1", tc.asks)).(*corev1.Pod)
			eventually(t, "the other is seen to", func() bool { return len(h.server.Copies(other.UID)) == 1 })
			if is := h.server.Copies(other.UID)[0]; !is.LeftOut || is.Why != tc.why {
				t.Errorf("%+v, want %q", is, tc.why)
			}
		})
	}
}

func TestARoomIsItsSetsThroughAnUpdate(t *testing.T) {
	asks := func(cpu string, port int32, age time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(-age))
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
			if port != 0 {
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: port}}
			}
		}
	}
	const hour = time.Hour
	for name, tc := range map[string]struct {
		cpu, otherCPU string
		port          int32
		forced        bool   // the set's pod goes without a word of the kubelet
		surge         bool   // its next pod is there before the old one is deleted
		next          string // what the next pod asks for; "" where there is none
		runs          string // which set runs in the end
	}{
		"the same room":             {cpu: "1", otherCPU: "1", next: "1", runs: "shipper"},
		"less room":                 {cpu: "1900m", otherCPU: "1", next: "1", runs: "shipper"},
		"so little that both fit":   {cpu: "1", otherCPU: "1", next: "100m", runs: "other shipper"},
		"a host port":               {cpu: "1m", otherCPU: "1m", port: 9100, next: "1m", runs: "shipper"},
		"a pod that goes by force":  {cpu: "1", otherCPU: "1", next: "1", forced: true, runs: "shipper"},
		"a next pod before the end": {cpu: "1", otherCPU: "1", next: "1", surge: true, runs: "shipper"},
		"more than there is":        {cpu: "1", otherCPU: "1", next: "4", runs: "other"},
		"no next pod":               {cpu: "1", otherCPU: "1", runs: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := setHouse(t)
			set := h.up.put(setPodOn("shipper", "shipper-1", asks(tc.cpu, tc.port, 2*hour))).(*corev1.Pod)
			h.up.put(setPodOn("other", "other-1", asks(tc.otherCPU, tc.port, hour)))
			m := newMachine(t, "c1")
			c := m.joinReady(h)
			h.bindNew(c, podOn("web"))
			running := func() string {
				var names []string
				for _, is := range h.server.CopiesOn("c1") {
					if !is.LeftOut {
						names = append(names, is.Set.Name[:strings.LastIndex(is.Set.Name, "-")])
					}
				}
				return strings.Join(names, " ")
			}
			both := func() bool { return len(h.server.CopiesOn("c1")) == 2 }
			eventually(t, "both are seen to", both)
			if is := running(); is != "shipper" {
				t.Fatalf("%q run before the update", is)
			}
			clk := h.clock.(*stepped)
			clk.hold(true)
			t.Cleanup(func() { clk.hold(false) })
			next := setPodOn("shipper", "shipper-2", asks(cmp.Or(tc.next, "1"), tc.port, 0))
			if tc.surge {
				h.up.put(next)
				eventually(t, "the next pod is seen to", func() bool { return len(h.server.CopiesOn("c1")) == 3 })
			}
			seen := follow(t, m.kubelet(t).CoreV1().RESTClient(), podKind, "", fields.Everything())
			if !tc.forced {
				set.DeletionTimestamp, set.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(1))
				set = h.up.put(set).(*corev1.Pod)
				eventually(t, "the kubelet is to end the copy", func() bool {
					o, is, _ := seen.GetByKey("logging/shipper-1")
					return is && o.(*corev1.Pod).DeletionTimestamp != nil
				})
				if err := m.kubelet(t).CoreV1().Pods("logging").Delete(t.Context(), "shipper-1",
					metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(set.UID))}); err != nil {
					t.Fatal(err)
				}
				c.setsChanged() // as at any change of another set
			}
			h.server.sets.gone(set)
			if !tc.surge {
				if is := running(); is != "" {
					t.Errorf("between the two pods of the set %q run", is)
				}
			}
			h.up.remove(set)
			switch {
			case tc.next == "":
				clk.hold(false)
			case !tc.surge:
				h.up.put(next)
			}
			eventually(t, "the next pod is seen to", func() bool { return running() != "" })
			eventually(t, tc.runs+" run", func() bool { return running() == tc.runs })
		})
	}
}
