package pods

import (
	"strings"

	"github.com/elotl/kip/internal/cells"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mostKind is how long the kind of an owner may be: Kubernetes does not bound it.
const mostKind = 63

// account is whom a pod's cost is put down to: its controller, and the labels that costs are
// kept by. A ReplicaSet that is a Deployment's, by its name, is that.
func account(pod *corev1.Pod, labels []string) (a cells.Account) {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kind, name := owner.Kind, owner.Name
		hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		if of, is := strings.CutSuffix(name, "-"+hash); is && hash != "" && kind == "ReplicaSet" {
			kind, name = "Deployment", of
		}
		a.Owner = kind[:min(len(kind), mostKind)] + "/" + name
	}
	for _, key := range labels {
		if value, has := pod.Labels[key]; has {
			if a.Labels == nil {
				a.Labels = map[string]string{}
			}
			a.Labels[key] = value
		}
	}
	return a
}
