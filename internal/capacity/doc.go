// Package capacity remembers, in memory, what a cloud had no capacity for, where
// and until when. It knows no cloud, stores and retries nothing: placement asks
// it, and whoever launches tells it.
package capacity
