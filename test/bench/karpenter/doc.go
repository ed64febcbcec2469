// Command karpenter measures what N pods cost that each get a machine of their
// own: time, CPU, memory, and requests to the API server by who makes them. It
// starts Karpenter with its kwok provider to provide the machines, or measures
// what already runs in the cluster, such as Kip: the measure is the same.
//
// It is a module of its own, so that Karpenter's dependencies choose no version
// of Kip's. The programs that it starts are pinned as tools in go.mod.
//
// # What is counted
//
// Before the window one such pod runs, and stays: what the first launch costs a new
// process, or waits for with a new store, is neither's steady state. The window
// begins before the Deployment is posted. It ends when every pod is
// bound, or Running with --until=running; with Karpenter moreover each on a node
// that no other pod is on, and all these nodes registered. Kip's pods are bound at
// once, before there is a machine: there only --until=running says something.
// CPU, requests and peak memory are of the window only; what happened before
// (installing Karpenter, its start, its NodePool becoming Ready, the first pod) is not counted,
// nor what follows (Karpenter then marks its machines as initialized).
//
// In Karpenter's favour: one instance type, one offering, and no consolidation,
// expiry or drift; machines boot in no time; no kubelet runs, so that pods' status
// costs nothing, or with --until=running one request a pod where a kubelet makes
// about fourteen; no leader election; its log says errors only. It is the
// administrator, whom the API server neither queues nor asks for rights. kwok,
// which stands in for the kubelets, is listed apart. `make bench` allows it five
// times the requests of its own default: as many as Kip's is.
//
// In Kip's favour: one pod a machine is its shape, where Karpenter would put many on
// one; its pods are bound at once, to a node that is always there; its
// cells are no nodes, which cost the controller manager and the scheduler; its
// machines, too, boot in no time, and its cells are in the benchmark's process.
//
// All else is Karpenter's default, among it that it waits until no new pod has come
// for a second.
//
// A process is measured whole. That of kip-dev is etcd, the API server, the
// scheduler and the controller manager together: machines that come as nodes cost
// all four. The audit log costs the API server a little, whoever is measured. The
// clock is worth something only where other_cpu_seconds is small: run both products
// one after the other on a quiet machine.
package main
