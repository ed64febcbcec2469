package kip

import (
	"context"
	"log/slog"

	"github.com/elotl/kip/internal/store"
)

// kept is a record that is stored whenever it has changed, and read when Kip begins. What of it is not stored costs
// a call to the cloud that fails, no more: the next change stores it.
type kept[T any] struct {
	store *store.Store
	key   string
	// what names the record in the log, after "store".
	what     string
	revision int64
	changed  chan struct{}
	log      *slog.Logger
}

// loadKept reads a record into value, and leaves that alone if there is none.
func loadKept[T any](ctx context.Context, st *store.Store, key, what string, value *T, log *slog.Logger) (*kept[T], error) {
	k := &kept[T]{
		store:   st,
		key:     key,
		what:    what,
		changed: make(chan struct{}, 1),
		log:     log,
	}
	var err error
	k.revision, err = st.Get(ctx, key, value)
	return k, err
}

// change has the record stored soon. It does not block.
func (k *kept[T]) change() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// run stores the value of the record after each change until ctx ends.
func (k *kept[T]) run(ctx context.Context, value func() T) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		}
		revision, err := k.store.Put(ctx, k.key, value(), k.revision)
		if err != nil && ctx.Err() == nil {
			k.log.Warn("store "+k.what, "err", err)
			var stored T
			revision, err = k.store.Get(ctx, k.key, &stored)
		}
		if err == nil {
			k.revision = revision
		}
	}
}
