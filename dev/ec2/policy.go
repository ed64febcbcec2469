package ec2

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Policy is a policy of IAM, evaluated as IAM does for one principal without others.
// Whatever of the language it does not know is an error when it is read.
type Policy struct {
	statements []statement
	// of and limit are set of a session: both have to allow what it may do, and it has no
	// statements.
	of, limit *Policy

	mu   sync.Mutex
	used map[string]bool // statements that allowed something, by Sid
}

type statement struct {
	Sid       string
	Effect    string
	Action    oneOrMany
	NotAction oneOrMany
	Resource  oneOrMany
	// NotResource covers all resources but these.
	NotResource oneOrMany
	Condition   map[string]map[string]oneOrMany
}

type oneOrMany []string

func (o *oneOrMany) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*o = oneOrMany{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(o))
}

// ParsePolicy reads a policy document, JSON.
func ParsePolicy(text []byte) (*Policy, error) {
	var doc struct {
		Version   string
		Statement []statement
	}
	if err := decode(text, &doc); err != nil {
		return nil, err
	}
	return newPolicy(doc.Statement)
}

// ParseTrust reads a role's trust policy, JSON, as a policy whose resources are the principals:
// providers of identities, of which a token is.
func ParseTrust(text []byte) (*Policy, error) {
	var doc struct {
		Version   string
		Statement []struct {
			Sid, Effect string
			Principal   struct{ Federated oneOrMany }
			Action      oneOrMany
			Condition   map[string]map[string]oneOrMany
		}
	}
	if err := decode(text, &doc); err != nil {
		return nil, err
	}
	var all []statement
	for _, s := range doc.Statement {
		all = append(all, statement{
			Sid:       s.Sid,
			Effect:    s.Effect,
			Action:    s.Action,
			Resource:  s.Principal.Federated,
			Condition: s.Condition,
		})
	}
	return newPolicy(all)
}

// decode reads a document that has nothing else.
func decode(text []byte, doc any) error {
	read := json.NewDecoder(bytes.NewReader(text))
	read.DisallowUnknownFields()
	if err := read.Decode(doc); err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	return nil
}

func newPolicy(statements []statement) (*Policy, error) {
	seen := map[string]bool{}
	for _, s := range statements {
		switch {
		case s.Effect != "Allow" && s.Effect != "Deny":
			return nil, fmt.Errorf("the effect of statement %q is %q: want Allow or Deny", s.Sid, s.Effect)
		case s.Sid == "" || seen[s.Sid]:
			return nil, fmt.Errorf("the statement %q has no Sid, or another's", s.Sid)
		case (len(s.Action) == 0) == (len(s.NotAction) == 0) || (len(s.Resource) == 0) == (len(s.NotResource) == 0):
			return nil, fmt.Errorf("the statement %q has no action or no resource, or both kinds of one: "+
				"want Action or NotAction, and Resource or NotResource", s.Sid)
		}
		seen[s.Sid] = true
		for operator := range s.Condition {
			if operators[operator] == nil {
				return nil, fmt.Errorf("the statement %q has the operator %q, which the model does not know", s.Sid, operator)
			}
		}
	}
	return &Policy{statements: statements, used: map[string]bool{}}, nil
}

// operators compare what a request has with what a statement wants.
var operators = map[string]func(has, want []string) bool{
	"StringEquals": func(has, want []string) bool { return anyMatches(has, want, func(h, w string) bool { return h == w }) },
	"StringLike": func(has, want []string) bool {
		return anyMatches(has, want, func(h, w string) bool { return like(w, h) })
	},
	// Bool has one value, in lower case.
	"Bool": func(has, want []string) bool { return anyMatches(has, want, func(h, w string) bool { return h == w }) },
	"Null": func(has, want []string) bool { return slices.Equal(want, []string{"true"}) == (len(has) == 0) },
	"ForAnyValue:StringEquals": func(has, want []string) bool {
		return anyMatches(has, want, func(h, w string) bool { return h == w })
	},
	"ForAllValues:StringEquals": func(has, want []string) bool {
		return !slices.ContainsFunc(has, func(h string) bool { return !slices.Contains(want, h) })
	},
	"ForAllValues:StringNotEquals": func(has, want []string) bool {
		return !slices.ContainsFunc(has, func(h string) bool { return slices.Contains(want, h) })
	},
	"ForAllValues:StringNotEqualsIgnoreCase": func(has, want []string) bool {
		return !anyMatches(has, want, strings.EqualFold)
	},
}

func anyMatches(has, want []string, same func(h, w string) bool) bool {
	return slices.ContainsFunc(has, func(h string) bool {
		return slices.ContainsFunc(want, func(w string) bool { return same(h, w) })
	})
}

// within is what a policy allows that another one allows, too.
func (p *Policy) within(limit *Policy) *Policy { return &Policy{of: p, limit: limit} }

// allows says whether an action on a resource is allowed; about is the request's context.
func (p *Policy) allows(action, resource string, about map[string][]string) bool {
	if p.limit != nil {
		return p.limit.allows(action, resource, about) && p.of.allows(action, resource, about)
	}
	if p.denies(action, resource, about) {
		return false
	}
	allowed := ""
	for _, s := range p.statements {
		if s.Effect == "Allow" && s.covers(action, resource, about) {
			allowed = s.Sid
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if allowed != "" {
		p.used[allowed] = true
	}
	return allowed != ""
}

// denies says whether an action on a resource is denied in so many words, which no other
// policy mends.
func (p *Policy) denies(action, resource string, about map[string][]string) bool {
	_, denied := p.deniedBy(action, resource, about)
	return denied
}

// deniedBy is the Sid of a statement that does so.
func (p *Policy) deniedBy(action, resource string, about map[string][]string) (sid string, denied bool) {
	if p.limit != nil {
		if sid, denied = p.limit.deniedBy(action, resource, about); denied {
			return sid, true
		}
		return p.of.deniedBy(action, resource, about)
	}
	for _, s := range p.statements {
		if s.Effect == "Deny" && s.covers(action, resource, about) {
			return s.Sid, true
		}
	}
	return "", false
}

func (s statement) covers(action, resource string, about map[string][]string) bool {
	among := func(patterns, others oneOrMany, text string) bool {
		is := func(pattern string) bool { return like(pattern, text) }
		return slices.ContainsFunc(patterns, is) || len(others) > 0 && !slices.ContainsFunc(others, is)
	}
	if !among(s.Action, s.NotAction, action) || !among(s.Resource, s.NotResource, resource) {
		return false
	}
	for operator, keys := range s.Condition {
		for key, want := range keys {
			if !operators[operator](valuesOf(about, key), want) {
				return false
			}
		}
	}
	return true
}

// valuesOf returns what a request has for a condition key. Case makes no difference in the names of these keys, those of tags among them;
// in EC2 keys of tags that differ by case are two tags. Sources: IAM User Guide, "IAM JSON policy elements: Condition" ("Context key names
// are not case-sensitive") and "AWS global condition context keys", aws:ResourceTag/tag-key ("TagKey1 or tagkey1, but not both"); EC2
// User Guide, "Tag restrictions" ("Tag keys and values are case-sensitive"). No source says which of two such tags IAM takes: the
// model has the values of both, so that a test sees what a statement may allow.
func valuesOf(about map[string][]string, key string) (all []string) {
	for name, values := range about {
		if strings.EqualFold(name, key) {
			all = append(all, values...)
		}
	}
	return all
}

// Unused are the Sids of the statements that have allowed nothing yet.
func (p *Policy) Unused() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.statements {
		if !p.used[s.Sid] {
			all = append(all, s.Sid)
		}
	}
	return all
}
