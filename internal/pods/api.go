package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// apiServer is the API server as the nodes see it, and the right to write there.
type apiServer struct {
	nodes      Nodes
	leadership Leadership // nil if this process leads in any case
}

// pods acts as the node of a pod.
func (a *apiServer) pods(pod *corev1.Pod) corev1client.PodInterface {
	return a.nodes.Client(pod.Spec.NodeName).CoreV1().Pods(pod.Namespace)
}

// leads returns an error unless this process surely leads.
func (a *apiServer) leads(ctx context.Context) error {
	if a.leadership == nil {
		return nil
	}
	return a.leadership.Leads(ctx)
}
