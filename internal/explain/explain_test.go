package explain

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAnAgentIsAskedAndOneThatHangsHoldsNobodyUp(t *testing.T) {
	answer := func(code int, body string) roundTripper {
		return func(r *http.Request) (*http.Response, error) {
			if r.URL.String() != "http://cell"+agentapi.PathStatus {
				t.Errorf("asked for %s", r.URL)
			}
			return &http.Response{StatusCode: code, Status: fmt.Sprint(code), Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	const status = `{"components":[{"name":"containerd","pid":7},{"name":"kubelet","restarts":2,"waiting":"waiting for containerd"}]}`
	got := askAgent(t.Context(), answer(200, status), "cell-1")
	want := []adminapi.Component{{Name: "containerd", PID: 7}, {Name: "kubelet", Restarts: 2, Waiting: "waiting for containerd"}}
	if got.Error != "" || fmt.Sprint(got.Components) != fmt.Sprint(want) {
		t.Errorf("got %+v", got)
	}
	for name, link := range map[string]roundTripper{"an error": answer(500, ""), "garbage": answer(200, "{")} {
		if got := askAgent(t.Context(), link, "cell-1"); !strings.Contains(got.Error, "cell-1") || got.Components != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	hangs := roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	if got := askAgent(ctx, hangs, "cell-1"); !strings.Contains(got.Error, "deadline") {
		t.Errorf("one that hangs: %+v", got)
	}
}

// Nothing would be chosen for a pod of a DaemonSet that has no machine.
func TestWhyAPodOfADaemonSetHasNoMachineIsSaid(t *testing.T) {
	pod := asking("100Mi")
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d", Controller: new(true)}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: apiv1.NoMachine, Status: corev1.ConditionTrue, Message: "why"}}
	k := newKip(t, pod)
	e, err := k.explains.Why(t.Context(), pod.Namespace, pod.Name)
	if err != nil || e.NoMachine != "why" || e.Placement != nil || e.Waiting != "" {
		t.Errorf("%+v, %v", e, err)
	}
	other := pod.DeepCopy()
	other.OwnerReferences[0].Kind = "ReplicaSet"
	other.Annotations = map[string]string{placement.AnnotationProfile: "batch"}
	k = newKip(t, other)
	e, err = k.explains.Why(t.Context(), pod.Namespace, pod.Name)
	if err != nil || e.NoMachine != "" || e.Placement == nil || e.Profile != "batch" {
		t.Errorf("one of a ReplicaSet: %+v, %v", e, err)
	}
}

// A pod that its kubelet rejected has the kubelet's reason, and nothing that would be chosen for it; one whose status is
// not stored has what is wrong with that.
func TestWhyAPodHasFailedOrItsStatusIsNotStoredIsSaid(t *testing.T) {
	pod := asking("100Mi")
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "SysctlForbidden", "Pod was rejected: forbidden sysctl"
	k := newKip(t, pod)
	e, err := k.explains.Why(t.Context(), pod.Namespace, pod.Name)
	if err != nil || e.Ended != "SysctlForbidden: Pod was rejected: forbidden sysctl" || e.Placement != nil || e.StatusTrouble != "" {
		t.Errorf("%+v, %v", e, err)
	}
	k.requests.has, k.requests.trouble = &cells.Cell{ID: "cell-1", Phase: apiv1.Bound}, "Kip refuses the pod's status: why"
	if e, err := k.explains.Why(t.Context(), pod.Namespace, pod.Name); err != nil || e.StatusTrouble != k.requests.trouble {
		t.Errorf("%+v, %v", e, err)
	}
}
