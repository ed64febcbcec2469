package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// several is a cluster with two Kips that work, and with the node of a third whose pod is gone. The second has two nodes and two replicas.
func several() *world {
	w := installed()
	w.cells[0].Status.ControllerID = "id"
	w.kips[0].Spec.Containers[0].Args = []string{"--nodename=kip-0"}
	further := func(name, id string) {
		n := *w.nodes[1].DeepCopy()
		n.Name, n.Labels[apiv1.LabelController] = name, id
		w.nodes = append(w.nodes, n)
	}
	further("kip-0-1", "other")
	further("kip-0-1-1", "other")
	further("lost", "third")
	for _, name := range []string{"gpu-7f-a", "gpu-7f-b"} {
		p := *w.kips[0].DeepCopy()
		p.ObjectMeta = meta("gpus", name)
		p.Labels = map[string]string{"app": "kip-provider"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "gpu-7f", Controller: new(true)}}
		p.Spec.ServiceAccountName, p.Spec.Containers[0].Args = "gpu", []string{"--nodename=kip-0-1"}
		w.kips = append(w.kips, p)
	}
	replicas := &appsv1.ReplicaSet{ObjectMeta: meta("gpus", "gpu-7f")}
	replicas.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "gpu", Controller: new(true)}}
	w.others = append(w.others, replicas, &appsv1.Deployment{ObjectMeta: meta("gpus", "gpu")})
	account := &corev1.ServiceAccount{ObjectMeta: meta("gpus", "gpu")}
	account.Annotations = map[string]string{wellknown.RoleAnnotation: "arn:aws:iam::123456789012:role/gpu"}
	hook := admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta("", "kip-0-1"), Webhooks: slices.Clone(w.hook.Webhooks)}
	w.others = append(w.others, account, &hook)
	bound := w.cells[0]
	bound.Name, bound.Status.ControllerID = "cell-2", "other"
	w.cells = append(w.cells, bound)
	return w
}

func TestEachKipIsFound(t *testing.T) {
	w := several()
	d := New(Config{Cluster: Cluster{Kube: w.kube(t)}})
	d.look(t.Context())
	got := map[string]string{}
	for _, one := range d.Each() {
		got[one.Area("")] = strings.Join(append(podNames(one.pods), nodeNames(one.own)...), " ")
	}
	want := map[string]string{
		"kip-system/kip": "kip-system/kip-0 kip-0",
		"gpus/gpu":       "gpus/gpu-7f-a gpus/gpu-7f-b kip-0-1 kip-0-1-1",
		"lost":           "lost",
	}
	for name, has := range want {
		if got[name] != has {
			t.Errorf("%s has %q, want %q", name, got[name], has)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the Kips are %v", got)
	}
	of := d.Each()[slices.IndexFunc(d.Each(), func(d *Doctor) bool { return d.name == "gpus/gpu" })].Kip(t.Context())
	ask := "kubectl exec -n gpus gpu-7f-a -c kip -- /kipctl doctor --account -f /etc/kip/config/provider.yaml --controller other"
	if of != (finding.Kip{Owner: "other", Role: "arn:aws:iam::123456789012:role/gpu", Ask: ask}) {
		t.Errorf("of the account of gpus/gpu is known %+v", of)
	}
	d = New(Config{Cluster: Cluster{Kube: w.kube(t)}, Namespace: "gpus"})
	d.look(t.Context())
	if all := d.Each(); len(all) != 1 || strings.Join(nodeNames(all[0].own), " ") != "kip-0-1 kip-0-1-1" {
		t.Errorf("in namespace gpus are %d Kips, with the nodes %v", len(all), nodeNames(d.own))
	}
}

// What is wrong with one of several Kips is said of that one, and fixed there.
func TestEachOfSeveralKipsIsChecked(t *testing.T) {
	for what, tc := range map[string]struct {
		change            func(*world)
		area, check, cure string
	}{
		"a pod": {func(w *world) {
			state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			w.kips[2].Status = corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: kipContainer, State: state}}}
		}, "kip gpus/gpu", "pods", "kubectl logs -n gpus gpu-7f-b"},
		"a node": {func(w *world) { w.nodes[3].Spec.Unschedulable = true }, "kip gpus/gpu", "nodes", "kubectl uncordon kip-0-1-1"},
		"another version": {func(w *world) { w.nodes[2].Status.NodeInfo.KubeletVersion = "v1.36.3-kip-1.1.0" }, "kip gpus/gpu", "versions",
			"kubectl exec -n gpus gpu-7f-a"},
		"a stuck cell": {func(w *world) {
			w.cells[1].Status.Phase, w.cells[1].CreationTimestamp = apiv1.Booting, metav1.NewTime(now.Add(-time.Hour))
		}, "kip gpus/gpu", "agents", "kubectl exec -n gpus gpu-7f-a -c kip -- /kipctl console cell-2"},
		"no CA": {func(w *world) {
			w.others[len(w.others)-1].(*admissionregistrationv1.MutatingWebhookConfiguration).Webhooks[0].ClientConfig.CABundle = nil
		}, "kip gpus/gpu", "webhook", "kubectl logs -n gpus gpu-7f-a"},
		"no DNS":  {func(w *world) { w.dns = nil }, areaCluster, "DNS", "kubectl edit -n gpus deployment/gpu # add --cluster-dns"},
		"no pods": {func(*world) {}, "kip lost", "pods", findKip},
	} {
		t.Run(what, func(t *testing.T) {
			w := several()
			tc.change(w)
			found := false
			for n, r := range w.examine(t) {
				bad := r.Outcome == finding.Failed || r.Outcome == finding.Warning
				if r.Area == tc.area && r.Check == tc.check && bad {
					found = found || strings.Contains(r.Cure, tc.cure)
				} else if bad && r.Area != "kip lost" && r.Area != areaCluster {
					t.Errorf("%d: %+v", n, r)
				}
			}
			if !found {
				t.Errorf("no finding of %s, %s is fixed by %q:\n%+v", tc.area, tc.check, tc.cure, w.examine(t))
			}
		})
	}
	// Which of several webhooks has answered nobody knows.
	for _, r := range several().examine(t) {
		if r.Check == "webhook" && r.Outcome == finding.OK {
			t.Errorf("%+v", r)
		}
	}
}

// What is of the cluster is said once.
func TestWhatIsOfTheClusterIsSaidOnce(t *testing.T) {
	times := map[Result]int{}
	for _, r := range several().examine(t) {
		if times[r]++; times[r] > 1 {
			t.Errorf("twice: %+v", r)
		}
	}
}
