package aws

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecr"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/google/go-containerregistry/pkg/v1/empty"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

const (
	imageRole    = "arn:aws:iam::123456789012:role/kip-images"
	registryHere = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
)

// withRepositories is an account with a role that may read all its repositories.
func withRepositories(t *testing.T, cfg ec2.Config) ec2.Config {
	t.Helper()
	role, err := ec2.ParsePolicy(ImagePolicy(true))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Roles = map[string]*ec2.Policy{imageRole: role}
	cfg.Repositories = repositories
	return cfg
}

// repositories are those of the account.
var repositories = []string{"team/app", "team/side", "team/other", "team/open"}

// filled puts an image without layers into each of them.
func filled(t *testing.T, model *ec2.Model, url string) {
	t.Helper()
	for _, name := range repositories {
		if err := model.Registry.Push(t.Context(), strings.TrimPrefix(url, "http://"), name+":1", empty.Image); err != nil {
			t.Fatal(err)
		}
	}
}

// blob is the path of one that such an image has.
func blob(t *testing.T) string {
	t.Helper()
	digest, err := empty.Image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return "blobs/" + digest.String()
}

// pull reads something of an image as a container runtime does, and returns what the registry
// answers.
func pull(t *testing.T, c *Cloud, user, password, path string) int {
	t.Helper()
	return atRegistry(t, c, http.MethodGet, user, password, path)
}

func atRegistry(t *testing.T, c *Cloud, method, user, password, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, c.cfg.Endpoint+"/v2/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func TestATokenPullsTheRepositoriesThatItIsForAndNoOther(t *testing.T) {
	c, model, _ := underPolicy(t, sim.Knobs{})
	filled(t, model, c.cfg.Endpoint)
	got, err := c.PullCredentials(t.Context(), registryHere, "team/app", "team/side")
	if err != nil {
		t.Fatal(err)
	}
	if got.Username != "AWS" || got.Lifetime != time.Hour {
		t.Errorf("%v for %v", got, got.Lifetime)
	}
	for path, want := range map[string]int{
		"team/app/manifests/1":      http.StatusOK,
		"team/app/" + blob(t):       http.StatusOK,
		"team/side/manifests/1":     http.StatusOK,
		"team/other/manifests/1":    http.StatusForbidden,
		"team/other/" + blob(t):     http.StatusForbidden,
		"team/manifests/1":          http.StatusForbidden,
		"team/app/more/manifests/1": http.StatusForbidden,
	} {
		if status := pull(t, c, got.Username, got.Reveal(), path); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	if status := pull(t, c, got.Username, got.Reveal()+"x", "team/app/manifests/1"); status != http.StatusUnauthorized {
		t.Errorf("another password: %d, want 401", status)
	}
	if calls := model.Calls(); calls["AssumeRole"] != 1 || calls["GetAuthorizationToken"] != 1 {
		t.Errorf("calls %v", calls)
	}

	// The role itself may read them all: it is the session that may not.
	if status := withToken(t, c, http.MethodGet, tokenOfRole(t, c), "team/other/manifests/1"); status != http.StatusOK {
		t.Errorf("a token of the whole role: %d", status)
	}
}

// tokenOfRole is one of a session that nothing limits but its role.
func tokenOfRole(t *testing.T, c *Cloud) string {
	t.Helper()
	session, err := c.sts.AssumeRole(t.Context(), &sts.AssumeRoleInput{RoleArn: aws.String(imageRole), RoleSessionName: aws.String("whole")})
	if err != nil {
		t.Fatal(err)
	}
	keys := credentials.NewStaticCredentialsProvider(*session.Credentials.AccessKeyId, *session.Credentials.SecretAccessKey,
		*session.Credentials.SessionToken)
	out, err := c.newECR(registry{region: "us-east-1"}, keys).GetAuthorizationToken(t.Context(), &ecr.GetAuthorizationTokenInput{})
	if err != nil || len(out.AuthorizationData) != 1 {
		t.Fatal(out, err)
	}
	return *out.AuthorizationData[0].AuthorizationToken
}

// What a repository's own policy allows by aws:PrincipalArn, no policy of a session takes away
// but one that denies it.
func TestATokenIsBoundedAlsoWhereARepositoryIsOpenToItsRole(t *testing.T) {
	anyone, err := ec2.ParsePolicy([]byte(`{"Version": "2012-10-17", "Statement": [
		{"Sid": "A", "Effect": "Allow", "Action": "ecr:*", "Resource": "*"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	cfg := withRepositories(t, anAccount(sim.Knobs{}))
	cfg.RepositoryPolicies = map[string]*ec2.Policy{"team/open": anyone}
	model, url := serve(t, cfg)
	filled(t, model, url)
	lends := settings(url)
	lends.ImageRole = imageRole
	c := open(t, lends)
	for _, one := range []struct {
		named, method, path string
		want                int
	}{
		{"team/app", http.MethodGet, "team/app/manifests/1", http.StatusOK},
		{"team/app", http.MethodGet, "team/open/manifests/1", http.StatusForbidden},
		{"team/app", http.MethodGet, "team/open/" + blob(t), http.StatusForbidden},
		{"team/app", http.MethodPut, "team/open/manifests/1", http.StatusForbidden},
		{"team/app", http.MethodPut, "team/app/manifests/1", http.StatusForbidden},
		{"team/open", http.MethodGet, "team/open/manifests/1", http.StatusOK},
		{"team/open", http.MethodPut, "team/open/manifests/1", http.StatusForbidden},
	} {
		got, err := c.PullCredentials(t.Context(), registryHere, one.named)
		if err != nil {
			t.Fatal(err)
		}
		if status := atRegistry(t, c, one.method, got.Username, got.Reveal(), one.path); status != one.want {
			t.Errorf("%s %s with a token for %s: %d, want %d", one.method, one.path, one.named, status, one.want)
		}
	}
	// Nor does the role itself push what is open to it.
	if status := withToken(t, c, http.MethodPut, tokenOfRole(t, c), "team/open/manifests/1"); status != http.StatusForbidden {
		t.Errorf("a push with a token of the whole role: %d, want 403", status)
	}
}

// withToken asks a registry with a token as ECR gives it.
func withToken(t *testing.T, c *Cloud, method, token, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, c.cfg.Endpoint+"/v2/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Basic "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestARegistryOfFIPSIsAskedForAtTheEndpoint(t *testing.T) {
	c, model, _ := underPolicy(t, sim.Knobs{})
	host := strings.Replace(registryHere, ".ecr.", ".ecr-fips.", 1)
	got, err := c.PullCredentials(t.Context(), host, "team/app")
	if err != nil || got.Username != "AWS" || model.Calls()["GetAuthorizationToken"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestWithoutARoleThereAreNoCredentialsAndTheErrorNamesItsKey(t *testing.T) {
	c, model, _ := underPolicy(t, sim.Knobs{})
	c.cfg.ImageRole = ""
	_, err := c.PullCredentials(t.Context(), registryHere, "team/app")
	if !errors.Is(err, cloud.ErrRefused) || !strings.Contains(err.Error(), "cloud.aws.ecr.roleARN: there is no value") {
		t.Errorf("%v", err)
	}
	if n := model.Calls()["AssumeRole"] + model.Calls()["GetAuthorizationToken"]; n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestWhatMightMeanMoreThanARepositoryIsRefusedBeforeAWSIsAsked(t *testing.T) {
	c, model, _ := underPolicy(t, sim.Knobs{})
	six := slices.Repeat([]string{"team/app"}, cloud.MaxPulled+1)
	for name, one := range map[string]struct {
		host         string
		repositories []string
	}{
		"no repository":       {registryHere, nil},
		"too many":            {registryHere, six},
		"all":                 {registryHere, []string{"*"}},
		"some":                {registryHere, []string{"team/*"}},
		"one character":       {registryHere, []string{"team/ap?"}},
		"a variable":          {registryHere, []string{"${aws:username}"}},
		"quotes":              {registryHere, []string{`a","*`}},
		"a colon":             {registryHere, []string{"a:b"}},
		"empty":               {registryHere, []string{""}},
		"capitals":            {registryHere, []string{"Team"}},
		"nothing between":     {registryHere, []string{"a//b"}},
		"above itself":        {registryHere, []string{"a/../b"}},
		"long":                {registryHere, []string{strings.Repeat("a", maxRepositoryName+1)}},
		"the second":          {registryHere, []string{"team/app", "*"}},
		"another's registry":  {"docker.io", []string{"team/app"}},
		"no account":          {"1234.dkr.ecr.us-east-1.amazonaws.com", []string{"team/app"}},
		"another partition":   {"123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", []string{"team/app"}},
		"a host of one's own": {"123456789012.dkr.ecr.us-east-1.amazonaws.com.example.org", []string{"team/app"}},
	} {
		if got, err := c.PullCredentials(t.Context(), one.host, one.repositories...); !errors.Is(err, cloud.ErrRefused) || got.Reveal() != "" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if n := model.Calls()["AssumeRole"]; n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestRegistriesAreReadOfTheirHosts(t *testing.T) {
	patterns := (&Cloud{}).Images()
	if !slices.IsSorted(patterns) || slices.Contains(patterns, "") {
		t.Errorf("%q", patterns)
	}
	const a = "123456789012"
	for host, want := range map[string]string{
		a + ".dkr.ecr.us-east-1.amazonaws.com":                "arn:aws:ecr:us-east-1:" + a,
		a + ".dkr.ecr-fips.us-east-1.amazonaws.com":           "arn:aws:ecr:us-east-1:" + a + " fips",
		a + ".dkr-ecr.eu-west-1.on.aws":                       "arn:aws:ecr:eu-west-1:" + a,
		a + ".dkr-ecr-fips.us-east-2.on.aws":                  "arn:aws:ecr:us-east-2:" + a + " fips",
		a + ".dkr.ecr.us-gov-west-1.amazonaws.com":            "arn:aws-us-gov:ecr:us-gov-west-1:" + a,
		a + ".dkr.ecr-fips.us-gov-west-1.amazonaws.com":       "arn:aws-us-gov:ecr:us-gov-west-1:" + a + " fips",
		a + ".dkr.ecr.cn-northwest-1.amazonaws.com.cn":        "arn:aws-cn:ecr:cn-northwest-1:" + a,
		a + ".dkr-ecr.cn-north-1.on.amazonwebservices.com.cn": "arn:aws-cn:ecr:cn-north-1:" + a,
		a + ".dkr.ecr.us-iso-east-1.c2s.ic.gov":               "arn:aws-iso:ecr:us-iso-east-1:" + a,
		a + ".dkr.ecr.us-isob-east-1.sc2s.sgov.gov":           "arn:aws-iso-b:ecr:us-isob-east-1:" + a,
		a + ".dkr.ecr.eu-isoe-west-1.cloud.adc-e.uk":          "arn:aws-iso-e:ecr:eu-isoe-west-1:" + a,
		a + ".dkr.ecr.us-isof-south-1.csp.hci.ic.gov":         "arn:aws-iso-f:ecr:us-isof-south-1:" + a,
		a + ".dkr.ecr.eusc-de-east-1.amazonaws.eu":            "arn:aws-eusc:ecr:eusc-de-east-1:" + a,
		a + ".dkr.ecr.us-east-1.amazonaws.com.cn":             "",
		a + ".dkr.ecr.cn-north-1.amazonaws.com":               "",
		a + ".dkr-ecr.us-iso-east-1.":                         "",
		a + ".dkr.ecr.us-east-1.on.aws":                       "",
		a + ".dkr.ecr.us-east-1a.amazonaws.com":               "",
		a + ".dkr.ecr.example.amazonaws.com":                  "",
		a + ".dkr.ecr.us-east-1.amazonaws.com:443":            "",
		"a" + a + ".dkr.ecr.us-east-1.amazonaws.com":          "",
		a + ".dkr.ecr.us-east-1.amazonaws.com/" + a:           "",
		"public.ecr.aws": "",
		a + ".dkr.ecr.us-east-1.amazonaws.com.evil.example.io": "",
	} {
		r, ok := registryOf(host)
		got := ""
		if ok {
			got = strings.TrimSuffix(r.arn(""), ":repository/")
			if r.fips {
				got += " fips"
			}
		}
		if got != want {
			t.Errorf("%s is %q, want %q", host, got, want)
		}
		asked := slices.ContainsFunc(patterns, func(p string) bool { return matches(p, host) })
		if ok && !asked {
			t.Errorf("no kubelet asks for images in %s", host)
		}
	}
}

// matches is a kubelet's rule for matchImages: as many parts, and each like its own.
func matches(pattern, host string) bool {
	want, has := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(want) != len(has) {
		return false
	}
	for n := range want {
		if ok, err := path.Match(want[n], has[n]); err != nil || !ok {
			return false
		}
	}
	return true
}

func TestAPolicyOfTheLongestNamesIsShortEnough(t *testing.T) {
	const mostOfSTS = 2048 // characters: STS API reference, "AssumeRole"
	names := make([]string, cloud.MaxPulled)
	for n := range names {
		names[n] = fmt.Sprint(n) + strings.Repeat("a", maxRepositoryName-1)
	}
	r, ok := registryOf("123456789012.dkr.ecr.us-gov-northeast-1.amazonaws.com")
	if text := r.mayPull(names, true); !ok || len(text) > mostOfSTS {
		t.Errorf("%d characters, %v", len(text), ok)
	}
}

func TestWhyThereIsNoTokenIsSaid(t *testing.T) {
	for name, one := range map[string]struct {
		role  string
		fault error
		want  error
	}{
		"throttled":         {imageRole, cloud.ErrThrottled, cloud.ErrThrottled},
		"a role not there":  {imageRole + "-2", nil, cloud.ErrUnauthorised},
		"no answer of STS":  {imageRole, sim.ErrLost, nil},
		"an internal error": {imageRole, errors.New("x"), nil},
	} {
		cfg := withRepositories(t, anAccount(sim.Knobs{}))
		cfg.Sim.Fault = func(call sim.Call) sim.Fault {
			if call.Kind == cloud.CallPullCredentials {
				return sim.Fault{Before: one.fault}
			}
			return sim.Fault{}
		}
		_, url := serve(t, cfg)
		lends := settings(url)
		lends.ImageRole = one.role
		_, err := open(t, lends).PullCredentials(t.Context(), registryHere, "team/app")
		if err == nil || one.want != nil && !errors.Is(err, one.want) || one.want == nil && cloud.CauseOf(err) != "" ||
			!strings.Contains(err.Error(), one.role) {
			t.Errorf("%s: %v, want %v", name, err, one.want)
		}
	}
}

func TestAKipWithoutTheRightGetsNoSession(t *testing.T) {
	nothing, err := ec2.ParsePolicy([]byte(`{"Version": "2012-10-17", "Statement": [
		{"Sid": "A", "Effect": "Allow", "Action": "ec2:*", "Resource": "*"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	cfg := withRepositories(t, anAccount(sim.Knobs{}))
	cfg.Policies = map[string]*ec2.Policy{"AKIATESTS": nothing}
	_, url := serve(t, cfg)
	lends := settings(url)
	lends.ImageRole = imageRole
	if _, err := open(t, lends).PullCredentials(t.Context(), registryHere, "team/app"); !errors.Is(err, cloud.ErrUnauthorised) {
		t.Errorf("%v", err)
	}
}

// noted answers no request, and notes where each was going.
type noted struct{ hosts []string }

var errNoted = errors.New("noted")

func (n *noted) RoundTrip(r *http.Request) (*http.Response, error) {
	n.hosts = append(n.hosts, r.URL.Host)
	return nil, errNoted
}

func TestEachRegistryIsAskedInItsOwnRegion(t *testing.T) {
	to := &noted{}
	keys := credentials.NewStaticCredentialsProvider("a", "b", "c")
	c := &registries{
		base: &base{cfg: Config{Transport: to, Region: "us-west-2"}},
		sdk:  aws.Config{Region: "us-west-2", Credentials: keys, Retryer: func() aws.Retryer { return aws.NopRetryer{} }},
	}
	for _, host := range []string{
		registryHere, "123456789012.dkr.ecr-fips.us-east-2.amazonaws.com", "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
		"123456789012.dkr-ecr.us-gov-west-1.on.aws",
	} {
		r, ok := registryOf(host)
		if !ok {
			t.Fatal(host)
		}
		if _, err := c.newECR(r, keys).GetAuthorizationToken(t.Context(), &ecr.GetAuthorizationTokenInput{}); !errors.Is(err, errNoted) {
			t.Error(err)
		}
	}
	role := &sts.AssumeRoleInput{RoleArn: aws.String(imageRole), RoleSessionName: aws.String("x")}
	if _, err := newSTS(c.sdk, c.cfg).AssumeRole(t.Context(), role); !errors.Is(err, errNoted) {
		t.Error(err)
	}
	want := []string{
		"api.ecr.us-east-1.amazonaws.com", "api.ecr-fips.us-east-2.amazonaws.com", "api.ecr.cn-north-1.amazonaws.com.cn",
		"api.ecr.us-gov-west-1.amazonaws.com", "sts.us-west-2.amazonaws.com",
	}
	if !slices.Equal(to.hosts, want) {
		t.Errorf("asked %q, want %q", to.hosts, want)
	}
}
