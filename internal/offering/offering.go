// Package offering owns the value that Kip launches cells by: one instance type in one zone, bought one way, and what
// it costs. It holds values only, and decides nothing.
package offering

import (
	"cmp"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// CapacityType is how an instance is bought.
type CapacityType string

const (
	OnDemand  CapacityType = "on-demand"
	Spot      CapacityType = "spot"
	Dedicated CapacityType = "dedicated" // on a host that no other account shares
)

// CapacityTypeOf returns how something is bought that may be spot or on dedicated hosts.
func CapacityTypeOf(spot, dedicated bool) CapacityType {
	switch {
	case spot:
		return Spot
	case dedicated:
		return Dedicated
	}
	return OnDemand
}

// Offering is one thing to launch. Cells store it.
type Offering struct {
	InstanceType string  `json:"instanceType"`
	Zone         string  `json:"zone"`
	Subnet       string  `json:"subnet,omitempty"`
	Spot         bool    `json:"spot,omitempty"`
	Dedicated    bool    `json:"dedicated,omitempty"`
	Reservation  string  `json:"reservation,omitempty"` // as in catalog.PurchaseOption
	Family       string  `json:"family,omitempty"`      // the type's, as in catalog.InstanceType
	Arch         string  `json:"arch,omitempty"`        // so, too
	HasGPUs      bool    `json:"hasGPUs,omitempty"`     // the type has
	PricePerHour float64 `json:"pricePerHour"`
	// Unpriced reports whether the price is unknown. Then PricePerHour is 0, and the offering comes after all whose
	// price is known.
	Unpriced bool `json:"unpriced,omitempty"`
	// These are paid besides, in dollars: CPU above a burstable type's baseline, the root disk, a public address. A
	// price that is unknown is 0.
	BurstPerHour    float64 `json:"burstPerHour,omitempty"`
	DiskPerHour     float64 `json:"diskPerHour,omitempty"`
	AddressPerHour  float64 `json:"addressPerHour,omitempty"`
	DiskUnpriced    bool    `json:"diskUnpriced,omitempty"`
	AddressUnpriced bool    `json:"addressUnpriced,omitempty"`

	MilliCPU    int64 `json:"milliCPU"`
	MemoryBytes int64 `json:"memoryBytes"`
	DiskBytes   int64 `json:"diskBytes"` // of the root disk
	// OwnDisk reports whether the type fixes the size of the root disk.
	OwnDisk bool `json:"ownDisk,omitempty"`
	// BootTimeout is how long this type may take from launch to join.
	BootTimeout time.Duration `json:"bootTimeout"`
	// Reason says why it was chosen, for people.
	Reason string `json:"reason"`
}

// Of returns the offering of a type as the catalogue sells it. diskBytes is the size of the root disk where the type
// does not fix it.
func Of(t *catalog.InstanceType, sold *catalog.PurchaseOption, diskBytes int64) Offering {
	return Offering{
		InstanceType: t.Name,
		Family:       t.Family,
		Arch:         t.Arch,
		HasGPUs:      len(t.GPUs) > 0,
		Zone:         sold.Zone,
		Subnet:       sold.Subnet,
		Spot:         sold.Spot,
		Dedicated:    sold.Dedicated,
		Reservation:  sold.Reservation,
		PricePerHour: sold.PricePerHour,
		Unpriced:     sold.Unpriced,
		MilliCPU:     t.MilliCPU,
		MemoryBytes:  t.MemoryBytes,
		DiskBytes:    cmp.Or(t.DiskBytes, diskBytes),
		OwnDisk:      t.DiskBytes > 0,
		BootTimeout:  t.BootLimit(),
	}
}

// CapacityType returns how the offering is bought.
func (o Offering) CapacityType() CapacityType { return CapacityTypeOf(o.Spot, o.Dedicated) }

// Pool is that of catalog.PurchaseOption.
func (o Offering) Pool() string {
	return catalog.PurchaseOption{Dedicated: o.Dedicated, Reservation: o.Reservation}.Pool()
}

// CostPerHour returns the sum of the known prices, in dollars.
func (o Offering) CostPerHour() float64 {
	return o.PricePerHour + o.BurstPerHour + o.DiskPerHour + o.AddressPerHour
}

// String returns the offering for people: "m5.large (spot) in a".
func (o Offering) String() string {
	if o.Reservation != "" {
		return o.InstanceType + " (reservation " + o.Reservation + ") in " + o.Zone
	}
	if m := o.CapacityType(); m != OnDemand {
		return o.InstanceType + " (" + string(m) + ") in " + o.Zone
	}
	return o.InstanceType + " in " + o.Zone
}

// Key is what a cloud tells offerings apart by, and what shortages of capacity depend on: its type, where it is, and how it is bought.
type Key struct {
	InstanceType, Zone string
	// Subnet is empty where the cloud has none to choose from.
	Subnet string
	Spot   bool
	// Family is that of catalog.InstanceType.
	Family string
	// Pool is that of catalog.PurchaseOption.
	Pool string
	// MilliCPU is the type's.
	MilliCPU int64
}

// Reserved reports whether the offering is in a capacity reservation.
func (k *Key) Reserved() bool { return k.Pool != "" && k.Pool != catalog.Dedicated }

// KeyOf returns the key of a type as the catalogue sells it.
func KeyOf(t *catalog.InstanceType, sold *catalog.PurchaseOption) Key {
	return Key{
		InstanceType: t.Name,
		Family:       t.Family,
		MilliCPU:     t.MilliCPU,
		Zone:         sold.Zone,
		Subnet:       sold.Subnet,
		Spot:         sold.Spot,
		Pool:         sold.Pool(),
	}
}

// Key returns the offering's key.
func (o Offering) Key() Key {
	return Key{
		InstanceType: o.InstanceType,
		Family:       o.Family,
		MilliCPU:     o.MilliCPU,
		Zone:         o.Zone,
		Subnet:       o.Subnet,
		Spot:         o.Spot,
		Pool:         o.Pool(),
	}
}
