package aws

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/finding"
)

func TestWhatAnAPIWithoutDryRunsLaunchesIsEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		status int // of the answer to the end
		says   string
	}{
		"it ends":             {http.StatusOK, "it launched i-1, which are being ended"},
		"it may not be ended": {http.StatusBadRequest, "it launched i-1, and does not end them: "},
	} {
		var ended []string
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch action := r.FormValue("Action"); action {
			case "RunInstances":
				fmt.Fprint(w, `<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></RunInstancesResponse>`)
			case "TerminateInstances":
				ended = append(ended, r.FormValue("InstanceId.1"))
				w.WriteHeader(tc.status)
				fmt.Fprint(w, `<Response><Errors><Error><Code>UnsupportedOperation</Code></Error></Errors></Response>`)
			default:
				t.Errorf("%s is called", action)
			}
		}))
		defer api.Close()
		cfg := settings(api.URL)
		cfg.EndsOnly = true
		c, err := New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := &accountChecks{c: c, net: &network{}}
		got := a.tried(t.Context(), []dry{{"RunInstances", func(ctx context.Context) error {
			return a.dryLaunch(ctx, a.launch("t3.small", "", image{}, nil))
		}}})
		if len(got) != 1 || got[0].Outcome != finding.Failed || !strings.Contains(got[0].Message, tc.says) ||
			!strings.Contains(got[0].Cure, "terminate-instances --instance-ids i-1") || len(ended) == 0 || ended[0] != "i-1" {
			t.Errorf("%s: %+v; ended: %v", name, got, ended)
		}
	}
}

// refusing refuses the dry runs of some launches, by their types and subnets, and notes them all.
type refusing struct {
	code  func(instanceType, subnet string) string // "" for the model's own answer
	tried []string
}

func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	form, _ := url.ParseQuery(string(body)) // of another service it is no form
	if form.Get("Action") != "RunInstances" {
		return http.DefaultTransport.RoundTrip(req)
	}
	instanceType, subnet := form.Get("InstanceType"), form.Get("NetworkInterface.1.SubnetId")
	if strings.Contains(form.Get("ClientToken"), doctorsOwner+"-"+instanceType) {
		r.tried = append(r.tried, instanceType+" "+subnet)
	}
	code := r.code(instanceType, subnet)
	if code == "" {
		return http.DefaultTransport.RoundTrip(req)
	}
	answer := httptest.NewRecorder()
	status := http.StatusBadRequest
	if code == "InternalError" {
		status = http.StatusInternalServerError
	}
	answer.WriteHeader(status)
	fmt.Fprintf(answer, "<Response><Errors><Error><Code>%s</Code><Message>no</Message></Error></Errors></Response>", code)
	return answer.Result(), nil
}

// What EC2 says of one type, zone or subnet is no answer about the others.
func TestADryRunTriesWhatARefusalIsNotAboutBeforeItSaysNo(t *testing.T) {
	refused := func(code string, what ...string) func(string, string) string {
		return func(instanceType, subnet string) string {
			if len(what) == 0 || slices.Contains(what, instanceType) || slices.Contains(what, subnet) {
				return code
			}
			return ""
		}
	}
	const of = "dry run: "
	for what, tc := range map[string]struct {
		types   []string
		code    func(instanceType, subnet string) string
		tried   string
		outcome finding.Outcome
		says    string
	}{
		"nothing is refused": {[]string{"g5.xlarge", "c5.large"}, refused("", "x"), "g5.xlarge subnet-a1", finding.OK, "EC2 would launch a g5.xlarge in us-east-1a"},
		"a type in its zones": {[]string{"g5.xlarge", "c5.large"}, refused("Unsupported", "g5.xlarge"), "g5.xlarge subnet-a1, g5.xlarge subnet-b1, c5.large subnet-a1",
			finding.OK, "EC2 would launch a c5.large in us-east-1a"},
		"a full subnet": {[]string{"g5.xlarge"}, refused("InsufficientFreeAddressesInSubnet", "subnet-a1"), "g5.xlarge subnet-a1, g5.xlarge subnet-a2",
			finding.OK, "EC2 would launch a g5.xlarge in us-east-1a"},
		"what is asked of a type": {[]string{"g5.xlarge", "c5.large"}, refused("InvalidParameterCombination", "g5.xlarge"), "g5.xlarge subnet-a1, c5.large subnet-a1",
			finding.OK, "EC2 would launch a c5.large in us-east-1a"},
		"the right to a type": {[]string{"g5.xlarge", "c5.large"}, refused(unauthorized, "g5.xlarge"), "g5.xlarge subnet-a1, g5.xlarge subnet-b1, c5.large subnet-a1",
			finding.OK, "EC2 would launch a c5.large in us-east-1a"},
		"a quota": {[]string{"t3.small", "c5.large", "g5.xlarge"}, refused("VcpuLimitExceeded", "t3.small"), "t3.small subnet-a1, g5.xlarge subnet-a1",
			finding.OK, "EC2 would launch a g5.xlarge in us-east-1a"},
		"all": {[]string{"g5.xlarge", "c5.large"}, refused("Unsupported"), "g5.xlarge subnet-a1, g5.xlarge subnet-b1, c5.large subnet-a1, c5.large subnet-b1",
			finding.Failed, "EC2 refuses dry runs of launches: g5.xlarge in us-east-1a: "},
		"no right at all": {[]string{"g5.xlarge"}, refused(unauthorized), "g5.xlarge subnet-a1, g5.xlarge subnet-b1",
			finding.Failed, "arn:aws:iam::123456789012:user/kip may not dry-run ec2:RunInstances of g5.xlarge in us-east-1a"},
		"the account":   {[]string{"g5.xlarge", "c5.large"}, refused("Blocked"), "g5.xlarge subnet-a1", finding.Failed, "may not dry-run ec2:RunInstances of g5.xlarge"},
		"EC2 is broken": {[]string{"g5.xlarge", "c5.large"}, refused("InternalError"), "g5.xlarge subnet-a1", finding.NotChecked, "InternalError"},
	} {
		t.Run(what, func(t *testing.T) {
			r := &refusing{code: tc.code}
			all := examined(t, func(a *toExamine) { a.wanted.DryRun, a.cfg.Transport = tc.types, r })
			if len(r.tried) > 0 {
				r.tried = r.tried[1:] // that of the check of rights
			}
			if got := strings.Join(r.tried, ", "); got != tc.tried {
				t.Errorf("tried %s, want %s", got, tc.tried)
			}
			if !slices.ContainsFunc(all, func(f finding.Finding) bool {
				return f.Outcome == tc.outcome && strings.HasPrefix(f.Message, of) && strings.Contains(f.Message, tc.says)
			}) {
				t.Errorf("want %s: %q of %+v", tc.outcome, tc.says, all)
			}
		})
	}
}

func TestADryRunTriesABoundedNumberOfLaunches(t *testing.T) {
	r := &refusing{code: func(instanceType, _ string) string {
		return map[bool]string{true: "Unsupported"}[instanceType != "t3.small"]
	}}
	all := examined(t, func(a *toExamine) {
		a.cfg.Transport = r
		for n := range 20 {
			one := a.model.Sim.Catalogue[1]
			one.Name = fmt.Sprintf("c5.%dxlarge", n+2)
			a.model.Sim.Catalogue, a.wanted.DryRun = append(a.model.Sim.Catalogue, one), append(a.wanted.DryRun, one.Name)
		}
	})
	r.tried = slices.DeleteFunc(r.tried, func(one string) bool { return strings.HasPrefix(one, "t3.small ") })
	if len(r.tried) != mostDryRuns || !slices.ContainsFunc(all, func(f finding.Finding) bool {
		return f.Outcome == finding.Failed && strings.Contains(f.Message, "; others were not tried")
	}) {
		t.Errorf("%d launches were tried: %+v", len(r.tried), all)
	}
}

// The right to launch is tried where EC2 offers the type.
func TestRightsAreTriedWhereTheTypeIsOffered(t *testing.T) {
	r := &refusing{code: func(_, subnet string) string { return map[bool]string{true: "Unsupported"}[subnet != privateSubnet] }}
	all := examined(t, func(a *toExamine) {
		a.cfg.Transport = r
		small := &a.model.Sim.Catalogue[0]
		small.Offerings = slices.DeleteFunc(small.Offerings, func(o catalog.PurchaseOption) bool { return o.Subnet != privateSubnet })
	})
	if !slices.ContainsFunc(all, func(f finding.Finding) bool {
		return f.Outcome == finding.OK && strings.HasPrefix(f.Message, "rights to launch: ") && strings.Contains(f.Message, "ec2:RunInstances")
	}) {
		t.Errorf("tried %v: %+v", r.tried, all)
	}
}
