package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/elotl/kip/internal/crd"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/version"
)

// health checks whether a Kip works.
type health struct{ *installation }

// kipPods says whether Kip's pods run.
func (k health) kipPods(context.Context) []finding.Finding {
	if len(k.pods) == 0 {
		where := cmp.Or(k.c.Namespace, "*")
		return one(finding.Fail(findKip, "no pod of Kip is in namespace %s: its nodes are %s", where, orNone(nodeNames(k.own))))
	}
	var found []finding.Finding
	for i := range k.pods {
		found = append(found, ofKipPod(&k.pods[i]))
	}
	return found
}

func ofKipPod(p *corev1.Pod) finding.Finding {
	name := p.Namespace + "/" + p.Name
	describe := fmt.Sprintf("kubectl describe pod -n %s %s", p.Namespace, p.Name)
	conditions := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range p.Status.Conditions {
		conditions[c.Type] = c
	}
	for _, s := range p.Status.ContainerStatuses {
		w := s.State.Waiting
		switch {
		case w == nil || s.Name != kipContainer:
		case w.Reason == "CrashLoopBackOff":
			cure := fmt.Sprintf("kubectl logs -n %s %s -c %s --previous # its last line says what is wrong", p.Namespace, p.Name, s.Name)
			said := "its last words are not known"
			if t := s.LastTerminationState.Terminated; t != nil && t.Message != "" { // the end of its log
				message := strings.TrimSpace(t.Message)
				said = message[strings.LastIndexByte(message, '\n')+1:]
			}
			return finding.Fail(cure, "Kip in pod %s ends again and again, %d restarts: %s", name, s.RestartCount, said)
		case strings.HasPrefix(w.Reason, "ErrImage") || w.Reason == "ImagePullBackOff" || w.Reason == "InvalidImageName":
			return finding.Fail(fmt.Sprintf("kubectl set image -n %s %s %s=IMAGE # one that the node can pull", p.Namespace, ownerOf(p), s.Name),
				"pod %s has no image: %s", name, cmp.Or(w.Message, w.Reason))
		}
	}
	switch ready, scheduled := conditions[corev1.PodReady], conditions[corev1.PodScheduled]; {
	case ready.Status == corev1.ConditionTrue:
		return finding.Fine("pod %s is Ready", name)
	case scheduled.Status == corev1.ConditionFalse && strings.Contains(scheduled.Message, "PersistentVolumeClaim"):
		return finding.Fail(fmt.Sprintf("kubectl describe pvc -n %s # the check StorageClass says what the cluster lacks", p.Namespace),
			"pod %s waits for the volume of Kip's store: %s", name, scheduled.Message)
	case scheduled.Status == corev1.ConditionFalse:
		return finding.Fail(describe, "pod %s has no node: %s", name, scheduled.Message)
	default:
		why := cmp.Or(ready.Message, ready.Reason, "no reason is given")
		return finding.Fail(describe, "pod %s is %s and not Ready: %s", name, p.Status.Phase, why)
	}
}

// ownerOf names what made a pod, as kubectl takes it.
func ownerOf(p *corev1.Pod) string {
	owner := metav1.GetControllerOf(p)
	switch {
	case owner == nil:
		return "pod/" + p.Name
	case owner.Kind == "ReplicaSet": // of a Deployment
		if name, _, is := cutLast(owner.Name, "-"); is {
			return "deployment/" + name
		}
	}
	return strings.ToLower(owner.Kind) + "/" + owner.Name
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// kipNodes says whether Kip's nodes take pods.
func (k health) kipNodes(context.Context) []finding.Finding {
	if len(k.own) == 0 {
		return one(finding.Fail(fmt.Sprintf("kubectl logs -n %s %s -c %s # it says why Kip has made no node", k.pods[0].Namespace, k.pods[0].Name,
			kipContainer), "the cluster has no node of Kip"))
	}
	var found []finding.Finding
	for i := range k.own {
		n := &k.own[i]
		var bad []string
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				bad = append(bad, "it is not Ready: "+cmp.Or(c.Message, c.Reason))
			} else if c.Type != corev1.NodeReady && c.Status == corev1.ConditionTrue {
				bad = append(bad, fmt.Sprintf("%s: %s", c.Type, cmp.Or(c.Message, c.Reason)))
			}
		}
		switch {
		case len(n.Status.Conditions) == 0:
			found = append(found, finding.Fail("kubectl describe node "+n.Name,
				"node %s has no status yet: Kip does not lead, or cannot write it", n.Name))
		case len(bad) > 0:
			found = append(found, finding.Fail("kubectl describe node "+n.Name, "node %s: %s", n.Name, strings.Join(bad, "; ")))
		case n.Spec.Unschedulable:
			found = append(found, finding.Fail("kubectl uncordon "+n.Name, "node %s is cordoned: it takes no pods", n.Name))
		default:
			found = append(found, finding.Fine("node %s is Ready", n.Name))
		}
	}
	return found
}

// versions compares the versions of kipctl and of Kip, which its nodes tell as v1.36.3-kip-1.2.0.
func (k health) versions(context.Context) []finding.Finding {
	own := strings.TrimPrefix(k.c.Version, "v")
	var found []finding.Finding
	for _, n := range k.own {
		_, has, is := strings.Cut(n.Status.NodeInfo.KubeletVersion, "-kip-")
		switch {
		case !is:
			found = append(found, finding.Unchecked("node %s does not tell Kip's version: %q", n.Name, n.Status.NodeInfo.KubeletVersion))
		case has != own:
			found = append(found, finding.Warn(fmt.Sprintf("kubectl exec -n %s %s -c %s -- /kipctl version # or install kipctl of that version",
				k.Namespace(), firstName(k.pods), kipContainer), "Kip of node %s is %s, and this kipctl is %s: it may not know all that Kip shows", n.Name, has, own))
		default:
			found = append(found, finding.Fine("Kip of node %s and this kipctl are %s, with kubelets of %s", n.Name, own, version.Kubernetes))
		}
	}
	if found == nil {
		found = one(finding.Unchecked("no node tells Kip's version"))
	}
	return found
}

func firstName(pods []corev1.Pod) string {
	if len(pods) == 0 {
		return "POD"
	}
	return pods[0].Name
}

// definition says whether the cluster has the definition of Cell that this version has.
func (k health) definition(ctx context.Context) []finding.Finding {
	const cure = "kipctl crd update"
	err := crd.Check(ctx, k.c.Cluster.CRDs)
	_, older := errors.AsType[*crd.OlderError](err)
	switch {
	case err == nil:
		return one(finding.Fine("the API server serves cells"))
	case older, errors.Is(err, crd.ErrNotServed), apierrors.IsNotFound(err):
		return one(finding.Fail(cure, "%v: pods run, and kubectl get cells does not show all of them", err))
	}
	return one(unasked("read the definition of Cell", err))
}

// eventsSince is how old an Event is that still counts.
const eventsSince = time.Hour

// events shows what Kip says of its nodes.
func (k health) events(ctx context.Context) []finding.Finding {
	var found []finding.Finding
	for _, n := range k.own {
		about := fields.AndSelectors(fields.OneTermEqualSelector("involvedObject.kind", "Node"),
			fields.OneTermEqualSelector("involvedObject.name", n.Name)).String()
		list, err := k.c.Cluster.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: about})
		if err != nil {
			return one(unasked("list the Events of node "+n.Name, err))
		}
		last := map[string]corev1.Event{} // by reason
		for _, e := range list.Items {
			was, has := last[e.Reason]
			if e.Type == corev1.EventTypeWarning && e.InvolvedObject.Name == n.Name && k.c.Clock.Since(timeOf(&e)) < eventsSince &&
				(!has || timeOf(&was).Before(timeOf(&e))) {
				last[e.Reason] = e
			}
		}
		for _, reason := range slices.Sorted(maps.Keys(last)) {
			found = append(found, finding.Warn("kubectl describe node "+n.Name, "node %s, %s: %s", n.Name, reason, last[reason].Message))
		}
	}
	if found == nil {
		found = one(finding.Fine("Kip warns of nothing in the last hour"))
	}
	return found
}

// timeOf is when an Event was seen last.
func timeOf(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}
