// Package remote owns a cloud that is served over a unix socket, so that a
// simulated one outlives the Kip that uses it, and several can. It knows nothing of
// the cloud behind it.
package remote
