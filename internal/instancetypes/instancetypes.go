package instancetypes

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

const (
	// catalogueKey is where the last good catalogue is stored, learntKey what machines have
	// turned out to have.
	catalogueKey, learntKey = "catalogue", "learnt"
	// interruptionsKey is where interruptions that were seen are stored.
	interruptionsKey = "interruptions"
	// callTimeout bounds the reading of a catalogue, which takes many calls on some
	// clouds.
	callTimeout = 2 * time.Minute
	// firstTimeout is that of the first, where there is a stored one: no cell is heard
	// before it is over.
	firstTimeout = 15 * time.Second
	// retryEvery is how often Kip tries to read a catalogue again after a reading failed.
	retryEvery = time.Minute
	// keptAnew is from which time between two readings on each of them is stored, changed or not:
	// the stored age of a catalogue that is read more often says when it has changed.
	keptAnew = time.Hour
)

// Config of a Provider. All fields but Data, Terms, Image and
// InterruptionShare are required.
type Config struct {
	Cloud cloud.Cloud
	Store *store.Store
	// Placement is what the operator says about it.
	Placement placement.Config
	// Data replace the sizes and prices that the cloud tells, where they have its region.
	Data catalog.InstanceData
	// Terms are what the operator says of prices; none leaves them as the cloud says.
	Terms []catalog.Term
	// Image is what the machines of pods to come boot, in any words: what others have
	// turned out to have counts if they did, too.
	Image string
	// InterruptionShare is how much dearer, as a share, an interruption makes a spot
	// offering; 0 for not at all.
	InterruptionShare float64
	Clock             clock.WithTicker
	Log               *slog.Logger
}

// record is a stored catalogue.
type record struct {
	// Cloud and Region are whose it is: that of another is of no use.
	Cloud  string                 `json:"cloud"`
	Region string                 `json:"region,omitempty"`
	Read   time.Time              `json:"read"`
	Types  []catalog.InstanceType `json:"-"`
	// Packed are the types, JSON by gzip, as they are stored: 1,300 types of six subnets are larger
	// than the store takes.
	Packed []byte `json:"packed,omitempty"`
}

// maxUnpacked bounds the types of a stored record, in bytes of JSON.
const maxUnpacked = 64 << 20

// packed is the record as it is stored.
func (r record) packed() (record, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(w).Encode(r.Types), w.Close()); err != nil {
		return record{}, fmt.Errorf("pack the catalogue: %w", err)
	}
	r.Types, r.Packed = nil, b.Bytes()
	return r, nil
}

// unpack takes the types out of a stored record.
func (r *record) unpack() error {
	z, err := gzip.NewReader(bytes.NewReader(r.Packed))
	if err != nil {
		return fmt.Errorf("unpack the catalogue: %w", err)
	}
	if err := json.NewDecoder(io.LimitReader(z, maxUnpacked)).Decode(&r.Types); err != nil {
		return fmt.Errorf("unpack the catalogue: %w", err)
	}
	r.Packed = nil
	return nil
}

// stock is a catalogue and the placers that are made of it, which change together.
type stock struct {
	record
	placer *placement.Placer
	// types are those of the record, by the operator's terms.
	types []catalog.InstanceType

	mu    sync.Mutex
	nodes map[string]node // by the names of virtual nodes that are limited
}

// node is what a virtual node chooses by.
type node struct {
	limit  placement.Limit
	types  []catalog.InstanceType
	placer *placement.Placer
}

// Provider is what can be had now. It is safe for concurrent use.
type Provider struct {
	cfg   Config
	stock atomic.Pointer[stock]
	// revision is of the stored record. stale reports whether the catalogue is out of date: the last reading failed, or
	// Kip did not take what it read after ReadSoon. Both are for Run alone.
	revision int64
	stale    bool
	// unkept says that the last one was not stored; for Run alone.
	unkept bool

	// learnt is what machines have turned out to have; news, and taken for interruptions, ask
	// Run to take it in. learntRevision is that of the stored one, for Run alone.
	learntMu       sync.Mutex
	learnt         catalog.Learnt
	news, taken    chan struct{}
	readSoon       chan struct{} // asks Run to read the catalogue
	learntRevision int64
	// interrupted are those of the last day, under learntMu; its revision is for Run alone.
	interrupted           catalog.Interruptions
	interruptionsRevision int64
}

// Open reads the cloud's catalogue; where the cloud does not answer, the one that was
// read last. Without either Kip cannot choose, which is an error.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	s := &Provider{cfg: cfg, news: make(chan struct{}, 1), taken: make(chan struct{}, 1), readSoon: make(chan struct{}, 1)}
	stored, err := s.load(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.loadLearnt(ctx); err != nil {
		return nil, err
	}
	timeout := callTimeout
	if stored != nil {
		timeout = firstTimeout
	}
	types, err := s.read(ctx, timeout)
	if err != nil {
		if ctx.Err() != nil || stored == nil {
			return nil, err
		}
		if err := s.adopt(*stored); err != nil {
			return nil, fmt.Errorf("the catalogue that was read %s: %w", stored.Read.Format(time.RFC3339), err)
		}
		s.stale = true
		cfg.Log.Warn("the cloud's catalogue cannot be read: placing pods by the last one",
			"cloud", cfg.Cloud.Name(), "age", s.Age(), "types", len(stored.Types), "err", err)
		return s, nil
	}
	if stored != nil && shrunk(stored.Types, types) {
		cfg.Log.Warn("the cloud's catalogue has lost more than half of its types since it was last read",
			"cloud", cfg.Cloud.Name(), "types", len(types), "before", len(stored.Types))
	}
	if stored != nil {
		types = catalog.KeepNewer(types, stored.Types, cfg.Clock.Now())
	}
	if err := s.adopt(s.recordOf(types)); err != nil {
		return nil, err
	}
	s.keep(ctx, stored)
	return s, nil
}

// Types are the catalogue. They must not be changed.
func (s *Provider) Types() []catalog.InstanceType { return s.stock.Load().types }

// Placer chooses out of the catalogue as it is now.
func (s *Provider) Placer() *placement.Placer { return s.stock.Load().placer }

// OfNode returns what a virtual node offers, and what chooses out of that. The types
// must not be changed.
func (s *Provider) OfNode(name string, limit placement.Limit) ([]catalog.InstanceType, *placement.Placer, error) {
	stock := s.stock.Load()
	if limit.None() {
		return stock.types, stock.placer, nil
	}
	stock.mu.Lock()
	defer stock.mu.Unlock()
	if n, made := stock.nodes[name]; made && reflect.DeepEqual(n.limit, limit) {
		return n.types, n.placer, nil
	}
	types := limit.Of(stock.types)
	placer, err := placement.New(types, s.cfg.Placement.Within(limit, name, stock.types))
	if err != nil {
		return nil, nil, fmt.Errorf("choose for node %s: %w", name, err)
	}
	stock.nodes[name] = node{limit, types, placer}
	return types, placer, nil
}

// Age is how long ago the catalogue was read.
func (s *Provider) Age() time.Duration { return s.cfg.Clock.Since(s.stock.Load().Read) }

// PricesTold is when prices on demand were last told that are in use: with the catalogue, where
// its cloud does not say otherwise.
func (s *Provider) PricesTold() time.Time {
	stock := s.stock.Load()
	if told := catalog.Told(stock.record.Types); !told.IsZero() {
		return told
	}
	return stock.Read
}

// Run reads the catalogue again and again, as often as the cloud says that it is
// worth it, and takes in what is learnt of machines, until ctx ends.
func (s *Provider) Run(ctx context.Context) error {
	early := s.pricesAreOld()
	for {
		var due <-chan time.Time // never, where the catalogue does not change
		stop := func() bool { return false }
		wait := s.cfg.Cloud.Capabilities().CatalogueEvery
		if (s.stale || early) && (wait <= 0 || wait > retryEvery) {
			wait = backoff.Random(nil).Jittered(retryEvery)
		}
		early = false
		if wait > 0 {
			timer := s.cfg.Clock.NewTimer(wait)
			due, stop = timer.C(), timer.Stop
		}
		asked := s.takeInUntil(ctx, due)
		if stop(); ctx.Err() != nil {
			return nil
		}
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			s.stale = s.stale || asked
			s.cfg.Log.Warn("the catalogue is not refreshed: placing pods by the last one",
				"cloud", s.cfg.Cloud.Name(), "age", s.Age(), "err", err)
		}
	}
}

// pricesAreOld says that some prices were told long before the catalogue was read: a cloud that is
// asked for the first time since the start waits for no long list of them.
func (s *Provider) pricesAreOld() bool {
	r := &s.stock.Load().record
	return slices.ContainsFunc(r.Types, func(t catalog.InstanceType) bool {
		return !t.PricesTold.IsZero() && r.Read.Sub(t.PricesTold) > s.cfg.Cloud.Capabilities().CatalogueEvery
	})
}

// refresh reads the catalogue once and takes it if it is as good as the last.
func (s *Provider) refresh(ctx context.Context) error {
	types, err := s.read(ctx, callTimeout)
	if err != nil {
		s.stale = true
		return err
	}
	last := s.stock.Load()
	if shrunk(last.Types, types) {
		return fmt.Errorf("the cloud names %d instance types, and before %d: more than half are gone, "+
			"which is taken for a fault of its answer until Kip is started again", len(types), len(last.Types))
	}
	if err := s.adopt(s.recordOf(catalog.KeepNewer(types, last.Types, s.cfg.Clock.Now()))); err != nil {
		return err
	}
	s.stale = false
	s.keep(ctx, &last.record)
	return nil
}

// shrunk says that more than half of the types are gone.
func shrunk(before, now []catalog.InstanceType) bool {
	there := make(map[string]bool, len(now))
	for _, t := range now {
		there[t.Name] = true
	}
	lost := 0
	for _, t := range before {
		if !there[t.Name] {
			lost++
		}
	}
	return 2*lost > len(before)
}

func (s *Provider) read(ctx context.Context, timeout time.Duration) ([]catalog.InstanceType, error) {
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	types, err := s.cfg.Cloud.Catalogue(call)
	if err == nil && len(types) == 0 {
		err = errors.New("it is empty")
	}
	if err == nil {
		err = catalog.Validate(types)
	}
	if err != nil {
		return nil, fmt.Errorf("read the catalogue of cloud %s: %w", s.cfg.Cloud.Name(), err)
	}
	return types, nil
}

func (s *Provider) recordOf(types []catalog.InstanceType) record {
	return record{
		Cloud:  s.cfg.Cloud.Name(),
		Region: s.cfg.Cloud.Capabilities().Region,
		Read:   s.cfg.Clock.Now(),
		Types:  types,
	}
}

// adopt makes a catalogue the current one, together with its placer.
func (s *Provider) adopt(r record) error {
	types := r.Types
	if s.cfg.Data != nil {
		var found bool
		if types, found = s.cfg.Data.Replace(r.Types, r.Region); !found {
			s.cfg.Log.Warn("the instance data have neither this region nor one of its zones: placing pods by the cloud's own catalogue",
				"region", r.Region)
		}
	}
	types = catalog.Apply(s.cfg.Terms, s.known().Apply(types, s.cfg.Image), r.Region)
	types = s.interruptions().Apply(types, s.cfg.Clock.Now(), s.cfg.InterruptionShare)
	placer, err := placement.New(types, s.cfg.Placement)
	if err != nil {
		return err
	}
	s.stock.Store(&stock{
		record: r,
		placer: placer,
		types:  types,
		nodes:  map[string]node{},
	})
	return nil
}

// StoredRegion returns the region of the stored catalogue of a cloud, in which Kip was when it last read it; "" where none is
// stored, and for a cloud without regions.
func StoredRegion(ctx context.Context, st *store.Store, cloud string) (string, error) {
	var data json.RawMessage
	if revision, err := st.Get(ctx, catalogueKey, &data); err != nil || revision == 0 {
		return "", err
	}
	var r struct{ Cloud, Region string }
	if json.Unmarshal(data, &r) != nil || r.Cloud != cloud { // load warns of what cannot be read
		return "", nil
	}
	return r.Region, nil
}

// load returns the stored catalogue; nil where there is none of this cloud, or none
// that can be read, which costs no more than a start without the cloud's API.
func (s *Provider) load(ctx context.Context) (*record, error) {
	var data json.RawMessage
	var err error
	if s.revision, err = s.cfg.Store.Get(ctx, catalogueKey, &data); err != nil {
		return nil, err
	}
	if s.revision == 0 {
		return nil, nil
	}
	var r record
	err = json.Unmarshal(data, &r)
	if err == nil {
		err = r.unpack()
	}
	if err != nil {
		s.cfg.Log.Warn("the stored catalogue cannot be read", "err", err)
		return nil, nil
	}
	if r.Cloud != s.cfg.Cloud.Name() || r.Region != s.cfg.Cloud.Capabilities().Region || len(r.Types) == 0 {
		return nil, nil
	}
	return &r, nil
}

// keep stores the catalogue. One that never changes is stored once.
func (s *Provider) keep(ctx context.Context, before *record) {
	now := s.stock.Load().record
	// What is read every few minutes is mostly what is stored already, and large.
	if before != nil && !s.unkept && s.cfg.Cloud.Capabilities().CatalogueEvery < keptAnew && reflect.DeepEqual(before.Types, now.Types) {
		return
	}
	s.unkept = true
	stored, err := now.packed()
	if err != nil {
		s.cfg.Log.Warn("store the catalogue", "err", err)
		return
	}
	revision, err := s.cfg.Store.Put(ctx, catalogueKey, stored, s.revision)
	s.unkept = err != nil
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Log.Warn("store the catalogue", "err", err)
		}
		// Perhaps it was written: the next one is put on top of what is there.
		var there json.RawMessage
		if revision, err = s.cfg.Store.Get(ctx, catalogueKey, &there); err != nil {
			return
		}
	}
	s.revision = revision
}
