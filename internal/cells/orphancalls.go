package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
)

// orphanCalls removes stored launch calls that no cell waits for.
type orphanCalls struct {
	table *table
	store *store.Store
}

var _ loader = (*orphanCalls)(nil)

// load removes them: a backup that was restored may hold such.
func (s *orphanCalls) load(ctx context.Context) error {
	waited := map[string]bool{}
	for _, e := range s.table.byID {
		if cell := e.cell(); cell.Phase == apiv1.Launching && cell.Launch != nil {
			waited[launchesPrefix+cell.Launch.ID] = true
		}
	}
	left := map[string]int64{}
	err := s.store.List(ctx, launchesPrefix, func(key string, _ []byte, revision int64) error {
		if !waited[key] {
			left[key] = revision
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key, revision := range left {
		if err := s.store.Delete(ctx, key, revision); err != nil {
			return err
		}
	}
	return nil
}
