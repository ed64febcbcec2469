// Package nodes owns the life of the virtual nodes that a Kip serves: which there are,
// as the configuration and what was stored say, since when each may be served, what
// follows its pods and answers for it, and how it goes when it was taken out. It must
// not touch pods or cells: it knows their lists, and deletes nothing but a node of its
// own and that node's lease.
//
// A node itself is package node; which ones are wanted, by which names, is package
// nodeplan, without effects. Here they come, change and go while Kip runs.
//
// Open is called before anything is made that follows pods, Equip once that is made.
// Follow and Keep run in one order for all nodes, and stop all that they began.
package nodes
