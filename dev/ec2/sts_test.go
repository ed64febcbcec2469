package ec2

import (
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

const role = "arn:aws:iam::123456789012:role/reader"

// asker asks a model of which some keys are known, as any program would.
type asker struct {
	*testing.T
	model *Model
	url   string
	at    string // host and port
	clock *testingclock.FakeClock
}

func newAsker(t *testing.T) *asker {
	t.Helper()
	policy := func(text string) *Policy {
		p, err := ParsePolicy([]byte(`{"Version": "2012-10-17", "Statement": [` + text + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := &asker{T: t, clock: testingclock.NewFakeClock(time.Now())}
	var err error
	a.model, err = New(Config{
		Sim:     sim.Config{Catalogue: aCatalogue(), Clock: a.clock},
		Subnets: []Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "z1"}, {ID: "subnet-2", VPC: "vpc-1", Zone: "z2"}},
		Images:  []Image{{ID: "ami-1", RootDevice: "/dev/xvda", GiB: 8}},
		Policies: map[string]*Policy{
			"AKIAKIP":     policy(`{"Sid": "A", "Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "` + role + `"}`),
			"AKIADECODES": policy(`{"Sid": "A", "Effect": "Allow", "Action": "sts:DecodeAuthorizationMessage", "Resource": "*"}`),
			"AKIANONE":    policy(`{"Sid": "A", "Effect": "Allow", "Action": "ec2:*", "Resource": "*"}`),
			"AKIAONEKEY": policy(`{"Sid": "A", "Effect": "Allow", "Action": "ec2:*", "Resource": "*"},
				{"Sid": "B", "Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "arn:aws:ec2:*:*:key-pair/others"}`),
		},
		Roles: map[string]*Policy{
			role: policy(`{"Sid": "A", "Effect": "Allow", "Action": "ecr:*", "Resource": "*"},
				{"Sid": "B", "Effect": "Deny", "Action": "*", "Resource": "arn:aws:ecr:*:*:repository/secret"}`),
			role + "-of-nothing": policy(`{"Sid": "A", "Effect": "Allow", "Action": "ecr:*", "Resource": "*"}`),
		},
		Repositories: []string{"a/b", "c", "secret"},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(a.model)
	a.url, a.at = server.URL, server.Listener.Addr().String()
	t.Cleanup(func() {
		if err := a.model.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	for _, repository := range []string{"a/b", "c", "secret"} {
		if err := a.model.Registry.Push(t.Context(), a.at, repository+":1", empty.Image); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// blob is the path of one that an image has whose layers are none.
func blob(t *testing.T) string {
	t.Helper()
	digest, err := empty.Image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return "blobs/" + digest.String()
}

// send sends a request with the key of somebody, and a session's token if there is one.
func (a *asker) send(key, token string, change func(*http.Request), method, path, body string) (int, string) {
	a.Helper()
	req, err := http.NewRequestWithContext(a.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.Fatal(err)
	}
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+key+"/20260101/us-east-1/x/aws4_request")
	if token != "" {
		req.Header.Set(sessionHeader, token)
	}
	change(req)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		a.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// keys are those of a session.
type keys struct {
	ID    string `xml:"AssumeRoleResult>Credentials>AccessKeyId"`
	Token string `xml:"AssumeRoleResult>Credentials>SessionToken"`
}

// assume assumes a role, and returns the code of a refusal, or "".
func (a *asker) assume(key, role string, more ...string) (k keys, code string) {
	a.Helper()
	form := url.Values{"Action": {"AssumeRole"}, "Version": {stsVersion}, "RoleArn": {role}, "RoleSessionName": {"one"}}
	for _, m := range more {
		name, value, _ := strings.Cut(m, "=")
		form.Set(name, value)
	}
	status, text := a.send(key, "", func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}, http.MethodPost, "/", form.Encode())
	if status != http.StatusOK {
		var refused struct {
			Code string `xml:"Error>Code"`
		}
		if err := xml.Unmarshal([]byte(text), &refused); err != nil || refused.Code == "" {
			a.Fatalf("%d %s, %v", status, text, err)
		}
		return k, refused.Code
	}
	if err := xml.Unmarshal([]byte(text), &k); err != nil || k.ID == "" || k.Token == "" {
		a.Fatalf("%s, %v", text, err)
	}
	return k, ""
}

// token gets one of ECR's, and returns its password, or the code of a refusal.
func (a *asker) token(k keys) (password, code string) {
	a.Helper()
	status, text := a.send(k.ID, k.Token, func(r *http.Request) {
		r.Header.Set("X-Amz-Target", ecrTarget+"GetAuthorizationToken")
	}, http.MethodPost, "/", "{}")
	var answer struct {
		Data []struct{ AuthorizationToken string } `json:"authorizationData"`
		Type string                                `json:"__type"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		a.Fatal(text, err)
	}
	if status != http.StatusOK {
		return "", answer.Type
	}
	plain, err := base64.StdEncoding.DecodeString(answer.Data[0].AuthorizationToken)
	user, password, found := strings.Cut(string(plain), ":")
	if err != nil || !found || user != registryUser {
		a.Fatal(text, err)
	}
	return password, ""
}

func (a *asker) pull(password, path string) int {
	a.Helper()
	sign := func(r *http.Request) { r.SetBasicAuth(registryUser, password) }
	status, _ := a.send("", "", sign, http.MethodGet, cloudmodel.ImagesPath+path, "")
	return status
}

// limit is a session's policy.
func limit(resource string) string {
	return `Policy={"Version": "2012-10-17", "Statement": [
		{"Sid": "T", "Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
		{"Sid": "P", "Effect": "Allow", "Action": ["ecr:BatchGetImage"], "Resource": "` + resource + `"}]}`
}

func TestATokenHasTheRightsOfItsSessionThatItsRoleHasToo(t *testing.T) {
	a := newAsker(t)
	const all, one = "arn:aws:ecr:us-east-1:123456789012:repository/*", "arn:aws:ecr:us-east-1:123456789012:repository/c"
	pulls := func(more ...string) string {
		t.Helper()
		k, code := a.assume("AKIAKIP", role, more...)
		if code != "" {
			t.Fatal(code)
		}
		password, code := a.token(k)
		if code != "" {
			t.Fatal(code)
		}
		said := ""
		for _, path := range []string{"a/b/manifests/1", "a/b/" + blob(t), "c/manifests/1", "secret/manifests/1", "gone/manifests/1"} {
			said += http.StatusText(a.pull(password, path))[:1]
		}
		return said
	}
	for name, one := range map[string]struct {
		limits []string
		want   string // OK, Forbidden or Not Found
	}{
		"no limit":               {nil, "OOOFN"},
		"all, but no blobs":      {[]string{limit(all)}, "OFOFN"},
		"one":                    {[]string{limit(one)}, "FFOFF"},
		"another account's":      {[]string{limit(strings.ReplaceAll(one, "123456789012", "210987654321"))}, "FFFFF"},
		"what the role may not":  {[]string{limit(strings.ReplaceAll(one, "/c", "/secret"))}, "FFFFF"},
		"what is not there":      {[]string{limit(strings.ReplaceAll(one, "/c", "/gone"))}, "FFFFN"},
		"the shortest of theirs": {[]string{limit(one), "DurationSeconds=900"}, "FFOFF"},
	} {
		if got := pulls(one.limits...); got != one.want {
			t.Errorf("%s: %s, want %s", name, got, one.want)
		}
	}
	k, _ := a.assume("AKIAKIP", role, `Policy={"Version": "2012-10-17", "Statement": [{"Sid": "P", "Effect": "Allow", "Action": "ecr:Batch*", "Resource": "*"}]}`)
	if _, code := a.token(k); code != "AccessDeniedException" {
		t.Errorf("a session that may get no token: %q", code)
	}
}

func TestSessionsAndTokensEnd(t *testing.T) {
	a := newAsker(t)
	k, _ := a.assume("AKIAKIP", role)
	password, code := a.token(k)
	if code != "" {
		t.Fatal(code)
	}
	if _, code := a.token(keys{ID: k.ID, Token: "another"}); code == "" {
		t.Error("the key of a session is good without its token")
	}
	if _, code := a.token(keys{ID: "ASIAOTHER", Token: k.Token}); code == "" {
		t.Error("the token of a session is good without its key")
	}
	a.clock.Step(time.Hour)
	if _, code := a.token(k); code == "" {
		t.Error("a session does not end")
	}
	if status := a.pull(password, "c/manifests/1"); status != http.StatusOK {
		t.Errorf("the token is answered with %d when its session has ended; ECR's goes on", status)
	}
	a.clock.Step(tokenLifetime - time.Hour)
	if status := a.pull(password, "c/manifests/1"); status != http.StatusUnauthorized {
		t.Errorf("the token is answered with %d after twelve hours", status)
	}
	if status := a.pull("", "c/manifests/1"); status != http.StatusUnauthorized {
		t.Errorf("nobody is answered with %d", status)
	}
}

func TestARoleIsAssumedAsSTSAllows(t *testing.T) {
	a := newAsker(t)
	for name, one := range map[string]struct {
		key, role string
		more      []string
		want      string
	}{
		"as it may":           {"AKIAKIP", role, nil, ""},
		"by nobody":           {"AKIAOTHER", role, nil, "InvalidClientTokenId"},
		"without the right":   {"AKIANONE", role, nil, "AccessDenied"},
		"of another role":     {"AKIAKIP", role + "-of-nothing", nil, "AccessDenied"},
		"of no role":          {"AKIAKIP", role + "-gone", nil, "AccessDenied"},
		"for too long":        {"AKIAKIP", role, []string{"DurationSeconds=3601"}, "ValidationError"},
		"too short":           {"AKIAKIP", role, []string{"DurationSeconds=899"}, "ValidationError"},
		"without a name":      {"AKIAKIP", role, []string{"RoleSessionName="}, "ValidationError"},
		"with odd words":      {"AKIAKIP", role, []string{"Colour=red"}, "UnknownParameter"},
		"with a long policy":  {"AKIAKIP", role, []string{limit(strings.Repeat("a", maxSessionPolicy))}, "ValidationError"},
		"with no real policy": {"AKIAKIP", role, []string{`Policy={"Statement": [{"Sid": "A"}]}`}, "MalformedPolicyDocument"},
		"by another action":   {"AKIAKIP", role, []string{"Action=GetFederationToken"}, "InvalidAction"},
	} {
		if _, code := a.assume(one.key, one.role, one.more...); code != one.want {
			t.Errorf("%s: %q, want %q", name, code, one.want)
		}
	}
	if n := a.model.Calls()["AssumeRole"]; n != 11 {
		t.Errorf("%d calls are counted", n)
	}
}

func TestASessionMayDoInEC2WhatItsRoleAndItsPolicyMay(t *testing.T) {
	a := newAsker(t)
	k, _ := a.assume("AKIAKIP", role)
	status, text := a.send(k.ID, k.Token, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}, http.MethodPost, "/", encode("DescribeInstances"))
	if status != http.StatusForbidden || !strings.Contains(text, "UnauthorizedOperation") {
		t.Errorf("%d %s", status, text)
	}
}

// Whether the caller may use it comes first.
func TestALaunchWithAKeyPairAsksForTheRightToIt(t *testing.T) {
	a := newAsker(t)
	for name, want := range map[string]string{"others": "UnauthorizedOperation", "own": "InvalidKeyPair.NotFound"} {
		_, text := a.send("AKIAONEKEY", "", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}, http.MethodPost, "/", encode("RunInstances", run("KeyName="+name)...))
		if !strings.Contains(text, want) {
			t.Errorf("with key pair %s: %s, want %s", name, text, want)
		}
	}
	_, text := a.send("AKIAONEKEY", "", func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}, http.MethodPost, "/", encode("RunInstances", run()...))
	if strings.Contains(text, "Unauthorized") || strings.Contains(text, "KeyPair") {
		t.Errorf("without one: %s", text)
	}
}

func TestOfARegistryOnlyImagesAreKnown(t *testing.T) {
	a := newAsker(t)
	k, _ := a.assume("AKIAKIP", role)
	password, _ := a.token(k)
	if status := a.pull(password, ""); status != http.StatusOK {
		t.Errorf("who asks whether this is a registry is told %d", status)
	}
	for _, path := range []string{"c", "manifests/1", "blobs/uploads/", "c/tags/list", "c/manifests", "_catalog"} {
		if status := a.pull(password, path); status != http.StatusNotFound {
			t.Errorf("%q: %d", path, status)
		}
	}
}

func TestOnlyTheModelThatRefusedDecodesIt(t *testing.T) {
	a, other := newAsker(t), newAsker(t)
	post := func(to *asker, key string, form url.Values) string {
		t.Helper()
		_, text := to.send(key, "", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}, http.MethodPost, "/", form.Encode())
		return text
	}
	refused := func() string {
		t.Helper()
		text := post(a, "AKIAKIP", url.Values{"Action": {"DescribeVpcs"}, "Version": {"2016-11-15"}})
		_, sealed, found := strings.Cut(text, encodedMessage)
		sealed, _, _ = strings.Cut(sealed, "<")
		if !found || sealed == "" || strings.Contains(text, "explicitDeny") {
			t.Fatalf("%s", text)
		}
		return sealed
	}
	decode := func(at *asker, key, sealed string) string {
		return post(at, key, url.Values{"Action": {"DecodeAuthorizationMessage"}, "Version": {stsVersion}, "EncodedMessage": {sealed}})
	}
	sealed := refused()
	if sealed == refused() {
		t.Error("it is the same message twice")
	}
	if text := decode(a, "AKIADECODES", sealed); !strings.Contains(text, "ec2:DescribeVpcs") || !strings.Contains(text, "AKIAKIP") {
		t.Errorf("it decodes %s", text)
	}
	for name, text := range map[string]string{
		"another's":       decode(other, "AKIADECODES", sealed),
		"one that is cut": decode(a, "AKIADECODES", sealed[:len(sealed)-3]),
		"none":            decode(a, "AKIADECODES", ""),
	} {
		if !strings.Contains(text, "InvalidAuthorizationMessageException") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text := decode(a, "AKIAKIP", sealed); !strings.Contains(text, "AccessDenied") {
		t.Errorf("without a right: %s", text)
	}
}
