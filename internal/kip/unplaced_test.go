package kip

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
)

func TestPodsMadeWithoutTheWebhookAreToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: types.UID(name)},
				Spec:       corev1.PodSpec{NodeSelector: map[string]string{node.TypeLabel: node.TypeValue}},
				Status:     corev1.PodStatus{Phase: corev1.PodPending},
			}
			change(p)
			return p
		}
		client := fake.NewClientset(
			pod("lacks", func(*corev1.Pod) {}),
			pod("tolerates", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}}
			}),
			pod("waits", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			}),
			pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeSelector[corev1.LabelHostname] = "other-0" }),
			pod("of-no-kip", func(p *corev1.Pod) { p.Spec.NodeSelector = nil }),
			pod("placed", func(p *corev1.Pod) { p.Spec.NodeName = "kip-0" }),
			pod("deleted", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"a/b"} }),
		)
		recorder := record.NewFakeRecorder(10)
		l := &term{
			process: &process{
				Options: Options{NodeName: "kip-0", WebhookPort: 9443, Log: silent},
				cfg:     &config.Config{},
				clock:   clock.RealClock{},
				api:     &apiServer{asKip: client},
				role:    &role{},
			},
			events: podEvents{recorder},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var short atomic.Bool
		keptAway := func(_ context.Context, pod *corev1.Pod) string {
			if pod.Name == "waits" && short.Load() {
				return "node kip-0-2 takes none"
			}
			return ""
		}
		go func() { ended <- l.reportUnplaced(ctx, keptAway) }()
		told := func(want string) {
			t.Helper()
			synctest.Wait()
			select {
			case e := <-recorder.Events:
				if want == "" || !strings.Contains(e, events.TolerationMissing) || !strings.Contains(e, "kubectl delete pod "+want+" -n team") {
					t.Errorf("told %q: want pod %q", e, want)
				}
			default:
				if want != "" {
					t.Errorf("told nothing: want pod %q", want)
				}
			}
		}
		told("lacks")
		told("")
		<-l.clock.After(3 * unplacedEvery)
		told("") // it was told of
		if err := client.Tracker().Add(pod("later", func(*corev1.Pod) {})); err != nil {
			t.Fatal(err)
		}
		<-l.clock.After(2 * unplacedEvery)
		told("later")
		told("")
		for range 2 { // it is told of each shortage once
			short.Store(true)
			<-l.clock.After(3 * unplacedEvery)
			synctest.Wait()
			if e := <-recorder.Events; !strings.HasPrefix(e, "Warning NoCapacity ") || !strings.Contains(e, "node kip-0-2 takes none") {
				t.Errorf("told %q", e)
			}
			told("")
			short.Store(false)
			<-l.clock.After(2 * unplacedEvery)
			told("")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, a := range client.Actions() {
			if a.GetVerb() != "list" {
				t.Errorf("Kip did %s %s: want no more than lists", a.GetVerb(), a.GetResource().Resource)
			}
		}
	})
}
