// Package sizes owns what the local cloud offers: its zone and its instance
// types. It holds values only, so that the configuration can be checked against them.
package sizes

import (
	"slices"

	"github.com/elotl/kip/internal/catalog"
)

// Zone is the only zone of the local cloud, unless cloud.local.zones says otherwise.
const Zone = "local"

// The local cloud charges nothing. Its prices are nominal and linear in size,
// in the proportion of CPU to memory at which clouds sell them, so that choosing
// the right size is visible on one machine too.
const (
	pricePerCPU = 0.032 // dollars an hour
	pricePerGiB = 0.004 // dollars an hour
	pricePerGPU = 0.5   // dollars an hour: who asks for none gets none
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// Types returns the instance types of the local cloud, smallest first, for a
// host of the given architecture (a Kubernetes name: amd64, arm64). A size is
// what a cell is limited to; the host need not have as much. They are offered in all
// zones, at the same price; in Zone, if none is given.
func Types(arch string, zones ...string) []catalog.InstanceType {
	if len(zones) == 0 {
		zones = []string{Zone}
	}
	sizes := []struct {
		name             string
		milliCPU, memory int64
	}{
		{"nano", 250, 256 * mib},
		{"micro", 500, 512 * mib},
		{"small", 1000, 1 * gib},
		{"medium", 1000, 2 * gib},
		{"large", 2000, 4 * gib},
		{"xlarge", 4000, 8 * gib},
		{"2xlarge", 8000, 16 * gib},
	}
	types := make([]catalog.InstanceType, 0, len(sizes))
	for _, s := range sizes {
		cpus, gibs := float64(s.milliCPU)/1000, float64(s.memory)/gib
		var offerings []catalog.PurchaseOption
		for _, zone := range zones {
			offerings = append(offerings, catalog.PurchaseOption{Zone: zone, PricePerHour: cpus*pricePerCPU + gibs*pricePerGiB})
		}
		types = append(types, catalog.InstanceType{
			Name:        s.name,
			MilliCPU:    s.milliCPU,
			MemoryBytes: s.memory,
			DiskBytes:   s.milliCPU * 16 * gib / 1000, // 16 GiB a CPU
			Arch:        arch,
			BootTimeout: catalog.BootTimeout,
			Offerings:   offerings,
		})
	}
	return types
}

const (
	// MostGPUs is how many stand-ins a machine can have.
	MostGPUs = 16
	// ModelGPU is what a stand-in for a GPU is called.
	ModelGPU = "stand-in"
	// likeGPU is the type that the one with GPUs is made of, and suffixGPU the end of its name.
	likeGPU, suffixGPU = "medium", "-gpu"
)

// WithGPUs returns the type whose machines have this many stand-ins for GPUs; none for 0.
func WithGPUs(arch string, count int, zones ...string) []catalog.InstanceType {
	types := Types(arch, zones...)
	types = slices.DeleteFunc(types, func(t catalog.InstanceType) bool { return count == 0 || t.Name != likeGPU })
	for i := range types {
		types[i].Name += suffixGPU
		types[i].GPUs = []catalog.GPU{{Model: ModelGPU, Count: int64(count)}}
		for j := range types[i].Offerings {
			types[i].Offerings[j].PricePerHour += float64(count) * pricePerGPU
		}
	}
	return types
}
