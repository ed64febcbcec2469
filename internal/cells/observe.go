package cells

import (
	"time"

	"github.com/elotl/kip/internal/agentapi"
)

// Observer is told what becomes of cells. Its methods are called by the workers
// that move cells, at the same time for several cells. They must not block, nor
// ask for Controller.Costs, which waits for them. The changes of one cell are told
// in their order.
//
// One that needs only some of it embeds Unobserved.
type Observer interface {
	// CellChanged is told of each change of a cell, also when the cell is Gone.
	CellChanged(cell Cell)
	// CellConnected is told of each connection to a cell's agent that has its
	// configuration.
	CellConnected(cell Cell, agent agentapi.Conn)
	// CellSilent is told of a bound cell that has not been heard of for a while,
	// and again as long as the cell is silent.
	CellSilent(cell Cell, since time.Time)
	// CellInterrupted is told of a bound cell whose instance the cloud takes back, and again when the time of that changes
	// or it is called off.
	CellInterrupted(cell Cell)
	// CellTakenBack is told, once, of each spot cell whose instance the cloud announces to
	// take back, bound or not. That a bound cell says so itself is not enough.
	CellTakenBack(cell Cell)
	// CellMeasured is told, once, of each cell whose machine is measured.
	CellMeasured(cell Cell)
	// OrphanFound is told of each instance that is seen without a cell for the
	// first time.
	OrphanFound()
	// OrphanEnded is told of each call that ends such an instance, and of its error.
	OrphanEnded(err error)
	// OwnedLeft is told of each resource, such as an address, that is seen for the first time without the
	// instance that owns it.
	OwnedLeft()
	// OwnedDeleted is told of each deletion of such a resource, and of its error.
	OwnedDeleted(err error)
}

// Unobserved is an Observer that does nothing.
type Unobserved struct{}

var _ Observer = Unobserved{}

func (Unobserved) CellChanged(Cell)                  {}
func (Unobserved) CellConnected(Cell, agentapi.Conn) {}
func (Unobserved) CellSilent(Cell, time.Time)        {}
func (Unobserved) CellInterrupted(Cell)              {}
func (Unobserved) CellTakenBack(Cell)                {}
func (Unobserved) CellMeasured(Cell)                 {}
func (Unobserved) OrphanFound()                      {}
func (Unobserved) OrphanEnded(error)                 {}
func (Unobserved) OwnedLeft()                        {}
func (Unobserved) OwnedDeleted(error)                {}

// observers are told one after the other, in their order.
type observers []Observer

var _ Observer = observers(nil)

func (all observers) CellChanged(cell Cell) {
	for _, o := range all {
		o.CellChanged(cell)
	}
}

func (all observers) CellConnected(cell Cell, agent agentapi.Conn) {
	for _, o := range all {
		o.CellConnected(cell, agent)
	}
}

func (all observers) CellSilent(cell Cell, since time.Time) {
	for _, o := range all {
		o.CellSilent(cell, since)
	}
}

func (all observers) CellInterrupted(cell Cell) {
	for _, o := range all {
		o.CellInterrupted(cell)
	}
}

func (all observers) CellTakenBack(cell Cell) {
	for _, o := range all {
		o.CellTakenBack(cell)
	}
}

func (all observers) CellMeasured(cell Cell) {
	for _, o := range all {
		o.CellMeasured(cell)
	}
}

func (all observers) OrphanFound() {
	for _, o := range all {
		o.OrphanFound()
	}
}

func (all observers) OrphanEnded(err error) {
	for _, o := range all {
		o.OrphanEnded(err)
	}
}

func (all observers) OwnedLeft() {
	for _, o := range all {
		o.OwnedLeft()
	}
}

func (all observers) OwnedDeleted(err error) {
	for _, o := range all {
		o.OwnedDeleted(err)
	}
}

// Shortages remember what the cloud did not serve. They are used by several
// goroutines at a time, and must not block.
type Shortages interface {
	// Mark notes that the cloud did not serve an offering, and its answer.
	Mark(o Offering, answer error)
	// Unavailable reports whether an offering is known not to be served now.
	Unavailable(o Offering) bool
}
