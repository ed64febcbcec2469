package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/store"
)

// intents stores what is to be launched, before the cloud is called.
type intents struct {
	table       *table
	loop        *loop
	records     *records
	lineage     *Lineage
	calls       *pipe.Pipe
	launchCalls *launchCalls
}

// store makes a call and stores it with the cells that it launches, all in one
// transaction.
func (s *intents) store(ctx context.Context, group []*entry, resolved *cloud.Resolved) (*launch, error) {
	cells, stored, err := s.launchCalls.intended(group, s.calls.Traits().SharedUserData, resolved, s.loop.clock.Now())
	if err != nil {
		return nil, err
	}
	id := cells[0].Launch.ID
	var revision int64
	err = s.lineage.launch(ctx, func(tag string, raised store.Change) (int64, error) {
		stored.Request.Tags[cloud.TagGeneration] = tag
		record := store.Change{Key: launchesPrefix + id, Value: stored}
		revision, err = s.records.commitWith(ctx, group, func(n int, cell *Cell) error {
			// Not before: an earlier launch of the cell may be stored, its answer lost,
			// and a member of that one waits for this cell by its ID.
			s.table.mu.Lock()
			group[n].launch = id
			s.table.mu.Unlock()
			cell.Launch, cell.Token, cell.CA, cell.OldCA = cells[n].Launch, cells[n].Token, cells[n].CA, ""
			cell.Template = cells[n].Template
			return cell.enter(apiv1.Launching)
		}, record, raised)
		return revision, err
	})
	if err != nil {
		return nil, err
	}
	return &launch{
		id:       id,
		request:  stored.Request,
		until:    stored.Until,
		revision: revision,
		group:    group,
	}, nil
}
