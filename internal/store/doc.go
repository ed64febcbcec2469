// Package store owns Kip's state in etcd, embedded or external: cells, the CA
// and the controller's identity. It holds no copies of pods; those live in the
// API server. It knows keys and bytes, not what they mean.
//
// An etcd may be shared, and so each Kip has a view of its own (Within), with a
// schema of its own: one Kip of several can be upgraded. In the order of a
// start: open, take the view, lead (package leader), Migrate, and then read.
// Maintain runs beside.
//
// What an embedded etcd does when its disk fails: it logs as fatal, which would
// end the process without a word. Here that goroutine of etcd's is parked, Done
// is closed and Err says why; requests fail at once, and the process should end
// and be started again. Before it comes to that, writes are refused with
// ErrNoSpace while the disk has less than 96 MiB left.
package store
