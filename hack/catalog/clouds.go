package main

import (
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/strict"
)

// paravirtual are families that boot no image of today's kind.
var paravirtual = []string{"c1", "m1", "m2", "t1"}

// quotaOf is what EC2 counts the running vCPUs of a type by.
func quotaOf(name string) string {
	family, _, _ := strings.Cut(name, ".")
	for _, group := range []string{"hpc", "inf", "trn", "dl", "vt", "mac"} {
		if strings.HasPrefix(family, group) {
			return strings.Replace(group, "vt", "g", 1)
		}
	}
	if letter := family[:1]; !strings.Contains("acdhimrtz", letter) {
		return letter
	}
	return "standard"
}

func aws(f *figures) *catalog.PriceList {
	b := &catalog.PriceList{Cloud: "aws", Regions: map[string]catalog.Region{}}
	extras := f.open("aws-extras.json", "creditPerVcpuHour", "diskPerGBMonth", "publicAddressPerHour")
	types := f.open("aws-instance-types.json", "types")
	prices := f.open("aws-prices.json", "asOfByRegion", "prices", "pricesCNY")
	zones := f.open("aws-zones.json", "asOfZones", "offerings", "zones")
	if f.err() != nil {
		return nil
	}
	b.AsOf = prices("asOf").Text()
	m := &awsMarket{list: b, at: map[string]int{}, spot: map[string]bool{}}
	credits := map[string]float64{}
	extras("creditPerVcpuHour").Object(func(family string, v strict.Value) { credits[family] = price(v) })
	types("types").Object(func(name string, v strict.Value) { m.addType(name, v, credits) })

	byRegion := map[string]map[string]float64{}
	prices("prices").Object(func(region string, v strict.Value) { byRegion[region] = pricesIn(v) })
	yuan := map[string]map[string]float64{}
	prices("pricesCNY").Object(func(region string, v strict.Value) { yuan[region] = pricesIn(v) })
	address := price(extras("publicAddressPerHour"))
	disks := map[string]float64{}
	extras("diskPerGBMonth").Object(func(region string, v strict.Value) { disks[region] = price(v) })
	offered := map[string]strict.Value{}
	zones("offerings").Object(func(region string, v strict.Value) { offered[region] = v })
	zones("zones").Object(func(region string, v strict.Value) {
		r := catalog.Region{Rates: catalog.Rates{DiskPerGiBMonth: disks[region]}}
		if !strings.HasPrefix(region, "cn-") && !strings.HasPrefix(region, "us-gov-") {
			r.AddressPerHour = address
		}
		if groups, ok := offered[region]; ok {
			m.sellIn(&r, groups, byRegion[region])
		} else { // what is offered where is not known: what has a price, everywhere
			list := byRegion[region]
			if yuan[region] != nil {
				list, r.Currency = yuan[region], "CNY"
			}
			r.ZoneGroups = [][]string{v.Texts()}
			for name := range list {
				m.sell(&r, name, byRegion[region])
			}
		}
		sell(b, region, r)
	})
	b.Sources = f.sources
	return b
}

// awsMarket is what EC2 sells.
type awsMarket struct {
	list *catalog.PriceList
	at   map[string]int  // where a type is in the list, by its name
	spot map[string]bool // whether it is sold as spot
}

// addType puts a type into the list, unless it is of no use. credits are the prices of a vCPU
// hour beyond the baseline, by family.
func (m *awsMarket) addType(name string, v strict.Value, credits map[string]float64) {
	field := v.Fields("accelerators", "arch", "bareMetal", "baselineVcpu", "cpuManufacturer", "enis", "enisDefaultCard", "gpu",
		"instanceStoreDisks", "instanceStoreGiB", "ipv4PerEni", "memoryMiB", "usageClasses", "vcpu")
	t, ok := common(name, v, field)
	family, _, _ := strings.Cut(name, ".")
	classes := field("usageClasses").In(v).Texts()
	if !ok || slices.Contains(paravirtual, family) || !slices.Contains(classes, "on-demand") {
		return
	}
	m.spot[name] = slices.Contains(classes, "spot")
	t.Family = quotaOf(name)
	if t.BaselineMilliCPU > 0 {
		if t.CreditPerCPUHour = credits[family]; t.CreditPerCPUHour == 0 {
			v.Bad("it is burstable, and creditPerVcpuHour of aws-extras.json has no %s", family)
		}
	}
	t.CPUMaker = field("cpuManufacturer").In(v).Text()
	t.LocalDiskBytes = int64(field("instanceStoreGiB").In(v).Number(0, 1<<22)) * gib
	t.Interfaces = int64(field("enis").In(v).Number(1, 1000))
	if card := field("enisDefaultCard"); card.There() {
		t.Interfaces = int64(card.Number(1, 1000))
	}
	t.AddressesPerInterface = int64(field("ipv4PerEni").In(v).Number(1, 1000))
	add(m.list, m.at, v, t)
}

// sellIn sells what each group of a region's zones offers.
func (m *awsMarket) sellIn(r *catalog.Region, groups strict.Value, prices map[string]float64) {
	seen := map[string]bool{}
	groups.List(func(v strict.Value) {
		field := v.Fields("types", "zones")
		r.ZoneGroups = append(r.ZoneGroups, field("zones").In(v).Texts())
		field("types").In(v).List(func(v strict.Value) {
			name := v.Text()
			if seen[name] {
				v.Bad("%s is there twice", name)
				return
			}
			seen[name] = true
			m.sell(r, name, prices)
		})
	})
}

// sell sells a type in the last group of a region's zones, if it is in the list.
func (m *awsMarket) sell(r *catalog.Region, name string, prices map[string]float64) {
	i, described := m.at[name]
	if !described {
		return
	}
	s := catalog.Sold{Type: i, Zones: len(r.ZoneGroups) - 1, Price: prices[name]}
	if m.spot[name] {
		s.Spot = new(float64)
	}
	r.Sold = append(r.Sold, s)
}

func pricesIn(v strict.Value) map[string]float64 {
	all := map[string]float64{}
	v.Object(func(name string, v strict.Value) { all[name] = price(v) })
	return all
}

// anyZone is for regions whose zones the figures do not name.
var anyZone = [][]string{{""}}

func gce(f *figures) *catalog.PriceList {
	b := &catalog.PriceList{Cloud: "gce", Regions: map[string]catalog.Region{}}
	types := f.open("gce-machine-types.json", "types")
	prices := f.open("gce-prices.json", "prices")
	if f.err() != nil {
		return nil
	}
	b.AsOf = prices("asOf").Text()
	at := map[string]int{}
	types("types").Object(func(name string, v strict.Value) {
		field := v.Fields("arch", "bareMetal", "baselineVcpu", "family", "gpu", "localSsdGiB", "memoryMiB", "vcpu")
		t, ok := common(name, v, field)
		if !ok {
			return
		}
		t.Family = field("family").In(v).Text()
		t.LocalDiskBytes = int64(field("localSsdGiB").Number(0, 1<<22)) * gib
		add(b, at, v, t)
	})
	prices("prices").Object(func(region string, v strict.Value) {
		r := catalog.Region{ZoneGroups: anyZone}
		v.Object(func(name string, v strict.Value) {
			field := v.Fields("onDemand", "spot")
			s := catalog.Sold{Price: price(field("onDemand").In(v))}
			if field("spot").There() {
				s.Spot = new(price(field("spot")))
			}
			if i, described := at[name]; described {
				s.Type = i
				r.Sold = append(r.Sold, s)
			}
		})
		sell(b, region, r)
	})
	b.Sources = f.sources
	return b
}

func azure(f *figures) *catalog.PriceList {
	b := &catalog.PriceList{Cloud: "azure", Regions: map[string]catalog.Region{}}
	types := f.open("azure-vm-sizes.json", "types")
	prices := f.open("azure-prices.json", "prices")
	if f.err() != nil {
		return nil
	}
	b.AsOf = prices("asOf").Text()
	at, spot := map[string]int{}, map[string]bool{}
	types("types").Object(func(name string, v strict.Value) {
		field := v.Fields("accelerators", "arch", "baselineVcpu", "basis", "burstable", "family", "gpu", "hyperVGenerations", "listed", "maxNics",
			"memoryMiB", "premiumIO", "spot", "tempDiskGiB", "vcpu")
		t, ok := common(name, v, field)
		field("basis").Text()
		if listed := field("listed"); !ok || listed.There() && !listed.Bool() {
			return
		}
		// Sizes of the B series are never sold as spot.
		spot[name] = !field("burstable").In(v).Bool() && (!field("spot").There() || field("spot").Bool())
		t.Family = field("family").Text()
		t.Interfaces = int64(field("maxNics").Number(1, 1000))
		t.LocalDiskBytes = int64(field("tempDiskGiB").Number(0, 1<<22)) * gib
		t.FastRootDisk = new(field("premiumIO").In(v).Bool())
		if generations := field("hyperVGenerations").Texts(); generations != nil {
			t.BootModes = nil
			for generation, mode := range map[string]string{"V1": "bios", "V2": "uefi"} {
				if slices.Contains(generations, generation) {
					t.BootModes = append(t.BootModes, mode)
				}
			}
			slices.Sort(t.BootModes)
		}
		add(b, at, v, t)
	})
	prices("prices").Object(func(region string, v strict.Value) {
		r := catalog.Region{ZoneGroups: anyZone}
		v.Object(func(name string, v strict.Value) {
			s := catalog.Sold{Price: price(v)}
			i, described := at[name]
			if !described {
				return
			}
			s.Type = i
			if spot[name] {
				s.Spot = new(float64)
			}
			r.Sold = append(r.Sold, s)
		})
		sell(b, region, r)
	})
	b.Sources = f.sources
	return b
}
