// Package leader owns the choice of the one Kip, of several replicas on one
// external etcd, that runs the node; the others stand by. It knows etcd's leases
// and the store, and nothing of what a leader does.
//
// A replica that wins gets a fenced view of the store: each of its writes
// requires, in its own transaction, that the replica's leader key is still
// there. A replica that was paused past its lease may go on believing that it
// leads, but can write nothing. What it does outside the store, as a call of a
// cloud, the fence does not stop; such effects follow a write of their intent.
package leader
