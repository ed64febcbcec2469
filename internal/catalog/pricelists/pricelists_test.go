package pricelists

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

func TestRatesAreThoseOfTheRegionOrUnknown(t *testing.T) {
	for where, want := range map[[2]string]*catalog.Rates{
		{"aws", "us-east-1"}:      {DiskPerGiBMonth: 0.08, AddressPerHour: 0.005},
		{"aws", "eu-west-1"}:      {AddressPerHour: 0.005},
		{"aws", "nowhere"}:        {},
		{"gce", "us-central1"}:    {},
		{"local", ""}:             nil,
		{"sim", "somewhere-else"}: nil,
	} {
		if got, err := Rates(where[0], where[1]); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %+v, %v; want %+v", where, got, err, want)
		}
	}
}

func TestEachCatalogueIsSoundInEachRegion(t *testing.T) {
	clouds := Clouds()
	if want := []string{"aws", "azure", "gce"}; !slices.Equal(clouds, want) {
		t.Fatalf("catalogues of %v, want %v", clouds, want)
	}
	// What the figures have: fewer would be a mistake of their reading.
	least := map[string]struct{ types, regions, burstable, gpus int }{
		"aws": {1350, 33, 28, 60}, "azure": {1480, 57, 20, 40}, "gce": {528, 43, 5, 29},
	}
	dates, err := Dates()
	if err != nil {
		t.Fatal(err)
	}
	for cloud, b := range open(t) {
		if _, err := time.Parse(time.DateOnly, b.AsOf); err != nil || b.Cloud != cloud || dates[cloud] != b.AsOf || len(b.Sources) == 0 {
			t.Errorf("%s: of cloud %q, as of %q, sources %v", cloud, b.Cloud, b.AsOf, b.Sources)
		}
		burstable, gpus := 0, 0
		for _, typ := range b.Types {
			if typ.BaselineMilliCPU > 0 {
				burstable++
			}
			gpus += min(1, len(typ.GPUs))
			if typ.UsableBytes <= 0 || typ.UsableBytes >= typ.MemoryBytes {
				t.Errorf("%s: %s has %d bytes, of which its kernel sees %d", cloud, typ.Name, typ.MemoryBytes, typ.UsableBytes)
			}
		}
		if want := least[cloud]; len(b.Types) < want.types || len(b.Regions) < want.regions || burstable < want.burstable || gpus < want.gpus {
			t.Errorf("%s: %d types in %d regions, %d burstable, %d with GPUs; want at least %v", cloud, len(b.Types), len(b.Regions), burstable,
				gpus, want)
		}
		for region := range b.Regions {
			types, _, err := b.In(region)
			if err == nil {
				err = catalog.Validate(types)
			}
			if err != nil || len(types) == 0 {
				t.Errorf("%s: region %s has %d types: %v", cloud, region, len(types), err)
			}
		}
	}
	if _, err := Open("awz"); err == nil || !strings.Contains(err.Error(), `cloud "awz": want one of aws, azure, gce`) {
		t.Errorf("another cloud: %v", err)
	}
}

// open reads each catalogue once for a test.
func open(t *testing.T) map[string]*catalog.PriceList {
	t.Helper()
	all := map[string]*catalog.PriceList{}
	for _, cloud := range Clouds() {
		b, err := Open(cloud)
		if err != nil {
			t.Fatal(err)
		}
		all[cloud] = b
	}
	return all
}

// typeIn is a type as it is sold in a region.
func typeIn(t *testing.T, b *catalog.PriceList, region, name string) catalog.InstanceType {
	t.Helper()
	types, _, err := b.In(region)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(types, func(t catalog.InstanceType) bool { return t.Name == name })
	if i < 0 {
		t.Fatalf("%s sells no %s in %s", b.Cloud, name, region)
	}
	return types[i]
}

func TestPricesAreThoseOfTheFiguresOrUnknown(t *testing.T) {
	const unknown = 0
	all := open(t)
	for _, c := range []struct {
		cloud, region, name string
		spot                bool
		want                float64
	}{
		{"aws", "us-east-1", "m5.large", false, 0.096},
		{"aws", "us-east-1", "m5.large", true, unknown},
		{"aws", "us-gov-west-1", "c5.large", false, 0.102},
		{"aws", "eu-west-1", "m5.large", false, unknown},
		{"aws", "cn-north-1", "c5.large", false, unknown}, // its price is in yuan
		{"gce", "africa-south1", "c2d-highcpu-2", false, 0.082538},
		{"gce", "africa-south1", "c2d-highcpu-2", true, 0.01618},
		{"azure", "australiacentral", "Standard_A2_v2", false, 0.105},
		{"azure", "eastus", "Standard_D2s_v5", true, unknown},
	} {
		typ := typeIn(t, all[c.cloud], c.region, c.name)
		n := 0
		for _, o := range typ.Offerings {
			if o.Spot != c.spot {
				continue
			}
			n++
			if o.PricePerHour != c.want || o.Unpriced != (c.want == unknown) {
				t.Errorf("%s in %s of %s, spot %t: %+v, want %v", c.name, c.region, c.cloud, c.spot, o, c.want)
			}
		}
		if n == 0 {
			t.Errorf("%s in %s of %s is not sold, spot %t", c.name, c.region, c.cloud, c.spot)
		}
	}
	if got := typeIn(t, all["aws"], "us-east-1", "t4g.nano"); got.CreditPerCPUHour != 0.04 || got.BaselineMilliCPU != 100 {
		t.Errorf("t4g.nano: credits at %v above %d", got.CreditPerCPUHour, got.BaselineMilliCPU)
	}
	if got := typeIn(t, all["azure"], "eastus", "Standard_B2s"); got.CreditPerCPUHour != 0 || got.SustainedMilliCPU() >= got.MilliCPU ||
		slices.ContainsFunc(got.Offerings, func(o catalog.PurchaseOption) bool { return o.Spot }) {
		t.Errorf("Standard_B2s: %+v", got)
	}
}
