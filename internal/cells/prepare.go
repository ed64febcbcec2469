package cells

import "context"

// preparation gives a cell something that it needs before the next one, before its launch, or before its kubelet sees the pod. It need not
// ask whether the cell is to end.
type preparation interface {
	prepare(ctx context.Context, e *entry) (progress, error)
}

// preparations prepare a cell, one after the other.
type preparations struct {
	table *table
	list  []preparation // in their order
}

// prepare has a cell prepared until it has to wait, or leaves. A cell that is to end leaves before the next preparation; whoever has it
// end queues it.
func (s preparations) prepare(ctx context.Context, e *entry) (progress, error) {
	for _, p := range s.list {
		if why, _ := s.table.endingOf(e); why != "" {
			return leave, nil
		}
		if got, err := p.prepare(ctx, e); err != nil || got.state != isDone {
			return got, err
		}
	}
	return done, nil
}

// unlessStopped is the preparation with which a stopped cell leaves: it is started before it is given anything else.
type unlessStopped struct{}

func (unlessStopped) prepare(_ context.Context, e *entry) (progress, error) {
	if e.cell().Stopped {
		return leave, nil
	}
	return done, nil
}
