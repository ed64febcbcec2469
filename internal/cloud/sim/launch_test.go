package sim

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

func TestCapacityIsFiniteAndSaysOfWhat(t *testing.T) {
	for name, test := range map[string]struct {
		pool  Pool
		spot  bool // what is launched
		bound bool // whether the pool bounds it
		want  cloud.Scope
	}{
		"of a type":   {Pool{InstanceType: "c5.large"}, false, true, cloud.Scope{InstanceType: "c5.large"}},
		"of a zone":   {Pool{Zone: "z1"}, true, true, cloud.Scope{Zone: "z1"}},
		"of a subnet": {Pool{Subnet: "s1"}, false, true, cloud.Scope{Subnet: "s1"}},
		"of spot": {Pool{InstanceType: "c5.large", Zone: "z1", Spot: pointer(true)}, true, true,
			cloud.Scope{InstanceType: "c5.large", Zone: "z1", Spot: pointer(true)}},
		"of one offering": {Pool{InstanceType: "c5.large", Zone: "z1", Subnet: "s1", Spot: pointer(false)}, false, true,
			cloud.Scope{InstanceType: "c5.large", Zone: "z1", Subnet: "s1", Spot: pointer(false)}},
		"not of spot":      {Pool{Spot: pointer(true)}, false, false, cloud.Scope{}},
		"of another type":  {Pool{InstanceType: "m5.xlarge"}, false, false, cloud.Scope{}},
		"of another place": {Pool{Zone: "z1", Subnet: "s2"}, false, false, cloud.Scope{}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Knobs: Knobs{Capacity: []Capacity{{test.pool, 3}}}}, func(t *testing.T, c *Cloud) {
				first, second, third := request("1", 2), request("2", 4), request("3", 1)
				if test.spot {
					first, second, third = spot(first), spot(second), spot(third)
				}
				launch(t, c, first)
				got := launch(t, c, second)
				if n := len(ids(got)); len(got) != 4 || test.bound && n != 1 || !test.bound && n != 4 {
					t.Fatalf("a launch of 4 where there is room for 1 (bounded: %t) started %d of %d", test.bound, n, len(got))
				}
				for i, instance := range got {
					if want := second.Machines[i].Tags[cloud.TagCell]; instance.ID != "" && instance.Tags[cloud.TagCell] != want {
						t.Errorf("instance %d is cell %s: want %s", i, instance.Tags[cloud.TagCell], want)
					}
				}
				_, err := try(ctx, c, third)
				if !test.bound {
					ok(t, err)
					return
				}
				var short *cloud.Error
				if !errors.As(err, &short) || !errors.Is(err, cloud.ErrCapacity) || !cloud.Refused(err) {
					t.Fatalf("got %v: want a capacity error", err)
				}
				if !reflect.DeepEqual(short.Scope, test.want) {
					t.Errorf("short of %+v: want %+v", short.Scope, test.want)
				}
				// What ends makes room, and the token that failed is unused.
				ok(t, c.Terminate(ctx, ids(got)...).Err())
				if n := len(ids(launch(t, c, third))); n != 1 {
					t.Errorf("started %d when there was room again", n)
				}
				c.SetCapacity(test.pool, -1)
				fourth := request("4", 50)
				if test.spot {
					fourth = spot(fourth)
				}
				if n := len(ids(launch(t, c, fourth))); n != 50 {
					t.Errorf("started %d of 50 without a bound", n)
				}
			})
		})
	}
}

func TestASubnetRunsOutOfAddresses(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{SubnetAddresses: map[string]int{"s1": 2}}}, func(t *testing.T, c *Cloud) {
		first := launch(t, c, request("1", 3))
		if n := len(ids(first)); n != 2 {
			t.Fatalf("started %d with 2 addresses", n)
		}
		other := request("2", 1)
		other.InstanceType = "m5.xlarge"
		_, err := try(ctx, c, other)
		var short *cloud.Error
		if !errors.As(err, &short) || short.Scope != (cloud.Scope{Zone: "z1", Subnet: "s1"}) {
			t.Fatalf("got %v: want one for every type in subnet s1", err)
		}
		other.Subnet = "s2"
		launch(t, c, other)
		ok(t, c.Interrupter.Vanish(ids(first)[0]))
		other.Token, other.Subnet = "3", "s1"
		launch(t, c, other)
	})
}

func TestQuotasRefuseTheWholeRequest(t *testing.T) {
	for name, test := range map[string]struct {
		quota Quota
		n     int // how many can be launched
	}{
		"vCPUs":             {Quota{VCPUs: 7}, 3},
		"instances":         {Quota{Instances: 2}, 2},
		"of the family":     {Quota{Types: "c5.*", Instances: 4}, 4},
		"of another family": {Quota{Types: "m5.*", Instances: 1}, 50},
		"of spot":           {Quota{Spot: pointer(true), Instances: 1}, 50},
		"of on-demand":      {Quota{Spot: pointer(false), Instances: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Knobs: Knobs{Quotas: []Quota{test.quota}}}, func(t *testing.T, c *Cloud) {
				if test.n < 50 {
					_, err := try(ctx, c, request("too many", test.n+1))
					if !errors.Is(err, cloud.ErrQuota) || !cloud.Refused(err) || len(c.Truth()) != 0 {
						t.Fatalf("got %v and %d instances: want ErrQuota and none", err, len(c.Truth()))
					}
				}
				got := launch(t, c, request("just enough", test.n))
				if test.n < 50 {
					if _, err := try(ctx, c, request("one more", 1)); !errors.Is(err, cloud.ErrQuota) {
						t.Fatalf("got %v: want ErrQuota", err)
					}
					ok(t, c.Terminate(ctx, got[0].ID).Err())
				}
				launch(t, c, request("one more", 1))
			})
		})
	}
}

func TestATokenStandsForItsInstancesUntilItExpires(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{
		Capacity: []Capacity{{Pool{}, 2}}, Termination: always(time.Minute), TokenLife: time.Hour,
	}}, func(t *testing.T, c *Cloud) {
		r := request("token", 3)
		first := launch(t, c, r)
		if len(ids(first)) != 2 {
			t.Fatalf("started %v with room for two", ids(first))
		}
		c.SetCapacity(Pool{}, 10)
		if again := launch(t, c, r); !reflect.DeepEqual(again, first) {
			t.Errorf("the same call got %+v: want %+v", again, first)
		}

		other := request("token", 3)
		other.Machines[1].UserData = []byte("other")
		if _, err := try(ctx, c, other); !errors.Is(err, cloud.ErrMismatch) {
			t.Errorf("the token with another request got %v: want ErrMismatch", err)
		}

		ok(t, c.Terminate(ctx, ids(first)...).Err())
		pass(time.Minute + time.Hour - time.Second)
		late := launch(t, c, r)
		for n, i := range late {
			if i.ID != first[n].ID || i.ID != "" && (i.State != cloud.Terminating || i.ManagementIP.IsValid() || i.PodIP.IsValid()) {
				t.Errorf("after its end instance %+v is told as %+v: want it terminating, without addresses", first[n], i)
			}
		}
		if n := len(c.Truth()); n != 0 {
			t.Errorf("a repeated call started %d", n)
		}

		pass(time.Second)
		anew := launch(t, c, r)
		if len(ids(anew)) != 3 || ids(anew)[0] == ids(first)[0] || len(c.Truth()) != 3 {
			t.Errorf("after the token expired the call got %v: want three new ones (before: %v)", ids(anew), ids(first))
		}
	})
}

func TestBadRequestsAreRefusedByField(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, c *Cloud) {
		for name, spoil := range map[string]func(*cloud.LaunchRequest){
			"empty token":     func(r *cloud.LaunchRequest) { r.Token = "" },
			"long token":      func(r *cloud.LaunchRequest) { r.Token = fmt.Sprintf("%065d", 1) },
			"foreign token":   func(r *cloud.LaunchRequest) { r.Token = "tökén" },
			"unknown type":    func(r *cloud.LaunchRequest) { r.InstanceType = "x1" },
			"unknown zone":    func(r *cloud.LaunchRequest) { r.Zone = "z9" },
			"subnet of z2":    func(r *cloud.LaunchRequest) { r.Subnet = "s3" },
			"no subnet":       func(r *cloud.LaunchRequest) { r.Subnet = "" },
			"no machines":     func(r *cloud.LaunchRequest) { r.Machines = nil },
			"too many":        func(r *cloud.LaunchRequest) { r.Machines = make([]cloud.Machine, cloud.MaxLaunch+1) },
			"a missing owner": func(r *cloud.LaunchRequest) { delete(r.Machines[1].Tags, cloud.TagOwner) },
		} {
			r := request("token", 2)
			spoil(&r)
			if got, err := try(ctx, c, r); !errors.Is(err, cloud.ErrRefused) || got != nil {
				t.Errorf("%s: got %v, %v: want ErrRefused", name, got, err)
			}
		}
		if _, err := c.List(ctx, ""); !errors.Is(err, cloud.ErrRefused) {
			t.Errorf("a list for no owner got %v: want ErrRefused", err)
		}
		if n := len(c.Truth()); n != 0 {
			t.Errorf("bad requests started %d", n)
		}
		if n := c.Calls()[CallKey{KindLaunch, Refused}]; n != 10 {
			t.Errorf("counted %d refused launches: want 10", n)
		}
	})
}

func TestAddressesAreTheOwnOfWhoHoldsThem(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reuse=%t", reuse), func(t *testing.T) {
			inBubble(t, Config{ReuseAddresses: reuse}, func(t *testing.T, c *Cloud) {
				seen := map[any]bool{}
				for _, i := range launch(t, c, request("1", 50)) {
					if seen[i.ManagementIP] || seen[i.PodIP] {
						t.Fatalf("an address of %+v is another's", i)
					}
					if !c.cfg.ManagementCIDR.Contains(i.ManagementIP) || !i.ManagementIP.IsLoopback() || !c.cfg.PodCIDR.Contains(i.PodIP) {
						t.Errorf("instance %+v has an address of another network", i)
					}
					seen[i.ManagementIP], seen[i.PodIP] = true, true
				}
				freed := c.Truth()[7]
				ok(t, c.Interrupter.Vanish(freed.ID))
				next := launch(t, c, request("2", 1))[0]
				if got := next.ManagementIP == freed.ManagementIP; got != reuse {
					t.Errorf("the next instance has the freed address: %t", got)
				}
			})
		})
	}
	t.Run("until there are none", func(t *testing.T) {
		inBubble(t, Config{ManagementCIDR: mustPrefix("127.9.0.0/29")}, func(t *testing.T, c *Cloud) {
			got := launch(t, c, request("1", 8))
			if n := len(ids(got)); n != 6 {
				t.Fatalf("a /29 had %d addresses", n)
			}
			_, err := try(ctx, c, request("2", 1))
			var short *cloud.Error
			if !errors.As(err, &short) || short.Scope != (cloud.Scope{Account: true}) || !errors.Is(err, CodeNoAddress) {
				t.Errorf("got %v: want a shortage of everything", err)
			}
			ok(t, c.Terminate(ctx, ids(got)[2]).Err())
			launch(t, c, request("2", 1))
		})
	})
}

func TestMachinesKeepThePriceOfTheirLaunch(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, c *Cloud) {
		launch(t, c, request("1", 1))
		dearer := forSale()[:1]
		dearer[0].Offerings = []catalog.PurchaseOption{{Zone: "z1", Subnet: "s1", PricePerHour: 1}}
		ok(t, c.SetCatalogue(dearer))
		sold, err := c.Catalogue(ctx)
		ok(t, err)
		if !reflect.DeepEqual(sold, dearer) {
			t.Errorf("the catalogue is %+v: want %+v", sold, dearer)
		}
		launch(t, c, request("2", 2))
		pass(30 * time.Minute)
		want := []Charge{
			{InstanceType: "c5.large", Zone: "z1", PricePerHour: 0.08, Instances: 1, Time: 30 * time.Minute, Dollars: 0.04},
			{InstanceType: "c5.large", Zone: "z1", PricePerHour: 1, Instances: 2, Time: time.Hour, Dollars: 1},
		}
		if bill := c.Bill(); !reflect.DeepEqual(bill, want) {
			t.Errorf("the bill is %+v: want %+v", bill, want)
		}
	})
}

// A launch is of the image that it was resolved to, and of no other.
func TestALaunchIsOfTheImageThatItWasResolvedTo(t *testing.T) {
	inBubble(t, Config{Resolves: true, Knobs: Knobs{Images: []string{"old", "new"}}}, func(t *testing.T, c *Cloud) {
		set := func(images ...string) {
			if err := c.Change(func(k *Knobs) { k.Images = images }); err != nil {
				t.Fatal(err)
			}
		}
		resolved := func(r cloud.LaunchRequest) cloud.LaunchRequest {
			found, err := c.Optional().Resolver.Resolve(ctx, r.LaunchSpec)
			if err != nil {
				t.Fatal(err)
			}
			r.Resolved = &found
			return r
		}
		first, second := resolved(request("t", 1)), resolved(request("u", 1))
		got := launch(t, c, first)
		set("newer")
		if again := launch(t, c, first); first.Resolved.Image != "new" || again[0].ID != got[0].ID {
			t.Errorf("a launch of %+v that is sent again got %v, want %v", first.Resolved, again, got)
		}
		if _, err := try(ctx, c, second); !errors.Is(err, cloud.ErrStale) || !cloud.Refused(err) {
			t.Errorf("one of what is gone: %v", err)
		}
		launch(t, c, resolved(second))
		if _, err := try(ctx, c, resolved(first)); !errors.Is(err, cloud.ErrMismatch) {
			t.Errorf("a token for another image: %v", err)
		}
		set()
		if _, err := c.Resolve(ctx, second.LaunchSpec); !cloud.Refused(err) {
			t.Errorf("without images: %v", err)
		}
		if n := c.Calls()[CallKey{KindLaunch, Refused}]; n != 1 {
			t.Errorf("%d launches were refused", n)
		}
	})
}
