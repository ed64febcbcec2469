package aws

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// today is later than the embedded prices are.
var today = time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)

// aPriceList is a driver at a model with a price list of some region, of two products a page.
type aPriceList struct {
	*Cloud
	model *ec2.Model
	log   *bytes.Buffer
}

func newPriceList(t *testing.T, region string) aPriceList {
	t.Helper()
	account := anAccount(sim.Knobs{})
	account.Region, account.PageSize = region, 2
	model, url := serve(t, account)
	cfg := settings(url)
	p := aPriceList{model: model, log: &bytes.Buffer{}}
	cfg.Region, cfg.Clock, cfg.Log = region, testingclock.NewFakeClock(today), slog.New(slog.NewTextHandler(p.log, nil))
	p.Cloud = open(t, cfg)
	return p
}

// sold are what the catalogue asks for types on demand.
func (p aPriceList) sold(t *testing.T) (perHour map[string]float64, told map[string]time.Time) {
	t.Helper()
	list, err := p.Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := catalog.Validate(list); err != nil {
		t.Error(err)
	}
	perHour, told = map[string]float64{}, map[string]time.Time{}
	for _, typ := range list {
		told[typ.Name] = typ.PricesTold
		for _, o := range typ.Offerings {
			if !o.Spot && !o.Unpriced {
				perHour[typ.Name] = o.PricePerHour
			}
		}
	}
	return perHour, told
}

// atTheModel are the prices of its list.
var atTheModel = map[string]float64{"t3.small": 0.02, "c5.large": 0.08, "c7g.large": 0.07, "g5.xlarge": 1}

func TestPricesAreThoseOfThePriceList(t *testing.T) {
	for _, region := range []string{"us-east-1", "eu-west-1", "cn-north-1", "us-gov-west-1"} {
		p := newPriceList(t, region)
		p.model.Prices.Fail(ec2.PriceFaults{Unfiltered: region == "us-east-1"})
		perHour, told := p.sold(t)
		if !maps.Equal(perHour, atTheModel) {
			t.Errorf("in %s: %v, want %v", region, perHour, atTheModel)
		}
		for name, at := range told {
			if !at.Equal(today) {
				t.Errorf("in %s the price of %s was told at %s", region, name, at)
			}
		}
	}
}

func TestWhatIsNoPriceIsIgnoredAndCounted(t *testing.T) {
	p := newPriceList(t, "us-east-1")
	odd := func(attribute, value, unit, currency, amount string) string {
		attributes := fmt.Sprintf(`"instanceType": "c5.large", "regionCode": "us-east-1", "operatingSystem": "Linux", "preInstalledSw": "NA",
			"tenancy": "Shared", "capacitystatus": "Used", "marketoption": "OnDemand", %q: %q`, attribute, value)
		return fmt.Sprintf(`{"product": {"productFamily": "Compute Instance", "attributes": {%s}}, "terms": {"OnDemand": {"a": {"priceDimensions":
			{"b": {"unit": %q, "pricePerUnit": {%q: %q}}}}}}}`, attributes, unit, currency, amount)
	}
	p.model.Prices.Fail(ec2.PriceFaults{Odd: []string{
		"", "[]", `{"product": 1}`, `{"product": {"attributes": {"instanceType": 7}}}`, "{}",
		odd("tenancy", "Dedicated", "Hrs", "USD", "7"), odd("operatingSystem", "Windows", "Hrs", "USD", "7"),
		odd("regionCode", "us-west-2", "Hrs", "USD", "7"), odd("instanceType", "", "Hrs", "USD", "7"),
		odd("", "", "Quantity", "USD", "7"), odd("", "", "Second", "USD", "7"),
		odd("", "", "Hrs", "CNY", "7"), odd("", "", "Hrs", "EUR", "7"),
		odd("", "", "Hrs", "USD", "0.0000000000"), odd("", "", "Hrs", "USD", "-7"), odd("", "", "Hrs", "USD", "NaN"),
		odd("", "", "Hrs", "USD", "Inf"), odd("", "", "Hrs", "USD", "1e9"), odd("", "", "Hrs", "USD", "seven"),
		odd("", "", "Hrs", "USD", "0.09"), // in earnest
	}})
	prices, ignored, err := p.prices.readPrices(t.Context(), sharedTenancy[:1])
	want := map[string]int{unreadable: 4, otherProduct: 5, otherUnit: 2, otherMoney: 2, noPrice: 6}
	if err != nil || !maps.Equal(ignored, want) || prices["c5.large"].perHour != 0.09 || len(prices) != len(atTheModel) {
		t.Errorf("%v, ignored %v, want %v: %v", prices, ignored, want, err)
	}
}

func TestPricesThatCannotBeReadAreTheEmbeddedOnes(t *testing.T) {
	embedded := map[string]float64{"t3.small": 0.0208, "c5.large": 0.085, "c7g.large": 0.0725, "g5.xlarge": 1.006}
	for name, tc := range map[string]struct {
		region string
		faults ec2.PriceFaults
		read   int // of the prices
		want   map[string]float64
		age    string
	}{
		"it is throttled":       {"us-east-1", ec2.PriceFaults{Throttled: 1}, 0, embedded, "129 days"},
		"it fails":              {"us-east-1", ec2.PriceFaults{FailsAfter: -1}, 0, embedded, "129 days"},
		"it fails in between":   {"us-east-1", ec2.PriceFaults{FailsAfter: 1}, 2, embedded, "129 days"},
		"it has no end":         {"us-east-1", ec2.PriceFaults{Endless: true}, 4, embedded, "129 days"},
		"elsewhere":             {"eu-west-1", ec2.PriceFaults{FailsAfter: 1}, 2, embedded, "129 days"},
		"a type is not there":   {"us-east-1", ec2.PriceFaults{Missing: "c5.large"}, 3, embedded, ""},
		"nor in another region": {"eu-west-1", ec2.PriceFaults{Missing: "c5.large"}, 3, map[string]float64{}, ""},
		"China":                 {"cn-northwest-1", ec2.PriceFaults{FailsAfter: -1}, 0, map[string]float64{"c5.large": 0.739}, "750 days"},
	} {
		p := newPriceList(t, tc.region)
		p.model.Prices.Fail(tc.faults)
		perHour, told := p.sold(t)
		read := 0
		for typ, at := range told {
			want := tc.want[typ]
			if at.Equal(today) {
				read, want = read+1, atTheModel[typ]
			}
			if tc.region == "cn-northwest-1" && typ != "c5.large" {
				continue
			}
			if perHour[typ] != want || (want == 0) != at.IsZero() {
				t.Errorf("%s: %s costs %v, told at %s: want %v", name, typ, perHour[typ], at, want)
			}
		}
		said := strings.Contains(p.log.String(), "AWS' price list is not read") && strings.Contains(p.log.String(), tc.age)
		if calls := p.model.Calls()["GetProducts"]; calls > maxPricePages {
			t.Errorf("%s: it was asked %d times", name, calls)
		}
		if read != tc.read || said != (tc.age != "") {
			t.Errorf("%s: %d were read, want %d; the log is %s", name, read, tc.read, p.log)
		}
	}
}

// silent answers nothing.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestAStartWaitsNotLongForPrices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := settings("http://ec2.test")
		cfg.Transport = silent{}
		c := open(t, cfg)
		for _, tc := range []struct {
			opened bool
			left   time.Duration // of the catalogue's time; 0 for no end
			want   time.Duration
		}{{false, 0, firstPrices}, {true, 0, pricesPatience}, {true, pricesMargin + time.Second, time.Second}} {
			ctx, cancel := t.Context(), func() {}
			if tc.left > 0 {
				ctx, cancel = context.WithTimeout(ctx, tc.left)
			}
			c.prices.opened = tc.opened
			began := time.Now()
			prices, _, err := c.prices.readPrices(ctx, sharedTenancy)
			if took := time.Since(began); err == nil || len(prices) > 0 || took != tc.want {
				t.Errorf("%+v: it took %v: %v, %v", tc, took, prices, err)
			}
			cancel()
		}
	})
}

func TestAMissingRightToPricesIsToldOnce(t *testing.T) {
	account := anAccount(sim.Knobs{})
	policy, err := ec2.ParsePolicy([]byte(strings.ReplaceAll(string(Policy()), "pricing:GetProducts", "pricing:DescribeServices")))
	if err != nil {
		t.Fatal(err)
	}
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
	model, url := serve(t, account)
	var log bytes.Buffer
	cfg := settings(url)
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	p := aPriceList{Cloud: open(t, cfg)}
	for range 3 {
		if perHour, _ := p.sold(t); perHour["c5.large"] != 0.085 {
			t.Errorf("c5.large costs %v, want what is embedded", perHour["c5.large"])
		}
	}
	if n := strings.Count(log.String(), "not authorised"); n != 1 || model.Calls()["GetProducts"] != 3 {
		t.Errorf("it is told %d times after %d calls: %s", n, model.Calls()["GetProducts"], &log)
	}
}

func TestEachPriceListIsAskedWhereAWSHasOne(t *testing.T) {
	ownSettings(t)
	t.Setenv("AWS_ENDPOINT_URL_PRICING", "")
	for region, want := range map[string]string{
		"us-east-1":      "https://api.pricing.us-east-1.amazonaws.com",
		"sa-east-1":      "https://api.pricing.us-east-1.amazonaws.com",
		"eu-west-3":      "https://api.pricing.eu-central-1.amazonaws.com",
		"ap-northeast-1": "https://api.pricing.ap-south-1.amazonaws.com",
		"cn-north-1":     "https://api.pricing.cn-northwest-1.amazonaws.com.cn",
		"us-gov-west-1":  "",
		"us-iso-east-1":  "",
		"eusc-de-east-1": "",
	} {
		for _, fips := range []bool{false, true} {
			whom := &asked{}
			cfg := Config{
				Region:          region,
				AccessKeyID:     "AKIATESTS",
				SecretAccessKey: "secret",
				Transport:       whom,
				UseFIPS:         fips,
				Log:             slog.New(slog.DiscardHandler),
			}
			sdk, err := loadSDK(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			client := newPricing(sdk, cfg)
			if (client != nil) != (want != "" && !fips) {
				t.Errorf("in %s, FIPS %t: it is asked: %t", region, fips, client != nil)
				continue
			}
			if client == nil {
				continue
			}
			_, _, err = (&priceList{base: &base{cfg: cfg}, pricing: client}).readPrices(t.Context(), sharedTenancy)
			if whom.url != want || err == nil {
				t.Errorf("in %s %q is asked, want %s: %v", region, whom.url, want, err)
			}
		}
	}
}

func TestPricesAreAskedAtTheEndpointOrWhereTheEnvironmentSays(t *testing.T) {
	counting := func() (string, *atomic.Int32) {
		var asked atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(http.StatusBadRequest)
		}))
		t.Cleanup(s.Close)
		return s.URL, &asked
	}
	endpoint, atEndpoint := counting()
	list, atList := counting()
	for _, tc := range []struct {
		environment     string
		endpoint, there int32
	}{{"", 1, 0}, {list, 0, 1}} {
		t.Setenv("AWS_ENDPOINT_URL_PRICING", tc.environment)
		atEndpoint.Store(0)
		atList.Store(0)
		_, _, err := open(t, settings(endpoint)).prices.readPrices(t.Context(), sharedTenancy)
		if err == nil || cloud.CauseOf(err) != cloud.ErrRefused || atEndpoint.Load() != tc.endpoint || atList.Load() != tc.there {
			t.Errorf("with AWS_ENDPOINT_URL_PRICING %q: %v after %d calls of the endpoint, %d of the list's", tc.environment, err,
				atEndpoint.Load(), atList.Load())
		}
	}
}
