package pods

import (
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

func TestANameThatIsReusedLetsTheOldCellGo(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.must("a")
	h.put(pod("a", func(p *corev1.Pod) { p.UID = "uid-new" }))
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=false")
	h.want("requests", h.cells.requests, "uid-a#1", "uid-new#1")
}

func TestAPodThatNobodySawDeletedIsLetGoAsOneThatMayBeThere(t *testing.T) {
	unseen := func(p *corev1.Pod) any { return cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: p} }
	seen := func(p *corev1.Pod) any { return p }
	for _, test := range []struct {
		what   string
		event  func(*corev1.Pod) any
		change func(*corev1.Pod)
		want   string
	}{
		{"it is not in a list, nor was it at the start", nil, running, "uid-a vanished"},
		{"it is not in a list", unseen, running, "uid-a vanished"},
		{"it is not in a list, and was being deleted", unseen, deletedAt(time.Unix(1, 0)), "uid-a ended=false"},
		{"it is deleted by force", seen, running, "uid-a ended=false"},
	} {
		h := newHarness(t)
		p := pod("a", running)
		h.put(p)
		h.must("a")
		h.cells.set(p.UID, func(c *cells.Cell) { c.Phase = apiv1.Bound })
		h.cells.holds = true
		p = pod("a", test.change)
		h.vanish(p)
		if test.event != nil {
			h.c.ends.watching.deleted(test.event(p))
		}
		h.must("a")
		if !slices.Equal(h.cells.released, []string{test.want}) {
			t.Errorf("%s: %v, want %s", test.what, h.cells.released, test.want)
		}
		cell, _ := h.cells.ForPod(p.UID)
		cell.Phase = apiv1.Gone
		if h.c.CellChanged(cell); len(h.c.ends.releasing.gone) != 0 {
			t.Errorf("%s: %v is kept for ever", test.what, h.c.ends.releasing.gone)
		}
	}
}

// The watch, or the cache of the API server that it is of, may lack a pod that exists.
func TestAPodThatTheAPIServerHasIsNotLetGo(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase, c.Node = apiv1.Bound, "kip-0" })
	if err := h.informer.GetStore().Delete(pod("a")); err != nil {
		t.Fatal(err)
	}
	if again := h.must("a"); again != vanishedRetry || len(h.cells.released) > 0 {
		t.Errorf("released %v, and looked at again after %s: want no release, and a look after %s", h.cells.released, again, vanishedRetry)
	}
	for _, refusal := range []error{
		errors.New("the API server is down"),
		apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("not yet authorised")),
	} {
		h.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
		if again := h.must("a"); again != vanishedRetry || len(h.cells.released) > 0 {
			t.Errorf("while nobody can tell (%v): released %v, and looked at again after %s", refusal, h.cells.released, again)
		}
		h.client.ReactionChain = h.client.ReactionChain[1:]
	}
	h.vanish(pod("a"))
	h.must("a")
	h.want("released", h.cells.released, "uid-a vanished")
}

// Who may never look leaves it to the guard, who holds back more than a few ends.
func TestALookForAPodThatStaysForbiddenKeepsNoCellForEver(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase, c.Node = apiv1.Bound, "kip-0" })
	h.vanish(pod("a"))
	h.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("not here"))
	})
	for began := h.clock.Now(); h.clock.Since(began) < forbiddenFor; h.clock.Step(vanishedRetry) {
		if h.must("a"); len(h.cells.released) > 0 {
			t.Fatalf("released after %s, want %s", h.clock.Since(began), forbiddenFor)
		}
	}
	h.must("a")
	h.want("released", h.cells.released, "uid-a vanished")
}

func TestWhoIsNotLetGoIsLookedAtAgainSoonUntilTheCloudHasListed(t *testing.T) {
	for _, test := range []struct {
		unsure, holds bool
		want          time.Duration
	}{{false, true, vanishedRetry}, {true, true, staleRetry}, {false, false, 0}} {
		h := newHarness(t)
		h.put(pod("a", running))
		h.must("a")
		h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
		h.cells.holds, h.cells.unsure = test.holds, test.unsure
		h.vanish(pod("a"))
		if again := h.must("a"); again != test.want {
			t.Errorf("%+v: again in %s", test, again)
		}
	}
}

// A node whose pods are not known yet, or no longer, says nothing of them.
func TestACellStaysWhileThePodsOfItsNodeAreNotListed(t *testing.T) {
	h := newHarness(t)
	listed := map[string]bool{"kip-0": true}
	h.isListed = func(node string) bool { return listed[node] }
	for uid, node := range map[types.UID]string{"one": "kip-0", "two": "kip-0-2"} {
		h.cells.cells[uid] = cells.Cell{
			ID:    string(uid),
			Node:  node,
			Phase: apiv1.Bound,
			Pod:   apiv1.PodReference{Namespace: "ns", Name: string(uid), UID: uid},
		}
	}
	for _, c := range []struct {
		pod    string
		listed bool
		again  time.Duration
		stays  bool
	}{
		{"one", false, 0, false},
		{"two", false, staleRetry, true},
		{"two", true, 0, false},
	} {
		listed["kip-0-2"] = c.listed
		if again := h.must(c.pod); again != c.again {
			t.Errorf("pod %s, whose node's pods are listed: %t, is looked at again after %s, want %s", c.pod, c.listed, again, c.again)
		}
		if released := slices.Contains(h.cells.released, c.pod+" vanished"); released == c.stays {
			t.Errorf("the cell of pod %s, whose node's pods are listed: %t, is released: %t", c.pod, c.listed, released)
		}
	}
}
