package cells

import "context"

// reconnecting keeps ready cells connected, before they are given anything over the connection.
type reconnecting struct {
	connections *connections
}

var _ preparation = (*reconnecting)(nil)

// prepare connects to a cell.
func (s *reconnecting) prepare(ctx context.Context, e *entry) (progress, error) {
	return s.connections.connect(ctx, e)
}
