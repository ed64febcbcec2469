// Package node owns an ordinary node of the development cluster, from within its
// machine: upstream's containerd, kubelet and kube-proxy with usual settings, a
// network for many pods, and the node's own identity. Of Kip it knows nothing; the machine
// itself is made by package stack.
package node
