package kip

import (
	"context"

	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// termKey is where the term of the Kip that led last is stored.
const termKey = "term"

// beginTerm stores and returns the term of a Kip that begins to lead, by which cells know
// it from those that led before. It is above all that the store has had, and, by the
// clock, above those of a store that was lost since, or that this one is a backup of.
func beginTerm(ctx context.Context, st *store.Store, clock clock.PassiveClock) (uint64, error) {
	var term uint64
	revision, err := st.Get(ctx, termKey, &term)
	if err != nil {
		return 0, err
	}
	term = max(term+1, uint64(max(clock.Now().UnixMilli(), 0)))
	_, err = st.Put(ctx, termKey, term, revision)
	return term, err
}
