// Package nodes owns the life of the virtual nodes that a Kip serves: which there are,
// as the configuration and what was stored say, since when each may be served, what
// follows its pods and answers for it, and how it goes when it was taken out. It must
// not touch pods or cells: it knows their lists, and deletes nothing but a node of its
// own and that node's lease.
//
// A node itself is package node; which ones are wanted, by which names, is package
// nodeplan, without effects. Here they come, change and go while Kip runs.
//
// Open returns the Nodes before anything is made that follows pods: registry.go has those that are served, plan.go what is
// stored of them, offers.go what their pods can be launched on, departures.go which of them a pod may leave.
//
// New returns the Controller that serves them, once that is made: kubelets.go answers the API server, access.go finds out
// which may be served, follow.go runs what each has, keep.go keeps their objects, capacity.go their capacity, change.go
// takes a new configuration, remove.go lets nodes go. Follow and Keep run in one order for all nodes, and stop all that they
// began.
package nodes
