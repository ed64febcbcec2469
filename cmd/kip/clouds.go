package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/remote"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/version"
	"k8s.io/utils/clock"
)

// openCloud returns the one cloud that provider.yaml names.
func openCloud(cfg *config.Config, log *slog.Logger) (cloud.Cloud, error) {
	if err := cfg.CheckCloud("local", "sim"); err != nil {
		return nil, err
	}
	if s := cfg.Cloud.Sim; s != nil {
		return remote.Dial("sim", s.Socket), nil
	}
	l := cfg.Cloud.Local
	return local.New(local.Config{
		StateDir: l.StateDir, RootDir: l.RootDir, Bridge: l.Bridge, CIDR: l.CIDR, IPv6CIDR: l.IPv6CIDR, Nameservers: l.Nameservers, Log: log.With("cloud", "local"),
	})
}

// givesIPv6 says that the configured cloud's cells have IPv6 addresses, too.
func givesIPv6(c config.Cloud) bool { return c.Local != nil && c.Local.IPv6CIDR.IsValid() }

// tempo is how a cloud's list is to be asked for, and how soon it launches anew what
// a pod has taken from a standby pool.
type tempo struct{ listLag, soonPoll, refillDelay time.Duration }

// pace returns the tempo of a cloud. The list of the local cloud costs nothing and
// never lags. Those of the others are eventually consistent: EC2's shows an
// instance within seconds of its launch, and its describe calls are throttled. The
// local cloud's machines are all on the processors of one host: the pod starts
// first, within some 1.5 s.
func pace(c cloud.Cloud) tempo {
	if c.Name() == "local" {
		return tempo{soonPoll: 50 * time.Millisecond, refillDelay: 2 * time.Second}
	}
	return tempo{listLag: 20 * time.Second, soonPoll: time.Second}
}

// healthCheck is how often the cells' leases are looked at: each is renewed every
// 10 seconds.
const healthCheck = 5 * time.Second

// health is what cells.healthcheck says.
func health(cfg *config.Config) cells.Health {
	if a := cfg.Cells.Healthcheck.CloudAPI; a != nil {
		return cells.Health{CloudAPI: true, HealthyTimeout: a.HealthyTimeout, Interval: a.Interval, Check: healthCheck}
	}
	return cells.Health{HealthyTimeout: cfg.Cells.Healthcheck.Status.HealthyTimeout, Check: healthCheck}
}

// template names what a cell is made of, so that standby cells of another are
// replaced: everything that reaches a machine before its pod does.
func template(cfg *config.Config, caHash string) string {
	c := cfg.Cells
	made, err := json.Marshal([]any{version.String(), caHash, c.BootImageSpec, c.CloudInitFile, c.CellConfig, c.Itzo, c.RegistryMirrors, c.ReservedMemory})
	if err != nil {
		panic(err) // strings, maps of strings and numbers
	}
	sum := sha256.Sum256(made)
	return hex.EncodeToString(sum[:8])
}

// offers turns what placement found into what cells launch.
func offers(candidates []placement.Candidate, defaultDisk int64) []cells.Offer {
	list := make([]cells.Offer, 0, len(candidates))
	for _, c := range candidates {
		list = append(list, offer(*c.InstanceType, c.Offering, defaultDisk, c.Reason))
	}
	return list
}

func offer(t catalog.InstanceType, o catalog.Offering, defaultDisk int64, reason string) cells.Offer {
	return cells.Offer{
		InstanceType: t.Name, Zone: o.Zone, Subnet: o.Subnet, Spot: o.Spot, PricePerHour: o.PricePerHour,
		MilliCPU: t.MilliCPU, MemoryBytes: t.MemoryBytes, DiskBytes: cmp.Or(t.DiskBytes, defaultDisk),
		BootTimeout: catalog.BootTimeout(t.Name), Reason: reason,
	}
}

// standbyPools are the pools of cells.standbyCells.
func standbyPools(cfg *config.Config, file string, machines cloud.Cloud, catalogue []catalog.InstanceType, unavailable func(cells.Offer) bool, disk int64) ([]cells.Pool, error) {
	_, stops := machines.(cloud.Stopper)
	if err := cfg.CheckStopped(stops); err != nil {
		return nil, err
	}
	var pools []cells.Pool
	for i, s := range cfg.Cells.StandbyCells {
		if s.Dedicated {
			return nil, fmt.Errorf("%s: cells.standbyCells[%d].dedicated: cloud.%s has no dedicated hosts in this build: want false", file, i, machines.Name())
		}
		n := slices.IndexFunc(catalogue, func(t catalog.InstanceType) bool { return t.Name == s.InstanceType })
		if n < 0 {
			return nil, fmt.Errorf("%s: cells.standbyCells[%d].instanceType: %q is not a type of cloud.%s here", file, i, s.InstanceType, machines.Name())
		}
		t, name := catalogue[n], s.InstanceType
		if s.Zone != "" {
			name += "/" + s.Zone
		}
		if s.Spot {
			name += "/spot"
		}
		if s.Stopped {
			name += "/stopped"
		}
		var all []cells.Offer
		for _, o := range t.Offerings {
			if o.Spot == s.Spot && (s.Zone == "" || s.Zone == o.Zone) {
				all = append(all, offer(t, o, disk, "standby pool "+name))
			}
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%s: cells.standbyCells[%d]: %s is not offered there (zone %q, spot %t)", file, i, s.InstanceType, s.Zone, s.Spot)
		}
		slices.SortStableFunc(all, func(a, b cells.Offer) int { return cmp.Compare(a.PricePerHour, b.PricePerHour) })
		pools = append(pools, cells.Pool{Name: name, Count: s.Count, Stopped: s.Stopped, Offers: func() ([]cells.Offer, error) {
			left := slices.DeleteFunc(slices.Clone(all), unavailable)
			if len(left) == 0 {
				return nil, fmt.Errorf("%s has no capacity now: %w", name, cloud.ErrCapacity)
			}
			return left, nil
		}})
	}
	return pools, nil
}

// shortagesKey is where unavailable capacity is stored.
const shortagesKey = "unavailable"

// storedShortages are kept over restarts, so that a Kip that starts again does not
// ask for all that it knows to be missing.
type storedShortages struct {
	shortages *capacity.Shortages
	store     *store.Store
	revision  int64
	changed   chan struct{}
	log       *slog.Logger
}

func loadShortages(ctx context.Context, st *store.Store, c clock.PassiveClock, log *slog.Logger) (*storedShortages, error) {
	s := &storedShortages{shortages: capacity.New(c), store: st, changed: make(chan struct{}, 1), log: log}
	var stored []capacity.Shortage
	revision, err := st.Get(ctx, shortagesKey, &stored)
	s.revision = revision
	s.shortages.Load(stored)
	return s, err
}

// mark notes that an offer was not served: for all that the cloud said is missing,
// for that offer where it said nothing of the kind.
func (s *storedShortages) mark(o cells.Offer, err error) {
	shortage := capacity.Shortage{InstanceType: o.InstanceType, Zone: o.Zone, Subnet: o.Subnet, Spot: &o.Spot, Why: err.Error()}
	var missing *cloud.CapacityError
	if errors.As(err, &missing) && (missing.InstanceType != "" || missing.Zone != "" || missing.Subnet != "" || missing.Spot != nil) {
		shortage.InstanceType, shortage.Zone, shortage.Subnet, shortage.Spot = missing.InstanceType, missing.Zone, missing.Subnet, missing.Spot
	}
	s.shortages.Mark(shortage)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// unavailable says that an offer is known not to be served now.
func (s *storedShortages) unavailable(o cells.Offer) bool {
	return s.shortages.Unavailable(capacity.Offering{InstanceType: o.InstanceType, Zone: o.Zone, Subnet: o.Subnet, Spot: o.Spot})
}

// keep stores the shortages until ctx ends. One that is not stored costs a launch
// that fails, no more: the next change stores it.
func (s *storedShortages) keep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		}
		revision, err := s.store.Put(ctx, shortagesKey, s.shortages.List(), s.revision)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("store unavailable capacity", "err", err)
			var stored []capacity.Shortage
			revision, err = s.store.Get(ctx, shortagesKey, &stored)
		}
		if err == nil {
			s.revision = revision
		}
	}
}
