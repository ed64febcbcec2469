// Package node owns the virtual node: its object, lease and status in the
// Kubernetes API, and the port at which the API server expects a kubelet. It
// must not touch pods or cells: it asks its caller for the way to a pod's cell,
// and passes the request on.
//
// The object's life (lease, status, ping) is Virtual Kubelet's node controller.
// Two identities write it. What a node may not say about itself (some labels,
// all taints; NodeRestriction forbids it) is written by Kip's own identity in
// register.go; the status and the lease are written by the node's.
//
// When Kip stops, the object stays and its lease lapses: the pods go on running
// on their cells.
package node
