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
	table       *table
	clock       clock.PassiveClock
	records     *records
	generation  *StoreGeneration
	calls       *pipe.Pipe
	launchCalls *launchCalls
}

// store makes a call for a group, and stores it with as many of the cells as the store takes in one write. The rest are not changed.
func (s *intents) store(ctx context.Context, group []*entry, resolved *cloud.Resolved) (l *launch, rest []*entry, err error) {
	n := len(group)
	l, err = s.storeAll(ctx, group, resolved)
	for ; errors.Is(err, store.ErrTooBig) && n > 1; l, err = s.storeAll(ctx, group[:n], resolved) {
		n /= 2
	}
	return l, group[n:], err
}

// storeAll makes a call and stores it, before the cloud is called. One transaction has
//
//   - the generation, raised: an older copy of the store has a lower one than the instances;
//   - the call, whole, tagged with that generation: what is sent, also again, is this;
//   - the cells, Launching by this call.
//
// So a Kip that dies before it has launched nothing, and one that follows it sends the same call. Nobody raises the generation, and
// nobody changes the cells, until it is known what became of it.
func (s *intents) storeAll(ctx context.Context, group []*entry, resolved *cloud.Resolved) (*launch, error) {
	cells, call, err := s.launchCalls.intended(group, s.calls.Capabilities().SharedUserData, resolved, s.clock.Now())
	if err != nil {
		return nil, err
	}
	id := cells[0].Launch.ID
	generation, err := s.generation.raise(ctx)
	if err != nil {
		return nil, err
	}
	defer generation.unlock()
	call.Request.Tags[cloud.TagGeneration] = generation.tag()
	become := func(n int, cell *Cell) error {
		// Not before: an earlier launch of the cell may be stored, its answer lost,
		// and a member of that one waits for this cell by its ID.
		s.table.mu.Lock()
		group[n].launch = id
		s.table.mu.Unlock()
		cell.Launch, cell.Token, cell.CA, cell.OldCA = cells[n].Launch, cells[n].Token, cells[n].CA, ""
		cell.Template = cells[n].Template
		return cell.enter(apiv1.Launching)
	}
	revision, err := s.records.commitWith(ctx, group, become, store.Change{Key: launchesPrefix + id, Value: call}, generation.change)
	generation.stored(revision, err)
	if err != nil {
		return nil, err
	}
	return &launch{
		id:       id,
		request:  call.Request,
		until:    call.Until,
		revision: revision,
		group:    group,
	}, nil
}
