package aws

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	model "github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
)

// asked notes whom a request is for, and sends none.
type asked struct{ url string }

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	a.url = r.URL.Scheme + "://" + r.URL.Host
	return nil, errors.New("it is not sent")
}

// ownSettings has the environment say nothing of AWS.
func ownSettings(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2", "AWS_USE_FIPS_ENDPOINT",
		"AWS_USE_DUALSTACK_ENDPOINT",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
}

func TestEachPartitionIsAskedAtItsOwnEndpoints(t *testing.T) {
	ownSettings(t)
	for _, tc := range []struct {
		region string
		fips   bool
		want   string
	}{
		{"us-east-1", false, "https://ec2.us-east-1.amazonaws.com"},
		{"us-east-1", true, "https://ec2-fips.us-east-1.amazonaws.com"},
		{"ca-central-1", true, "https://ec2-fips.ca-central-1.amazonaws.com"},
		{"us-gov-west-1", false, "https://ec2.us-gov-west-1.amazonaws.com"},
		{"us-gov-west-1", true, "https://ec2.us-gov-west-1.amazonaws.com"}, // it has no other
		{"cn-north-1", false, "https://ec2.cn-north-1.amazonaws.com.cn"},
		{"cn-northwest-1", false, "https://ec2.cn-northwest-1.amazonaws.com.cn"},
		{"us-iso-east-1", false, "https://ec2.us-iso-east-1.c2s.ic.gov"},
		{"eusc-de-east-1", false, "https://ec2.eusc-de-east-1.amazonaws.eu"},
	} {
		whom := &asked{}
		cfg := Config{Region: tc.region, UseFIPS: tc.fips, AccessKeyID: "AKIATESTS", SecretAccessKey: "secret", Transport: whom}
		sdk, err := loadSDK(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		// The error is that nothing is sent.
		_, err = newAPI(sdk, cfg).DescribeVpcs(t.Context(), &ec2.DescribeVpcsInput{})
		if whom.url != tc.want || err == nil || !strings.Contains(err.Error(), "it is not sent") {
			t.Errorf("in %s, FIPS %t, %q is asked, want %s: %v", tc.region, tc.fips, whom.url, tc.want, err)
		}
		if sdk.Region != tc.region {
			t.Errorf("whoever gives credentials is asked in region %q, want %s", sdk.Region, tc.region)
		}
	}
}

// With an endpoint nothing of AWS' own is asked.
func TestEachServiceIsAskedWhereItsKeySaysOrTheEnvironment(t *testing.T) {
	ownSettings(t)
	const ec2URL = "https://ec2.example.com"
	keys := Endpoints{
		STS:     "https://sts.example.com",
		ECR:     "https://ecr.example.com/",
		Pricing: "https://p.example.com",
	}
	ask := map[string]func(c *Cloud) error{
		"STS": func(c *Cloud) error {
			_, err := c.sts.AssumeRole(t.Context(), &sts.AssumeRoleInput{RoleArn: &c.cfg.ImageRole, RoleSessionName: &c.cfg.ImageRole})
			return err
		},
		"ECR": func(c *Cloud) error {
			r, _ := registryOf(registryHere)
			_, err := c.newECR(r, c.sdk.Credentials).GetAuthorizationToken(t.Context(), nil)
			return err
		},
		"PRICING": func(c *Cloud) error {
			_, _, err := c.prices.readPrices(t.Context(), sharedTenancy)
			return err
		},
		"SERVICE_QUOTAS": func(c *Cloud) error {
			_, err := c.quotas.listQuotas(t.Context())
			return err
		},
	}
	for service, key := range map[string]string{"STS": keys.STS, "ECR": keys.ECR, "PRICING": keys.Pricing, "SERVICE_QUOTAS": ec2URL} {
		for _, tc := range []struct {
			keys              Endpoints
			environment, want string
		}{
			{Endpoints{}, "", ec2URL},
			{keys, "", strings.TrimSuffix(key, "/")},
			{keys, "https://another.example.com", "https://another.example.com"},
			{Endpoints{}, "https://another.example.com", "https://another.example.com"},
		} {
			for name := range ask {
				t.Setenv("AWS_ENDPOINT_URL_"+name, "")
			}
			t.Setenv("AWS_ENDPOINT_URL_"+service, tc.environment)
			whom := &asked{}
			cfg := settings(ec2URL)
			cfg.Endpoints, cfg.Transport, cfg.ImageRole = tc.keys, whom, imageRole
			if err := ask[service](open(t, cfg)); err == nil || whom.url != tc.want {
				t.Errorf("%s with %+v and %q in the environment is asked at %q, want %s: %v", service, tc.keys, tc.environment, whom.url, tc.want, err)
			}
		}
	}
}

// EKS' webhook for IRSA sets AWS_REGION in Kip's pod.
func TestTheConfiguredRegionWinsOverTheEnvironment(t *testing.T) {
	for name, tc := range map[string]struct {
		configured, environment, want string
		told                          bool
	}{
		"both":               {"us-east-1", "eu-west-1", "us-east-1", true},
		"both, the same":     {"us-east-1", "us-east-1", "us-east-1", false},
		"the environment's":  {"", "eu-west-1", "eu-west-1", false},
		"the configured one": {"us-east-1", "", "us-east-1", false},
	} {
		ownSettings(t)
		t.Setenv("AWS_REGION", tc.environment)
		var told bytes.Buffer
		cfg := Config{Region: tc.configured, Subnets: []string{"subnet-1"}, Log: slog.New(slog.NewTextHandler(&told, nil))}
		sdk, err := loadSDK(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.locate(sdk.Region, whereabouts{}); err != nil || cfg.Region != tc.want || sdk.Region != tc.want {
			t.Errorf("%s: Kip is in %s, its credentials in %s, want %s: %v", name, cfg.Region, sdk.Region, tc.want, err)
		}
		if is := strings.Contains(told.String(), "eu-west-1"); is != tc.told {
			t.Errorf("%s: Kip's log has %q", name, &told)
		}
	}
}

func TestThereIsNoFIPSInChina(t *testing.T) {
	ownSettings(t)
	elsewhere := httptest.NewServer(http.NotFoundHandler()) // no metadata service
	defer elsewhere.Close()
	cfg := Config{
		Region:          "cn-north-1",
		AccessKeyID:     "AKIATESTS",
		SecretAccessKey: "secret",
		Subnets:         []string{"subnet-1"},
		PrivateOnly:     true,
		UseFIPS:         true,
		metadata:        elsewhere.URL,
	}
	const want = "cloud.aws.useFIPS: true is not valid in region cn-north-1: want false"
	if _, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	cfg.UseFIPS = false
	if _, err := New(t.Context(), cfg); err != nil {
		t.Error(err)
	}
}

// The model's ARNs, and the name that it has as a service, are those of its region's partition.
func TestThePolicyIsOfUseInEachPartition(t *testing.T) {
	for region, partition := range map[string]string{"us-east-1": "aws", "us-gov-west-1": "aws-us-gov", "cn-north-1": "aws-cn"} {
		policy, err := model.ParsePolicy(Policy())
		if err != nil {
			t.Fatal(err)
		}
		account := anAccount(sim.Knobs{})
		account.Region, account.Policies = region, map[string]*model.Policy{"AKIATESTS": policy}
		_, url := serve(t, account)
		cfg := settings(url)
		cfg.Region = region
		c := open(t, cfg)
		r := request("t", 1)
		r.InstanceProfile = fmt.Sprintf("arn:%s:iam::123456789012:instance-profile/x", partition)
		got, err := runLaunch(t.Context(), c, r).All()
		if err != nil {
			t.Errorf("a launch in %s: %v", region, err)
			continue
		}
		if err := c.Terminate(t.Context(), got[0].ID).Err(); err != nil {
			t.Errorf("an end in %s: %v", region, err)
		}
	}
}
