package cloud

import (
	"context"

	"github.com/elotl/kip/internal/catalog"
)

// Bounder is a cloud that knows how much an owner's machines may be.
type Bounder interface {
	// Bounds returns the bounds of the machines of this owner (see TagOwner): its share of the quotas and the addresses, of
	// which others in the account have the rest. What the cloud does not tell is missing.
	Bounds(ctx context.Context, owner string) (catalog.Bounds, error)
}
