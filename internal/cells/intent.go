package cells

import (
	"context"
	"errors"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// intents stores what is to be launched, before the cloud is called.
type intents struct {
	table      *table
	clock      clock.PassiveClock
	records    *records
	generation *StoreGeneration
	calls      *pipe.Pipe
	builder    *callBuilder
}

// store makes the call of a launch, and stores it with as many of the cells as the store takes in one write. It returns what has become
// of the others: they are not of that call, and their records are not changed.
func (s *intents) store(ctx context.Context, l *launch) []*outcome {
	group := l.open()
	n := len(group)
	err := s.storeWith(ctx, l, group)
	for ; errors.Is(err, store.ErrTooBig) && n > 1; err = s.storeWith(ctx, l, group[:n]) {
		n /= 2
	}
	others := outcomesOf(group[n:], isLeftOver, nil)
	if err != nil {
		return append(others, outcomesOf(group[:n], isUnstored, err)...)
	}
	return others
}

// storeWith makes the call of a launch for some of its cells and stores it, before the cloud is called. One transaction has
//
//   - the generation, raised: an older copy of the store has a lower one than the instances;
//   - the call, whole, tagged with that generation: what is sent, also again, is this;
//   - the cells, Launching by this call.
//
// So a Kip that dies before it has launched nothing, and one that follows it sends the same call. Nobody raises the generation, and
// nobody changes the cells, until it is known what became of it.
func (s *intents) storeWith(ctx context.Context, l *launch, group []*entry) error {
	cells, call, err := s.builder.build(group, s.calls.Capabilities().SharedUserData, l.resolved, s.clock.Now())
	if err != nil {
		return err
	}
	id := cells[0].Launch.ID
	become := func(n int, cell *Cell) error {
		// Not before: an earlier launch of the cell may be stored, its answer lost,
		// and a member of that one waits for this cell by its ID.
		s.table.mu.Lock()
		group[n].launchID = id
		s.table.mu.Unlock()
		cell.Launch, cell.Token, cell.CA, cell.OldCA = cells[n].Launch, cells[n].Token, cells[n].CA, ""
		cell.Template = cells[n].Template
		return cell.enter(apiv1.Launching)
	}
	var revision int64
	err = s.generation.raise(ctx, func(tag string, raised store.Change) (int64, error) {
		call.Request.Tags[cloud.TagGeneration] = tag
		revision, err = s.records.commitWith(ctx, group, become, store.Change{Key: launchesPrefix + id, Value: call}, raised)
		return revision, err
	})
	if err != nil {
		return err
	}
	l.group, l.id, l.request, l.until, l.revision = group, id, call.Request, call.Until, revision
	return nil
}
