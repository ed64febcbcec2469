// Package firewall owns the nftables table "inet kip" of a cell's network
// namespace: which packets of the pod pass, and from which address. It renders and loads the table;
// what is in it Kip decides. It leaves other tables alone, and the gate that holds
// the pod back is its caller's.
//
// Three states, each a whole table that replaces the one before it atomically:
//
//   - closed, from the agent's start: nothing to or from the pod passes, not even
//     to the cell; nobody on the machine reaches a metadata service;
//   - in force: Kip's rules for the pod, and the guard;
//   - no table: the agent has not begun.
//
// The guard is what holds for every pod. It may send from its own addresses only,
// begin no connection to the cell's own network namespace (the agent, the kubelet,
// kube-proxy, what else listens there), and ask no metadata service unless Kip's
// rules allow it.
//
// The pod's packets are judged on their way through the cell, after the destination
// of a Service has become an address: policies are about addresses. What
// belongs to a connection that was let through passes, also when the rules have
// changed since. What the cell's own processes send to the pod, such as the
// kubelet's probes, never comes this way.
//
// Kip may say that the pod's packets leave with the cell's address, but for some
// networks. The table then has a chain that does so, behind all filters.
package firewall
