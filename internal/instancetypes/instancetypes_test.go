package instancetypes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

func types(n int, price float64) (list []catalog.InstanceType) {
	for i := range n {
		list = append(list, catalog.InstanceType{
			Name: fmt.Sprintf("t%d", i), MilliCPU: 1000, MemoryBytes: 1 << 30, Arch: "amd64",
			Offerings: []catalog.PurchaseOption{{Zone: "z", PricePerHour: price + float64(i)}},
		})
	}
	return list
}

// seller is a simulated cloud whose catalogue is empty if that is said.
type seller struct {
	*sim.Cloud
	empty atomic.Bool
}

func (s *seller) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	all, err := s.Cloud.Catalogue(ctx)
	if s.empty.Load() {
		all = nil
	}
	return all, err
}

type bench struct {
	*testing.T
	cloud *seller
	cfg   Config
}

// inBubble gives a test a cloud that sells four types, read again each 12 hours.
func inBubble(t *testing.T, test func(*bench)) {
	synctest.Test(t, func(t *testing.T) {
		machines, err := sim.New(sim.Config{
			Catalogue:    types(4, 1),
			Capabilities: &cloud.Capabilities{CatalogueEvery: 12 * time.Hour, Region: "r"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer machines.Close()
		b := &bench{T: t, cloud: &seller{Cloud: machines}}
		b.cfg = Config{Cloud: b.cloud, Store: store.Memory(nil), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}
		test(b)
	})
}

func (b *bench) open() *Provider {
	b.Helper()
	s, err := Open(b.Context(), b.cfg)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (b *bench) away(is bool) {
	b.Helper()
	if err := b.cloud.Change(func(k *sim.Knobs) { k.Unauthorised = is }); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) sell(list []catalog.InstanceType) {
	b.Helper()
	if err := b.cloud.SetCatalogue(list); err != nil {
		b.Fatal(err)
	}
}

// price is that of the cheapest type that the placer finds.
func price(t *testing.T, s *Provider) float64 {
	t.Helper()
	candidates, err := s.Placer().Offerings(&corev1.Pod{}, func(offering.Key) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	return candidates[0].PricePerHour
}

// while runs a shop during a test.
func (b *bench) while(s *Provider, test func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	test()
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}

func later(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

func TestACatalogueThatChangesReachesThePlacerWithoutARestart(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.open()
		b.while(s, func() {
			b.sell(types(5, 7))
			later(11 * time.Hour)
			if got := price(b.T, s); got != 1 || s.Age() != 11*time.Hour {
				b.Errorf("after 11 hours the cheapest costs %v, by a catalogue of %s", got, s.Age())
			}
			later(2 * time.Hour)
			if got := price(b.T, s); got != 7 || len(s.Types()) != 5 || s.Age() != time.Hour {
				b.Errorf("after 13 hours the cheapest of %d costs %v, by a catalogue of %s", len(s.Types()), got, s.Age())
			}
		})
	})
}

// One may withhold what the cloud sells to the account again by now.
func TestACatalogueThatCannotBeReadWhenItIsDueIsReadAgainSoon(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.open()
		b.while(s, func() {
			b.sell(types(4, 2))
			b.away(true)
			later(12*time.Hour + time.Minute)
			b.away(false)
			later(2 * retryEvery)
			if got := price(b.T, s); got != 2 {
				b.Errorf("minutes after the cloud is back the cheapest costs %v, by a catalogue of %s", got, s.Age())
			}
		})
	})
}

func TestACatalogueIsReadSoonWhereItsCloudSaysThatItHasChanged(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.open()
		b.while(s, func() {
			// Most types are sold to this account no more, and none is gone.
			less := types(4, 1)
			for i := range less[:3] {
				less[i].Offerings, less[i].Withheld = nil, "the account's plan"
			}
			b.sell(less)
			later(time.Hour)
			b.away(true)
			s.ReadSoon()
			later(time.Second)
			if got := price(b.T, s); got != 1 {
				b.Errorf("while the cloud does not answer the cheapest costs %v", got)
			}
			b.away(false)
			later(2 * retryEvery)
			if got := price(b.T, s); got != 4 || len(s.Types()) != 4 {
				b.Errorf("the cheapest of %d costs %v, by a catalogue of %s", len(s.Types()), got, s.Age())
			}
		})
	})
}

// A cloud whose price list cannot be read tells prices of an older day, also after a restart.
func TestPricesThatWereToldLaterAreKeptWithTheirAge(t *testing.T) {
	inBubble(t, func(b *bench) {
		told := func(price float64, at time.Time) []catalog.InstanceType {
			list := types(4, price)
			for i := range list {
				list[i].PricesTold = at
			}
			return list
		}
		began := time.Now().UTC()
		embedded := began.Add(-1000 * time.Hour)
		is := func(when string, s *Provider, want float64, at time.Time) {
			b.Helper()
			if got := price(b.T, s); got != want || !s.PricesTold().Equal(at) || s.Types()[3].PricesTold != at {
				b.Errorf("%s the cheapest costs %v, as was told at %s, want %v of %s", when, got, s.PricesTold(), want, at)
			}
		}
		b.sell(told(1, embedded))
		s := b.open()
		is("at first", s, 1, embedded)
		b.sell(told(2, began))
		s = b.open()
		is("once it is read", s, 2, began)
		b.sell(told(1, embedded))
		is("after a restart", b.open(), 2, began)
		b.while(s, func() {
			later(13 * time.Hour)
			is("when it cannot be read", s, 2, began)
			b.sell(told(3, began.Add(13*time.Hour)))
			later(12 * time.Hour)
			is("when it is read anew", s, 3, began.Add(13*time.Hour))
		})
		b.sell(types(4, 5))
		if s := b.open(); price(b.T, s) != 3 || s.Age() != 0 {
			b.Errorf("prices of which nobody says how old they are: %v, %s", price(b.T, s), s.Age())
		}
	})
}

// A cloud may leave its long list of prices for later, so that a start does not wait for it.
func TestPricesThatAreOldAtTheStartAreReadAgainSoonAndOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		told := func(price float64, at time.Time) {
			list := types(4, price)
			for i := range list {
				list[i].PricesTold = at
			}
			b.sell(list)
		}
		old := time.Now().UTC().Add(-1000 * time.Hour)
		told(1, old)
		s := b.open()
		b.while(s, func() {
			told(2, old.Add(time.Hour))
			later(2 * time.Minute)
			if got := price(b.T, s); got != 2 {
				b.Errorf("two minutes after the start the cheapest costs %v", got)
			}
			told(3, time.Now().UTC())
			later(time.Hour)
			if got := price(b.T, s); got != 2 {
				b.Errorf("prices that are old still are read again before their time: %v", got)
			}
		})
	})
}

func TestPricesAreAsOldAsTheCatalogueWhereItsCloudDoesNotSay(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.open()
		began := time.Now()
		later(3 * time.Hour)
		if !s.PricesTold().Equal(began) {
			b.Errorf("they were told at %s, want %s", s.PricesTold(), began)
		}
	})
}

func TestKipStartsWithoutTheCloudsAPI(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.away(true)
		if _, err := Open(b.Context(), b.cfg); !errors.Is(err, cloud.ErrUnauthorised) {
			b.Errorf("without any catalogue: %v", err)
		}
		b.away(false)
		b.open()
		later(3 * time.Hour)
		b.away(true)
		s := b.open()
		if price(b.T, s) != 1 || s.Age() != 3*time.Hour {
			b.Errorf("the cheapest costs %v, by a catalogue of %s", price(b.T, s), s.Age())
		}
		b.while(s, func() {
			later(time.Hour)
			b.away(false)
			b.sell(types(4, 2))
			later(2 * time.Minute) // sooner than by its turn
			if got := price(b.T, s); got != 2 {
				b.Errorf("when the cloud is back the cheapest costs %v", got)
			}
		})
	})
}

func TestACatalogueThatShrinksByHalfIsNotTaken(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.open()
		b.while(s, func() {
			b.sell(types(1, 9))
			later(13 * time.Hour)
			if len(s.Types()) != 4 {
				b.Errorf("of 4 types 3 are gone, and %d are left", len(s.Types()))
			}
			b.sell(types(2, 9))
			later(12 * time.Hour)
			if len(s.Types()) != 2 {
				b.Errorf("half of them are gone, and %d are there", len(s.Types()))
			}
			b.cloud.empty.Store(true)
			later(24 * time.Hour)
			if len(s.Types()) != 2 {
				b.Errorf("the catalogue is empty, and %d types are there", len(s.Types()))
			}
		})
		if s := b.open(); len(s.Types()) != 2 {
			b.Errorf("the stored catalogue has %d types", len(s.Types()))
		}
	})
}

func TestACatalogueThatThePlacerRefusesIsNotTaken(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cfg.Placement = placement.Config{DefaultInstanceType: "t3"}
		s := b.open()
		b.while(s, func() {
			b.sell(types(3, 9)) // without the default type
			later(13 * time.Hour)
			if len(s.Types()) != 4 || price(b.T, s) != 4 {
				b.Errorf("%d types, and the default type costs %v", len(s.Types()), price(b.T, s))
			}
		})
	})
}

func TestACatalogueWithImpossibleFiguresIsNotTaken(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.open()
		bad := types(4, 9)
		bad[2].Offerings[0].PricePerHour = 0
		b.while(s, func() {
			b.sell(bad)
			later(13 * time.Hour)
			if got := price(b.T, s); got != 1 {
				b.Errorf("the cheapest costs %v", got)
			}
		})
		if got := price(b.T, b.open()); got != 1 {
			b.Errorf("after a start the cheapest costs %v", got)
		}
		const want = `type "t2": offerings[0].pricePerHour: 0 is no price`
		if _, err := s.read(b.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), want) {
			b.Errorf("the error is %v", err)
		}
	})
}

func TestTheOperatorsTermsHoldForEachCatalogueAndAreNotStored(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cfg.Terms = []catalog.Term{{Regions: []string{"r"}, Discount: 0.5}, {InstanceTypes: []string{"t3"}, Exclude: true}}
		s := b.open()
		if got := price(b.T, s); got != 0.5 || len(s.Types()) != 3 {
			b.Errorf("the cheapest of %d costs %v", len(s.Types()), got)
		}
		for _, limit := range []placement.Limit{{}, {Zones: []string{"z"}}} {
			offered, placer, err := s.OfNode("n", limit)
			if err != nil {
				b.Fatal(err)
			}
			cheapest, err := placer.Offerings(&corev1.Pod{}, nil)
			if err != nil || len(offered) != 3 || cheapest[0].PricePerHour != 0.5 {
				b.Errorf("of a node limited to %q: %d types, %+v, %v", limit, len(offered), cheapest, err)
			}
		}
		b.while(s, func() {
			b.sell(types(4, 3))
			later(13 * time.Hour)
			if got := price(b.T, s); got != 1.5 || len(s.Types()) != 3 {
				b.Errorf("the next day the cheapest of %d costs %v", len(s.Types()), got)
			}
		})
		b.away(true)
		b.cfg.Terms = nil
		if s := b.open(); price(b.T, s) != 3 || len(s.Types()) != 4 {
			b.Errorf("without terms, and the cloud, the cheapest of %d costs %v", len(s.Types()), price(b.T, s))
		}
	})
}

func TestInstanceDataReplaceWhatTheCloudTellsOfTheirRegion(t *testing.T) {
	inBubble(t, func(b *bench) {
		own := types(2, 0.25)
		b.cfg.Data = catalog.InstanceData{"r": own}
		b.cfg.Terms = []catalog.Term{{Discount: 0.5}}
		if s := b.open(); price(b.T, s) != 0.125 || len(s.Types()) != 2 {
			b.Errorf("the cheapest of %d costs %v", len(s.Types()), price(b.T, s))
		}
		b.cfg.Data = catalog.InstanceData{"elsewhere": own}
		if s := b.open(); price(b.T, s) != 0.5 || len(s.Types()) != 4 {
			b.Errorf("with another region's, the cheapest of %d costs %v", len(s.Types()), price(b.T, s))
		}
	})
}

func TestAStoredCatalogueThatCannotBeReadIsNotFatal(t *testing.T) {
	inBubble(t, func(b *bench) {
		if _, err := b.cfg.Store.Put(b.Context(), catalogueKey, "no catalogue", 0); err != nil {
			b.Fatal(err)
		}
		b.open()
		b.away(true)
		b.open() // what was there is replaced
	})
}

func TestTheCatalogueOfAnotherRegionIsOfNoUse(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.open()
		other, err := sim.New(sim.Config{Catalogue: types(4, 1), Capabilities: &cloud.Capabilities{Region: "elsewhere"},
			Knobs: sim.Knobs{Unauthorised: true}})
		if err != nil {
			b.Fatal(err)
		}
		defer other.Close()
		b.cfg.Cloud = other
		if _, err := Open(b.Context(), b.cfg); err == nil {
			b.Error("it was taken")
		}
	})
}

func TestAShortageIsOfWhatTheCloudNamed(t *testing.T) {
	spot, onDemand := true, false
	o := offering.Offering{InstanceType: "c5.large", Family: "standard", Zone: "z1", Subnet: "s1", MilliCPU: 2000}
	for name, test := range map[string]struct {
		err       error
		available []offering.Key
		short     []offering.Key
	}{
		"capacity, nothing named": {
			cloud.ErrCapacity,
			[]offering.Key{{InstanceType: "c5.large", Zone: "z2"}, {InstanceType: "m5.large", Zone: "z1", Subnet: "s1"}},
			[]offering.Key{o.Key()},
		},
		"capacity of a zone": {
			cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "c5.large", Zone: "z1"}, nil),
			[]offering.Key{{InstanceType: "c5.large", Zone: "z2"}},
			[]offering.Key{{InstanceType: "c5.large", Zone: "z1", Subnet: "s9", Spot: true}},
		},
		"quota, nothing named": {
			cloud.ErrQuota,
			[]offering.Key{{InstanceType: "p4.large", Family: "p", Zone: "z1"},
				{InstanceType: "m5.large", Family: "standard", Zone: "z2", Spot: true}},
			[]offering.Key{{InstanceType: "m5.large", Family: "standard", Zone: "z2"},
				{InstanceType: "c5.large", Family: "standard", Zone: "z9"}},
		},
		"quota of a family": {
			cloud.No(cloud.ErrQuota, cloud.Scope{Family: "p", Spot: &spot}, nil),
			[]offering.Key{{InstanceType: "p4.large", Family: "p", Zone: "z1"},
				{InstanceType: "c5.large", Family: "standard", Zone: "z1", Spot: true}},
			[]offering.Key{{InstanceType: "p4.large", Family: "p", Zone: "z7", Spot: true}},
		},
		"quota of a family, in vCPU": {
			cloud.No(cloud.ErrQuota, cloud.Scope{Family: "standard", ByCPU: true, Spot: &onDemand}, nil),
			[]offering.Key{{InstanceType: "t3.small", Family: "standard", Zone: "z1", MilliCPU: 1000},
				{InstanceType: "c5.large", Family: "standard", Zone: "z1", Spot: true, MilliCPU: 2000}},
			[]offering.Key{o.Key(), {InstanceType: "m5.large", Family: "standard", Zone: "z2", MilliCPU: 2000}},
		},
		"room for disks": {
			cloud.No(cloud.ErrQuota, cloud.Scope{Disks: true}, nil),
			[]offering.Key{{InstanceType: "c5.large", Family: "standard", Zone: "z1", Subnet: "s2"},
				{InstanceType: "m5.large", Family: "standard", Zone: "z1", Subnet: "s1"}},
			[]offering.Key{o.Key()},
		},
		"quota of the account": {
			cloud.No(cloud.ErrQuota, cloud.Scope{Account: true, Spot: &onDemand}, nil),
			[]offering.Key{{InstanceType: "c5.large", Family: "standard", Zone: "z1", Spot: true}},
			[]offering.Key{{InstanceType: "p4.large", Family: "p", Zone: "z7"}},
		},
	} {
		shortages := capacity.New(clock.RealClock{})
		shortages.Mark(Shortage(o, fmt.Errorf("launch: %w", test.err)))
		for _, offering := range test.available {
			if shortages.Unavailable(offering) {
				t.Errorf("%s: %+v counts as short", name, offering)
			}
		}
		for _, offering := range test.short {
			if !shortages.Unavailable(offering) {
				t.Errorf("%s: %+v does not count as short", name, offering)
			}
		}
	}
}

func TestAShortageLastsAsLongAsTheCloudSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := offering.Offering{InstanceType: "d2", Zone: "z"}
		shortages := capacity.New(clock.RealClock{})
		shortages.Mark(Shortage(o, &cloud.Error{Cause: cloud.ErrCapacity, RetryAfter: time.Hour}))
		time.Sleep(59 * time.Minute)
		again := capacity.New(clock.RealClock{})
		again.Load(shortages.List())
		if !shortages.Unavailable(o.Key()) || !again.Unavailable(o.Key()) {
			t.Error("it is over after 59 minutes of an hour, or a restart")
		}
		time.Sleep(time.Minute)
		if shortages.Unavailable(o.Key()) || again.Unavailable(o.Key()) {
			t.Error("it is not over after an hour")
		}
	})
}
