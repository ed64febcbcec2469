// Package daemonsets owns the choice of the DaemonSets that run beside pods on their cells: which sets, beside which pods,
// what keeps one from it, and what keeps one off Kip's nodes. It is pure: it imports no client, watches nothing and tells nobody.
//
// The controller of DaemonSets binds one pod of a set to a virtual node. Each cell of that node runs a copy of this pod
// beside its own: what is chosen here is that pod, and no object is made for a copy.
package daemonsets
