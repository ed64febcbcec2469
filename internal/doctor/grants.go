package doctor

import (
	"context"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// grants checks what the user may do to install Kip.
type grants struct{ *installation }

// made are the kinds of what Kip's chart makes: group, resource and whether it is in Kip's namespace.
var made = []struct {
	group, resource string
	namespaced      bool
}{
	{"", "namespaces", false}, {"", "serviceaccounts", true}, {"", "configmaps", true}, {"", "secrets", true}, {"", "services", true},
	{"apps", "statefulsets", true}, {"apps", "deployments", true}, {"batch", "jobs", true}, {"policy", "poddisruptionbudgets", true},
	{rbacv1.GroupName, "roles", true}, {rbacv1.GroupName, "rolebindings", true},
	{rbacv1.GroupName, "clusterroles", false}, {rbacv1.GroupName, "clusterrolebindings", false},
	{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", false},
	{"admissionregistration.k8s.io", "validatingadmissionpolicies", false},
	{"admissionregistration.k8s.io", "validatingadmissionpolicybindings", false},
	{"storage.k8s.io", "storageclasses", false}, {"apiextensions.k8s.io", "customresourcedefinitions", false},
}

// rights says whether the user may install Kip.
func (k grants) rights(ctx context.Context) []finding.Finding {
	var lacks []string
	for _, m := range made {
		asked := authorizationv1.ResourceAttributes{Verb: "create", Group: m.group, Resource: m.resource}
		if m.namespaced {
			asked.Namespace = k.Namespace()
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &asked}}
		answer, err := k.c.Cluster.Kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return one(unasked("ask what you may do", err))
		}
		if !answer.Status.Allowed {
			lacks = append(lacks, strings.TrimSuffix(m.resource+"."+m.group, "."))
		}
	}
	if user := k.user(ctx); len(lacks) > 0 && !k.looked && strings.HasPrefix(user, "system:serviceaccount:") { // such as Kip itself
		return one(finding.Unchecked("whether you may install Kip: you are %s, and may not create %s", user, strings.Join(lacks, ", ")))
	}
	if len(lacks) > 0 && !k.looked {
		return one(finding.Warn(k.makeAdmin(ctx), "you may not create %s, so you cannot install Kip into namespace %s, if it is not here already",
			strings.Join(lacks, ", "), k.Namespace()))
	}
	if len(lacks) > 0 {
		return one(finding.Fail(k.makeAdmin(ctx), "you may not create %s, so you cannot install Kip into namespace %s", strings.Join(lacks, ", "),
			k.Namespace()))
	}
	return one(finding.Fine("you may create all that Kip's chart makes in namespace %s and in the cluster", k.Namespace()))
}

// makeAdmin is the command by which somebody who may gives the user the rights to install Kip.
func (k grants) makeAdmin(ctx context.Context) string {
	return "kubectl create clusterrolebinding kip-installer --clusterrole=cluster-admin --user='" + k.user(ctx) + "' # as somebody who may"
}

// user is who asks, or what stands for him in a command.
func (k grants) user(ctx context.Context) string {
	reviews := k.c.Cluster.Kube.AuthenticationV1().SelfSubjectReviews()
	answer, err := reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err == nil && answer.Status.UserInfo.Username != "" { // else the reader knows
		return answer.Status.UserInfo.Username
	}
	return "USER"
}

// roles says by a dry run whether the user may give Kip its rights. An access review does not tell: the API server lets nobody give
// what he does not have.
func (k grants) roles(ctx context.Context) []finding.Finding {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "kip-doctor-dry-run"},
		Rules: []rbacv1.PolicyRule{ // the strongest of deploy/helm/kip/templates/rbac.yaml
			{APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{"system:node:kip-0"}, Verbs: []string{"impersonate"}},
			{APIGroups: []string{""}, Resources: []string{"groups"}, ResourceNames: []string{"system:nodes"}, Verbs: []string{"impersonate"}},
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"create"}},
		},
	}
	_, err := k.c.Cluster.Kube.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return one(finding.Fine("you may give Kip its rights (a dry run)"))
	case apierrors.IsForbidden(err):
		return one(finding.Fail(k.makeAdmin(ctx), "you may not give Kip its rights (a dry run): %v", err))
	}
	return one(unasked("dry-run the creation of a ClusterRole", err))
}

// signer says what an API server that verifies kubelets needs.
func (k grants) signer(context.Context) []finding.Finding {
	if !k.eks() {
		return one(finding.Unchecked("whether the API server takes Kip's own certificate for its kubelet port: kubectl logs shows it after the installation. " +
			"See docs/serving-certificates.md"))
	}
	if k.c.Provider != nil && k.c.Provider.ServingCertificate.SignerName != "" {
		return one(finding.Fine("provider.yaml names the signer %s", k.c.Provider.ServingCertificate.SignerName))
	}
	return one(finding.Warn(k.setSigner(wellknown.ServingSigner),
		"EKS verifies the certificates of kubelets: without a signer kubectl logs and exec fail for pods on cells, unless the chart's values name one"))
}
