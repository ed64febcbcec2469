package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

const (
	owner = "cluster/kip-0"
	gib   = 1 << 30
)

var ctx = context.Background()

// forSale are two sizes in two zones, one of which has two subnets.
func forSale() []catalog.InstanceType {
	offerings := func(price float64) []catalog.PurchaseOption {
		var all []catalog.PurchaseOption
		for _, place := range [][2]string{{"z1", "s1"}, {"z1", "s2"}, {"z2", "s3"}} {
			all = append(all,
				catalog.PurchaseOption{Zone: place[0], Subnet: place[1], PricePerHour: price},
				catalog.PurchaseOption{Zone: place[0], Subnet: place[1], Spot: true, PricePerHour: price / 4})
		}
		return all
	}
	return []catalog.InstanceType{
		{Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 * gib, Arch: "amd64", Offerings: offerings(0.08)},
		{Name: "m5.xlarge", MilliCPU: 4000, MemoryBytes: 16 * gib, Arch: "amd64", Offerings: offerings(0.2)},
	}
}

// inBubble tests a cloud on virtual time. The bubble does not end before all of
// the cloud's goroutines have.
func inBubble(t *testing.T, cfg Config, test func(t *testing.T, c *Cloud)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newCloud(t, cfg)) })
}

func newCloud(t testing.TB, cfg Config) *Cloud {
	t.Helper()
	if cfg.Catalogue == nil {
		cfg.Catalogue = forSale()
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func request(token string, n int) cloud.LaunchRequest {
	r := cloud.LaunchRequest{Token: token, LaunchSpec: cloud.LaunchSpec{InstanceType: "c5.large", Zone: "z1", Subnet: "s1"}}
	for i := range n {
		r.Machines = append(r.Machines, cloud.Machine{
			UserData: fmt.Appendf(nil, "%s/%d", token, i),
			Tags:     map[string]string{cloud.TagOwner: owner, cloud.TagCell: fmt.Sprintf("%s-%d", token, i)},
		})
	}
	return r
}

func spot(r cloud.LaunchRequest) cloud.LaunchRequest {
	r.CapacityType = cloud.Spot
	return r
}

// try launches: an error if nothing was started, else what was, with a zero Instance
// for each machine without capacity.
func try(ctx context.Context, c *Cloud, r cloud.LaunchRequest) ([]cloud.Instance, error) {
	results := c.Launch(ctx, r)
	for _, one := range results {
		if one.Err == nil {
			return results.Instances(), nil
		}
	}
	return nil, results.Err()
}

func launch(t testing.TB, c *Cloud, r cloud.LaunchRequest) []cloud.Instance {
	t.Helper()
	got, err := try(ctx, c, r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// fataller is a *testing.T or a *rapid.T.
type fataller interface {
	Helper()
	Fatal(...any)
}

func ok(t fataller, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func list(t testing.TB, c *Cloud) []cloud.Instance {
	t.Helper()
	l, err := c.List(ctx, owner)
	ok(t, err)
	return l.Instances
}

func ids(l []cloud.Instance) []string {
	var all []string
	for _, i := range l {
		if i.ID != "" {
			all = append(all, i.ID)
		}
	}
	return all
}

func trueIDs(c *Cloud) []string {
	var all []string
	for _, i := range c.Truth() {
		all = append(all, i.ID)
	}
	return all
}

// equal compares without regard to order.
func equal(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// pass lets virtual time pass, and all that is due in it happen.
func pass(d time.Duration) {
	time.Sleep(d) // virtual: only ever called in a bubble
	synctest.Wait()
}

func always(d time.Duration) Distribution { return Distribution{Median: d} }

func pointer(b bool) *bool { return &b }
