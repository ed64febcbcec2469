// Package stats owns what the pods of the virtual node use, as a kubelet tells
// it: /stats/summary, /metrics/resource, /metrics/cadvisor and /metrics/probes. It
// must not touch pods or cells: it asks the kubelets of the cells that it is
// given, and keeps nothing beyond a few seconds but the node's count of CPU time.
//
// A cell is a machine that its pod may have taken over, so that its word is taken
// for its own pod alone: what it says of any other is left out, and what cannot be
// parsed spoils no other cell's part. No cell delays the rest by more than its
// time-out, which is the same for all and runs at the same time.
package stats
