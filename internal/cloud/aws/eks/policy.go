package eks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// policy is a document of IAM.
type policy struct{ statements []statement }

type statement struct {
	Sid, Effect           string
	Principal             json.RawMessage
	Action, NotAction     list
	Resource, NotResource list
	Condition             map[string]map[string]list
}

// federated are the identity providers that a statement of a trust policy is about.
func (s *statement) federated() list {
	var principal struct{ Federated list }
	if json.Unmarshal(s.Principal, &principal) != nil {
		return nil // "*", or none
	}
	return principal.Federated
}

// services are those of AWS that a statement of a trust policy is about.
func (s *statement) services() list {
	var principal struct{ Service list }
	if json.Unmarshal(s.Principal, &principal) != nil {
		return nil // "*", or none
	}
	return principal.Service
}

// list is one value or several, as IAM takes both.
type list []string

func (l *list) UnmarshalJSON(text []byte) error {
	var many []any
	if err := json.Unmarshal(text, &many); err != nil {
		var one any
		if err := json.Unmarshal(text, &one); err != nil {
			return err
		}
		many = []any{one}
	}
	*l = nil
	for _, v := range many {
		*l = append(*l, fmt.Sprint(v)) // numbers and booleans, too
	}
	return nil
}

// parsePolicy reads a policy document. Its error names the line at which the document is no JSON.
func parsePolicy(text []byte) (*policy, error) {
	var doc struct{ Statement json.RawMessage }
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, syntax(text, err)
	}
	var p policy
	if err := json.Unmarshal(doc.Statement, &p.statements); err != nil {
		var one statement
		if json.Unmarshal(doc.Statement, &one) != nil {
			return nil, fmt.Errorf("read the policy's Statement: %w", err)
		}
		p.statements = []statement{one}
	}
	return &p, nil
}

// syntax says where a document is no JSON, and what is missing there if that can be seen.
func syntax(text []byte, err error) error {
	at, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return fmt.Errorf("read the policy: %w", err)
	}
	before := text[:min(max(int(at.Offset)-1, 0), len(text))]
	line := 1 + bytes.Count(before, []byte("\n"))
	if trimmed := bytes.TrimRight(before, " \t\r\n"); bytes.HasSuffix(trimmed, []byte(`"`)) && len(before) < len(text) &&
		text[len(before)] == '"' {
		begin := bytes.LastIndexByte(trimmed, '\n') + 1
		return fmt.Errorf("read the policy: a comma is missing at the end of line %d, after %s",
			1+bytes.Count(trimmed, []byte("\n")), bytes.TrimSpace(trimmed[begin:]))
	}
	return fmt.Errorf("read the policy: line %d: %w", line, err)
}

// verdict is what policies say of a call.
type verdict int

const (
	unallowed verdict = iota // nothing allows it
	allowed
	denied // a statement denies it
	unsure // that depends on a condition that only AWS can judge
)

// judge says what policies say together of an action on a resource. about is the context of the call, by condition key.
func judge(policies []*policy, action, resource string, about map[string][]string) verdict {
	allow, deny := no, no
	for _, p := range policies {
		for i := range p.statements {
			s := &p.statements[i]
			covers := s.covers(action, resource, about)
			if s.Effect == "Deny" {
				deny = max(deny, covers)
			} else {
				allow = max(allow, covers)
			}
		}
	}
	switch {
	case deny == yes:
		return denied
	case allow == no:
		return unallowed
	case allow == yes && deny == no:
		return allowed
	}
	return unsure
}

// answer is no, maybe or yes, in this order.
type answer int

const (
	no answer = iota
	maybe
	yes
)

func answerOf(b bool) answer {
	if b {
		return yes
	}
	return no
}

func (s *statement) covers(action, resource string, about map[string][]string) answer {
	among := func(patterns, others list, text string) answer {
		for _, p := range slices.Concat(patterns, others) {
			if strings.Contains(p, "${") { // a variable of IAM's
				return maybe
			}
		}
		is := func(pattern string) bool { return like(pattern, text) }
		return answerOf(slices.ContainsFunc(patterns, is) || len(others) > 0 && !slices.ContainsFunc(others, is))
	}
	lower := func(l list) list { return list(strings.Fields(strings.ToLower(strings.Join(l, " ")))) }
	// Case does not count in actions. Source: IAM User Guide, "IAM JSON policy elements: Action".
	covered := min(among(lower(s.Action), lower(s.NotAction), strings.ToLower(action)), among(s.Resource, s.NotResource, resource))
	for operator, keys := range s.Condition {
		for key, want := range keys {
			covered = min(covered, holds(operator, key, want, about))
		}
	}
	return covered
}

// like matches IAM's wildcards.
func like(pattern, text string) bool {
	expression := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(pattern))
	is, err := regexp.MatchString(`(?s)^`+expression+`$`, text)
	return err == nil && is
}

// anyValue stands in the context of a call for a value that whoever narrows a policy may choose.
const anyValue = "\x00any"

// told are the condition keys whose values judge is told, absent ones included. What depends on others is not known.
// Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon EC2".
var told = []string{
	"aws:requesttag/*", "aws:resourcetag/*", "ec2:resourcetag/*", "aws:tagkeys", "ec2:createaction", "aws:requestedregion",
	"iam:passedtoservice", "iam:awsservicename", "kms:viaservice", "kms:grantisforawsresource", "*:sub", "*:aud",
}

// holds says whether a condition holds. Source: IAM User Guide, "IAM JSON policy elements: Condition operators", and "Set operators for
// multivalued context keys".
func holds(operator, key string, want list, about map[string][]string) answer {
	if !slices.ContainsFunc(told, func(t string) bool { return like(t, strings.ToLower(key)) }) {
		return maybe
	}
	var has []string
	for k, values := range about {
		if strings.EqualFold(k, key) || strings.EqualFold(strings.Replace(k, "aws:ResourceTag/", "ec2:ResourceTag/", 1), key) {
			has = values
		}
	}
	operator, optional := strings.CutSuffix(operator, "IfExists")
	operator, all := strings.CutPrefix(operator, "ForAllValues:")
	operator = strings.TrimPrefix(operator, "ForAnyValue:")
	if operator == "Null" {
		return answerOf(slices.Equal(want, list{"true"}) == (len(has) == 0))
	}
	if len(has) == 0 {
		return answerOf(optional || all || strings.Contains(operator, "Not"))
	}
	same := map[string]func(h, w string) bool{
		"Bool":                      strings.EqualFold,
		"StringEquals":              func(h, w string) bool { return h == w },
		"StringNotEquals":           func(h, w string) bool { return h == w },
		"StringEqualsIgnoreCase":    strings.EqualFold,
		"StringNotEqualsIgnoreCase": strings.EqualFold,
		"StringLike":                func(h, w string) bool { return like(w, h) },
		"StringNotLike":             func(h, w string) bool { return like(w, h) },
	}[operator]
	if same == nil {
		return maybe
	}
	if slices.Contains(has, anyValue) {
		if strings.Contains(operator, "Not") {
			return maybe
		}
		return yes
	}
	one := func(h string) bool {
		found := slices.ContainsFunc(want, func(w string) bool { return same(h, w) })
		return found != strings.Contains(operator, "Not")
	}
	if all {
		return answerOf(!slices.ContainsFunc(has, func(h string) bool { return !one(h) }))
	}
	return answerOf(slices.ContainsFunc(has, one))
}
