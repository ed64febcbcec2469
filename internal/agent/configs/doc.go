// Package configs renders the configuration files of a cell's parts: containerd,
// the kubelet and its kubeconfig, registries, CNI. Pure: it decides what the
// files say and neither writes them nor starts anything.
package configs
