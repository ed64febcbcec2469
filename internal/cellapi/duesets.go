package cellapi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/daemonsets"
)

// ExpectSets notes which DaemonSets are to have a pod on a node, and can: for each a pod as their controller would make it, without a
// name and a UID. Between two pods of a set, and on a new node before its first, a pod of a cell waits for the next one as for one that
// is there.
func (s *Server) ExpectSets(node string, pods []*corev1.Pod) {
	if s.sets == nil {
		return
	}
	var due []*setPod
	for _, p := range pods {
		if terms, runs, _ := s.sets.rules.Of(p); runs {
			due = append(due, &setPod{pod: p, name: apiv1.DaemonSetOf(p).Name, terms: terms})
		}
	}
	slices.SortFunc(due, func(a, b *setPod) int { return daemonsets.Order(a.pod, b.pod) })
	s.sets.mu.Lock()
	same := slices.EqualFunc(s.sets.due[node], due, func(a, b *setPod) bool { return equality.Semantic.DeepEqual(a.pod, b.pod) })
	if !same {
		s.sets.due[node] = due
	}
	s.sets.mu.Unlock()
	if !same {
		s.sets.tell(node)
	}
}

// HasSet reports whether a DaemonSet has a pod on a node that runs beside others.
func (s *Server) HasSet(node, namespace, name string) bool {
	if s.sets == nil {
		return false
	}
	s.sets.mu.Lock()
	defer s.sets.mu.Unlock()
	for _, set := range s.sets.byNode[node] {
		if set.pod.Namespace == namespace && set.name == name {
			return true
		}
	}
	return false
}

// dueBeside returns the sets that run beside a pod, and of which its node is to have a pod, but has none of these that stays.
func (s *setPods) dueBeside(node string, pod *corev1.Pod, have []*setPod) (all []*setPod) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, due := range s.due[node] {
		stays := func(is *setPod) bool { return is.pod.DeletionTimestamp == nil && due.isSet(is) }
		if due.terms.Beside(pod) && !slices.ContainsFunc(have, stays) {
			all = append(all, due)
		}
	}
	return all
}

// isSet reports whether another pod is of the same set.
func (s *setPod) isSet(other *setPod) bool {
	return s.pod.Namespace == other.pod.Namespace && s.name == other.name
}

// isDue reports whether a set has no pod yet.
func (s *setPod) isDue() bool { return s.pod.UID == "" }
