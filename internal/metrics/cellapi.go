package metrics

import "time"

// Why a cell was refused: what package cellapi calls Refusals.
const (
	refusedForbidden = "forbidden"
	refusedInvalid   = "invalid"
	refusedMediaType = "media_type"
	refusedTooLarge  = "too_large"
	refusedTooMany   = "too_many"
)

// CellRefusals are all reasons that CellRefused knows, in order.
func CellRefusals() (all []string) {
	for _, v := range labelRefusal.values {
		all = append(all, v.name)
	}
	return all
}

// CellAsked is told of each request of a cell.
func (m *Metrics) CellAsked() { m.cellRequests.Inc() }

// CellSent is told of the bytes of a cell's body.
func (m *Metrics) CellSent(bytes int64) { m.cellSent.Add(float64(bytes)) }

// CellAnswered is told of bytes that a cell was answered.
func (m *Metrics) CellAnswered(bytes int) { m.cellAnswered.Add(float64(bytes)) }

// CellWorked is told how long Kip has worked on a request of a cell.
func (m *Metrics) CellWorked(d time.Duration) { m.cellWork.Add(d.Seconds()) }

// CellRefused is told of each request that a cell was refused, and why.
func (m *Metrics) CellRefused(why string) { m.cellRefusals.WithLabelValues(why).Inc() }
