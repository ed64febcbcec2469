package cells

import "context"

// preparation gives a cell something that it needs before the next one, before its launch, or before its kubelet sees the pod. It need not
// ask whether the cell is to end.
//
// All preparations of a cell run again from the top at each of its steps, and in a new process. So each is idempotent, and notes in a
// perCell what it has done. It notes with the session what the cell's agent holds: another session may be to an agent that has started
// anew.
type preparation interface {
	prepare(ctx context.Context, e *entry) (progress, error)
}

// waiter is a step, or a preparation, that knows better what a cell waits for now than when it returned its progress.
type waiter interface {
	// waitsForLocked returns what a cell waits for there now, for people; "" if that is what the progress said, or nothing. The caller holds
	// table.mu.
	waitsForLocked(e *entry) string
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
		if why, _ := s.table.ending(e); why != "" {
			return leave, nil
		}
		if got, err := p.prepare(ctx, e); err != nil || !got.isDone() {
			return got, err
		}
	}
	return done, nil
}

// waitsForLocked returns what the first of them says that knows. One that is no waiter has nothing to say. The caller holds table.mu.
func (s preparations) waitsForLocked(e *entry) string {
	for _, p := range s.list {
		if w, knows := p.(waiter); knows {
			if why := w.waitsForLocked(e); why != "" {
				return why
			}
		}
	}
	return ""
}

// unlessStopped is the preparation with which a stopped cell leaves: it is started before it is given anything else.
type unlessStopped struct{}

var _ preparation = unlessStopped{}

func (unlessStopped) prepare(_ context.Context, e *entry) (progress, error) {
	if e.cell().Stopped {
		return leave, nil
	}
	return done, nil
}
