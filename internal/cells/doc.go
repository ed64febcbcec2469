// Package cells owns the life of cells: the state machine from Requested to Gone.
// It is the only writer of cell records and the only caller of the cloud that
// launches. A change of phase is stored before anybody acts upon it. So a crash at
// any point neither loses nor doubles an instance.
//
// Each step of a cell's life is a struct with the few parts that it depends on, in a
// file of its own: requesting, launching, sending, resuming, joining, binding,
// watching, draining, terminations. stepOf in controller.go names the step of each
// phase, and loop runs them. What watches over all cells is made likewise: lister,
// health, interruptions, refilling, tagging, boosting. Controller wires the parts, in
// wire.go, and passes on what other packages ask, in api.go.
//
// All steps stand on a core: table has the cells that are there, records changes what
// is stored of them (commit is the only way), and loop has the queue, the clock and
// the log. A part with a mutex of its own says in which order it is taken; the order
// of the others is beside table.mu.
//
// This package decides nothing about pods. Package pods asks for a cell, lets it
// go, and observes what becomes of it.
package cells
