package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PriceList is what one cloud sells, and where: types, and by region their prices.
type PriceList struct {
	// Cloud is the cloud's key in provider.yaml.
	Cloud string `json:"cloud"`
	// AsOf is the date of the prices, such as 2026-07-20.
	AsOf string `json:"asOf"`
	// Sources say where the figures are from.
	Sources []string `json:"sources"`
	// Types are sorted by name. They have no Offerings.
	Types   []InstanceType    `json:"types"`
	Regions map[string]Region `json:"regions"`
}

// Region is what can be had in one.
type Region struct {
	Rates
	// Currency is that of its price list, where it is not the US dollar: such prices are
	// left out.
	Currency string `json:"currency,omitempty"`
	// ZoneGroups are the sets of zones that types are offered in; a zone "" stands for a
	// region whose zones the figures do not name.
	ZoneGroups [][]string `json:"zoneGroups"`
	Sold       []Sold     `json:"sold"`
}

// Rates are what is paid beside the machine. 0 is a price that is not known.
type Rates struct {
	// DiskPerGiBMonth is of a root disk. Price lists say GB, and count GiB.
	DiskPerGiBMonth float64 `json:"diskPerGiBMonth,omitempty"`
	// AddressPerHour is of a public IPv4 address.
	AddressPerHour float64 `json:"addressPerHour,omitempty"`
}

// HoursPerMonth is how clouds count a month.
const HoursPerMonth = 730

// DiskPerHour is what a root disk costs, in dollars, and whether that is known.
func (r Rates) DiskPerHour(bytes int64) (price float64, known bool) {
	return float64(bytes) / (1 << 30) * r.DiskPerGiBMonth / HoursPerMonth, r.DiskPerGiBMonth > 0
}

// Sold is one type in a region.
type Sold struct {
	Type  int `json:"t"` // index in the list's Types
	Zones int `json:"z"` // index in ZoneGroups
	// Price is on demand, in dollars an hour; 0 where it is not known.
	Price float64 `json:"p,omitempty"`
	// Spot is nil where the type is not sold as spot; 0 is a price that is not known.
	Spot *float64 `json:"s,omitempty"`
}

// In returns the types that are sold in a region, with their offerings there.
func (b *PriceList) In(region string) ([]InstanceType, Rates, error) {
	r, ok := b.Regions[region]
	if !ok {
		return nil, Rates{}, fmt.Errorf("region %q is not in the catalogue of %s, which has %s",
			region, b.Cloud, strings.Join(slices.Sorted(maps.Keys(b.Regions)), ", "))
	}
	types := make([]InstanceType, 0, len(r.Sold))
	for _, s := range r.Sold {
		t := b.Types[s.Type]
		for _, zone := range r.ZoneGroups[s.Zones] {
			t.Offerings = append(t.Offerings, PurchaseOption{Zone: zone, PricePerHour: s.Price, Unpriced: s.Price == 0})
			if s.Spot != nil {
				t.Offerings = append(t.Offerings, PurchaseOption{
					Zone:         zone,
					Spot:         true,
					PricePerHour: *s.Spot,
					Unpriced:     *s.Spot == 0,
				})
			}
		}
		types = append(types, t)
	}
	return types, r.Rates, nil
}
