// Package holder owns the mark on the lease of Kip's node, by which two Kips of one
// identity notice each other: two stores in one cluster, each of which believes that the
// node is its own. It knows leases and the store, and nothing of nodes or cells.
//
// A mark names the one who made it by an ID that its store has recorded before, so that
// the next process of the same store goes on at once, whether the last one has stopped
// or died. A mark that the store does not know is another Kip's: who finds one begins
// only when it was not renewed for as long as a node's lease holds, by its own clock.
//
// A copy of a store knows the same marks. It begins as a restart would, and says whom it
// follows; who lives, and leads by its store, takes the node back, and the copy, which
// knows nothing of that mark, gives way. So the younger of the two waits.
package holder
