package cells

import (
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/offering"
)

// Offering is one thing to launch.
type Offering = offering.Offering

// Considered is what else could have been launched for a pod when it was given its cell, for people.
type Considered struct {
	// Best are the first of the pod's offerings as they were when it was given the cell, and
	// RuledOut why other types were none, for people.
	Best     []Offering       `json:"best,omitempty"`
	RuledOut []apiv1.RuledOut `json:"ruledOut,omitempty"`
}

// candidateOf shows an offering to people.
func candidateOf(o Offering) apiv1.Candidate {
	part := func(dollars float64, unpriced bool) string {
		switch {
		case unpriced:
			return apiv1.Unknown
		case dollars == 0:
			return ""
		}
		return apiv1.Price(dollars)
	}
	c := apiv1.Candidate{
		InstanceType:   o.InstanceType,
		Zone:           o.Zone,
		LaunchType:     apiv1.LaunchType(o.Spot, o.Dedicated),
		PricePerHour:   apiv1.Price(o.PricePerHour),
		BurstPerHour:   part(o.BurstPerHour, false),
		DiskPerHour:    part(o.DiskPerHour, o.DiskUnpriced),
		AddressPerHour: part(o.AddressPerHour, o.AddressUnpriced),
		CostPerHour:    apiv1.Price(o.CostPerHour()),
		Why:            o.Reason,
	}
	if o.Unpriced {
		c.PricePerHour, c.CostPerHour = apiv1.Unknown, apiv1.Unknown
	}
	return c
}

// Candidates show offerings to people, the first of them.
func Candidates(offerings []Offering) []apiv1.Candidate {
	var list []apiv1.Candidate
	for _, o := range offerings[:min(len(offerings), apiv1.MaxCandidates)] {
		list = append(list, candidateOf(o))
	}
	return list
}

// Candidates show what the cell is, or is to be, and what else was best when it was chosen.
func (c Cell) Candidates() []apiv1.Candidate {
	offerings := c.Offerings
	if len(offerings) == 1 { // it is launched, or the others had no capacity
		offerings = append(slices.Clip(offerings), slices.DeleteFunc(slices.Clone(c.Best), func(o Offering) bool {
			return o.Key() == offerings[0].Key()
		})...)
	}
	return Candidates(offerings)
}
