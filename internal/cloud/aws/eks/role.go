package eks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/iam/types"

	kipaws "github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/eks/wellknown"
)

// Role is what Kip's service account is to be in AWS.
type Role struct {
	ARN string
	// Namespace and Account are those of the service account.
	Namespace, Account string
	// Passes is the ARN of the role that Kip passes to cells, Profile the instance profile that has it; "" for none.
	Passes, Profile string
	// SkipRights leaves out what the role may do.
	SkipRights bool
	// Owner is the controller ID of a Kip that runs, by which a policy may be narrowed; "" for none.
	Owner string
	// Subnet and VPC are examples of where cells are launched; "" for any.
	Subnet, VPC string
}

// Findings are what was found out about a role. Problems have their cures.
type Findings struct {
	Problems, Notes []string
	// PodIdentity says that the pods of the service account have the role by EKS Pod Identity.
	PodIdentity bool
}

func (f *Findings) problem(format string, args ...any) {
	f.Problems = append(f.Problems, fmt.Sprintf(format, args...))
}

func (f *Findings) note(format string, args ...any) {
	f.Notes = append(f.Notes, fmt.Sprintf(format, args...))
}

// RoleARN is the form of a role's ARN.
var RoleARN = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/([\w+=,.@-]+/)*[\w+=,.@-]+$`)

func (r Role) name() string { return r.ARN[strings.LastIndex(r.ARN, "/")+1:] }

func (r Role) subject() string { return "system:serviceaccount:" + r.Namespace + ":" + r.Account }

// CheckRole compares a role with what Kip needs: who may assume it, and what it may do. What the caller may not ask is a note, not a
// problem.
func (a *Account) CheckRole(ctx context.Context, c Cluster, r Role) (f Findings, err error) {
	if account := strings.Split(r.ARN, ":")[4]; account != a.ID {
		f.note("not checked: the role %s is in account %s, and your credentials are for %s", r.ARN, account, a.ID)
		return f, nil
	}
	by, err := a.podIdentity(ctx, c, r, &f)
	if f.PodIdentity = by != nil; err != nil || len(f.Problems) > 0 {
		return f, err
	}
	there, err := a.checkTrust(ctx, c, r, by, &f)
	if err != nil {
		return f, err
	}
	if !f.PodIdentity {
		if err := a.checkProvider(ctx, c, &f); err != nil {
			return f, err
		}
	}
	if r.SkipRights || !there { // a role that is not there has no rights to check
		return f, nil
	}
	return f, a.checkRights(ctx, r, &f)
}

// checkTrust says why the pods of the service account may not have the role, and whether it is there.
func (a *Account) checkTrust(ctx context.Context, c Cluster, r Role, by *association, f *Findings) (there bool, err error) {
	t := a.tokenTrust(c, r)
	if by != nil {
		t = a.podTrust(c, r, by)
		if by.narrowed {
			f.note("not checked: the policy of the EKS Pod Identity association %s, which narrows what role %s may do", by.id, r.name())
		}
		if by.target != "" {
			f.note("not checked: whether role %s, which EKS assumes for the association %s, may assume the target role %s, and %s trusts it",
				by.role, by.id, r.name(), r.name())
			r.ARN = by.role
		}
	}
	out, err := a.iam.GetRole(ctx, &iam.GetRoleInput{RoleName: aws.String(r.name())})
	switch {
	case codeOf(err) == "NoSuchEntity" && by != nil && by.target != "":
		f.problem("the role %s of the EKS Pod Identity association %s is gone, which assumed the target role: make another association: %s",
			r.name(), by.id, a.deleteAssociation(c, by))
		return false, nil
	case codeOf(err) == "NoSuchEntity":
		f.problem("%s", a.noRole(r, t.statement))
		return false, nil
	case refused(err):
		f.note("not checked: the role's trust policy, since you have no right to iam:GetRole")
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get the role %s: %w", r.name(), explain(err, a.Region))
	}
	checkTrusted(r, t, aws.ToString(out.Role.AssumeRolePolicyDocument), f)
	return true, nil
}

// provider is the identity provider of the cluster in IAM.
func (a *Account) provider(c Cluster) string { return a.arn("iam", "", "oidc-provider/"+c.Issuer) }

// granting is a statement of a policy document, in the order in which people read it.
type granting struct {
	Effect    string
	Action    any
	Resource  any `json:",omitempty"`
	Condition map[string]map[string][]string
}

// with returns a policy document that has a statement more, as one word of a shell. All else in the document stays as it is, since
// update-assume-role-policy replaces the whole document. An empty document is a new one.
func with(document string, more any) (string, error) {
	doc := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(cmp.Or(document, `{"Version": "2012-10-17"}`)), &doc); err != nil {
		return "", err
	}
	var statements []json.RawMessage
	if one := bytes.TrimSpace(doc["Statement"]); bytes.HasPrefix(one, []byte("{")) {
		statements = []json.RawMessage{one}
	} else if len(one) > 0 {
		if err := json.Unmarshal(one, &statements); err != nil {
			return "", err
		}
	}
	add, err := json.Marshal(more)
	if err != nil {
		return "", err
	}
	if doc["Statement"], err = json.Marshal(append(statements, add)); err != nil {
		return "", err
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	if err := out.Encode(doc); err != nil {
		return "", err
	}
	return "'" + strings.ReplaceAll(strings.TrimSpace(text.String()), "'", `'\''`) + "'", nil
}

// noRole is the problem of a role that is not there, with the commands that make it. trust is the statement of its trust policy.
func (a *Account) noRole(r Role, trust json.RawMessage) string {
	document, err := with("", trust)
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("the account %s has no role %s: make it, and give it Kip's policy:\n"+
		"aws iam create-role --role-name %s --assume-role-policy-document %s\n"+
		"kipctl eks policy > kip.json && aws iam put-role-policy --role-name %s --policy-name kip --policy-document file://kip.json",
		a.ID, r.name(), r.name(), document, r.name())
	if r.Passes != "" {
		if command, err := r.passCommand(); err == nil {
			text += "\n" + command
		}
	}
	return text
}

// passCommand is the command that lets the role pass the one role that it passes.
func (r Role) passCommand() (string, error) {
	right := passRight(r.Passes)
	document, err := with("", granting{Effect: "Allow", Action: right.Actions, Resource: right.Resources, Condition: right.Conditions})
	return fmt.Sprintf("aws iam put-role-policy --role-name %s --policy-name kip-passes-roles --policy-document %s", r.name(), document), err
}

// passRight is Kip's right to pass roles, of one role alone.
func passRight(role string) kipaws.Right {
	for _, right := range kipaws.FeatureRights() {
		if right.Sid == passes {
			right.Resources = []string{role}
			return right
		}
	}
	panic("the permissions of Kip have no statement " + passes)
}

// trust is by whom a role is to be assumed.
type trust struct {
	// by is a principal, and principals are those of its kind that a statement is about.
	by         string
	principals func(*statement) list
	actions    []string
	// about is the context of these calls, by condition key.
	about map[string][]string
	// statement lets it assume the role.
	statement json.RawMessage
	// denied is whom a statement is about that denies it, and lacks what the role does not do that trusts the named principals alone.
	denied string
	lacks  func(named []string) string
}

// tokenTrust is how Kip's service account assumes a role by its token.
func (a *Account) tokenTrust(c Cluster, r Role) trust {
	provider, account := a.provider(c), fmt.Sprintf("service account %s/%s of cluster %s", r.Namespace, r.Account, c.Name)
	return trust{
		by:         provider,
		principals: (*statement).federated,
		actions:    []string{"sts:AssumeRoleWithWebIdentity"},
		about:      map[string][]string{c.Issuer + ":sub": {r.subject()}, c.Issuer + ":aud": {"sts.amazonaws.com"}},
		statement:  json.RawMessage(wellknown.TrustStatement(provider, c.Issuer, r.subject())),
		denied:     account,
		lacks: func(named []string) string {
			why := "its condition on " + c.Issuer + ":sub does not allow " + r.subject()
			switch {
			case len(named) == 0:
				why = "it trusts no identity provider"
			case !slices.Contains(named, provider):
				why = "it trusts " + strings.Join(named, ", ") + ", and the provider of this cluster is " + provider
			}
			return "does not trust " + account + ": " + why
		},
	}
}

// checkTrusted says why a role may not be assumed, by its trust policy.
func checkTrusted(r Role, t trust, encoded string, f *Findings) {
	text, err := url.QueryUnescape(encoded)
	document := &policy{}
	if err == nil {
		document, err = parsePolicy([]byte(text))
	}
	if err != nil {
		f.problem("the trust policy of role %s: %v", r.name(), err)
		return
	}
	var named []string
	for i := range document.statements {
		s := &document.statements[i]
		s.Resource = t.principals(s)
		named = append(named, s.Resource...)
	}
	worst := allowed
	for _, action := range t.actions {
		switch v := judge([]*policy{document}, action, t.by, t.about); {
		case v == denied, v == unallowed && worst != denied, v == unsure && worst == allowed:
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
		f.problem("a Deny statement in the trust policy of role %s is about %s: change that statement, or use another role", r.name(), t.denied)
		return
	}
	more, err := with(text, t.statement)
	if err != nil {
		f.problem("the trust policy of role %s: %v", r.name(), err)
		return
	}
	f.problem("the role %s %s. Add a statement; the others stay:\naws iam update-assume-role-policy --role-name %s --policy-document %s", r.name(),
		t.lacks(named), r.name(), more)
}

// checkProvider says that IAM does not know who issues the cluster's tokens.
func (a *Account) checkProvider(ctx context.Context, c Cluster, f *Findings) error {
	_, err := a.iam.GetOpenIDConnectProvider(ctx, &iam.GetOpenIDConnectProviderInput{OpenIDConnectProviderArn: aws.String(a.provider(c))})
	switch {
	case codeOf(err) == "NoSuchEntity":
		f.problem("IAM has no identity provider for cluster %s, so no service account of it can have a role: "+
			"%s", c.Name, wellknown.AssociateProvider(a.Region, c.Name))
	case refused(err):
		f.note("not checked: the cluster's identity provider in IAM, since you have no right to iam:GetOpenIDConnectProvider")
	case err != nil:
		return fmt.Errorf("get the identity provider of cluster %s: %w", c.Name, explain(err, a.Region))
	}
	return nil
}

// probe is one call that Kip makes, as IAM sees it.
type probe struct {
	sid, action, resource string
	optional              bool
	about                 map[string][]string
}

// probes are the calls of rights, each on one resource of each kind.
func (r Role) probes(rights []kipaws.Right, partition, region, account string) (all []probe) {
	ids := map[string]string{"subnet/*": r.Subnet, "vpc/*": r.VPC, "instance/*": "i-0123456789abcdef0"}
	concrete := func(pattern string) string {
		parts := strings.SplitN(pattern, ":", 6)
		if len(parts) < 6 {
			return pattern
		}
		for n, own := range map[int]string{1: partition, 3: region, 4: account} {
			if parts[n] == "*" {
				parts[n] = own
			}
		}
		if kind := parts[5]; ids[kind] != "" {
			parts[5] = strings.TrimSuffix(kind, "*") + ids[kind]
		} else {
			parts[5] = strings.ReplaceAll(kind, "*", "0123456789abcdef0")
		}
		return strings.Join(parts, ":")
	}
	for _, right := range rights {
		for _, action := range right.Actions {
			if strings.HasSuffix(action, "*") {
				continue // of KMS alone, whose keys are the account's own matter
			}
			for _, pattern := range right.Resources {
				all = append(all, probe{right.Sid, action, concrete(pattern), right.Optional, contextOf(right.Conditions, region)})
			}
		}
	}
	return all
}

// contextOf is the context of a call that meets conditions.
func contextOf(conditions map[string]map[string][]string, region string) map[string][]string {
	about := map[string][]string{"aws:RequestedRegion": {region}}
	for _, operator := range slices.Sorted(maps.Keys(conditions)) {
		for key, want := range conditions[operator] {
			switch {
			case operator == "Null": // such a key is absent
			case strings.Contains(operator, "Not"):
				about[key] = append(about[key], "Name")
			case slices.Equal(want, []string{"*"}):
				about[key] = []string{anyValue}
			case strings.HasPrefix(operator, "ForanyValue:"):
				about[key] = append(about[key], want...)
			default:
				about[key] = want[:1]
			}
		}
	}
	return about
}

// passes is the statement by which Kip passes the roles of cells.
const passes = "KipPassesRoles"

// checkRights says what the role lacks, by IAM's own simulation, else by its policies.
func (a *Account) checkRights(ctx context.Context, r Role, f *Findings) error {
	rights := kipaws.CoreRights()
	if r.Passes != "" {
		rights = append(rights, passRight(r.Passes))
	}
	probes := r.probes(rights, a.partition, a.Region, a.ID)
	judged, err := a.simulated(ctx, r, probes)
	if refused(err) {
		judged, err = a.read(ctx, r)
	}
	switch {
	case refused(err):
		f.note("not checked: what role %s may do, since you have neither the right to iam:SimulatePrincipalPolicy nor to read its policies",
			r.name())
		return nil
	case errors.Is(err, errDocument):
		f.problem("%v", err)
		return nil
	case err != nil:
		return fmt.Errorf("check what role %s may do: %w", r.name(), explain(err, a.Region))
	}
	lacking, unneeded, unknown := compare(probes, judged)
	if lacking[passes] != nil {
		delete(lacking, passes)
		command, err := r.passCommand()
		if err != nil {
			return err
		}
		f.problem("the role %s may not pass %s, the role of instance profile %s, to cells. Let it pass this one role:\n%s", r.name(), r.Passes,
			r.Profile, command)
	}
	if len(lacking) > 0 {
		f.problem("the role %s lacks rights that Kip needs:\n%s\nGive it Kip's policy (docs/aws-permissions.md): "+
			"kipctl eks policy > kip.json && aws iam put-role-policy --role-name %s --policy-name kip --policy-document file://kip.json. "+
			"If the policy is narrower on purpose, leave this check out: --skip-rights",
			r.name(), Listed(lacking), r.name())
	}
	if len(unneeded) > 0 {
		f.note("the role %s lacks rights that Kip can do without (docs/aws-permissions.md says what then happens):\n%s", r.name(),
			Listed(unneeded))
	}
	if len(unknown) > 0 {
		f.note("not checked: conditions of the role's policies that only AWS can judge, of what %s allow", strings.Join(unknown, ", "))
	}
	return nil
}

// compare returns the actions that are not allowed, by statement: those that Kip needs, and those that it can do without; and the
// statements that depend on conditions which nobody here can judge.
func compare(probes []probe, judged func(probe) verdict) (needed, optional map[string][]string, unknown []string) {
	needed, optional = map[string][]string{}, map[string][]string{}
	for _, p := range probes {
		list, what := needed, p.action
		if p.optional {
			list = optional
		}
		switch judged(p) {
		case allowed:
			continue
		case unsure:
			if !slices.Contains(unknown, p.sid) {
				unknown = append(unknown, p.sid)
			}
			continue
		case denied:
			what += " (denied)"
		}
		if !slices.Contains(list[p.sid], what) {
			list[p.sid] = append(list[p.sid], what)
		}
	}
	return needed, optional, unknown
}

// Listed has a line for each statement.
func Listed(bySid map[string][]string) string {
	var lines []string
	for _, sid := range slices.Sorted(maps.Keys(bySid)) {
		lines = append(lines, "  "+sid+": "+strings.Join(bySid[sid], ", "))
	}
	return strings.Join(lines, "\n")
}

// simulated asks IAM. It judges permission boundaries and the organization's policies, too. One call is about one statement's actions
// on one resource, so that the decision is that resource's. Source: IAM API reference, "SimulatePrincipalPolicy", ResourceArns,
// EvalDecision.
func (a *Account) simulated(ctx context.Context, r Role, probes []probe) (func(probe) verdict, error) {
	type key struct{ sid, action, resource string }
	found := map[key]verdict{}
	for i := 0; i < len(probes); i++ {
		p := probes[i]
		if _, done := found[key{p.sid, p.action, p.resource}]; done {
			continue
		}
		in := &iam.SimulatePrincipalPolicyInput{PolicySourceArn: aws.String(r.ARN), ResourceArns: []string{p.resource}}
		for _, other := range probes {
			if other.sid == p.sid && other.resource == p.resource {
				in.ActionNames = append(in.ActionNames, other.action)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.about)) {
			entry := types.ContextEntry{ContextKeyName: aws.String(name), ContextKeyType: types.ContextKeyTypeEnumString}
			for _, v := range p.about[name] {
				if v == anyValue {
					if v = r.Owner; v == "" {
						v = "kip"
					}
				}
				entry.ContextKeyValues = append(entry.ContextKeyValues, v)
			}
			if name == "aws:TagKeys" {
				entry.ContextKeyType = types.ContextKeyTypeEnumStringList
			}
			in.ContextEntries = append(in.ContextEntries, entry)
		}
		pages := iam.NewSimulatePrincipalPolicyPaginator(a.iam, in)
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, err
			}
			for _, result := range page.EvaluationResults {
				v := unallowed
				switch result.EvalDecision {
				case types.PolicyEvaluationDecisionTypeAllowed:
					v = allowed
				case types.PolicyEvaluationDecisionTypeExplicitDeny:
					v = denied
				}
				found[key{p.sid, aws.ToString(result.EvalActionName), p.resource}] = v
			}
		}
	}
	return func(p probe) verdict {
		v, ok := found[key{p.sid, p.action, p.resource}]
		if !ok {
			return unsure
		}
		return v
	}, nil
}

// errDocument says that a policy of the role is no JSON.
var errDocument = errors.New("read the policies of the role")

// read judges by the role's own policies. It does not see a permission boundary, nor the organization's policies.
func (a *Account) read(ctx context.Context, r Role) (func(probe) verdict, error) {
	var policies []*policy
	add := func(name, encoded string) error {
		text, err := url.QueryUnescape(encoded)
		var p *policy
		if err == nil {
			p, err = parsePolicy([]byte(text))
		}
		if err != nil {
			return fmt.Errorf("%w: %s of %s: %w", errDocument, name, r.name(), err)
		}
		policies = append(policies, p)
		return nil
	}
	role := aws.String(r.name())
	inline := iam.NewListRolePoliciesPaginator(a.iam, &iam.ListRolePoliciesInput{RoleName: role})
	for inline.HasMorePages() {
		page, err := inline.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range page.PolicyNames {
			out, err := a.iam.GetRolePolicy(ctx, &iam.GetRolePolicyInput{RoleName: role, PolicyName: aws.String(name)})
			if err != nil {
				return nil, err
			}
			if err := add(name, aws.ToString(out.PolicyDocument)); err != nil {
				return nil, err
			}
		}
	}
	attached := iam.NewListAttachedRolePoliciesPaginator(a.iam, &iam.ListAttachedRolePoliciesInput{RoleName: role})
	for attached.HasMorePages() {
		page, err := attached.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range page.AttachedPolicies {
			managed, err := a.iam.GetPolicy(ctx, &iam.GetPolicyInput{PolicyArn: p.PolicyArn})
			if err != nil {
				return nil, err
			}
			out, err := a.iam.GetPolicyVersion(ctx, &iam.GetPolicyVersionInput{PolicyArn: p.PolicyArn, VersionId: managed.Policy.DefaultVersionId})
			if err != nil {
				return nil, err
			}
			if err := add(aws.ToString(p.PolicyName), aws.ToString(out.PolicyVersion.Document)); err != nil {
				return nil, err
			}
		}
	}
	return func(p probe) verdict { return judge(policies, p.action, p.resource, p.about) }, nil
}

// Lacks says which of Kip's core rights a policy document does not give, by statement; those that Kip can do without apart.
func Lacks(text []byte) (needed, optional map[string][]string, err error) {
	document, err := parsePolicy(text)
	if err != nil {
		return nil, nil, err
	}
	needed, optional, _ = compare((Role{}).probes(kipaws.CoreRights(), "aws", "us-east-1", "123456789012"), func(p probe) verdict {
		return judge([]*policy{document}, p.action, p.resource, p.about)
	})
	return needed, optional, nil
}

// CheckProfile returns the ARN of an instance profile's role, "" if it does not learn it. It finds a problem if there is no such profile.
func (a *Account) CheckProfile(ctx context.Context, arn string, f *Findings) (role string, err error) {
	if parts := strings.Split(arn, ":"); len(parts) == 6 && parts[4] != a.ID {
		f.problem("the instance profile %s is of account %s: want one of %s, in which cells are launched", arn, parts[4], a.ID)
		return "", nil
	}
	name := arn[strings.LastIndex(arn, "/")+1:]
	out, err := a.iam.GetInstanceProfile(ctx, &iam.GetInstanceProfileInput{InstanceProfileName: aws.String(name)})
	switch {
	case codeOf(err) == "NoSuchEntity":
		f.problem("the account %s has no instance profile %s: want the ARN of one (aws iam list-instance-profiles)", a.ID, name)
	case refused(err):
		f.note("not checked: the instance profile %s, and whether Kip may pass its role, since you have no right to iam:GetInstanceProfile", name)
	case err != nil:
		return "", fmt.Errorf("get the instance profile %s: %w", name, explain(err, a.Region))
	case len(out.InstanceProfile.Roles) == 0:
		f.problem("the instance profile %s has no role: aws iam add-role-to-instance-profile --instance-profile-name %s --role-name ROLE",
			name, name)
	default:
		return aws.ToString(out.InstanceProfile.Roles[0].Arn), nil // IAM takes one role in each
	}
	return "", nil
}
