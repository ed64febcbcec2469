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
// clock, above those of a store that was lost since, or that this one is a backup of.
func beginTerm(ctx context.Context, st *store.Store, clock clock.PassiveClock, log *slog.Logger) (uint64, error) {
	var term uint64
	revision, err := st.Get(ctx, termKey, &term)
	if err != nil {
		return 0, err
	}
	term = max(term+1, uint64(max(clock.Now().UnixMilli(), 0)))
	if ahead := clock.Now().Add(pki.ClockSkew).UnixMilli(); ahead > 0 && term > uint64(ahead) {
		log.Warn("the clock of a Kip before this one was far ahead, or that of this one is behind: by their terms cells cannot tell this Kip"+
			" from those before it", "term", term)
	}
	_, err = st.Put(ctx, termKey, term, revision)
	return term, err
}
