// Package components is the upstream parts of a cell, each behind its own
// command line: the kubelet and containerd, and what has to be asked of
// containerd through its own client. It adds no behaviour to them. It is the
// only package here that imports k8s.io/kubernetes, and it must not be imported
// by the agent itself: linking the two costs a process 10 MB and 35 ms before
// main.
package components
