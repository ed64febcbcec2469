package ec2

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// IAMRole is a role as IAM keeps it: with its documents.
type IAMRole struct {
	ARN, Trust string
	// Inline and Attached are the policies in it and those attached to it, by their names.
	Inline, Attached map[string]string
}

// name is what calls of IAM name a role by: its ARN without its path.
func (r IAMRole) name() string { return r.ARN[strings.LastIndex(r.ARN, "/")+1:] }

// attachedARN is that of a policy that is attached to a role.
func (m *Model) attachedARN(name string) string {
	return m.arnOf("iam", "", m.cfg.Account, "policy/"+name)
}

// PutIAMRole makes a role that IAM shows, or changes it. IAM keeps no document with a syntax error
// (IAM API reference, "PutRolePolicy", MalformedPolicyDocument).
func (m *Model) PutIAMRole(role IAMRole) error {
	for _, document := range append(slices.Collect(valuesIn(role.Inline, role.Attached)), role.Trust) {
		if !json.Valid([]byte(document)) {
			return bad("MalformedPolicyDocument", "Syntax errors in policy.")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.iamRoles[role.name()] = role
	return nil
}

func valuesIn(all ...map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, one := range all {
			for _, name := range sortedKeys(one) {
				if !yield(one[name]) {
					return
				}
			}
		}
	}
}

// callerARN is who calls, as far as the model tells callers apart.
func (m *Model) callerARN() string { return m.arnOf("iam", "", m.cfg.Account, "user/kip") }

// iam is AWS Identity and Access Management.
func (m *Model) iam() *queryService {
	return younger("iam", "2010-05-08", "", map[string]func(*request) (any, error){
		"CreateRole":               m.createRole,
		"UpdateAssumeRolePolicy":   m.updateAssumeRolePolicy,
		"PutRolePolicy":            m.putRolePolicy,
		"GetRole":                  m.getRole,
		"ListRolePolicies":         m.listRolePolicies,
		"GetRolePolicy":            m.getRolePolicy,
		"ListAttachedRolePolicies": m.listAttachedRolePolicies,
		"GetPolicy":                m.getPolicy,
		"GetPolicyVersion":         m.getPolicyVersion,
		"GetInstanceProfile":       m.getInstanceProfile,
		"GetOpenIDConnectProvider": m.getOpenIDConnectProvider,
		"SimulatePrincipalPolicy":  m.simulatePrincipalPolicy,
	})
}

// mayOf refuses a call of IAM on a resource that the caller's policy does not allow.
func (m *Model) mayOf(r *request, resource string) error {
	if err := r.done(); err != nil {
		return err
	}
	if m.may(r, "iam:"+r.action, resource, nil) != nil {
		return &apiError{http.StatusForbidden, "AccessDenied",
			"User: " + m.callerARN() + " is not authorized to perform: iam:" + r.action + " on resource: " + resource}
	}
	return nil
}

func noEntity(format string, args ...any) error {
	return &apiError{http.StatusNotFound, "NoSuchEntity", fmt.Sprintf(format, args...)}
}

// iamRole finds the role that a call names.
func (m *Model) iamRole(r *request) (IAMRole, error) {
	name := r.text("RoleName")
	m.mu.Lock()
	role, ok := m.iamRoles[name]
	m.mu.Unlock()
	if !ok {
		if err := m.mayOf(r, m.arnOf("iam", "", m.cfg.Account, "role/"+name)); err != nil {
			return IAMRole{}, err
		}
		return IAMRole{}, noEntity("The role with name %s cannot be found.", name)
	}
	return role, nil
}

type roleXML struct {
	Name    string `xml:"RoleName"`
	ARN     string `xml:"Arn"`
	ID      string `xml:"RoleId"`
	Path    string `xml:"Path"`
	Created string `xml:"CreateDate"`
	Trust   string `xml:"AssumeRolePolicyDocument"`
}

// someDay is when everything of IAM was made.
const someDay = "2026-01-01T00:00:00Z"

// getRole shows a role. Documents are URL-encoded, as in all answers of IAM (IAM API reference, "GetRole").
func (m *Model) getRole(r *request) (any, error) {
	role, err := m.iamRole(r)
	if err == nil {
		err = m.mayOf(r, role.ARN)
	}
	if err != nil {
		return nil, err
	}
	return shownRole(role), nil
}

func shownRole(role IAMRole) any {
	return struct{ Role roleXML }{roleXML{role.name(), role.ARN, "AROAEXAMPLE", "/", someDay, url.QueryEscape(role.Trust)}}
}

// createRole makes a role that may do nothing (IAM API reference, "CreateRole").
func (m *Model) createRole(r *request) (any, error) {
	role := IAMRole{ARN: m.arnOf("iam", "", m.cfg.Account, "role/"+r.text("RoleName")), Trust: r.text("AssumeRolePolicyDocument")}
	if err := m.mayOf(r, role.ARN); err != nil {
		return nil, err
	}
	m.mu.Lock()
	_, has := m.iamRoles[role.name()]
	m.mu.Unlock()
	if has {
		return nil, &apiError{http.StatusConflict, "EntityAlreadyExists", "Role with name " + role.name() + " already exists."}
	}
	return shownRole(role), m.PutIAMRole(role)
}

// updateAssumeRolePolicy replaces who may assume a role (IAM API reference, "UpdateAssumeRolePolicy").
func (m *Model) updateAssumeRolePolicy(r *request) (any, error) {
	document := r.text("PolicyDocument")
	role, err := m.iamRole(r)
	if err == nil {
		err = m.mayOf(r, role.ARN)
	}
	if err != nil {
		return nil, err
	}
	role.Trust = document
	return struct{}{}, m.PutIAMRole(role)
}

// putRolePolicy writes a policy into a role (IAM API reference, "PutRolePolicy").
func (m *Model) putRolePolicy(r *request) (any, error) {
	name, document := r.text("PolicyName"), r.text("PolicyDocument")
	role, err := m.iamRole(r)
	if err == nil {
		err = m.mayOf(r, role.ARN)
	}
	if err != nil {
		return nil, err
	}
	inline := map[string]string{name: document}
	for other, was := range role.Inline {
		if other != name {
			inline[other] = was
		}
	}
	role.Inline = inline
	return struct{}{}, m.PutIAMRole(role)
}

type namesXML struct {
	Truncated bool     `xml:"IsTruncated"`
	Names     []string `xml:"PolicyNames>member"`
}

func (m *Model) listRolePolicies(r *request) (any, error) {
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

func (m *Model) getRolePolicy(r *request) (any, error) {
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

func (m *Model) listAttachedRolePolicies(r *request) (any, error) {
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
		answer.Policies = append(answer.Policies, attachedXML{name, m.attachedARN(name)})
	}
	return answer, nil
}

// attached finds the document of a managed policy.
func (m *Model) attached(arn string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, role := range m.iamRoles {
		for name, document := range role.Attached {
			if m.attachedARN(name) == arn {
				return document, nil
			}
		}
	}
	return "", noEntity("Policy %s does not exist or is not attachable.", arn)
}

// onlyVersion is that of each managed policy.
const onlyVersion = "v1"

func (m *Model) getPolicy(r *request) (any, error) {
	arn := r.text("PolicyArn")
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	if _, err := m.attached(arn); err != nil {
		return nil, err
	}
	var answer struct {
		ARN     string `xml:"Policy>Arn"`
		Version string `xml:"Policy>DefaultVersionId"`
	}
	answer.ARN, answer.Version = arn, onlyVersion
	return answer, nil
}

func (m *Model) getPolicyVersion(r *request) (any, error) {
	arn, version := r.text("PolicyArn"), r.text("VersionId")
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	document, err := m.attached(arn)
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

func (m *Model) getInstanceProfile(r *request) (any, error) {
	name := r.text("InstanceProfileName")
	arn := m.arnOf("iam", "", m.cfg.Account, "instance-profile/"+name)
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	if m.cfg.Profiles != nil && !slices.Contains(m.cfg.Profiles, name) {
		return nil, noEntity("Instance Profile %s cannot be found.", name)
	}
	var answer struct {
		Name    string    `xml:"InstanceProfile>InstanceProfileName"`
		ARN     string    `xml:"InstanceProfile>Arn"`
		ID      string    `xml:"InstanceProfile>InstanceProfileId"`
		Path    string    `xml:"InstanceProfile>Path"`
		Created string    `xml:"InstanceProfile>CreateDate"`
		Roles   []roleXML `xml:"InstanceProfile>Roles>member"`
	}
	answer.Name, answer.ARN, answer.ID, answer.Path, answer.Created = name, arn, "AIPAEXAMPLE", "/", someDay
	answer.Roles = []roleXML{{name, m.arnOf("iam", "", m.cfg.Account, "role/"+name), "AROAEXAMPLE", "/", someDay, url.QueryEscape("{}")}}
	return answer, nil
}

func (m *Model) getOpenIDConnectProvider(r *request) (any, error) {
	arn := r.text("OpenIDConnectProviderArn")
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	for _, p := range m.cfg.Providers {
		if m.arnOf("iam", "", m.cfg.Account, "oidc-provider/"+providerName(p)) == arn {
			return struct {
				URL       string   `xml:"Url"`
				Audiences []string `xml:"ClientIDList>member"`
			}{providerName(p), p.Audiences}, nil
		}
	}
	return nil, noEntity("OpenIDConnect Provider not found for arn %s", arn)
}

type evaluationXML struct {
	Action   string `xml:"EvalActionName"`
	Resource string `xml:"EvalResourceName"`
	Decision string `xml:"EvalDecision"`
}

// simulatePrincipalPolicy judges actions on resources by a role's policies, with the context that the call brings and no other: a
// condition on what it does not bring is not met. Each resource is judged by itself, which is so for EC2 without a
// ResourceHandlingOption. Source: IAM API reference, "SimulatePrincipalPolicy", ResourceArns, ContextEntries, ResourceHandlingOption.
func (m *Model) simulatePrincipalPolicy(r *request) (any, error) {
	arn, actions, resources := r.text("PolicySourceArn"), r.texts("ActionNames.member"), r.texts("ResourceArns.member")
	about := map[string][]string{}
	for _, entry := range r.each("ContextEntries.member") {
		entry.text("ContextKeyType")
		about[entry.text("ContextKeyName")] = entry.texts("ContextKeyValues.member")
	}
	if err := m.mayOf(r, arn); err != nil {
		return nil, err
	}
	m.mu.Lock()
	role, ok := m.iamRoles[arn[strings.LastIndex(arn, "/")+1:]]
	m.mu.Unlock()
	if !ok || role.ARN != arn {
		return nil, noEntity("The role with name %s cannot be found.", arn)
	}
	if len(resources) == 0 {
		resources = []string{"*"}
	}
	var policies []*Policy
	for document := range valuesIn(role.Inline, role.Attached) {
		policy, err := parseStored(document)
		if err != nil {
			return nil, bad("PolicyEvaluation", "%v", err)
		}
		policies = append(policies, policy)
	}
	var answer struct {
		Truncated bool            `xml:"IsTruncated"`
		Results   []evaluationXML `xml:"EvaluationResults>member"`
	}
	for _, action := range actions {
		for _, resource := range resources {
			decision := "implicitDeny"
			for _, p := range policies {
				if p.denies(action, resource, about) {
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

// parseStored reads a policy that need not name its statements.
func parseStored(text string) (*Policy, error) {
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	statements, _ := doc["Statement"].([]any)
	for n, s := range statements {
		if s, ok := s.(map[string]any); ok && (s["Sid"] == nil || s["Sid"] == "") {
			s["Sid"] = fmt.Sprintf("unnamed%d", n)
		}
	}
	named, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return ParsePolicy(named)
}
