// Package pipe owns the way of every call to a cloud. A Pipe is a cloud whose calls all go through Do, and so through
// these interceptors, in this order:
//
//	guard    refuses to destroy what may not end (passed in: internal/guard)
//	batcher  sends calls that name instances together while they wait
//	limiter  waits for the budget of the kind of call, and for the end of a back-off
//	fence    refuses what only the leader may do, after every wait
//	meter    counts and times the call (passed in: internal/metrics)
//
// Package pipe must not know why a call is made. It keeps nothing that a restart would lose.
package pipe
