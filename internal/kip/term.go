package kip

import (
	"context"
	"log/slog"

	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// termKey is where the term of the Kip that led last is stored.
const termKey = "term"

// beginTerm stores and returns the term of a Kip that begins to lead, by which cells know
// it from those that led before. It is above all that the store has had, and, by the
// clock, above those of a store that was lost since, or that this one is a backup of. Where
// another Kip held the node it is also above that one's, if cells would believe it.
func beginTerm(ctx context.Context, st *store.Store, above uint64, clock clock.PassiveClock, log *slog.Logger) (uint64, error) {
	var term uint64
	revision, err := st.Get(ctx, termKey, &term)
	if err != nil {
		return 0, err
	}
	term = max(term+1, uint64(max(clock.Now().UnixMilli(), 0)))
	ahead := clock.Now().Add(pki.ClockSkew).UnixMilli()
	if ahead > 0 && above < uint64(ahead) {
		term = max(term, above+1)
	}
	if ahead > 0 && term > uint64(ahead) {
		log.Warn("the clock of a Kip before this one was far ahead, or that of this one is behind: by their terms cells cannot tell this Kip"+
			" from those before it", "term", term)
	}
	_, err = st.Put(ctx, termKey, term, revision)
	return term, err
}
