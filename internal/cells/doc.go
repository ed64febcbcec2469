// Package cells owns the life of cells: the state machine from Requested to Gone.
// It is the only writer of cell records and the only caller of the cloud that
// launches. A change of phase is stored before anybody acts upon it. So a crash at
// any point neither loses nor doubles an instance.
//
// Each step has a file and a test: request, launch, join, disks and plugins, bind,
// drain, terminate. What may come in between has, too: standby, interrupt, health,
// release. Every change of a record goes through commit.
//
// ledger, pools, inventory and Mirror are types with a mutex of their own. Their
// order of locks is beside Controller.mu.
//
// This package decides nothing about pods. Package pods asks for a cell, lets it
// go, and observes what becomes of it.
package cells
