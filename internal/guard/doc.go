// Package guard owns the termination guard of the pipe to the cloud: it decides whether an instance may end, and whether a disk, or what
// an instance has left, may be deleted. It does not decide what is to end, or when a call is sent or retried. It calls no cloud.
//
// Three rules bound the ends that nobody has requested:
//
//  1. A fresh lease vetoes the end. A cell that was heard in the last 40 seconds does not end. Time in which Kip could not hear a cell
//     counts as heard.
//  2. An instance is gone only if the cloud describes it as gone, or if two complete lists lack it. Package cells collects this
//     evidence, and asks the guard only when it is complete.
//  3. Ends that may cost a running pod have a limit, a share of all cells. Each such end is stored before the instance ends.
//     Namespaces share the limit in turns.
//
// While the store may not know all instances, only requested ends pass. A person can let through what rules 1 and 3 hold back.
//
// The guard comes before every wait of a call. Last of all the pipe's own fence checks that this Kip still leads. The guard holds no lock
// while a call to the cloud waits.
package guard
