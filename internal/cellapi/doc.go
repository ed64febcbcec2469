// Package cellapi owns the Kubernetes API that a cell sees: a small, scoped one
// with one node, one pod and what that pod names in it. It speaks HTTP only and
// knows neither tunnels nor clouds; who a request comes from is decided by the
// handler that received it (one [Cell] each), never by what the request says.
//
// The kubelet of every cell believes that it is the virtual node, and that this
// is its API server. What it is answered, resource by resource:
//
//   - its Node, Lease and CSINode live here, in memory, one of each a cell. The
//     Node carries the labels, annotations, taints and UID of the real virtual
//     node, and the capacity and conditions of this one machine;
//   - pods holds the pod that [Cell.Bind] named, or nothing. Reads come from
//     Kip's informer; status, get and delete go to the API server after a check
//     of the pod's UID. Beside it are the pods of DaemonSets that run there: the
//     real ones, which stand for their copies on all cells, each with the status
//     that this kubelet gives it. That stays here, and so does its deletion;
//   - services, endpointslices, servicecidrs, runtimeclasses, csidrivers,
//     networkpolicies and namespaces come from one upstream watch a kind, whatever
//     the number of cells. Of services and endpointslices a cell is shown what its
//     kubelet and kube-proxy read, and of large Services some of the endpoints;
//   - secrets and configmaps are those that these pods name, each watched upstream
//     once and shared; claims and volumes are those that the pod names, fetched
//     when asked (the Node authorizer allows no watch on them), and so are the
//     secrets that CSI volumes name for the node. Of a claim's status the kubelet
//     says how the expansion of its volume goes, within what that volume has;
//   - clustertrustbundles are all of the cluster's, for a pod with a volume of them: watched
//     upstream once a virtual node, while there is such a pod;
//   - tokens are those of a pod's own service account, bound to that pod, that its
//     volumes ask for;
//   - the node plugins of CSI drivers are static pods of the kubelet, and nobody
//     else's: mirror pods are refused, and events about them are kept here;
//   - events are those about the pod and its claims, made anew in the kubelet's name. Events about the node are acknowledged and
//     dropped: every cell's kubelet would announce its own start, disk and
//     readiness in the name of the one virtual node;
//   - imagecredentials, which are Kip's own and of no API server, are what pulls the
//     images that the pod names from the cloud's registries, those and no others;
//   - resourceslices: a cell has none to delete, and is told so (404), or its
//     kubelet would ask for ever;
//   - everything else is 403, with a message that names cell, verb and resource.
//
// The rule that all else bows to: a kubelet kills what its pod list lacks, so no
// list of pods is ever empty because Kip does not know yet. A request that cannot
// be answered truthfully waits, then gets 429 with Retry-After, on which client-go
// repeats the same request and discards nothing.
//
// A cell may be hostile. What it sends is rebuilt from a shape, field by field, before
// anything else is done with it, and held, stored and passed on only as that. Each
// request is charged to the cell's budget first; no lock is held while what a cell
// sent is read, applied or compared.
//
// What an ordinary node may do, a cell may do. Bounds are Kubernetes' own, or what the
// pod's spec makes a kubelet write, and what is too long is cut at messages. A request
// beyond a rate waits, and is refused only where it would wait for long; the end of the
// pod does not wait. So a kubelet's status manager, which sends one status at a time, sends
// the latest one next.
//
// [Cell] wires the parts of a cell's API, and serve in cell.go chooses between them. Each is a struct with the few
// others that it depends on, in a file of its own: pod.go, node.go, owned.go (lease and CSINode), volumes.go and
// claim.go, tokens.go, events.go, images.go and shared.go answer what is asked about these. What runs beside the
// pod is in copies.go and copyapi.go, and setpods.go knows it for all cells. They stand on the cell's
// limits (limits.go, budget.go, turns.go), on the pod that it has (binding.go), and on pass.go, which asks the API
// server. admit.go lets a request in, with its body.
//
// Resource versions of shared kinds, referenced objects and the pod are the API
// server's own, so that watches go on over a restart of Kip. Those of nodes, leases
// and CSINodes, and of pods where DaemonSets run beside them, start at the time of day in microseconds, so that they grow over a
// restart and an older one is recognised: 410 Expired, and the kubelet lists anew.
package cellapi
