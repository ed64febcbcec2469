package pods

import (
	"strings"

	"github.com/elotl/kip/internal/cells"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How many bytes of an owner's kind and name are kept: Kubernetes bounds neither where one is
// named, and whoever makes pods may write anything. Those of owners that exist have no more.
const mostKind, mostName = 63, 253

// account is whom a pod's cost is put down to: its controller, and the labels that costs are
// kept by. A ReplicaSet that is a Deployment's, by its name, is that.
func account(pod *corev1.Pod, labels []string) (a cells.Account) {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kind, name := owner.Kind, owner.Name
		hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		if of, is := strings.CutSuffix(name, "-"+hash); is && hash != "" && kind == "ReplicaSet" {
			kind, name = "Deployment", of
		}
		a.Owner = cut(kind, mostKind) + "/" + cut(name, mostName)
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

// cut returns the first bytes of s, as far as they are whole characters.
func cut(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }
