// Package networkpolicy keeps the firewall of every cell with a pod as NetworkPolicies
// and the pod's annotations say: it evaluates them (package policy), hands each
// cell's agent the outcome, and says in an Event when a pod has to wait for it. It
// decides nothing about cells or pods, and knows tunnels as round trippers only.
//
// It fails closed. A pod gets its network when its cell has rules in force, and a
// cell gets its first rules when all that they depend on is known. As long as Kip
// is away, or does not know, what was in force stays.
//
// The cluster's pods are watched, with Kip's own service account, only while a
// policy that selects a pod of this node asks who they are.
package networkpolicy
