package cells

// perCell is what one part holds of each cell, as long as the cell is there. The zero value is ready for use. What guards
// a state is the part's own business; most are of the cell's worker.
type perCell[T any] struct {
	_ noCopy // what it holds is found by its address: a copy would hold nothing
	_ byte   // gives each value an address of its own: values without a size may share one
}

// noCopy has vet refuse copies of what it is in.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// of returns what the part holds of a cell: at first the zero value.
func (p *perCell[T]) of(e *entry) *T {
	held, there := e.held.Load(p)
	if !there {
		held, _ = e.held.LoadOrStore(p, new(T))
	}
	return held.(*T)
}
