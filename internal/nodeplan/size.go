package nodeplan

import (
	"maps"
	"math"
	"slices"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	gibi = 1 << 30
	// mostPods is the capacity of a node of whose bounds nothing is known: the pods that Kip's benchmarks bind at once
	// (docs/performance.md). Each of them counts as podMilliCPU and podBytes, which EC2 sells as an m5.xlarge.
	mostPods, podMilliCPU, podBytes = 1000, 4000, 16 * gibi
	// podDiskBytes is the ephemeral storage of a pod: what a root disk may have without a grant.
	podDiskBytes = 100 * gibi
)

// Use is what the cells of pods, on all nodes, have of the cloud's bounds. A standby cell is none: a pod can have it.
type Use struct {
	Machines    map[string]int64 // by subnet
	MilliCPU    map[catalog.Class]int64
	MemoryBytes int64
}

// Add adds a cell.
func (u *Use) Add(subnet string, class catalog.Class, milliCPU, memoryBytes int64) {
	if u.Machines == nil {
		u.Machines, u.MilliCPU = map[string]int64{}, map[catalog.Class]int64{}
	}
	u.Machines[subnet]++
	u.MilliCPU[class] += milliCPU
	u.MemoryBytes += memoryBytes
}

// Sizing is what the capacity of a virtual node follows from, where it is auto.
type Sizing struct {
	// Types are what the node offers.
	Types  []catalog.InstanceType
	Bounds catalog.Bounds
	Use    Use
	// Left is how much CPU a class has left at most, where the cloud has refused a launch for its quota lately.
	Left map[catalog.Class]int64
	// Most is how much CPU a class had at most when the cloud refused a launch for its quota, where that was earlier. One machine
	// more may be tried.
	Most map[catalog.Class]int64
	// Served is what the node's pods ask for that have a machine, or need none, and Needs what all of its pods do.
	Served, Needs corev1.ResourceList
}

// Capacity is what the scheduler may place on the node: what can be launched, and what the pods with a machine ask for.
// They ask for less than their machines have, so the machines' own size would be too much. It is never less than the node's pods
// need, nor than one pod with a CPU: a pod that waits for a machine says by its Events what is missing, and one without a
// node does not.
func (s Sizing) Capacity() corev1.ResourceList {
	more := s.launchable()
	pods, cpu, memory := max(0, more.machines), max(0, more.milliCPU), max(0, more.bytes)
	one := corev1.ResourceList{
		corev1.ResourcePods:             *resource.NewQuantity(1, resource.DecimalSI),
		corev1.ResourceCPU:              *resource.NewQuantity(1, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(gibi, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(podDiskBytes, resource.BinarySI),
	}
	list := corev1.ResourceList{
		corev1.ResourcePods:             *resource.NewQuantity(pods, resource.DecimalSI),
		corev1.ResourceCPU:              *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(pods*podDiskBytes, resource.BinarySI),
	}
	for _, name := range placement.DeviceNames() {
		list[name] = *resource.NewQuantity(max(0, more.devices[name]), resource.DecimalSI)
	}
	for _, name := range placement.HugePageNames() {
		list[name] = *resource.NewQuantity(memory, resource.BinarySI) // which they are of
	}
	for name, q := range list {
		q.Add(s.Served[name])
		for _, least := range []resource.Quantity{one[name], s.Needs[name]} {
			if q.Cmp(least) < 0 {
				q = least.DeepCopy()
			}
		}
		list[name] = q
	}
	return list
}

// room is what can be launched besides what runs.
type room struct {
	machines, milliCPU, bytes int64
	devices                   map[corev1.ResourceName]int64
}

// launchable is how many machines more there may be for the node, and how much they have at most.
func (s Sizing) launchable() room {
	r := s.byQuota()
	var largest, heaviest int64
	devices := map[corev1.ResourceName]int64{}
	for _, t := range s.Types {
		largest, heaviest = max(largest, t.MilliCPU), max(heaviest, t.MemoryBytes)
		for name, n := range placement.Devices(&t) {
			devices[name] = max(devices[name], n)
		}
	}
	if most, known := s.byAddresses(); known && most < r.machines {
		r.machines = most
		r.milliCPU, r.bytes = min(r.milliCPU, most*largest), min(r.bytes, most*heaviest)
		for name, n := range r.devices {
			r.devices[name] = min(n, most*devices[name])
		}
	}
	if s.Bounds.MemoryBytes > 0 {
		r.bytes = min(r.bytes, s.Bounds.MemoryBytes-s.Use.MemoryBytes)
	}
	return r
}

// byAddresses is how many machines more the node's subnets have addresses for. It is not known if one of them is not.
func (s Sizing) byAddresses() (machines int64, known bool) {
	seen := map[string]bool{}
	for _, t := range s.Types {
		for _, o := range t.Offerings {
			if seen[o.Subnet] {
				continue
			}
			seen[o.Subnet] = true
			most, has := s.Bounds.Machines[o.Subnet]
			if !has {
				return 0, false
			}
			machines += max(0, most-s.Use.Machines[o.Subnet])
		}
	}
	return machines, len(seen) > 0
}

// byQuota is how many machines more the node's classes have CPU for, and what these have, in whole machines
// of the type that has most of it. A class whose quota is not told bounds nothing, unless the cloud has refused a launch of it.
// Service Quotas leaves out quotas that have no value applied. Source: github.com/aws/aws-cli, issue 6629.
func (s Sizing) byQuota() (r room) {
	unbounded := int64(mostPods)
	for _, n := range s.Use.Machines {
		unbounded -= n
	}
	unbounded = max(0, unbounded)
	r.devices = map[corev1.ResourceName]int64{}
	open, openDevices := false, map[corev1.ResourceName]int64{}
	for c, types := range classes(s.Types) {
		quota, told := s.Bounds.MilliCPU[c]
		left, lately := s.Left[c]
		most, refused := s.Most[c]
		if !told && !lately && !refused {
			open = true
			for _, t := range types {
				for name := range placement.Devices(&t) {
					openDevices[name] = unbounded
				}
			}
			continue
		}
		use, free := s.Use.MilliCPU[c], int64(math.MaxInt64)
		if told {
			free = quota - use
		}
		if lately {
			free = min(free, left)
		}
		of := room{devices: map[corev1.ResourceName]int64{}}
		for _, t := range types {
			each := max(1, t.MilliCPU)
			n := max(0, free) / each
			if refused {
				n = min(n, max(1, (most-use)/each))
			}
			if !told {
				n = min(n, unbounded)
			}
			of.machines, of.milliCPU, of.bytes = max(of.machines, n), max(of.milliCPU, n*t.MilliCPU), max(of.bytes, n*t.MemoryBytes)
			for name, has := range placement.Devices(&t) {
				of.devices[name] = max(of.devices[name], n*has)
			}
		}
		r.machines, r.milliCPU, r.bytes = r.machines+of.machines, r.milliCPU+of.milliCPU, r.bytes+of.bytes
		for name, n := range of.devices {
			r.devices[name] += n
		}
	}
	if open {
		r.machines, r.milliCPU, r.bytes = max(r.machines, unbounded), max(r.milliCPU, unbounded*podMilliCPU), max(r.bytes, unbounded*podBytes)
		for name, n := range openDevices {
			r.devices[name] = max(r.devices[name], n)
		}
	}
	return r
}

// classes are the types of each class.
func classes(types []catalog.InstanceType) map[catalog.Class][]catalog.InstanceType {
	all := map[catalog.Class][]catalog.InstanceType{}
	for _, t := range types {
		for _, spot := range []bool{false, true} {
			if slices.ContainsFunc(t.Offerings, func(o catalog.PurchaseOption) bool { return o.Spot == spot }) {
				c := catalog.Class{Family: t.Family, Spot: spot}
				all[c] = append(all[c], t)
			}
		}
	}
	return all
}

// Believed are the bounds that hold after an answer of the cloud: now, but for what held before and is missing there, or
// nothing. That counts when a second answer in a row says so, since one answer of a cloud may lack anything. last is the
// answer before.
func Believed(held, last, now catalog.Bounds) catalog.Bounds {
	b := catalog.Bounds{
		Machines:    believed(held.Machines, last.Machines, now.Machines),
		MilliCPU:    believed(held.MilliCPU, last.MilliCPU, now.MilliCPU),
		MemoryBytes: now.MemoryBytes,
	}
	if now.MemoryBytes <= 0 && last.MemoryBytes > 0 {
		b.MemoryBytes = held.MemoryBytes
	}
	return b
}

func believed[K comparable](held, last, now map[K]int64) map[K]int64 {
	all := map[K]int64{}
	maps.Copy(all, now)
	for k, was := range held {
		if now[k] <= 0 && last[k] > 0 {
			all[k] = was
		}
	}
	return all
}
