package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/loopback"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// account is the model of one with nothing in it but a default VPC and images.
func account(t *testing.T) *ec2.Model {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIATESTS")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	const zone, subnet = "us-east-1a", "subnet-1"
	model, err := ec2.New(ec2.Config{
		Sim: sim.Config{Knobs: sim.Knobs{StoppedKeepsAddresses: true}, Catalogue: []catalog.InstanceType{{
			Name: "t3.nano", MilliCPU: 2000, MemoryBytes: 1 << 29, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: zone, Subnet: subnet}},
		}}},
		Subnets: []ec2.Subnet{{ID: subnet, VPC: "vpc-1", Zone: zone, Default: true, Public: true, MapPublic: true}},
		Groups:  []ec2.Group{{ID: "sg-1", Name: "default", VPC: "vpc-1"}},
		Images: []ec2.Image{
			{ID: "ami-1", Name: "kip-cell-amd64-1", Owner: "self", Created: "2026-01-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 4},
			{ID: "ami-2", Name: "another", Owner: "self", Created: "2026-02-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 4},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return model
}

// empty looks that the account has what it had.
func empty(t *testing.T, model *ec2.Model) {
	t.Helper()
	for _, i := range model.Machines().Truth() {
		t.Errorf("instance %s is left: %s", i.ID, i.State)
	}
	for _, v := range model.Volumes.All() {
		t.Errorf("volume %s is left", v.ID)
	}
	for _, r := range model.Routing.Routes() {
		t.Errorf("a route is left: %+v", r)
	}
	model.Change(func(c *ec2.Config) {
		for _, g := range c.Groups {
			if g.ID != "sg-1" {
				t.Errorf("group %s is left", g.Name)
			}
		}
	})
}

// runAt runs all that has a text in its name against an endpoint, and returns what it prints.
func runAt(t *testing.T, api http.Handler, only string) (string, error) {
	t.Helper()
	server := httptest.NewServer(api)
	defer server.Close()
	o, err := parse([]string{"-cloud", "aws", "-endpoint", server.URL, "-only", only, "-patience", "3s"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.pause = time.Millisecond
	var out bytes.Buffer
	err = run(t.Context(), o, &out)
	return out.String(), err
}

// proxy is an endpoint that answers some actions in a way of its own.
func proxy(t *testing.T, api http.Handler, answers func(w http.ResponseWriter, form url.Values) bool) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			t.Error(err)
			return
		}
		if answers(w, form) {
			return
		}
		text := form.Encode()
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		api.ServeHTTP(w, r)
	})
}

func TestTheModelKeepsTheContractAndIsLeftAsItWas(t *testing.T) {
	model := account(t)
	out, err := runAt(t, model, "")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out, " passed, 0 failed, 0 cannot be answered by this endpoint\nnot asked for parameters of a store: Kip makes none, since "+
		"user data holds no secret but one that joins once\nno instance, disk, interface or group is left there\n") {
		t.Errorf("printed\n%s", out)
	}
	if n := strings.Count(out, "\npassed  "); n < 28 {
		t.Errorf("%d lines of checks that passed: want one of each check\n%s", n, out)
	}
	empty(t, model)
}

func TestWhatAnEndpointDoesNotHaveIsNoPass(t *testing.T) {
	const invalid = `<Response><Errors><Error><Code>InvalidAction</Code><Message>no such action</Message></Error></Errors></Response>`
	for what, no := range map[string]struct {
		status int
		body   string
	}{
		"InvalidAction: no such action": {http.StatusBadRequest, invalid},
		"HTTP 500, and no answer of":    {http.StatusInternalServerError, "<html>Internal Server Error</html>"},
	} {
		model := account(t)
		out, err := runAt(t, proxy(t, model, func(w http.ResponseWriter, form url.Values) bool {
			if form.Get("Action") != "StopInstances" {
				return false
			}
			w.WriteHeader(no.status)
			io.WriteString(w, no.body)
			return true
		}), "st")
		if err != nil { // nothing has failed
			t.Errorf("%v\n%s", err, out)
		}
		for _, want := range []string{
			"\ncannot  stops and starts: cannot be answered by this endpoint: StopInstances: " + what,
			"\ncannot  answers by instance: cannot be answered by this endpoint: StopInstances: " + what,
			" passed, 0 failed, 2 cannot be answered by this endpoint\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("without StopInstances want %q:\n%s", want, out)
			}
		}
		empty(t, model)
	}
}

func TestWhatCannotBeLookedForIsSaidAndTheOtherChecksRun(t *testing.T) {
	model := account(t)
	out, err := runAt(t, proxy(t, model, func(w http.ResponseWriter, form url.Values) bool {
		if form.Get("Action") != "DescribeVolumes" {
			return false
		}
		w.WriteHeader(http.StatusNotImplemented)
		return true
	}), "di") // disks, and an address that Kip dials
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	const want = "\n1 passed, 0 failed, 4 cannot be answered by this endpoint\nnot asked for parameters of a store: Kip makes none, since " +
		"user data holds no secret but one that joins once\ncould not look whether disks are left: this endpoint cannot answer DescribeVolumes: HTTP 501"
	if !strings.Contains(out, want) || strings.Contains(out, "is left there") {
		t.Errorf("printed\n%s", out)
	}
}

func TestWhatIsThrottledIsSentAgain(t *testing.T) {
	model := account(t)
	for nth := 1; nth < 9; nth += 2 {
		if err := model.FailCall(cloudmodel.Failure{Call: cloud.CallLaunch, Nth: nth, Code: "RequestLimitExceeded"}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := runAt(t, model, "launches once for a token")
	if err != nil || model.Calls()["RunInstances"] < 9 {
		t.Errorf("%v, after %d launches\n%s", err, model.Calls()["RunInstances"], out)
	}
	empty(t, model)
}

func TestAnEndpointThatLiesHasFailed(t *testing.T) {
	for check, lie := range map[string]func(http.ResponseWriter, url.Values) bool{
		"launches once for a token": func(_ http.ResponseWriter, form url.Values) bool {
			form.Del("ClientToken") // a token that is taken and not kept
			return false
		},
		"gives each instance an address for its pod": func(_ http.ResponseWriter, form url.Values) bool {
			form.Del("NetworkInterface.1.SecondaryPrivateIpAddressCount")
			form.Del("NetworkInterface.1.Ipv4PrefixCount")
			return false
		},
		"stops and starts": func(w http.ResponseWriter, form url.Values) bool {
			if form.Get("Action") != "StopInstances" {
				return false
			}
			io.WriteString(w, `<StopInstancesResponse/>`)
			return true
		},
		"keeps the rules of the cells' group": func(w http.ResponseWriter, form url.Values) bool {
			if form.Get("Action") != "AuthorizeSecurityGroupIngress" {
				return false
			}
			io.WriteString(w, `<AuthorizeSecurityGroupIngressResponse><return>true</return></AuthorizeSecurityGroupIngressResponse>`)
			return true
		},
	} {
		model := account(t)
		out, err := runAt(t, proxy(t, model, lie), check)
		if err == nil || !strings.Contains(err.Error(), " failed at ") {
			t.Errorf("%s: %v: want it failed", check, err)
		}
		if !strings.Contains(out, "\nfailed  "+check) || !strings.Contains(out, "\nno instance, disk, interface or group is left there\n") {
			t.Errorf("%s: printed\n%s", check, out)
		}
		empty(t, model)
	}
}

func TestWhatCannotBeRemovedIsSaid(t *testing.T) {
	model := account(t)
	out, err := runAt(t, proxy(t, model, func(w http.ResponseWriter, form url.Values) bool {
		if form.Get("Action") != "DeleteVolume" {
			return false
		}
		io.WriteString(w, `<DeleteVolumeResponse><return>true</return></DeleteVolumeResponse>`)
		return true
	}), "makes a disk once")
	if err == nil || !strings.Contains(err.Error(), "could not remove from http://") || !strings.Contains(err.Error(), "\n  disk vol-") {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Contains(out, "is left there") {
		t.Errorf("printed\n%s", out)
	}
}

func TestAnEmptyAccountIsToldWhatItLacks(t *testing.T) {
	for what, change := range map[string]func(*ec2.Config){
		"there is no subnet of a default VPC: want cloud.aws.subnetID": func(c *ec2.Config) { c.Subnets = nil },
		"there is no image of Kip's, of Amazon's or of the account":    func(c *ec2.Config) { c.Images = nil },
	} {
		model := account(t)
		model.Change(change)
		if out, err := runAt(t, model, ""); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("want %q: %v\n%s", what, err, out)
		}
	}
}

func TestAnEndpointThatIsNotThereEndsItAtOnce(t *testing.T) {
	account(t)
	o, err := parse([]string{"-cloud", "aws", "-endpoint", "http://" + loopback.Refused(t).String()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), o, &out); err == nil || !strings.Contains(err.Error(), "with the keys of the environment") || out.Len() > 0 {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestBadFlagsAreToldWithWhatWouldBeRight(t *testing.T) {
	for want, args := range map[string][]string{
		`-cloud is "moon": want aws`: {"-cloud", "moon", "-endpoint", "http://x"},
		"-endpoint is empty":         {"-cloud", "aws"},
		`there is the argument "x"`:  {"-cloud", "aws", "-endpoint", "http://x", "x"},
		"-patience is 0s":            {"-cloud", "aws", "-endpoint", "http://x", "-patience", "0"},
	} {
		if _, err := parse(args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v: want %q", args, err, want)
		}
	}
}
