package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/finding"
)

// podIdentityAgent is the DaemonSet of the EKS Pod Identity agent, and its add-on. On nodes of Auto Mode the agent is a service of the
// machine. Source: EKS User Guide, "Set up the Amazon EKS Pod Identity Agent".
const podIdentityAgent = "eks-pod-identity-agent"

// byPodIdentity reports whether a pod asks the EKS Pod Identity agent of its node for credentials, as EKS' webhook has it do. Source: EKS
// User Guide, "Understand how EKS Pod Identity works": the agent's address, which no AWS service of another kind has.
func byPodIdentity(p *corev1.Pod) bool {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, e := range c.Env {
			if e.Name == "AWS_CONTAINER_CREDENTIALS_FULL_URI" &&
				(strings.Contains(e.Value, "169.254.170.23") || strings.Contains(e.Value, "[fd00:ec2::23]")) {
				return true
			}
		}
	}
	return false
}

// podIdentity says whether Kip's pods get the role that they have by EKS Pod Identity.
func (d *Doctor) podIdentity(ctx context.Context) []finding.Finding {
	var of []string
	for i := range d.pods {
		if byPodIdentity(&d.pods[i]) {
			of = append(of, d.pods[i].Namespace+"/"+d.pods[i].Name)
		}
	}
	switch {
	case len(of) == 0:
		return one(finding.Fine("no pod of Kip has its role by EKS Pod Identity"))
	case d.auto():
		return one(finding.Fine("%s has its role by EKS Pod Identity, whose agent is on each node of Auto Mode", orNone(of)))
	}
	agent, err := d.c.Cluster.Kube.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, podIdentityAgent, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		add := fmt.Sprintf("aws eks create-addon --region %s --cluster-name %s --addon-name %s", d.region(), d.clusterName(), podIdentityAgent)
		return one(finding.Fail(add, "%s has its role by EKS Pod Identity, and the cluster has no DaemonSet kube-system/%s, which gives it its credentials", orNone(of), podIdentityAgent))
	case err != nil:
		return one(unasked("read the DaemonSet kube-system/"+podIdentityAgent, err))
	}
	return one(finding.Fine("%s has its role by EKS Pod Identity, whose agent is ready on %d nodes", orNone(of), agent.Status.NumberReady))
}

// rolesOfPods names service accounts whose pods on cells ask for credentials where nobody answers: no agent of EKS Pod Identity is on a
// cell (docs/aws.md).
func (d *Doctor) rolesOfPods(context.Context) []finding.Finding {
	lack := map[string]*corev1.Pod{} // a pod of each, by namespace and name
	for i := range d.onOwn {
		if p := &d.onOwn[i]; byPodIdentity(p) {
			lack[p.Namespace+"/"+p.Spec.ServiceAccountName] = p
		}
	}
	var found []finding.Finding
	for n, name := range slices.Sorted(maps.Keys(lack)) {
		p := lack[name]
		if n == mostNamed {
			list := fmt.Sprintf("aws eks list-pod-identity-associations --region %s --cluster-name %s", d.region(), d.clusterName())
			found = append(found, finding.Fail(list, "%d more service accounts have EKS Pod Identity, and pods on cells", len(lack)-n))
			break
		}
		found = append(found, finding.Fail(fmt.Sprintf("kubectl annotate serviceaccount -n %s %s %s=ROLE # then delete its association, which wins: aws eks "+
			"delete-pod-identity-association --region %s --cluster-name %s --association-id ID; and make its pods again",
			p.Namespace, p.Spec.ServiceAccountName, annotationRole, d.region(), d.clusterName()),
			"service account %s has its role by EKS Pod Identity, whose agent is on no cell, so its pods on cells, such as %s, find no credentials",
			name, p.Name))
	}
	if found == nil {
		found = one(finding.Fine("no pod on Kip's nodes needs EKS Pod Identity, whose agent is on no cell"))
	}
	return found
}
