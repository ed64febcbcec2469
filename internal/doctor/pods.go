package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// workloads checks what cells are to the workloads of the cluster.
type workloads struct{ *installation }

// listOnOwn lists the pods on Kip's nodes, for the checks after it.
func (k workloads) listOnOwn(ctx context.Context) []finding.Finding {
	for _, n := range k.own {
		list, err := k.c.Cluster.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String(),
		})
		if err != nil {
			return one(unasked("list the pods of node "+n.Name, err))
		}
		k.onOwn = append(k.onOwn, list.Items...)
	}
	return one(finding.Fine("%d pods are on Kip's nodes", len(k.onOwn)))
}

// annotationTargets is how AWS Load Balancer Controller sends to pods. It finds pods by their addresses if their nodes have the label
// wellknown.ComputeType with the value fargate: docs/nodes-in-clouds.md.
const annotationTargets = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"

// services names load balancers that do not reach pods on cells (docs/networking.md, docs/nodes-in-clouds.md), and Services that do not
// keep their traffic near because of them.
func (k workloads) services(ctx context.Context) []finding.Finding {
	list, err := k.c.Cluster.Kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return one(unasked("list the Services", err))
	}
	var found []finding.Finding
	for i := range list.Items {
		s := &list.Items[i]
		if len(s.Spec.Selector) == 0 {
			continue
		}
		of := labels.SelectorFromSet(s.Spec.Selector)
		n := slices.IndexFunc(k.onOwn, func(p corev1.Pod) bool { return p.Namespace == s.Namespace && of.Matches(labels.Set(p.Labels)) })
		if n < 0 {
			continue
		}
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			if f := k.balances(s, &k.onOwn[n]); f != nil {
				found = append(found, *f)
			}
		}
		if f := k.keepsNear(s, of); f != nil {
			found = append(found, *f)
		}
	}
	if found == nil {
		found = one(finding.Fine("no load balancer of a Service is known not to reach its pods on cells, and no Service loses its zones by them"))
	}
	return found
}

// keepsNear says that kube-proxy ignores the zones of a Service because of a pod on a node without a zone; nil if it does not:
// docs/cluster.md.
func (k workloads) keepsNear(s *corev1.Service, of labels.Selector) *finding.Finding {
	if s.Spec.TrafficDistribution == nil && !strings.EqualFold(s.Annotations[corev1.AnnotationTopologyMode], "auto") {
		return nil
	}
	if !slices.ContainsFunc(k.nodes, func(n corev1.Node) bool { return n.Labels[corev1.LabelTopologyZone] != "" }) {
		return nil
	}
	n := slices.IndexFunc(k.onOwn, func(p corev1.Pod) bool {
		return p.Namespace == s.Namespace && of.Matches(labels.Set(p.Labels)) && k.nodeOf(&p).Labels[corev1.LabelTopologyZone] == ""
	})
	if n < 0 {
		return nil
	}
	f := finding.Warn("give each of nodes one zone in provider.yaml: docs/cluster.md, Services that keep traffic near",
		"Service %s/%s is to keep its traffic in the zone, and its pod %s is on node %s, which has no zone: "+
			"kube-proxy then ignores the zones of all its pods",
		s.Namespace, s.Name, k.onOwn[n].Name, k.onOwn[n].Spec.NodeName)
	return &f
}

// balances says what is wrong with a load balancer over a pod on a cell; nil for nothing.
func (k workloads) balances(s *corev1.Service, pod *corev1.Pod) *finding.Finding {
	name := s.Namespace + "/" + s.Name
	byAddress := strings.HasSuffix(s.Annotations[annotationTargets], "ip")
	var f finding.Finding
	switch {
	case byAddress && k.nodeOf(pod).Labels[wellknown.ComputeType] != "fargate":
		f = finding.Fail(fmt.Sprintf("kubectl label node %s %s=fargate --overwrite # and take %s out of kubelet.labels", pod.Spec.NodeName,
			wellknown.ComputeType, wellknown.ComputeType),
			"Service %s: AWS Load Balancer Controller looks for pods of node %s on an instance of the node, finds none, and then updates no target of the group",
			name, pod.Spec.NodeName)
	case byAddress:
		f = finding.Unchecked("Service %s sends to the addresses of pods on cells, such as %s: AWS Load Balancer Controller does not find one whose cell has a /28, "+
			"which Kip's log tells (docs/aws.md, addresses and subnets). kubectl describe service -n %s %s shows its Events", name, pod.Name, s.Namespace, s.Name)
	case s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		f = finding.Fail(fmt.Sprintf(`kubectl patch service -n %s %s -p '{"spec":{"externalTrafficPolicy":"Cluster"}}'`, s.Namespace, s.Name),
			"Service %s has externalTrafficPolicy: Local, and its pod %s is on a cell: no node that the load balancer sends to has it", name, pod.Name)
	default:
		return nil
	}
	return &f
}

// nodeOf is Kip's node of a pod.
func (k workloads) nodeOf(pod *corev1.Pod) corev1.Node {
	n := slices.IndexFunc(k.own, func(n corev1.Node) bool { return n.Name == cmp.Or(pod.Spec.NodeName, "?") })
	if n < 0 {
		return corev1.Node{}
	}
	return k.own[n]
}
