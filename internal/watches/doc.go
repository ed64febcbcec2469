// Package watches owns what Kip sees of the API server for all cells at once: one
// watch a kind, or a referenced object, however many read it, and a history that
// each reader follows at its own pace. It must not know who reads, nor what a
// cell may see: that is the cell API's.
//
// A [Collection] holds the objects of one kind, or a part of them. Nothing is kept
// for a reader: one that falls behind the history is told so, and begins anew. An
// [Object] never changes, so that what is made of it once serves all.
package watches
