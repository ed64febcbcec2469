package ec2

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
)

// iamService is AWS Identity and Access Management.
type iamService struct {
	*base
	roles *roles
}

// iam is AWS Identity and Access Management.
func (m *iamService) service() *queryService {
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
func (m *iamService) mayOf(r *request, resource string) error {
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
func (m *iamService) iamRole(r *request) (IAMRole, error) {
	name := r.text("RoleName")
	m.mu.Lock()
	role, ok := m.roles.byName[name]
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
func (m *iamService) getRole(r *request) (any, error) {
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
func (m *iamService) createRole(r *request) (any, error) {
	role := IAMRole{ARN: m.arnOf("iam", "", m.cfg.Account, "role/"+r.text("RoleName")), Trust: r.text("AssumeRolePolicyDocument")}
	if err := m.mayOf(r, role.ARN); err != nil {
		return nil, err
	}
	m.mu.Lock()
	_, has := m.roles.byName[role.name()]
	m.mu.Unlock()
	if has {
		return nil, &apiError{http.StatusConflict, "EntityAlreadyExists", "Role with name " + role.name() + " already exists."}
	}
	return shownRole(role), m.roles.PutIAMRole(role)
}

// updateAssumeRolePolicy replaces who may assume a role (IAM API reference, "UpdateAssumeRolePolicy").
func (m *iamService) updateAssumeRolePolicy(r *request) (any, error) {
	document := r.text("PolicyDocument")
	role, err := m.iamRole(r)
	if err == nil {
		err = m.mayOf(r, role.ARN)
	}
	if err != nil {
		return nil, err
	}
	role.Trust = document
	return struct{}{}, m.roles.PutIAMRole(role)
}

// putRolePolicy writes a policy into a role (IAM API reference, "PutRolePolicy").
func (m *iamService) putRolePolicy(r *request) (any, error) {
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
	return struct{}{}, m.roles.PutIAMRole(role)
}

func (m *iamService) getInstanceProfile(r *request) (any, error) {
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

func (m *iamService) getOpenIDConnectProvider(r *request) (any, error) {
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
