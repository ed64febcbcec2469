// Package store owns Kip's state in etcd, embedded or external: cells, the CA
// and the controller's identity. It holds no copies of pods; those live in the
// API server. It knows keys and bytes, not what they mean.
package store
