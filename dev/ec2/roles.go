package ec2

import (
	"encoding/json"
	"fmt"
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

// assumable is a role.
type assumable struct {
	policy *Policy // what it may do
	trust  *Policy // who may assume it by a token: of a provider, as the resource; nil for nobody
}

// Role is one that is made while a model runs.
type Role struct {
	ARN string
	// Policy is what it may do, Trust who may assume it by AssumeRoleWithWebIdentity: documents
	// of IAM's.
	Policy, Trust json.RawMessage
}

// roles are those of the account: as IAM shows them, and as who may assume them.
type roles struct {
	*base

	byARN  map[string]assumable
	byName map[string]IAMRole
}

// PutIAMRole makes a role that IAM shows, or changes it. IAM keeps no document with a syntax error
// (IAM API reference, "PutRolePolicy", MalformedPolicyDocument).
func (m *roles) PutIAMRole(role IAMRole) error {
	for _, document := range append(slices.Collect(valuesIn(role.Inline, role.Attached)), role.Trust) {
		if !json.Valid([]byte(document)) {
			return bad("MalformedPolicyDocument", "Syntax errors in policy.")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byName[role.name()] = role
	return nil
}

// PutRole makes a role, or changes it for those who assume it from now on.
func (m *roles) PutRole(r Role) error {
	if prefix := m.arnOf("iam", "", m.cfg.Account, "role/"); !strings.HasPrefix(r.ARN, prefix) {
		return fmt.Errorf("the field ARN is %q: want one that begins with %s", r.ARN, prefix)
	}
	policy, err := ParsePolicy(r.Policy)
	if err != nil {
		return fmt.Errorf("the field Policy: %w", err)
	}
	trust, err := ParseTrust(r.Trust)
	if err != nil {
		return fmt.Errorf("the field Trust: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byARN[r.ARN] = assumable{policy, trust}
	shown := IAMRole{ARN: r.ARN, Trust: string(r.Trust), Inline: map[string]string{"kip": string(r.Policy)}}
	m.byName[shown.name()] = shown
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

func (m *roles) role(arn string) assumable {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byARN[arn]
}

// attachedARN is that of a policy that is attached to a role.
func (m *roles) attachedARN(name string) string {
	return m.arnOf("iam", "", m.cfg.Account, "policy/"+name)
}

// attached finds the document of a managed policy.
func (m *roles) attached(arn string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, role := range m.byName {
		for name, document := range role.Attached {
			if m.attachedARN(name) == arn {
				return document, nil
			}
		}
	}
	return "", noEntity("Policy %s does not exist or is not attachable.", arn)
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
