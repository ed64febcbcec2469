package kip

import (
	"context"
	"strings"
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
			pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeSelector[corev1.LabelHostname] = "other-0" }),
			pod("of-no-kip", func(p *corev1.Pod) { p.Spec.NodeSelector = nil }),
			pod("placed", func(p *corev1.Pod) { p.Spec.NodeName = "kip-0" }),
			pod("deleted", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"a/b"} }),
		)
		recorder := record.NewFakeRecorder(10)
		l := &term{
			process: &process{
				Options: Options{NodeName: "kip-0", Log: silent},
				cfg:     &config.Config{},
				clock:   clock.RealClock{},
				api:     &apiServer{asKip: client},
			},
			events: podEvents{recorder},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.reportUntolerating(ctx) }()
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
		<-l.clock.After(3 * untoleratingEvery)
		told("") // it was told of
		if err := client.Tracker().Add(pod("later", func(*corev1.Pod) {})); err != nil {
			t.Fatal(err)
		}
		<-l.clock.After(2 * untoleratingEvery)
		told("later")
		told("")
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
