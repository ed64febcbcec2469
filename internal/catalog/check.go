package catalog

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// What no machine has, with room above the largest that is sold.
const (
	mostMilliCPU     = 4096 * 1000
	leastMemory      = 64 << 20
	mostMemory       = 128 << 40
	mostGPUs         = 1024
	mostPricePerHour = 10_000
)

// Problem is one thing that is wrong with an instance type.
type Problem struct {
	// Field is the JSON name: offerings[2].pricePerHour.
	Field string
	// Text names the value and what would be right.
	Text string
}

func (p Problem) String() string { return p.Field + ": " + p.Text }

// CheckPrice says what is wrong with a price in dollars an hour, "" for nothing.
func CheckPrice(p float64) string {
	switch {
	case math.IsNaN(p):
		return "NaN is no price"
	case p <= 0 || p > mostPricePerHour:
		return fmt.Sprintf("%v is no price of a machine: want more than 0 and at most %d dollars an hour", p, mostPricePerHour)
	}
	return ""
}

// Check returns what is wrong with one type.
func (t InstanceType) Check() []Problem {
	var all []Problem
	bad := func(field, format string, args ...any) {
		all = append(all, Problem{field, fmt.Sprintf(format, args...)})
	}
	within := func(field string, v, least, most int64) {
		if v < least || v > most {
			bad(field, "%d is not possible: want %d to %d", v, least, most)
		}
	}
	if strings.TrimSpace(t.Name) == "" || strings.ContainsAny(t.Name, " \t\n,*") {
		bad("name", "%q is no name of an instance type", t.Name)
	}
	if t.Arch == "" {
		bad("arch", "there is no value: want amd64, arm64 or another of Kubernetes' names")
	}
	within("milliCPU", t.MilliCPU, 1, mostMilliCPU)
	within("memoryBytes", t.MemoryBytes, leastMemory, mostMemory)
	within("usableBytes", t.UsableBytes, 0, max(0, t.MemoryBytes))
	within("baselineMilliCPU", t.BaselineMilliCPU, 0, t.MilliCPU)
	within("diskBytes", t.DiskBytes, 0, math.MaxInt64)
	within("localDiskBytes", t.LocalDiskBytes, 0, math.MaxInt64)
	within("interfaces", t.Interfaces, 0, 1000)
	within("addressesPerInterface", t.AddressesPerInterface, 0, 100_000)
	within("maxDisks", t.MaxDisks, 0, 1000)
	if t.CreditPerCPUHour != 0 {
		if wrong := CheckPrice(t.CreditPerCPUHour); wrong != "" {
			bad("creditPerCPUHour", "%s", wrong)
		}
		if t.BaselineMilliCPU == 0 {
			bad("creditPerCPUHour", "there is no baselineMilliCPU above which it would be charged")
		}
	}
	for i, g := range t.GPUs {
		if g.Model == "" {
			bad(fmt.Sprintf("gpus[%d].model", i), "there is no value")
		}
		within(fmt.Sprintf("gpus[%d].count", i), g.Count, 1, mostGPUs)
		within(fmt.Sprintf("gpus[%d].memoryBytes", i), g.MemoryBytes, 0, mostMemory)
	}
	for i, a := range t.Accelerators {
		within(fmt.Sprintf("accelerators[%d].count", i), a.Count, 1, mostGPUs)
	}
	if t.Withheld != "" && len(t.Offerings) > 0 {
		bad("withheld", "%q is there, and there are %d offerings: want only one of them", t.Withheld, len(t.Offerings))
	}
	for i, o := range t.Offerings {
		field := fmt.Sprintf("offerings[%d]", i)
		switch wrong := CheckPrice(o.PricePerHour); {
		case o.Unpriced && o.PricePerHour != 0:
			bad(field+".pricePerHour", "%v is there, and unpriced: want one of them", o.PricePerHour)
		case !o.Unpriced && wrong != "":
			bad(field+".pricePerHour", "%s", wrong)
		}
		if wrong := CheckPrice(o.OrderedAt); o.OrderedAt != 0 && wrong != "" {
			bad(field+".orderedAt", "%s", wrong)
		}
		if o.Spot && o.Dedicated {
			bad(field+".dedicated", "spot is true too: want only one of them")
		}
		if o.Spot && o.Reservation != "" {
			bad(field+".reservation", "%q is there, and spot is true: want only one of them", o.Reservation)
		}
		same := func(other PurchaseOption) bool {
			return o.Zone == other.Zone && o.Subnet == other.Subnet && o.Spot == other.Spot && o.Dedicated == other.Dedicated &&
				o.Reservation == other.Reservation
		}
		if first := slices.IndexFunc(t.Offerings, same); first >= 0 && first < i {
			bad(field, "offerings[%d] is the same offering", first)
		}
	}
	return all
}

// mostProblems is how many Validate names: of a catalogue in other units, all are wrong.
const mostProblems = 20

// Validate returns an error that names type, field and value of all that is wrong with a
// catalogue, the first twenty.
func Validate(types []InstanceType) error {
	var errs []error
	seen := make(map[string]bool, len(types))
	for _, t := range types {
		if seen[t.Name] {
			errs = append(errs, fmt.Errorf("type %q is there twice", t.Name))
		}
		seen[t.Name] = true
		for _, p := range t.Check() {
			errs = append(errs, fmt.Errorf("type %q: %s", t.Name, p))
		}
	}
	if more := len(errs) - mostProblems; more > 0 {
		errs = append(errs[:mostProblems], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
