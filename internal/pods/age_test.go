package pods

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// ownedBy gives a pod a controller.
func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID(name), Controller: new(true)}}
	}
}

// agedHarness is one in which cells may become a day old. evicted are the pods that were evicted; forbids, if not nil, is asked first.
func agedHarness(t *testing.T, forbids func(pod string) bool) (h *harness, evicted *[]string) {
	h = newHarness(t)
	h.restarted(func(c *Config) { c.MaxAge = 24 * time.Hour })
	evicted = new([]string)
	h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		name := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction).Name
		if forbids != nil && forbids(name) {
			return true, nil, apierrors.NewTooManyRequests("a disruption budget", 0)
		}
		*evicted = append(*evicted, name)
		return true, nil, nil
	})
	return h, evicted
}

// onCell has a pod run on a cell that is launched now.
func (h *harness) onCell(p *corev1.Pod) {
	h.Helper()
	h.put(p)
	h.look(p)
	h.cells.set(p.UID, func(c *cells.Cell) {
		c.Phase = apiv1.Bound
		c.Steps = []apiv1.Step{{Name: apiv1.StepLaunched, Time: metav1.NewMicroTime(h.clock.Now())}}
	})
	h.events, h.messages = nil, nil
}

// look has Kip look at a pod of any namespace.
func (h *harness) look(p *corev1.Pod) {
	h.Helper()
	if _, err := h.c.reconcile(h.Context(), cache.ObjectName{Namespace: p.Namespace, Name: p.Name}); err != nil {
		h.Fatal(err)
	}
}

// leave has a pod go that was evicted.
func (h *harness) leave(p *corev1.Pod) {
	h.Helper()
	h.vanish(p)
	h.cells.gone(p.UID)
	h.c.core.registry.forget(p.UID)
}

// inNamespace is of a pod that has so long to end.
func inNamespace(namespace string, grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace, p.Spec.TerminationGracePeriodSeconds = namespace, &grace }
}

func TestAPodIsEvictedFromACellThatIsTooOldIfAnotherReplacesIt(t *testing.T) {
	annotated := func(name, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{name: value} }
	}
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		gone  bool
		stays string
	}{
		"of a ReplicaSet":       {pod: pod("a", running, ownedBy("ReplicaSet", "web")), gone: true},
		"of nobody":             {pod: pod("a", running), stays: "no controller would replace it"},
		"of a Job":              {pod: pod("a", running, ownedBy("Job", "work")), stays: "it is a Job's"},
		"that asks to stay":     {pod: pod("a", running, ownedBy("ReplicaSet", "web"), annotated("karpenter.sh/do-not-disrupt", "true")), stays: "karpenter.sh/do-not-disrupt"},
		"that asks not to stay": {pod: pod("a", running, ownedBy("ReplicaSet", "web"), annotated("karpenter.sh/do-not-disrupt", "false")), gone: true},
		"that is not safe to evict": {
			pod:   pod("a", running, ownedBy("ReplicaSet", "web"), annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")),
			stays: "cluster-autoscaler.kubernetes.io/safe-to-evict",
		},
	} {
		h, evicted := agedHarness(t, nil)
		h.onCell(tc.pod)
		if again := h.must("a"); again != longestLook || len(*evicted) > 0 {
			t.Errorf("%s: its cell is new: evicted %q, again after %s", name, *evicted, again)
		}
		h.clock.Step(24*time.Hour - time.Minute)
		if again := h.must("a"); again != time.Minute || len(*evicted) > 0 {
			t.Errorf("%s: a minute before: evicted %q, again after %s", name, *evicted, again)
		}
		h.clock.Step(time.Minute)
		h.must("a")
		h.must("a")
		if tc.gone != slices.Contains(*evicted, "a") {
			t.Errorf("%s: evicted %q", name, *evicted)
		}
		if said := strings.Join(h.messages, "\n"); tc.stays != "" && (len(h.events) != 1 || !strings.Contains(said, tc.stays)) {
			t.Errorf("%s: %q said %q, want %q once", name, h.events, said, tc.stays)
		}
	}
}

func TestAPodStaysOnAnOldCellWhileAnotherWouldWait(t *testing.T) {
	h, evicted := agedHarness(t, nil)
	h.onCell(pod("a", running, ownedBy("ReplicaSet", "web")))
	h.clock.Step(24 * time.Hour)
	h.place = func(*corev1.Pod) ([]offering.Offering, error) { return nil, &placement.NoCapacityError{} }
	if again := h.must("a"); again == 0 || len(*evicted) > 0 {
		t.Errorf("without capacity: evicted %q, again after %s", *evicted, again)
	}
	h.place = func(*corev1.Pod) ([]offering.Offering, error) {
		return []offering.Offering{{InstanceType: "nano"}}, nil
	}
	h.cells.behind = "the store is behind"
	if again := h.must("a"); again == 0 || len(*evicted) > 0 {
		t.Errorf("while the store is behind: evicted %q, again after %s", *evicted, again)
	}
	h.cells.behind = ""
	h.cells.beyond = "nano"
	if again := h.must("a"); again == 0 || len(*evicted) > 0 {
		t.Errorf("without money: evicted %q, again after %s", *evicted, again)
	}
	h.cells.beyond = ""
	h.c.Pause("it is being cleaned up")
	if again := h.must("a"); again == 0 || len(*evicted) > 0 {
		t.Errorf("while Kip is paused: evicted %q, again after %s", *evicted, again)
	}
	h.c.core.paused.begin("")
	h.must("a")
	if len(*evicted) != 1 {
		t.Errorf("evicted %q", *evicted)
	}
}

// A hundred pods of ten controllers came at once, and so their cells are old at once.
func TestPodsOnOldCellsGoAFewAtATimeWithinTheirBudgets(t *testing.T) {
	const owners, each = 10, 10
	blocked := "w3-0"
	h, evicted := agedHarness(t, func(pod string) bool { return strings.HasPrefix(pod, "w4-") || pod == blocked })
	pods := map[string]*corev1.Pod{}
	for n := range owners * each {
		owner := fmt.Sprintf("w%d", n%owners)
		p := pod(fmt.Sprintf("%s-%d", owner, n/owners), running, ownedBy("ReplicaSet", owner), inNamespace(fmt.Sprintf("ns-%d", n%2), 120))
		h.onCell(p)
		pods[p.Name] = p
	}
	h.clock.Step(24 * time.Hour)
	last := map[string]time.Time{}
	there := map[string]time.Time{} // evicted, and not gone yet
	for began := h.clock.Now(); h.clock.Since(began) < 3*time.Hour; h.clock.Step(5 * time.Second) {
		if h.clock.Since(began) > time.Hour {
			blocked = ""
		}
		for name, since := range there {
			if h.clock.Since(since) > 2*time.Minute { // it ends slowly
				h.leave(pods[name])
				delete(there, name)
			}
		}
		before := len(*evicted)
		for name, p := range pods {
			if !slices.Contains(*evicted, name) {
				h.look(p)
			}
		}
		of := map[string]int{}
		for _, name := range (*evicted)[before:] {
			owner, _, _ := strings.Cut(name, "-")
			if since := h.clock.Since(last[owner]); since < agedApart {
				t.Fatalf("%s was evicted %s after another of its controller", name, since)
			}
			last[owner], there[name] = h.clock.Now(), h.clock.Now()
		}
		for name := range there {
			of[pods[name].Namespace]++
		}
		if len(*evicted)-before > 1 || len(there) > mostDisrupted || of["ns-0"] > mostDisrupted/2 || of["ns-1"] > mostDisrupted/2 {
			t.Fatalf("%d pods were evicted at once, and of %v are not gone: %q", len(*evicted)-before, of, *evicted)
		}
	}
	if n := len(*evicted); n != (owners-1)*each {
		t.Errorf("%d pods were evicted: want all but the %d that a budget forbids to", n, each)
	}
	if n := len(slices.DeleteFunc(slices.Clone(h.events), func(e string) bool { return e != "Normal EvictionBlocked" })); n != each+1 {
		t.Errorf("it was said %d times that a budget forbids to evict: want once of each", n)
	}
}
