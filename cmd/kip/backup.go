package main

import (
	"context"
	"io"

	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// backup is what the local socket serves as a backup of a store.
func backup(st *store.Store, c clock.PassiveClock) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error { return st.Backup(ctx, w, c.Now()) }
}
