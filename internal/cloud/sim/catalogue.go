package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// catalogues says what is for sale, and which image there is.
type catalogues struct {
	*base
	calls *calls
}

// Catalogue implements cloud.Cloud.
func (c *catalogues) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	var types []catalog.InstanceType
	err := c.calls.do(ctx, Call{Kind: KindCatalogue}, func(time.Time) error {
		types = slices.Clone(c.offered.types)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalogue of %s: %w", c.cfg.Name, err)
	}
	return types, nil
}

// Resolve implements cloud.Resolver.
func (c *catalogues) Resolve(ctx context.Context, s cloud.LaunchSpec) (resolved cloud.Resolved, err error) {
	err = c.calls.do(ctx, Call{Kind: KindResolve, Owner: s.Tags[cloud.TagOwner]}, func(time.Time) error {
		if len(c.knobs.Images) == 0 {
			return cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("there is no image"))
		}
		resolved.Image = c.knobs.Images[len(c.knobs.Images)-1]
		return nil
	})
	if err != nil {
		return cloud.Resolved{}, fmt.Errorf("resolve a launch: %w", err)
	}
	return resolved, nil
}
