// Package catalog describes instance types and what they cost. It holds values
// only: it imports no client and does no I/O.
package catalog

import (
	"cmp"
	"time"
)

// BootTimeout is the BootTimeout of a type of which nothing else is known, such as a
// virtual machine. EC2's were measured to answer 26 seconds after the launch
// (github.com/brevdev/ec2-coldboot-research); the rest is for images, user data and a
// busy day. The cells of one's own host boot in seconds, but share its processors: the
// last of many waits for the others.
const BootTimeout = 10 * time.Minute

// InstanceType is one size of machine that a cloud sells.
type InstanceType struct {
	Name string `json:"name"`
	// Family is what the cloud counts quotas by, in its own words; "" where it has
	// none.
	Family      string `json:"family,omitempty"`
	MilliCPU    int64  `json:"milliCPU"`
	MemoryBytes int64  `json:"memoryBytes"`
	// BaselineMilliCPU is what a burstable type sustains; 0 for the others.
	BaselineMilliCPU int64 `json:"baselineMilliCPU,omitempty"`
	// DiskBytes is the root disk's size where the type fixes it; 0 where it
	// is chosen at launch (cells.defaultVolumeSize).
	DiskBytes int64 `json:"diskBytes,omitempty"`
	// Arch is a Kubernetes architecture name: amd64, arm64.
	Arch string `json:"arch"`
	GPUs []GPU  `json:"gpus,omitempty"`
	// Labels are what its cloud says of it in the words of schedulers' labels, beyond
	// what the other fields say: "nvidia.com/gpu.product": "Tesla-T4".
	Labels    map[string]string `json:"labels,omitempty"`
	Offerings []PurchaseOption  `json:"offerings"`
	// Withheld says why the cloud sells none of it to this account, for people; "" where it sells some.
	// A type that is withheld has no offerings.
	Withheld string `json:"withheld,omitempty"`
	// PricesTold is when the prices of those of the offerings were told that are not spot,
	// where that was not when the catalogue was read; zero where it was, or is unknown.
	PricesTold time.Time `json:"pricesTold,omitzero"`
	// BootTimeout is how long a machine may take from its launch until its kubelet
	// is ready, before it counts as one that never will be; 0 where its cloud knows
	// nothing of it. It is a limit, far above what is usual: giving up too early
	// starts a machine again that was about to be ready, and again after it.
	BootTimeout time.Duration `json:"bootTimeout,omitempty"`

	// UsableBytes is what the kernel of a machine sees of MemoryBytes; 0 where that is
	// all of them.
	UsableBytes int64 `json:"usableBytes,omitempty"`
	// CreditPerCPUHour is what a burstable type is charged for a CPU above its baseline,
	// in dollars an hour; 0 where its cloud sells none.
	CreditPerCPUHour float64 `json:"creditPerCPUHour,omitempty"`
	// LocalDiskBytes is what all disks of the machine itself have together.
	LocalDiskBytes int64 `json:"localDiskBytes,omitempty"`
	// Accelerators are those that are no GPU.
	Accelerators []Accelerator `json:"accelerators,omitempty"`
	// CPUMaker is in the cloud's own words: Intel, AMD, AWS; "" where it is unknown.
	CPUMaker  string `json:"cpuMaker,omitempty"`
	BareMetal bool   `json:"bareMetal,omitempty"`
	// Interfaces is how many network interfaces a machine may have, and each of them
	// AddressesPerInterface IPv4 addresses; 0 where it is unknown.
	Interfaces            int64 `json:"interfaces,omitempty"`
	AddressesPerInterface int64 `json:"addressesPerInterface,omitempty"`
	// MaxDisks is how many disks of PersistentVolumes a machine may have; 0 where it is
	// unknown, or not bounded.
	MaxDisks int64 `json:"maxDisks,omitempty"`
	// BootModes are uefi and bios; none where it is unknown.
	BootModes []string `json:"bootModes,omitempty"`
	// FastRootDisk reports whether its root disk may be one of the cloud's fast ones
	// where that depends on the type; nil where it does not, or is unknown.
	FastRootDisk *bool `json:"fastRootDisk,omitempty"`
	// Prefer is how much dearer, as a share, it may be than another type and is chosen
	// still: what the operator says of it, no cloud.
	Prefer float64 `json:"prefer,omitempty"`
	// Learnt is what its machines have turned out to have; zero where that is not known.
	Learnt Resources `json:"-"`
}

// SustainedMilliCPU is what a pod can have for as long as it wants: of a burstable type
// whose cloud sells nothing above the baseline, the baseline.
func (t InstanceType) SustainedMilliCPU() int64 {
	has := cmp.Or(t.Learnt.MilliCPU, t.MilliCPU)
	if t.BaselineMilliCPU > 0 && t.CreditPerCPUHour == 0 {
		return min(t.BaselineMilliCPU, has)
	}
	return has
}

// SeenBytes is what the kernel of a machine sees of its memory, as well as that is known.
func (t InstanceType) SeenBytes() int64 {
	return cmp.Or(t.Learnt.MemoryBytes, t.UsableBytes, t.MemoryBytes)
}

// What of a machine's memory its kernel does not count as memory, in bytes. Measured with the
// boot image's kernel, Linux 6.12, on virtual machines with one CPU: 47 MiB of 512, 56 of 1024, 74 of
// 2048, 173 of 4096, 243 of 8192.
const (
	// kernelMemory is the kernel itself, and pagesShare describes pages: one byte of so many.
	kernelMemory, pagesShare = 40 << 20, 56
	// lowMemory is how much lies below 4 GiB at most. With more, the kernel sets bouncing aside for
	// devices that reach no further.
	lowMemory, bouncing = 2816 << 20, 66 << 20
	// unseenPercent is what a kernel does not see of larger machines: clouds' firmware takes some, too.
	// Others measured 1.7 to 5.3 %.
	unseenPercent = 3
)

// KernelSees returns what the boot image's kernel counts of a machine's memory, in bytes; rather too
// little, so that the first pod that is placed by it fits.
func KernelSees(memory int64) int64 {
	n := memory - kernelMemory - memory/pagesShare
	if memory > lowMemory {
		n -= bouncing
	}
	return max(0, n)
}

// CloudSees is KernelSees for a machine in a cloud.
func CloudSees(memory int64) int64 {
	return min(KernelSees(memory), memory-memory*unseenPercent/100)
}

// BootLimit is how long a machine of this type may take from its launch until its
// kubelet is ready.
func (t InstanceType) BootLimit() time.Duration { return cmp.Or(t.BootTimeout, BootTimeout) }

// GPU is a model of accelerator and how many of it a type has.
type GPU struct {
	Model string `json:"model"`
	Count int64  `json:"count"`
	// MemoryBytes is that of one; 0 where the cloud does not say.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
}

// Accelerator is a model of what computes beside the CPU and is no GPU, and how many of
// it a type has.
type Accelerator struct {
	Maker string `json:"maker"`
	Model string `json:"model"`
	// Kind is neuron, inference, fpga, media and the like.
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
}

// PurchaseOption is one way to buy an instance type: where, as what capacity type, and at what price. With its type it makes an
// offering.Offering, which Kip launches cells by.
type PurchaseOption struct {
	Zone string `json:"zone"`
	// Subnet is set where a zone has several to launch in.
	Subnet string `json:"subnet,omitempty"`
	Spot   bool   `json:"spot,omitempty"`
	// Dedicated is an offering on hosts that no other account shares; not with Spot.
	Dedicated bool `json:"dedicated,omitempty"`
	// Reservation is the ID of the capacity that the offering is of, which is paid for whether it is
	// used or not, and has room for more; "" for none.
	Reservation string `json:"reservation,omitempty"`
	// PricePerHour is in US dollars.
	PricePerHour float64 `json:"pricePerHour"`
	// Unpriced is an offering whose price is not known: PricePerHour is 0, and says
	// nothing.
	Unpriced bool `json:"unpriced,omitempty"`
	// OrderedAt is the price by which an offering is ordered whose own is not known, that of
	// the same machine bought otherwise: it is shown and counted nowhere. 0 for none.
	OrderedAt float64 `json:"orderedAt,omitempty"`
	// Risk is how much dearer, as a share, a spot offering counts as it is, since Kip has seen
	// it being taken back.
	Risk float64 `json:"-"`
}

// Pool says which of a type's machines in a zone are meant, which run out by themselves: "" for
// those that all accounts share, Dedicated for those of hosts of one account, or the ID of a
// reservation.
func (o PurchaseOption) Pool() string {
	switch {
	case o.Reservation != "":
		return o.Reservation
	case o.Dedicated:
		return Dedicated
	}
	return ""
}

// Dedicated is the Pool of what is on hosts that no other account shares.
const Dedicated = "dedicated"

// ComparePrice orders offerings by price, those whose price is not known last.
func (o PurchaseOption) ComparePrice(other PurchaseOption) int {
	known := func(o PurchaseOption) int {
		if o.Unpriced {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(known(o), known(other)), cmp.Compare(o.PricePerHour, other.PricePerHour))
}
