package kip

import (
	"context"
	"fmt"

	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// authorityKey is where the CA is stored.
const authorityKey = "ca"

// loadAuthority returns the CA of the cells, which is made at the first start.
func loadAuthority(ctx context.Context, st *store.Store, clock clock.PassiveClock) (*pki.Authority, error) {
	var stored []byte
	revision, err := st.Get(ctx, authorityKey, &stored)
	if err != nil {
		return nil, err
	}
	if revision != 0 {
		return pki.Decode(stored, clock.Now)
	}
	authority, err := pki.New(clock.Now)
	if err != nil {
		return nil, fmt.Errorf("make the CA of the cells: %w", err)
	}
	if stored, err = authority.Encode(); err != nil {
		return nil, err
	}
	if _, err := st.Put(ctx, authorityKey, stored, 0); err != nil {
		return nil, err
	}
	return authority, nil
}
