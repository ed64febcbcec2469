// Package catalog describes instance types and what they cost. It holds values
// only: it imports no client and does no I/O.
package catalog

// InstanceType is one size of machine that a cloud sells.
type InstanceType struct {
	Name        string `json:"name"`
	MilliCPU    int64  `json:"milliCPU"`
	MemoryBytes int64  `json:"memoryBytes"`
	// BaselineMilliCPU is what a burstable type sustains; 0 for the others.
	BaselineMilliCPU int64 `json:"baselineMilliCPU,omitempty"`
	// DiskBytes is the root disk's size where the type fixes it; 0 where it
	// is chosen at launch (cells.defaultVolumeSize).
	DiskBytes int64 `json:"diskBytes,omitempty"`
	// Arch is a Kubernetes architecture name: amd64, arm64.
	Arch      string     `json:"arch"`
	GPUs      []GPU      `json:"gpus,omitempty"`
	Offerings []Offering `json:"offerings"`
}

// GPU is a model of accelerator and how many of it a type has.
type GPU struct {
	Model string `json:"model"`
	Count int64  `json:"count"`
}

// Offering is where, how and at what price a type can be had.
type Offering struct {
	Zone string `json:"zone"`
	// Subnet is set where a zone has several to launch in.
	Subnet string `json:"subnet,omitempty"`
	Spot   bool   `json:"spot,omitempty"`
	// PricePerHour is in US dollars.
	PricePerHour float64 `json:"pricePerHour"`
}
