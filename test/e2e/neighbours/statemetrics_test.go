//go:build e2e

package neighbours

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// states are the series of kube-state-metrics that the rules in testdata/kube-prometheus.yaml use, with the labels of its
// documentation (docs/metrics in kubernetes/kube-state-metrics, 2.19). They say what the API says. The program itself is not built
// here, since no module proxy serves it.
type states struct{ strings.Builder }

// tell adds a series. Labels are pairs of a name and a value.
func (b *states) tell(name string, v float64, labels ...string) {
	b.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		separator := ","
		if i == 0 {
			separator = "{"
		}
		fmt.Fprintf(b, "%s%s=%q", separator, labels[i], labels[i+1])
	}
	fmt.Fprintf(b, "} %v\n", v)
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// owner returns the labels about an object's controller.
func owner(of metav1.Object) []string {
	if o := metav1.GetControllerOf(of); o != nil {
		return []string{"owner_kind", o.Kind, "owner_name", o.Name, "owner_is_controller", "true"}
	}
	return []string{"owner_kind", "", "owner_name", "", "owner_is_controller", ""}
}

func (b *states) pod(p *corev1.Pod) {
	of := []string{"namespace", p.Namespace, "pod", p.Name, "uid", string(p.UID)}
	with := func(labels ...string) []string { return append(of[:len(of):len(of)], labels...) }
	o := owner(p)
	b.tell("kube_pod_info", 1, with("host_ip", p.Status.HostIP, "pod_ip", p.Status.PodIP, "node", p.Spec.NodeName, "created_by_kind", o[1],
		"created_by_name", o[3], "priority_class", p.Spec.PriorityClassName, "host_network", strconv.FormatBool(p.Spec.HostNetwork))...)
	b.tell("kube_pod_owner", 1, with(o...)...)
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown} {
		b.tell("kube_pod_status_phase", one(p.Status.Phase == phase), with("phase", string(phase))...)
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			b.tell("kube_pod_container_status_waiting_reason", 1, with("container", c.Name, "reason", w.Reason)...)
		}
	}
	for _, c := range p.Spec.Containers {
		for name, list := range map[string]corev1.ResourceList{
			"kube_pod_container_resource_requests": c.Resources.Requests, "kube_pod_container_resource_limits": c.Resources.Limits,
		} {
			for resource, q := range list {
				b.tell(name, q.AsApproximateFloat64(), with("container", c.Name, "node", p.Spec.NodeName, "resource", string(resource))...)
			}
		}
	}
}

func (b *states) node(n *corev1.Node) {
	b.tell("kube_node_info", 1, "node", n.Name, "kubelet_version", n.Status.NodeInfo.KubeletVersion)
	for resource, q := range n.Status.Capacity {
		b.tell("kube_node_status_capacity", q.AsApproximateFloat64(), "node", n.Name, "resource", string(resource))
	}
}

func (b *states) replicaSet(r *appsv1.ReplicaSet) {
	b.tell("kube_replicaset_owner", 1, append([]string{"namespace", r.Namespace, "replicaset", r.Name}, owner(r)...)...)
}

// read tells of all pods, nodes and ReplicaSets as they are now.
func (b *states) read(ctx context.Context) error {
	pods, err := world.Admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	nodes, err := world.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	sets, err := world.Admin.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		b.pod(&pods.Items[i])
	}
	for i := range nodes.Items {
		b.node(&nodes.Items[i])
	}
	for i := range sets.Items {
		b.replicaSet(&sets.Items[i])
	}
	return nil
}

// serveStates serves states to Prometheus until the test ends, and returns where.
func (s *space) serveStates() (address string) {
	s.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var now states
		if err := now.read(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		fmt.Fprint(w, now.String())
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	s.Cleanup(server.Close)
	return l.Addr().String()
}
