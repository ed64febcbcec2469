package cellca

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

// every is how often is looked whether the old CA may be dropped.
const every = 10 * time.Second

// ErrNew ends the work of a process that leads.
var ErrNew = errors.New("other CAs are stored: the work begins anew with those")

// Rotation replaces the CA of the cells. All its state is stored, here and in the records of
// the cells, so a new leader goes on where the last one stopped:
//
//   - One CA: all is signed with it.
//   - Two: the new one signs. Each cell is told to trust both, on the connection that it
//     has, and proves it on another; then its record says so.
//   - One again, when no record says the old one: cells are told to trust it alone.
type Rotation struct {
	cfg   Config
	is    Stored
	began time.Time // when this process began to lead

	mu   sync.Mutex
	done bool // others are stored, or may be
}

// Config of a Rotation. All is required.
type Config struct {
	CA     Stored
	Sealer *pki.Sealer
	// Overlap is how long the old CA is kept at least. By then each replica has shown the
	// API server a certificate of the new one: it looks each 30 s, and does so at the third
	// look.
	Overlap time.Duration
	Store   *store.Store
	Cells   Cells
	// Events are those of the node.
	Events   Recorder
	Watchdog *watchdog.Watchdog
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Recorder reports Events of the node.
type Recorder interface{ Report(e events.Event) }

// New returns what has the CA rotated for a process that begins to lead.
func New(cfg Config) *Rotation { return &Rotation{cfg: cfg, is: cfg.CA, began: cfg.Clock.Now()} }

// Cells are the cells; *cells.Controller says what its methods do.
type Cells interface {
	Unmoved() []cells.Unmoved
	EndUnmoved(shown string) ([]cells.Unmoved, error)
	Untold() int
	Behind() (why string, sure bool)
	End(why error)
}

var _ Cells = (*cells.Controller)(nil)

var _ adminapi.CAKeeper = (*Rotation)(nil)

// Run drops the old CA when nothing depends on it, until ctx ends.
func (r *Rotation) Run(ctx context.Context) error {
	if r.is.Before == nil {
		<-ctx.Done()
		return nil
	}
	ticker := r.cfg.Clock.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		r.cfg.Watchdog.Track(ctx, "rotation of the CA", r.drop)
	}
}

// drop drops the old CA, if nothing depends on it.
func (r *Rotation) drop(ctx context.Context) {
	if r.waits() != "" {
		return
	}
	switch err := r.put(ctx, pki.Authorities{Signing: r.is.Signing}); {
	case errors.Is(err, ErrNew):
	case err != nil:
		r.cfg.Log.Warn("drop the old CA, retrying", "err", err)
	default:
		r.cfg.Events.Report(events.NewCARotated(r.is.Signing.Hash(), r.is.Before.Hash()))
		r.Reload()
	}
}

// earliest is when the old CA may be dropped.
func (r *Rotation) earliest() time.Time {
	from := r.is.Signing.Made()
	if r.began.Before(from) { // it was made by a clock that was ahead
		from = r.began
	}
	return from.Add(r.cfg.Overlap)
}

// waits says why the old CA is not dropped; "" if it may be.
func (r *Rotation) waits() string {
	if why, _ := r.cfg.Cells.Behind(); why != "" {
		return why
	}
	if n := len(r.cfg.Cells.Unmoved()); n > 0 {
		return adminapi.Count(n, "cell") + " of now would be out of reach"
	}
	if at := r.earliest(); r.cfg.Clock.Now().Before(at) {
		return "until " + at.UTC().Format(time.RFC3339) + " replicas may show the API server a certificate of it"
	}
	return ""
}

// put stores other CAs. Where it is not known whether that was done, this process begins
// anew with what is stored by then.
func (r *Rotation) put(ctx context.Context, authorities pki.Authorities) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return ErrNew
	}
	_, err := write(ctx, r.cfg.Store, r.cfg.Sealer, authorities, r.is.revision)
	r.done = !errors.Is(err, store.ErrNoSpace)
	if err != nil && r.done {
		r.cfg.Cells.End(fmt.Errorf("%w: %w", ErrNew, err))
	}
	return err
}

// CA implements adminapi.CAKeeper.
func (r *Rotation) CA() adminapi.CA {
	is := r.of(r.is.Authorities)
	unmoved := r.cfg.Cells.Unmoved()
	is.Unmoved, is.Untold = unmovedCells(unmoved), r.cfg.Cells.Untold()
	if is.Before != nil {
		is.Waits, is.Shown = r.waits(), cells.ShownUnmoved(unmoved)
	}
	return is
}

// of is what is told of CAs alone.
func (r *Rotation) of(authorities pki.Authorities) adminapi.CA {
	told := func(a *pki.Authority) adminapi.Authority {
		return adminapi.Authority{Hash: a.Hash(), Made: a.Made(), Ends: a.Certificate().NotAfter}
	}
	is := adminapi.CA{Signs: told(authorities.Signing), Unmoved: []adminapi.UnmovedCell{}}
	if authorities.Before != nil {
		before := told(authorities.Before)
		is.Before = &before
	}
	return is
}

func unmovedCells(all []cells.Unmoved) []adminapi.UnmovedCell {
	list := make([]adminapi.UnmovedCell, len(all))
	for n, u := range all {
		list[n] = adminapi.UnmovedCell{Cell: u.Cell.ID, Pod: u.Cell.Pod, Why: u.Why}
	}
	return list
}

// RotateCA implements adminapi.CAKeeper.
func (r *Rotation) RotateCA(ctx context.Context) (adminapi.CA, error) {
	if why, _ := r.cfg.Cells.Behind(); why != "" {
		return adminapi.CA{}, errors.New(why)
	}
	next, err := r.is.Rotated()
	if err != nil {
		return adminapi.CA{}, err
	}
	if err := r.put(ctx, next); err != nil {
		return adminapi.CA{}, err
	}
	r.cfg.Events.Report(events.NewCARotating(next.Signing.Hash(), next.Before.Hash()))
	return r.of(next), nil
}

// EndUnmoved implements adminapi.CAKeeper.
func (r *Rotation) EndUnmoved(shown string) ([]adminapi.UnmovedCell, error) {
	ended, err := r.cfg.Cells.EndUnmoved(shown)
	return unmovedCells(ended), err
}

// Reload implements adminapi.CAKeeper.
func (r *Rotation) Reload() { r.cfg.Cells.End(ErrNew) }
