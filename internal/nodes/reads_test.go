package nodes

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

func TestPodsThatWaitReadTheirNodesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, `nodes:
- {suffix: 1, launchTypes: [spot]}
- {suffix: 2, zones: [a], launchTypes: [on-demand]}
- {suffix: 3, zones: [b], launchTypes: [on-demand]}
`)
		w.readsAgain = time.Hour
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") && w.ready("kip-0-3") })
		spot := true
		w.short(offering.Offering{InstanceType: "small", Zone: "b", Spot: true},
			cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "small", Zone: "b", Spot: &spot}, errors.New("none")))

		var gets atomic.Int64
		w.react("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			gets.Add(1)
			return false, nil, nil
		})
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				placement.AnnotationRequirements: `[{"matchExpressions":[{"key":"team","operator":"NotIn","values":["x"]}]}]`,
			}},
			Spec: corev1.PodSpec{NodeName: "kip-0-1", Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		}
		for range 1000 {
			if got := w.nodes.Elsewhere(t.Context(), pod); !slices.Equal(got, []string{"kip-0-2", "kip-0-3"}) {
				t.Fatalf("the pod may go to %q", got)
			}
			if _, err := w.nodes.Choose(t.Context(), pod, ""); !errors.As(err, new(*placement.NoCapacityError)) {
				t.Fatalf("there is no spot capacity: %v", err)
			}
		}
		// Kip reads its nodes for other reasons, too.
		if n := gets.Load(); n < 3 || n > 50 {
			t.Errorf("the API server was asked %d times for three nodes", n)
		}

		// Who has just labelled a node does not wait for its pod until the next read.
		pod.Spec.NodeName = "kip-0-2"
		pod.Annotations[placement.AnnotationRequirements] = `[{"matchExpressions":[{"key":"team","operator":"In","values":["x"]}]}]`
		if _, err := w.nodes.Choose(t.Context(), pod, ""); !errors.As(err, new(*placement.UnplaceableError)) {
			t.Fatalf("no node has the label: %v", err)
		}
		there := w.node("kip-0-2")
		there.Labels["team"] = "x"
		if err := w.cluster.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), there, ""); err != nil {
			t.Fatal(err)
		}
		w.eventually("the label is seen", func() bool {
			_, err := w.nodes.Choose(t.Context(), pod, "")
			return err == nil
		})
	})
}
