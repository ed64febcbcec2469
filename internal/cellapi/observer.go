package cellapi

import "time"

// Refusal is why a cell was refused what it asked. It is a name for metrics: who
// counts them need not know this package.
type Refusal = string

const (
	Forbidden Refusal = "forbidden"  // a cell may not have it
	TooLarge  Refusal = "too_large"  // a body, or what Kip would hold of it
	TooMany   Refusal = "too_many"   // later: the cell's budget is spent, or Kip does not know yet
	Invalid   Refusal = "invalid"    // a field is not what a kubelet writes
	MediaType Refusal = "media_type" // a body of a kind that no kubelet sends
)

// Refusals are all there are.
var Refusals = []Refusal{Forbidden, Invalid, MediaType, TooLarge, TooMany}

// Observer is told what all cells ask of their API. Its methods return at once, and
// may be called at the same time.
type Observer interface {
	// CellAsked is told of each request, whatever its answer.
	CellAsked()
	// CellSent is told of the bytes of a body.
	CellSent(bytes int64)
	// CellAnswered is told of bytes that were answered.
	CellAnswered(bytes int)
	// CellWorked is told how long Kip has worked on a request.
	CellWorked(time.Duration)
	// CellRefused is told of each request that was refused.
	CellRefused(Refusal)
}

// unobserved is told for nobody.
type unobserved struct{}

var _ Observer = unobserved{}

func (unobserved) CellAsked()               {}
func (unobserved) CellSent(int64)           {}
func (unobserved) CellAnswered(int)         {}
func (unobserved) CellWorked(time.Duration) {}
func (unobserved) CellRefused(Refusal)      {}
