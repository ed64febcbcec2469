// Package components is Kubernetes' parts of a cell, each behind its own command
// line: the kubelet and kube-proxy. It adds no behaviour to them. It is the
// only package here that imports k8s.io/kubernetes, and it must not be imported
// by the agent itself: linking it costs a process 10 MB and 35 ms before
// main.
package components
