package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/catalog"
)

// offer is what a machine counts against.
type offering struct {
	instanceType, zone, subnet string
	spot                       bool
	pool                       string
}

func (o offering) String() string {
	s := o.instanceType + " in " + o.zone
	if o.subnet != "" {
		s += " " + o.subnet
	}
	if o.spot {
		s = "spot " + s
	}
	return s
}

// offered is the catalogue, made ready for look-ups.
type offered struct {
	types  []catalog.InstanceType
	vcpus  map[string]int64
	family map[string]string
	prices map[offering]float64 // dollars an hour
}

func newOffered(types []catalog.InstanceType) (*offered, error) {
	if len(types) == 0 {
		return nil, errors.New("Catalogue is empty: want at least one instance type")
	}
	s := &offered{
		types:  slices.Clone(types),
		vcpus:  map[string]int64{},
		family: map[string]string{},
		prices: map[offering]float64{},
	}
	for i, t := range types {
		if _, twice := s.vcpus[t.Name]; twice || t.Name == "" {
			return nil, fmt.Errorf("Catalogue[%d].Name is %q: want a name that no other type has", i, t.Name)
		}
		s.vcpus[t.Name] = (t.MilliCPU + 999) / 1000
		s.family[t.Name] = t.Family
		for n, o := range t.Offerings {
			if !(o.PricePerHour >= 0) {
				return nil, fmt.Errorf("Catalogue[%d].Offerings[%d].PricePerHour of %s is %v: want 0 or more", i, n, t.Name, o.PricePerHour)
			}
			of := offering{
				instanceType: t.Name,
				zone:         o.Zone,
				subnet:       o.Subnet,
				spot:         o.Spot,
			}
			s.prices[of] = o.PricePerHour
		}
	}
	return s, nil
}

func (s *offered) hasZone(zone string) bool {
	for _, t := range s.types {
		for _, o := range t.Offerings {
			if o.Zone == zone {
				return true
			}
		}
	}
	return false
}
