// Package cells owns the life of cells: the state machine from Requested to
// Gone, one file a step. It is the only writer of cell records and the only
// caller of the cloud. Every change of phase is stored before it is acted upon,
// so that a crash at any point neither loses nor doubles an instance.
//
// It decides nothing about pods: package pods asks for a cell and lets it go.
package cells
