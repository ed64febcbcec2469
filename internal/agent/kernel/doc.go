// Package kernel owns what a pod asks of its machine's kernel: it loads modules, sets sysctls, reserves huge pages and makes swap, also
// when the machine has been started anew. It must not touch what the agent, the kubelet and kube-proxy set themselves.
package kernel
