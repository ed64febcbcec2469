package cells

import (
	"context"

	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// births stores when the store was new.
type births struct {
	clock     clock.PassiveClock
	store     *store.Store
	inventory *inventory
}

var _ loader = (*births)(nil)

// load reads when the store was new. Instances that are older were launched
// by a Kip whose store was lost.
func (s *births) load(ctx context.Context) error {
	revision, err := s.store.Get(ctx, bornKey, &s.inventory.born)
	if err != nil || revision != 0 {
		return err
	}
	s.inventory.born = s.clock.Now()
	_, err = s.store.Put(ctx, bornKey, s.inventory.born, 0)
	return err
}
