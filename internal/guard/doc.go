// Package guard owns the termination guard of the pipe to the cloud: it decides whether an instance may end, and whether a disk, or what
// an instance has left, may be deleted. It does not decide what is to end, or when a call is sent or retried. It calls no cloud.
//
// Three rules bound the ends that nobody has requested (rules.go):
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
// Admit is asked at several points of an end, since much can happen between them:
//
//   - Before an end begins that nobody has requested (package cells, hold.go). A cell whose end is held back keeps its pod, and
//     nothing is stored of its end.
//   - Again within Admit, once the end is stored that counts for the limit (count.go). While the store was waited for, the cell may
//     have been heard.
//   - Before the instance is terminated (package cells, terminatecalls.go). An instance without a cell comes to the guard here for the
//     first time, and so does the end of a cell that never had a pod.
//   - Before the call leaves for the cloud (Intercept), so that no caller can forget to ask. Whatever was not admitted before counts
//     as an end that nobody has requested.
//
// An instance that was admitted is not counted again.
//
// Rule 1 is asked only when an end begins, at the first two points. No phase leads back from an end, also if the cell is heard again, and
// Kip closes the connection before it terminates the instance. A veto at a later point would not save the cell. It would only keep its
// pod waiting for another. So package cells says nothing of the last heartbeat there.
//
// The guard comes before every wait of a call. Last of all the pipe's own fence checks that this Kip still leads. The guard holds no lock
// while a call to the cloud waits.
package guard
