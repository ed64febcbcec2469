// Package network connects the pod of a cell: it prepares the machine for the
// pod's address, and it is the CNI plugin that gives the pod its interface. It
// owns the pod's veth, the route and the proxy neighbour of the pod's address,
// and a few sysctls of this network namespace; it leaves the machine's own
// interface and routes alone, but takes the pod's address from them.
//
// A pod of a DaemonSet that runs beside the cell's pod gets an address of the machine alone, and leaves by the
// machine's (package firewall).
//
// All of the pod's traffic is routed through the cell's network namespace, where
// rules for Services and policies can see it.
package network
