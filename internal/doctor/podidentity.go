package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// identities checks who gets a role by EKS Pod Identity.
type identities struct{ *installation }

// podIdentity says whether Kip's pods get the role that they have by EKS Pod Identity.
func (k identities) podIdentity(ctx context.Context) (found []finding.Finding) {
	for i := range k.pods {
		if wellknown.ByPodIdentity(&k.pods[i]) {
			found = append(found, k.agentOf(ctx, &k.pods[i]))
		}
	}
	if found == nil {
		found = one(finding.Fine("no pod of Kip has its role by EKS Pod Identity"))
	}
	return found
}

// agentOf says whether the agent on the node of one of Kip's pods gives it its role. Other nodes of the cluster prove nothing: some may be
// of Auto Mode, and some have an agent that is not Ready.
func (k identities) agentOf(ctx context.Context, p *corev1.Pod) finding.Finding {
	name, on := p.Namespace+"/"+p.Name, p.Spec.NodeName
	if on == "" {
		return finding.Unchecked("whether %s gets its role by EKS Pod Identity: it is on no node", name)
	}
	if slices.ContainsFunc(k.nodes, func(n corev1.Node) bool { return n.Name == on && wellknown.OnAuto(&n) }) {
		return finding.Fine("%s has its role by EKS Pod Identity, whose agent is on each node of Auto Mode", name)
	}
	set, err := k.c.Cluster.Kube.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, wellknown.PodIdentityAgent, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return finding.Fail(wellknown.CreateAddon(k.region(), k.clusterName(), wellknown.PodIdentityAgent),
			"%s has its role by EKS Pod Identity, and the cluster has no DaemonSet kube-system/%s, which gives it its credentials", name,
			wellknown.PodIdentityAgent)
	case err != nil:
		return unasked("read the DaemonSet kube-system/"+wellknown.PodIdentityAgent, err)
	}
	which := metav1.FormatLabelSelector(set.Spec.Selector)
	agents, err := k.c.Cluster.Kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		LabelSelector: which,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", on).String(),
	})
	if err != nil {
		return unasked("list the pods of the DaemonSet kube-system/"+wellknown.PodIdentityAgent, err)
	}
	for _, agent := range agents.Items {
		if slices.ContainsFunc(agent.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			return finding.Fine("%s has its role by EKS Pod Identity, whose agent on node %s is Ready", name, on)
		}
	}
	return finding.Fail(fmt.Sprintf("kubectl describe pods -n kube-system -l %s --field-selector spec.nodeName=%s # fix what it shows", which, on),
		"%s has its role by EKS Pod Identity, and no pod of the DaemonSet kube-system/%s is Ready on its node %s", name,
		wellknown.PodIdentityAgent, on)
}

// rolesOfPods names service accounts whose pods on cells ask for credentials where nobody answers: no agent of EKS Pod Identity is on a
// cell (docs/aws.md).
func (k identities) rolesOfPods(ctx context.Context) []finding.Finding {
	lack := map[string]*corev1.Pod{} // a pod of each, by namespace and name
	for i := range k.onOwn {
		if p := &k.onOwn[i]; wellknown.ByPodIdentity(p) {
			lack[p.Namespace+"/"+p.Spec.ServiceAccountName] = p
		}
	}
	if len(lack) == 0 {
		return one(finding.Fine("no pod on Kip's nodes needs EKS Pod Identity, whose agent is on no cell"))
	}
	var found []finding.Finding
	issuer := k.issuer(ctx)
	for n, name := range slices.Sorted(maps.Keys(lack)) {
		p := lack[name]
		if n == mostNamed {
			list := fmt.Sprintf("aws eks list-pod-identity-associations --region %s --cluster-name %s", k.region(), k.clusterName())
			found = append(found, finding.Fail(list, "%d more service accounts have EKS Pod Identity, and pods on cells", len(lack)-n))
			break
		}
		found = append(found, finding.Fail(k.byToken(issuer, p.Namespace, p.Spec.ServiceAccountName),
			"service account %s has its role by EKS Pod Identity, whose agent is on no cell, so its pods on cells, such as %s, find no credentials. "+
				"Its pods on other nodes have theirs: keep the order of these commands, or give the pods on cells a service account of their own",
			name, p.Name))
	}
	return found
}

// byToken are the commands by which a service account has its role by its token, in an order in which its pods never lack a role that they
// can assume: a role that was made for EKS Pod Identity trusts no service account, and pods that have credentials keep them until the
// session ends. Source: EKS API reference, "DeletePodIdentityAssociation".
func (k identities) byToken(issuer, namespace, account string) string {
	region, cluster := k.region(), k.clusterName()
	return strings.Join([]string{
		wellknown.AssociateProvider(region, cluster),
		"aws iam get-role --role-name ROLE --query Role.AssumeRolePolicyDocument > trust.json # then add this statement to it, and keep its others: " +
			wellknown.TrustStatement(wellknown.Provider(region, "ACCOUNT", issuer), issuer, "system:serviceaccount:"+namespace+":"+account),
		"aws iam update-assume-role-policy --role-name ROLE --policy-document file://trust.json",
		fmt.Sprintf("kubectl annotate serviceaccount -n %s %s %s=%s", namespace, account, wellknown.RoleAnnotation,
			wellknown.Role(region, "ACCOUNT", "ROLE")),
		fmt.Sprintf("aws eks delete-pod-identity-association --region %s --cluster-name %s --association-id ID "+
			"# aws eks list-pod-identity-associations names it. It wins over the annotation", region, cluster),
		fmt.Sprintf("kubectl get pods -n %s --field-selector spec.serviceAccountName=%s -o wide # make all of them again, those on other nodes, too",
			namespace, account),
	}, "\n")
}

// issuer is that of the cluster's tokens, without https://, or what stands for it in a command.
func (k identities) issuer(ctx context.Context) string {
	var says struct{ Issuer string }
	answer, err := k.c.Cluster.Raw(ctx, "/.well-known/openid-configuration")
	if err != nil || answer.Status != http.StatusOK || json.Unmarshal(answer.Body, &says) != nil || says.Issuer == "" {
		return "ISSUER"
	}
	return strings.TrimPrefix(says.Issuer, "https://")
}
