package doctor

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/internal/finding"
)

// manifestNode is the node in deploy.RBAC, and roleOfKip the ClusterRole there with what Kip does as itself.
const manifestNode, roleOfKip = "kip-0", "kip." + manifestNode

// rulesOfKip are those that this version of Kip needs as itself.
func rulesOfKip() ([]rbacv1.PolicyRule, error) {
	for _, document := range bytes.Split(deploy.RBAC, []byte("\n---\n")) {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal(document, &role); err != nil {
			return nil, fmt.Errorf("read the rights of Kip: %w", err)
		}
		if role.Kind == "ClusterRole" && role.Name == roleOfKip {
			return role.Rules, nil
		}
	}
	return nil, fmt.Errorf("there is no ClusterRole %s among the rights of Kip", roleOfKip)
}

// ownRights checks the rights of Kip's service account.
type ownRights struct{ *installation }

// named are the names of a rule for the nodes of this Kip, none if it has no node that is known. The manifests name all nodes that a Kip
// may have.
func (k ownRights) named(names []string) []string {
	const user = "system:node:"
	switch {
	case len(names) == 0:
		return []string{""}
	case names[0] != manifestNode && names[0] != user+manifestNode:
		return names
	}
	prefix, own := strings.TrimSuffix(names[0], manifestNode), nodeNames(k.own)
	// Of what is called as the Kip's first node, and of a Kip that has no node yet.
	if first := nodeNameOf(k.pods); first != "" && (len(names) == 1 || len(own) == 0) {
		own = []string{first}
	}
	own = slices.Clone(own[:min(len(own), mostNamed)])
	for n := range own {
		own[n] = prefix + own[n]
	}
	return own
}

// kipRights asks the API server what Kip's service account may do.
func (k ownRights) kipRights(ctx context.Context) []finding.Finding {
	if len(k.pods) == 0 || k.pods[0].Spec.ServiceAccountName == "" {
		return one(finding.Unchecked("what Kip may do in the cluster: no pod of Kip tells its service account"))
	}
	rules, err := rulesOfKip()
	if err != nil {
		return one(finding.Unchecked("%v", err))
	}
	namespace, account := k.pods[0].Namespace, k.pods[0].Spec.ServiceAccountName
	who := authorizationv1.SubjectAccessReviewSpec{
		User:   "system:serviceaccount:" + namespace + ":" + account,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	var lacks []string
	asked, unnamed := 0, false
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			what := strings.TrimSuffix(resource+"."+rule.APIGroups[0], ".")
			var verbs []string
			names := k.named(rule.ResourceNames)
			unnamed = unnamed || len(names) == 0
			for _, verb := range rule.Verbs {
				for _, name := range names {
					asked++
					may, err := k.may(ctx, who, rule.APIGroups[0], resource, name, verb)
					if err != nil {
						return one(unasked("ask what Kip's service account may do", err))
					}
					if !may && !slices.Contains(verbs, verb) {
						verbs = append(verbs, verb)
					}
				}
			}
			if len(verbs) > 0 {
				lacks = append(lacks, strings.Join(verbs, "/")+" "+what)
			}
		}
	}
	if len(lacks) > 0 {
		return one(finding.Fail(k.restore(), "Kip's service account %s/%s may not %s", namespace, account, strings.Join(lacks, ", ")))
	}
	if unnamed {
		return one(finding.Unchecked("whether Kip's service account %s/%s may act as Kip's nodes, and change them: no node of this Kip is known",
			namespace, account))
	}
	return one(finding.Fine("Kip's service account %s/%s has the rights that Kip needs: %d were asked for", namespace, account, asked))
}

func (k ownRights) may(ctx context.Context, who authorizationv1.SubjectAccessReviewSpec, group, resource, name, verb string) (bool, error) {
	resource, sub, _ := strings.Cut(resource, "/")
	who.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Group:       group,
		Resource:    resource,
		Subresource: sub,
		Name:        name,
		Verb:        verb,
	}
	answer, err := k.c.Cluster.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: who},
		metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
