package eks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks"

	"github.com/elotl/kip/internal/eks/wellknown"
)

// podIdentityService assumes the roles of EKS Pod Identity: that of wellknown.PodTrustStatement.
const podIdentityService = "pods.eks.amazonaws.com"

// association is how EKS Pod Identity gives the pods of a service account a role.
type association struct {
	id string
	// role is the ARN of the role that EKS assumes, and target of the role that this one then assumes, whose rights pods have; "" for none.
	role, target string
	// tagged says that the session of role has tags.
	tagged bool
	// narrowed says that a policy of the association narrows what pods may do.
	narrowed bool
}

// podIdentity returns the association of Kip's service account; nil if it has none. If there is one, EKS' webhook gives pods its role
// alone, whatever the service account is annotated with. Sources: amazon-eks-pod-identity-webhook, pkg/handler, buildPodPatchConfig; EKS
// API reference, "PodIdentityAssociation".
func (a *Account) podIdentity(ctx context.Context, c Cluster, r Role, f *Findings) (*association, error) {
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
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the EKS Pod Identity associations of cluster %s: %w", c.Name, explain(err, a.Region))
	case out == nil:
		return nil, nil
	}
	by := &association{
		id:       aws.ToString(out.Association.AssociationId),
		role:     aws.ToString(out.Association.RoleArn),
		target:   aws.ToString(out.Association.TargetRoleArn),
		tagged:   !aws.ToBool(out.Association.DisableSessionTags),
		narrowed: aws.ToString(out.Association.Policy) != "",
	}
	if has := cmp.Or(by.target, by.role); has != r.ARN {
		f.problem("service account %s/%s of cluster %s has the role %s by EKS Pod Identity, which wins over KIP_SERVICE_ACCOUNT_ROLE_ARN, %s: set "+
			"that to the former, or delete the association: %s", r.Namespace, r.Account, c.Name, has, r.ARN, a.deleteAssociation(c, by))
	}
	return by, nil
}

// deleteAssociation is the command that deletes an association.
func (a *Account) deleteAssociation(c Cluster, by *association) string {
	return fmt.Sprintf("aws eks delete-pod-identity-association --region %s --cluster-name %s --association-id %s", a.Region, c.Name, by.id)
}

// podTrust is how EKS assumes a role of an association. Its session has tags, unless the association leaves them out; what depends on a tag
// is then not met. Sources: EKS User Guide, "Create IAM role with trust policy required by EKS Pod Identity", sts:TagSession; "Grant Pods
// access to AWS resources based on tags".
func (a *Account) podTrust(c Cluster, r Role, by *association) trust {
	t := trust{
		by:         podIdentityService,
		principals: (*statement).services,
		actions:    []string{"sts:AssumeRole"},
		statement:  json.RawMessage(wellknown.PodTrustStatement),
		denied:     podIdentityService,
	}
	tags := ""
	if by.tagged {
		tags = " and tag the session"
		t.actions = append(t.actions, "sts:TagSession")
		t.about = map[string][]string{
			"aws:RequestTag/eks-cluster-name":           {c.Name},
			"aws:RequestTag/eks-cluster-arn":            {a.arn("eks", a.Region, "cluster/"+c.Name)},
			"aws:RequestTag/kubernetes-namespace":       {r.Namespace},
			"aws:RequestTag/kubernetes-service-account": {r.Account},
			"aws:RequestTag/kubernetes-pod-name":        {r.Account + "-0"},
		}
	}
	t.lacks = func([]string) string {
		return fmt.Sprintf("does not let %s assume it%s, by which EKS Pod Identity would give it to service account %s/%s", podIdentityService, tags,
			r.Namespace, r.Account)
	}
	return t
}
