// Package deviceplugin offers the GPUs of a cell to its kubelet, by the kubelet's device
// plugin interface, as the resource nvidia.com/gpu. What a container gets with a GPU is said
// by package gpus; this one only names it. It runs in a process of its own, on machines that
// have GPUs: it links gRPC, and costs the others nothing.
package deviceplugin
