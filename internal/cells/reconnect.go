package cells

import (
	"context"
)

// reconnecting keeps ready cells connected.
type reconnecting struct {
	table       *table
	connections *connections
}

// prepare connects to a cell, unless that is stopped, or is to end.
func (s *reconnecting) prepare(ctx context.Context, e *entry) (progress, error) {
	if why, _ := s.table.endingOf(e); why != "" || e.cell().Stopped {
		return leave, nil
	}
	if err := s.connections.connect(ctx, e); err != nil {
		return progress{}, err
	}
	return done, nil
}
