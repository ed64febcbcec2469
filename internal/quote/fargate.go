package quote

import "github.com/elotl/kip/internal/placement"

// These are Fargate's prices of Linux tasks in us-east-1, in dollars an hour: its price
// list of March 2026.
const (
	fargateCPU, fargateGB       = 0.04048, 0.004445
	fargateArmCPU, fargateArmGB = 0.03238, 0.00356
	fargateDiskGB               = 0.000111 // above the 20 that are free
)

// fargateRegion is the one whose prices these are.
const fargateRegion = "us-east-1"

// FargateSize is a size that Fargate sells.
type FargateSize struct{ MilliCPU, MemoryBytes int64 }

const gib = 1 << 30

// FargateSizes are all, the smaller first.
func FargateSizes() []FargateSize {
	all := []FargateSize{{250, gib / 2}, {250, gib}, {250, 2 * gib}}
	for _, s := range []struct{ milliCPU, from, to, step int64 }{
		{500, 1, 4, 1}, {1000, 2, 8, 1}, {2000, 4, 16, 1}, {4000, 8, 30, 1}, {8000, 16, 60, 4}, {16000, 32, 120, 8},
	} {
		for gb := s.from; gb <= s.to; gb += s.step {
			all = append(all, FargateSize{s.milliCPU, gb * gib})
		}
	}
	return all
}

// Fargate returns what Fargate charges for a pod in dollars an hour: that of the cheapest
// size that has what the pod asks for. It is false where none has.
func Fargate(arch string, r placement.Resources) (price float64, ok bool) {
	const freeDisk, mostDisk = 20 * gib, 200 * gib
	cpu, gb := fargateCPU, fargateGB
	switch arch {
	case "amd64":
	case "arm64":
		cpu, gb = fargateArmCPU, fargateArmGB
	default:
		return 0, false
	}
	if r.GPUs > 0 || r.DiskBytes > mostDisk {
		return 0, false
	}
	for _, s := range FargateSizes() {
		if s.MilliCPU < r.MilliCPU || s.MemoryBytes < r.MemoryBytes {
			continue
		}
		p := float64(s.MilliCPU)/1000*cpu + float64(s.MemoryBytes)/gib*gb
		if !ok || p < price {
			price, ok = p, true
		}
	}
	return price + float64(max(0, r.DiskBytes-freeDisk))/gib*fargateDiskGB, ok
}
