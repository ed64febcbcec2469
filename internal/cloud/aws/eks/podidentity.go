package eks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks"

	kipaws "github.com/elotl/kip/internal/cloud/aws"
)

// podIdentityService assumes the roles of EKS Pod Identity: that of kipaws.PodTrustStatement.
const podIdentityService = "pods.eks.amazonaws.com"

// podIdentity reports whether the pods of Kip's service account have the role by EKS Pod Identity. If there is an association, EKS'
// webhook gives pods its role alone, whatever the service account is annotated with. Source: amazon-eks-pod-identity-webhook,
// pkg/handler, buildPodPatchConfig.
func (a *Account) podIdentity(ctx context.Context, c Cluster, r Role, f *Findings) (bool, error) {
	list, err := a.eks.ListPodIdentityAssociations(ctx, &eks.ListPodIdentityAssociationsInput{
		ClusterName:    aws.String(c.Name),
		Namespace:      aws.String(r.Namespace),
		ServiceAccount: aws.String(r.Account),
	})
	var out *eks.DescribePodIdentityAssociationOutput
	if err == nil && len(list.Associations) > 0 { // a service account has one at most
		out, err = a.eks.DescribePodIdentityAssociation(ctx, &eks.DescribePodIdentityAssociationInput{
			ClusterName:   aws.String(c.Name),
			AssociationId: list.Associations[0].AssociationId,
		})
	}
	switch {
	case refused(err):
		f.note("not checked: whether service account %s/%s has its role by EKS Pod Identity, since you have no right to "+
			"eks:ListPodIdentityAssociations and eks:DescribePodIdentityAssociation", r.Namespace, r.Account)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the EKS Pod Identity associations of cluster %s: %w", c.Name, explain(err, a.Region))
	case out == nil:
		return false, nil
	}
	if has := aws.ToString(out.Association.RoleArn); has != r.ARN {
		f.problem("service account %s/%s of cluster %s has the role %s by EKS Pod Identity, which wins over KIP_SERVICE_ACCOUNT_ROLE_ARN, %s: set "+
			"that to the former, or delete the association: aws eks delete-pod-identity-association --region %s --cluster-name %s --association-id %s",
			r.Namespace, r.Account, c.Name, has, r.ARN, a.Region, c.Name, aws.ToString(out.Association.AssociationId))
	}
	return true, nil
}

// checkPodTrust says why EKS may not give the role to pods of the service account.
func (a *Account) checkPodTrust(c Cluster, r Role, encoded string, f *Findings) {
	text, err := url.QueryUnescape(encoded)
	policy := &Policy{}
	if err == nil {
		policy, err = ParsePolicy([]byte(text))
	}
	if err != nil {
		f.problem("the trust policy of role %s: %v", r.name(), err)
		return
	}
	for i := range policy.statements {
		policy.statements[i].Resource = policy.statements[i].services()
	}
	// The tags of the session. Source: EKS User Guide, "Grant Pods access to AWS resources based on tags".
	about := map[string][]string{
		"aws:RequestTag/eks-cluster-name":           {c.Name},
		"aws:RequestTag/eks-cluster-arn":            {a.arn("eks", a.Region, "cluster/"+c.Name)},
		"aws:RequestTag/kubernetes-namespace":       {r.Namespace},
		"aws:RequestTag/kubernetes-service-account": {r.Account},
		"aws:RequestTag/kubernetes-pod-name":        {r.Account + "-0"},
	}
	worst := allowed
	for _, action := range []string{"sts:AssumeRole", "sts:TagSession"} {
		switch v := judge([]*Policy{policy}, action, podIdentityService, about); {
		case v == denied || v == unallowed:
			worst = v
		case v == unsure && worst == allowed:
			worst = v
		}
	}
	switch worst {
	case allowed:
		return
	case unsure:
		f.note("not checked: the trust policy of role %s has conditions that only AWS can judge", r.name())
		return
	case denied: // a statement that allows it would not help
		f.problem("a Deny statement in the trust policy of role %s is about %s: change that statement, or use another role", r.name(),
			podIdentityService)
		return
	}
	document, err := with(text, json.RawMessage(kipaws.PodTrustStatement))
	if err != nil {
		f.problem("the trust policy of role %s: %v", r.name(), err)
		return
	}
	f.problem("the role %s does not let %s assume it and tag the session, by which EKS Pod Identity would give it to service account %s/%s. Add a "+
		"statement; the others stay:\naws iam update-assume-role-policy --role-name %s --policy-document %s",
		r.name(), podIdentityService, r.Namespace, r.Account, r.name(), document)
}
