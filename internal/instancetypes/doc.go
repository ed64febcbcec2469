// Package instancetypes owns what Kip may launch: the cloud's catalogue, kept fresh and kept
// in the store, the placer that is made of it, and what of it is short. It launches
// nothing.
package instancetypes
