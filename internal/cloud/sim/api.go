package sim

// This is what a model of a cloud's own API asks besides: it answers in that cloud's
// words, from these machines.

// Code is what EC2 calls an error, for a model that answers in EC2's words.
type Code string

// Codes.
const (
	CodeInsufficientCapacity Code = "InsufficientInstanceCapacity"
	CodeNoAddress            Code = "InsufficientFreeAddressesInSubnet"
	CodeVCPULimit            Code = "VcpuLimitExceeded"
	CodeInstanceLimit        Code = "InstanceLimitExceeded"
	CodeNotFound             Code = "InvalidInstanceID.NotFound"
	CodeState                Code = "IncorrectInstanceState"
	CodeUnsupported          Code = "UnsupportedOperation"
)

func (c Code) Error() string { return string(c) }
