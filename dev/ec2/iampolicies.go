package ec2

import (
	"net/url"
	"strings"
)

type namesXML struct {
	Truncated bool     `xml:"IsTruncated"`
	Names     []string `xml:"PolicyNames>member"`
}

func (m *iamService) listRolePolicies(r *request) (any, error) {
	role, err := m.iamRole(r)
	if err == nil {
		err = m.mayOf(r, role.ARN)
	}
	if err != nil {
		return nil, err
	}
	return namesXML{Names: sortedKeys(role.Inline)}, nil
}

type rolePolicyXML struct {
	Role     string `xml:"RoleName"`
	Policy   string `xml:"PolicyName"`
	Document string `xml:"PolicyDocument"`
}

func (m *iamService) getRolePolicy(r *request) (any, error) {
	name := r.text("PolicyName")
	role, err := m.iamRole(r)
	if err == nil {
		err = m.mayOf(r, role.ARN)
	}
	if err != nil {
		return nil, err
	}
	if role.Inline[name] == "" {
		return nil, noEntity("The role policy with name %s cannot be found.", name)
	}
	return rolePolicyXML{role.name(), name, url.QueryEscape(role.Inline[name])}, nil
}

type attachedXML struct {
	Name string `xml:"PolicyName"`
	ARN  string `xml:"PolicyArn"`
}

func (m *iamService) listAttachedRolePolicies(r *request) (any, error) {
	role, err := m.iamRole(r)
	if err == nil {
		err = m.mayOf(r, role.ARN)
	}
	if err != nil {
		return nil, err
	}
	var answer struct {
		Truncated bool          `xml:"IsTruncated"`
		Policies  []attachedXML `xml:"AttachedPolicies>member"`
	}
	for _, name := range sortedKeys(role.Attached) {
		answer.Policies = append(answer.Policies, attachedXML{name, m.roles.attachedARN(name)})
	}
	return answer, nil
}

// onlyVersion is that of each managed policy.
const onlyVersion = "v1"

func (m *iamService) getPolicy(r *request) (any, error) {
	arn := r.text("PolicyArn")
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	if _, err := m.roles.attached(arn); err != nil {
		return nil, err
	}
	var answer struct {
		ARN     string `xml:"Policy>Arn"`
		Version string `xml:"Policy>DefaultVersionId"`
	}
	answer.ARN, answer.Version = arn, onlyVersion
	return answer, nil
}

func (m *iamService) getPolicyVersion(r *request) (any, error) {
	arn, version := r.text("PolicyArn"), r.text("VersionId")
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	document, err := m.roles.attached(arn)
	if err != nil {
		return nil, err
	}
	if version != onlyVersion {
		return nil, noEntity("Policy %s version %s does not exist or is not attachable.", arn, version)
	}
	var answer struct {
		Document string `xml:"PolicyVersion>Document"`
		Version  string `xml:"PolicyVersion>VersionId"`
		Default  bool   `xml:"PolicyVersion>IsDefaultVersion"`
	}
	answer.Document, answer.Version, answer.Default = url.QueryEscape(document), version, true
	return answer, nil
}

type evaluationXML struct {
	Action   string `xml:"EvalActionName"`
	Resource string `xml:"EvalResourceName"`
	Decision string `xml:"EvalDecision"`
}

// policiesOf are those of a role, or of the caller, who may be allowed all by none.
func (m *iamService) policiesOf(r *request, arn string) (policies []*Policy, err error) {
	if arn == m.callerARN() {
		return []*Policy{r.policy}, nil
	}
	m.mu.Lock()
	role, ok := m.roles.byName[arn[strings.LastIndex(arn, "/")+1:]]
	m.mu.Unlock()
	if !ok || role.ARN != arn {
		return nil, noEntity("The role with name %s cannot be found.", arn)
	}
	for document := range valuesIn(role.Inline, role.Attached) {
		policy, err := parseStored(document)
		if err != nil {
			return nil, bad("PolicyEvaluation", "%v", err)
		}
		policies = append(policies, policy)
	}
	return policies, nil
}

// simulatePrincipalPolicy judges actions on resources by a role's policies, or the caller's, with the context that the call brings and
// no other: a condition on what it does not bring is not met. Each resource is judged by itself, which is so for EC2 without a
// ResourceHandlingOption. Source: IAM API reference, "SimulatePrincipalPolicy", ResourceArns, ContextEntries, ResourceHandlingOption.
func (m *iamService) simulatePrincipalPolicy(r *request) (any, error) {
	arn, actions, resources := r.text("PolicySourceArn"), r.texts("ActionNames.member"), r.texts("ResourceArns.member")
	about := map[string][]string{}
	for _, entry := range r.each("ContextEntries.member") {
		entry.text("ContextKeyType")
		about[entry.text("ContextKeyName")] = entry.texts("ContextKeyValues.member")
	}
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	policies, err := m.policiesOf(r, arn)
	if err != nil {
		return nil, err
	}
	if len(resources) == 0 {
		resources = []string{"*"}
	}
	var answer struct {
		Truncated bool            `xml:"IsTruncated"`
		Results   []evaluationXML `xml:"EvaluationResults>member"`
	}
	for _, action := range actions {
		for _, resource := range resources {
			decision := "implicitDeny"
			for _, p := range policies {
				if p == nil { // of a caller who may do all
					decision = "allowed"
				} else if p.denies(action, resource, about) {
					decision = "explicitDeny"
				} else if decision == "implicitDeny" && p.allows(action, resource, about) {
					decision = "allowed"
				}
			}
			answer.Results = append(answer.Results, evaluationXML{action, resource, decision})
		}
	}
	return answer, nil
}
