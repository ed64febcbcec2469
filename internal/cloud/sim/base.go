package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"sync"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
)

// base is what all areas of the cloud share: its configuration, its clock, and the lock of all that it keeps.
type base struct {
	cfg    Config // but for its Knobs and Catalogue, which are below
	clock  clock.WithDelayedExecution
	log    *slog.Logger
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	boots  sync.WaitGroup

	mu      sync.Mutex // guards what follows, and what the areas keep
	closed  bool
	knobs   Knobs
	offered *offered
}

// Name implements cloud.Cloud.
func (c *base) Name() string { return c.cfg.Name }

// Capabilities implements cloud.Cloud.
func (c *base) Capabilities() cloud.Capabilities {
	capabilities := *c.cfg.Capabilities
	capabilities.SharedUserData = capabilities.SharedUserData || c.cfg.SharedUserData
	return capabilities
}

// rand is the source of what is drawn for one purpose.
func (c *base) rand(purpose, of string, n int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%d", purpose, of, n)
	return rand.New(rand.NewPCG(c.cfg.Seed, h.Sum64()))
}
