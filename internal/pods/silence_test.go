package pods

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func TestAPodIsMarkedOnceEachTimeThatItsCellIsFoundSilent(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("it has changed"))
	for name, tc := range map[string]struct {
		notReady bool
		ago      time.Duration // it was found
		err      error         // of the API server
		writes   int           // of two looks
		said     int
		marked   bool
		fails    bool
	}{
		"it is ready":            {writes: 1, said: 1, marked: true},
		"it is not":              {notReady: true},
		"it was found before":    {ago: silenceFresh - 1, writes: 1, said: 1, marked: true},
		"it was found long ago":  {ago: silenceFresh},
		"its pod has changed":    {err: conflict, writes: 1, marked: true},
		"its pod is gone":        {err: apierrors.NewNotFound(corev1.Resource("pods"), "a"), writes: 1, marked: true},
		"the API server is away": {err: errors.New("no answer"), writes: 2, fails: true},
	} {
		h := newHarness(t)
		status := corev1.ConditionTrue
		if tc.notReady {
			status = corev1.ConditionFalse
		}
		p := pod("a", running, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
		})
		h.put(p)
		h.events = nil
		writes := 0
		h.client.PrependReactor("update", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			written := a.(clienttesting.UpdateAction).GetObject().(*corev1.Pod)
			if writes++; a.GetSubresource() != "status" || written.Status.Conditions[0].Status != corev1.ConditionFalse {
				t.Errorf("%s: written is %+v", name, written.Status)
			}
			return true, written, tc.err
		})
		s := h.c.attends.attending.silences
		s.note(cells.Cell{Pod: apiv1.Ref(p)})
		h.clock.Step(tc.ago)
		for range 2 {
			marked, err := s.mark(t.Context(), p)
			if marked.Equal(h.clock.Now()) != tc.marked || (err != nil) != tc.fails {
				t.Errorf("%s: marked at %s (%v)", name, marked, err)
			}
		}
		if writes != tc.writes || len(h.events) != tc.said {
			t.Errorf("%s: written %d times, said %v", name, writes, h.events)
		}
	}
}
