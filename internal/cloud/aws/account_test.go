package aws

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/smithy-go"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/finding"
)

// toExamine is an account that lacks nothing, as it is configured, and its model.
type toExamine struct {
	model  ec2.Config
	cfg    Config
	wanted Wanted
	now    time.Time
}

func examined(t *testing.T, change func(*toExamine)) []finding.Finding {
	t.Helper()
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	policy, err := ec2.ParsePolicy(Policy())
	if err != nil {
		t.Fatal(err)
	}
	a := &toExamine{model: anAccount(sim.Knobs{}), wanted: Wanted{InstanceType: "t3.small", SecurityGroups: []string{"sg-1"}}}
	a.now = time.Date(2026, 2, 10, 0, 0, 0, 0, time.UTC)
	a.model.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
	a.model.Quotas = map[string]float64{"L-1216C47A": 64, "L-34B43A08": 64}
	for n := range a.model.Images {
		a.model.Images[n].Architecture = "x86_64"
	}
	arm := a.model.Images[1]
	arm.ID, arm.Name, arm.Architecture = "ami-arm", "kip-cell-2-arm64", "arm64"
	a.model.Images = append(a.model.Images, arm)
	a.cfg = settings("")
	a.cfg.Image = map[string]string{"name": "kip-cell-*"}
	change(a)
	model, url := serve(t, a.model)
	if a.cfg.Endpoint == "" {
		a.cfg.Endpoint = url
	}
	a.cfg.Clock = clocktesting.NewFakeClock(a.now)
	var all []finding.Finding
	failed := map[string]bool{}
	for _, c := range Checks(t.Context(), a.cfg, a.wanted) {
		if failed[c.Needs] {
			failed[c.Name] = true
			continue
		}
		for _, f := range c.Run(t.Context()) {
			failed[c.Name] = failed[c.Name] || f.Outcome == finding.Failed || f.Outcome == finding.NotChecked
			if f.Outcome == finding.Failed && f.Cure == "" {
				t.Errorf("without a command that fixes it: %+v", f)
			}
			f.Message = c.Name + ": " + f.Message
			all = append(all, f)
		}
	}
	if n := len(model.Machines().Truth()) + len(model.Volumes.All()); n > 0 {
		t.Errorf("%d instances and volumes were made", n)
	}
	model.Change(func(cfg *ec2.Config) {
		if len(cfg.Groups) != len(a.model.Groups) {
			t.Errorf("a group was made: %v", cfg.Groups)
		}
	})
	return all
}

// Kip's own policy is all that the checks need.
func TestAnAccountThatLacksNothingPassesWithKipsOwnRights(t *testing.T) {
	all := examined(t, func(*toExamine) {})
	for _, f := range all {
		if f.Outcome != finding.OK && !strings.HasPrefix(f.Message, "rights to launch: what Kip may do to cells and disks") {
			t.Errorf("%+v", f)
		}
	}
	for _, want := range []string{
		"asked as arn:aws:iam::123456789012:user/kip", "ami-2 for amd64", "ami-arm for arm64", "may ec2:RunInstances", "ec2:DescribeVpcs", "of 64 on-demand vCPUs of the family standard 64 are free",
	} {
		if !slices.ContainsFunc(all, func(f finding.Finding) bool { return strings.Contains(f.Message, want) }) {
			t.Errorf("%q is not in %+v", want, all)
		}
	}
}

// EKS Pod Identity tells a pod where it gets credentials for the token of its service account.
func TestKipMayHaveItsRoleByPodIdentity(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "the token" || r.URL.Path != "/v1/credentials" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte(`{"AccessKeyId": "AKIATESTS", "SecretAccessKey": "secret", "Expiration": "2099-01-01T00:00:00Z"}`))
	}))
	t.Cleanup(agent.Close)
	token := filepath.Join(t.TempDir(), "eks-pod-identity-token")
	if err := os.WriteFile(token, []byte("the token"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL+"/v1/credentials")
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)
	for _, f := range examined(t, func(a *toExamine) { a.cfg.AccessKeyID, a.cfg.SecretAccessKey = "", "" }) {
		if f.Outcome == finding.Failed {
			t.Errorf("%+v", f)
		}
	}
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials")
	f := noCredentials("us-east-1", fmt.Errorf("%w: failed to load credentials: connection refused", errNoCredentials))
	if f.Outcome != finding.Failed || !strings.Contains(f.Message, "the EKS Pod Identity agent") ||
		!strings.Contains(f.Cure, `"Service": "pods.eks.amazonaws.com"`) || !strings.Contains(f.Cure, "aws eks create-addon --region us-east-1") {
		t.Errorf("%+v", f)
	}
}

// refuses is an API whose every call is refused with a code.
func refuses(t *testing.T, code string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("<ErrorResponse><Error><Code>" + code + "</Code><Message>no</Message></Error></ErrorResponse>"))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestWhatAnAccountLacksIsFound(t *testing.T) {
	without := func(statement string) func(*toExamine) {
		return func(a *toExamine) {
			some := slices.DeleteFunc(slices.Clone(permissions), func(p permission) bool { return p.sid == statement })
			policy, err := ec2.ParsePolicy(policyOf(some).text())
			if err != nil {
				t.Fatal(err)
			}
			a.model.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
		}
	}
	for what, tc := range map[string]struct {
		change  func(*toExamine)
		outcome finding.Outcome
		says    string
		cure    string
	}{
		"expired":         {func(a *toExamine) { a.cfg.Endpoint = refuses(t, "ExpiredToken") }, finding.Failed, "credentials: your AWS session has expired", "aws sso login"},
		"unknown key":     {func(a *toExamine) { a.cfg.AccessKeyID = "AKIAOTHER" }, finding.Failed, "credentials: AWS does not know the access key", "aws configure"},
		"no credentials":  {func(a *toExamine) { a.cfg.AccessKeyID = "" }, finding.Failed, "credentials: find credentials", "aws configure"},
		"no such region":  {func(a *toExamine) { a.cfg.Endpoint = "http://127.0.0.1:1" }, finding.Failed, `credentials: STS of the region "us-east-1" does not answer`, "describe-regions"},
		"no subnet":       {func(a *toExamine) { a.cfg.Subnets = []string{"subnet-x"} }, finding.Failed, `subnets: find the subnets of the cells: refused by the cloud: cloud.aws.subnetID is "subnet-x"`, "describe-subnets"},
		"no default VPC":  {func(a *toExamine) { a.cfg.VPC, a.model.Subnets = "", a.model.Subnets[1:] }, finding.Failed, "a default VPC", "describe-subnets"},
		"no addresses":    {func(a *toExamine) { a.model.Subnets[2].Bits = 32 }, finding.Failed, "addresses: subnet subnet-b1 in us-east-1b has", "create-subnet --vpc-id vpc-1 --availability-zone us-east-1b"},
		"few addresses":   {func(a *toExamine) { a.model.Subnets[2].Bits = 28 }, finding.Warning, "addresses: subnet subnet-b1", "create-subnet"},
		"no public IP":    {func(a *toExamine) { a.model.Subnets[1].MapPublic = false }, finding.Warning, "subnets: subnet subnet-a2", "modify-subnet-attribute --subnet-id subnet-a2"},
		"no group":        {func(a *toExamine) { a.wanted.SecurityGroups = []string{"sg-9"} }, finding.Failed, `security groups: cells.extraSecurityGroups`, "describe-security-groups"},
		"no such type":    {func(a *toExamine) { a.wanted.InstanceType = "t9.huge" }, finding.Failed, `instance type: cells.defaultInstanceType: EC2 has no type "t9.huge"`, "describe-instance-type-offerings"},
		"no image":        {func(a *toExamine) { a.model.Images = nil }, finding.Failed, "image: no image for", "kipctl image publish --region us-east-1 --arch amd64"},
		"another's image": {func(a *toExamine) { a.wanted.InstanceType, a.model.Images = "c7g.large", a.model.Images[:4] }, finding.Failed, "image: no image for arm64, which cells.defaultInstanceType c7g.large has", "--arch arm64"},
		"only one image":  {func(a *toExamine) { a.model.Images = a.model.Images[:4] }, finding.Warning, "image: no image for arm64", "--arch arm64"},
		"old image":       {func(a *toExamine) { a.now = a.now.AddDate(0, 6, 0) }, finding.Warning, "image: image ami-2 for amd64 is 190 days old", "kipctl image publish"},
		"deprecated": {func(a *toExamine) {
			a.model.Images[0].Deprecated, a.model.Images[1].Deprecated = "2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z"
		}, finding.Warning, "is deprecated since", "kipctl image publish"},
		"no quota":        {func(a *toExamine) { a.model.Quotas["L-1216C47A"] = 0 }, finding.Failed, "quotas: of 0 on-demand vCPUs", "--quota-code L-1216C47A --desired-value 64"},
		"few spot":        {func(a *toExamine) { a.model.Quotas["L-34B43A08"] = 4 }, finding.Warning, "of 4 spot vCPUs", "--quota-code L-34B43A08"},
		"unread quotas":   {without("KipReadsQuotas"), finding.NotChecked, "quotas: the quotas of vCPUs", ""},
		"may not launch":  {without("KipLaunches"), finding.Failed, "may not dry-run ec2:RunInstances", "attach-user-policy --user-name kip --policy-arn arn:aws:iam::123456789012:policy/kip"},
		"nor make groups": {without("KipMakesAGroup"), finding.Failed, "may not dry-run ec2:CreateSecurityGroup", "docs/aws-permissions.md"},
		"nor disks":       {without("KipMakesDisks"), finding.Failed, "may not dry-run ec2:CreateVolume", "docs/aws-permissions.md"},
		"no GPU's type":   {func(a *toExamine) { a.wanted.DryRun = []string{"g9.huge"} }, finding.Failed, "dry run: EC2 offers none of g9.huge in a zone of the cells' subnets", "Name=instance-type,Values=g9.huge"},
		"nor in a zone": {func(a *toExamine) {
			a.wanted.DryRun, a.cfg.Subnets = []string{"g5.xlarge"}, []string{privateSubnet}
			gpu := &a.model.Sim.Catalogue[3]
			gpu.Offerings = slices.DeleteFunc(gpu.Offerings, func(o catalog.PurchaseOption) bool { return o.Subnet == privateSubnet })
		}, finding.Failed, "dry run: EC2 offers none of g5.xlarge in a zone of the cells' subnets subnet-b1", "describe-instance-type-offerings"},
		"nor for its image": {func(a *toExamine) { a.wanted.DryRun, a.model.Images = []string{"c7g.large"}, a.model.Images[:4] }, finding.NotChecked, "dry run: a launch of c7g.large: there is no image for arm64", ""},
		"nor to dry-run it": {func(a *toExamine) { a.wanted.DryRun = []string{"g5.xlarge"}; without("KipLaunches")(a) }, finding.Failed, "dry run: arn:aws:iam::123456789012:user/kip may not dry-run ec2:RunInstances of g5.xlarge", "attach-user-policy"},
		"a dry run":         {func(a *toExamine) { a.wanted.DryRun = []string{"g9.huge", "g5.xlarge"} }, finding.OK, "dry run: EC2 would launch a g5.xlarge in us-east-1a", ""},
		"nor read":          {without("KipReads"), finding.Failed, "rights to read: arn:aws:iam::123456789012:user/kip may not dry-run ec2:DescribeVolumes", "docs/aws-permissions.md"},
	} {
		t.Run(what, func(t *testing.T) {
			all := examined(t, tc.change)
			if !slices.ContainsFunc(all, func(f finding.Finding) bool {
				return f.Outcome == tc.outcome && strings.Contains(f.Message, tc.says) && strings.Contains(f.Cure, tc.cure)
			}) {
				t.Errorf("want %s: %q, fixed by %q\nof %+v", tc.outcome, tc.says, tc.cure, all)
			}
		})
	}
}

// The keys in provider.yaml are Kip's own, whatever their user is called.
func TestWhoHasTheKeysOfProviderYAMLIsKip(t *testing.T) {
	for what, tc := range map[string]struct {
		ambient bool
		want    finding.Outcome
	}{"in provider.yaml": {false, finding.Failed}, "in the environment": {true, finding.NotChecked}} {
		all := examined(t, func(a *toExamine) {
			some := slices.DeleteFunc(slices.Clone(permissions), func(p permission) bool { return p.sid == "KipLaunches" })
			policy, err := ec2.ParsePolicy(policyOf(some).text())
			if err != nil {
				t.Fatal(err)
			}
			a.model.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
			if tc.ambient {
				t.Setenv("AWS_ACCESS_KEY_ID", a.cfg.AccessKeyID)
				t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
				a.cfg.AccessKeyID, a.cfg.SecretAccessKey = "", ""
			}
		})
		if !slices.ContainsFunc(all, func(f finding.Finding) bool {
			return f.Outcome == tc.want && strings.Contains(f.Message, "may not dry-run ec2:RunInstances")
		}) {
			t.Errorf("%s: want %s of %+v", what, tc.want, all)
		}
	}
}

func TestTheCommandThatGivesRightsNamesWhoLacksThem(t *testing.T) {
	for arn, want := range map[string]string{
		"arn:aws:sts::123456789012:assumed-role/kip/session": "attach-role-policy --role-name kip --policy-arn arn:aws:iam::123456789012:policy/kip",
		"arn:aws-cn:iam::123456789012:user/ops/jane":         "attach-user-policy --user-name jane --policy-arn arn:aws-cn:iam::123456789012:policy/kip",
		"": "attach-role-policy --role-name ROLE --policy-arn arn:aws:iam::ACCOUNT:policy/kip",
	} {
		if got := (&accountChecks{arn: arn}).grant(); !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", arn, got, want)
		}
	}
}

func TestARoleThatDoesNotTrustTheServiceAccountIsNamed(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"https://oidc.example.org/id/A1","sub":"system:serviceaccount:kip-system:kip"}`))
	if err := os.WriteFile(token, []byte("e30."+claims+".x"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/kip")
	all := examined(t, func(a *toExamine) { a.cfg.AccessKeyID, a.cfg.Endpoint = "", refuses(t, "AccessDenied") })
	if len(all) != 1 || !strings.Contains(all[0].Message, "the trust policy of role arn:aws:iam::123456789012:role/kip") ||
		!strings.HasPrefix(all[0].Cure, "aws iam get-role --role-name kip ") || strings.Contains(all[0].Cure, "update-assume-role-policy") {
		t.Fatalf("%+v", all)
	}
	for _, want := range []string{
		"add this statement", `"arn:aws:iam::123456789012:oidc-provider/oidc.example.org/id/A1"`,
		`"oidc.example.org/id/A1:sub": "system:serviceaccount:kip-system:kip"`,
	} {
		if !strings.Contains(all[0].Cure, want) {
			t.Errorf("%s\nlacks %s", all[0].Cure, want)
		}
	}
}

// Who is not Kip is told neither that Kip lacks a right nor to give himself one.
func TestWhatOthersThanKipMayNotDoIsNotChecked(t *testing.T) {
	const role, ask = "arn:aws:iam::123456789012:role/machines/kip", "kubectl exec"
	const user = "arn:aws:iam::123456789012:user/ops/kip"
	for what, tc := range map[string]struct {
		arn string
		kip finding.Kip
		is  bool
	}{
		"a user":                {"arn:aws:iam::123456789012:user/jane", finding.Kip{Ask: ask}, false},
		"a user's name":         {"arn:aws:iam::123456789012:user/ops/kip-prod", finding.Kip{Ask: ask}, false},
		"a role's name":         {"arn:aws:sts::123456789012:assumed-role/kip-admin/jane", finding.Kip{Ask: ask}, false},
		"Kip's user":            {user, finding.Kip{Role: user}, true},
		"that of another path":  {"arn:aws:iam::123456789012:user/kip", finding.Kip{Role: user}, false},
		"another partition's":   {"arn:aws-cn:sts::123456789012:assumed-role/kip/session", finding.Kip{Role: role}, false},
		"Kip's user as a role":  {"arn:aws:sts::123456789012:assumed-role/kip/session", finding.Kip{Role: user}, false},
		"a role":                {"arn:aws:sts::123456789012:assumed-role/admin/kip", finding.Kip{Ask: ask}, false},
		"Kip's role":            {"arn:aws:sts::123456789012:assumed-role/kip/session", finding.Kip{Role: role}, true},
		"another account's":     {"arn:aws:sts::210987654321:assumed-role/kip/session", finding.Kip{Role: role}, false},
		"a user beside a role":  {"arn:aws:iam::123456789012:user/kip", finding.Kip{Role: role}, false},
		"the root":              {"arn:aws:iam::123456789012:root", finding.Kip{}, false},
		"whoever is in the pod": {"arn:aws:sts::123456789012:assumed-role/nodes/i-1", finding.Kip{Inside: true}, true},
	} {
		a := &accountChecks{arn: tc.arn, wanted: Wanted{Kip: tc.kip}}
		f := a.unanswered("look", &smithy.OperationError{ServiceID: "EC2", Err: &smithy.GenericAPIError{Code: unauthorized}})
		switch {
		case tc.is && (f.Outcome != finding.Failed || !strings.Contains(f.Cure, "attach-")):
			t.Errorf("%s is Kip: %+v", what, f)
		case !tc.is && (f.Outcome != finding.NotChecked || f.Cure != tc.kip.Ask || !strings.Contains(f.Message, "you are "+tc.arn)):
			t.Errorf("%s is not Kip: %+v", what, f)
		}
	}
}

// A policy that is narrowed to one Kip's cells passes.
func TestDryRunsHaveTheTagsOfTheKipThatIsThere(t *testing.T) {
	narrow := regexp.MustCompile(`("aws:Re[a-z]+Tag/`+cloud.TagOwner+`": \[?\s*)"\*"`).ReplaceAllString(string(Policy()), `$1"id"`)
	for owner, want := range map[string]finding.Outcome{"id": finding.OK, "": finding.Failed} {
		all := examined(t, func(a *toExamine) {
			policy, err := ec2.ParsePolicy([]byte(narrow))
			if err != nil {
				t.Fatal(err)
			}
			a.model.Policies, a.wanted.Kip.Owner = map[string]*ec2.Policy{"AKIATESTS": policy}, owner
		})
		if !slices.ContainsFunc(all, func(f finding.Finding) bool {
			return f.Outcome == want && strings.HasPrefix(f.Message, "rights to launch: ") && strings.Contains(f.Message, "ec2:RunInstances")
		}) {
			t.Errorf("owner %q: want %s of %+v", owner, want, all)
		}
	}
}
