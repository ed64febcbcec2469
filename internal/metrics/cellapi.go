package metrics

// CellRefused is told of each request that a cell was refused: it is
// cellapi.Config.Refused.
func (m *Metrics) CellRefused() { m.cellRefusals.Inc() }
