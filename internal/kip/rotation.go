package kip

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

// rotationEvery is how often is looked whether the old CA may be dropped.
const rotationEvery = 10 * time.Second

// errNewCA ends the work of a process that leads.
var errNewCA = errors.New("other CAs are stored: the work begins anew with those")

// rotation has the CA of the cells rotated. What is stored is all that there is of it,
// here and in the records of the cells, so whoever begins to lead goes on from there:
//
//   - One CA: all is signed with it.
//   - Two: the new one signs. Each cell is told to trust both, on the connection that it
//     has, and proves it on another; then its record says so.
//   - One again, when no record says the old one: cells are told to trust it alone.
type rotation struct {
	ca
	began time.Time // when this process began to lead
	// overlap is how long the old CA is kept at least. By then each replica has shown the
	// API server a certificate of the new one: it looks each 30 s, and does so at the third
	// look.
	overlap  time.Duration
	store    *store.Store
	cells    cellsOfCA
	say      func(events.Event)
	watchdog *watchdog.Watchdog
	clock    clock.WithTicker
	log      *slog.Logger

	mu   sync.Mutex
	done bool // others are stored, or may be
}

// ca is the CA of the cells as it is stored, and what seals it there.
type ca struct {
	is     storedAuthorities
	sealer *pki.Sealer
}

// oldHash returns the hash of the old CA; "" where there is none.
func (c ca) oldHash() string {
	if c.is.authorities.Before == nil {
		return ""
	}
	return c.is.authorities.Before.Hash()
}

// loadCA reads the CA of the cells.
func (l *term) loadCA(ctx context.Context) (ca, error) {
	sealer, err := openSealer(l.cfg.Etcd.EncryptionKeyFiles)
	if err != nil {
		return ca{}, err
	}
	is, err := loadAuthorities(ctx, l.store, sealer, l.clock, l.Log)
	return ca{is, sealer}, err
}

// newRotation has the CA rotated of cells. Events of the node go to say.
func (l *cloudSide) newRotation(of cellsOfCA, say func(events.Event)) *rotation {
	return &rotation{
		ca:       l.ca,
		began:    l.clock.Now(),
		overlap:  l.cfg.Cells.CAOverlap,
		store:    l.store,
		cells:    of,
		say:      say,
		watchdog: l.watchdog,
		clock:    l.clock,
		log:      l.Log,
	}
}

// cellsOfCA are the cells; *cells.Controller says what its methods do.
type cellsOfCA interface {
	Unmoved() []cells.Unmoved
	EndUnmoved(shown string) ([]cells.Unmoved, error)
	Untold() int
	Behind() (why string, sure bool)
	End(why error)
}

var _ cellsOfCA = (*cells.Controller)(nil)

var _ adminapi.CAKeeper = (*rotation)(nil)

// Run drops the old CA when nothing depends on it, until ctx ends.
func (r *rotation) Run(ctx context.Context) error {
	if r.is.authorities.Before == nil {
		<-ctx.Done()
		return nil
	}
	ticker := r.clock.NewTicker(rotationEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		r.watchdog.Track(ctx, "rotation of the CA", r.drop)
	}
}

// drop drops the old CA, if nothing depends on it.
func (r *rotation) drop(ctx context.Context) {
	if r.waits() != "" {
		return
	}
	switch err := r.put(ctx, pki.Authorities{Signing: r.is.authorities.Signing}); {
	case errors.Is(err, errNewCA):
	case err != nil:
		r.log.Warn("drop the old CA, retrying", "err", err)
	default:
		r.say(events.NewCARotated(r.is.authorities.Signing.Hash(), r.is.authorities.Before.Hash()))
		r.Reload()
	}
}

// earliest is when the old CA may be dropped.
func (r *rotation) earliest() time.Time {
	from := r.is.authorities.Signing.Made()
	if r.began.Before(from) { // it was made by a clock that was ahead
		from = r.began
	}
	return from.Add(r.overlap)
}

// waits says why the old CA is not dropped; "" if it may be.
func (r *rotation) waits() string {
	if why, _ := r.cells.Behind(); why != "" {
		return why
	}
	if n := len(r.cells.Unmoved()); n > 0 {
		return adminapi.Count(n, "cell") + " of now would be out of reach"
	}
	if at := r.earliest(); r.clock.Now().Before(at) {
		return "until " + at.UTC().Format(time.RFC3339) + " replicas may show the API server a certificate of it"
	}
	return ""
}

// put stores other CAs. Where it is not known whether that was done, this process begins
// anew with what is stored by then.
func (r *rotation) put(ctx context.Context, authorities pki.Authorities) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return errNewCA
	}
	_, err := writeAuthorities(ctx, r.store, r.sealer, authorities, r.is.revision)
	r.done = !errors.Is(err, store.ErrNoSpace)
	if err != nil && r.done {
		r.cells.End(fmt.Errorf("%w: %w", errNewCA, err))
	}
	return err
}

// CA implements adminapi.CAKeeper.
func (r *rotation) CA() adminapi.CA {
	is := r.of(r.is.authorities)
	unmoved := r.cells.Unmoved()
	is.Unmoved, is.Untold = unmovedCells(unmoved), r.cells.Untold()
	if is.Before != nil {
		is.Waits, is.Shown = r.waits(), cells.ShownUnmoved(unmoved)
	}
	return is
}

// of is what is told of CAs alone.
func (r *rotation) of(authorities pki.Authorities) adminapi.CA {
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
func (r *rotation) RotateCA(ctx context.Context) (adminapi.CA, error) {
	if why, _ := r.cells.Behind(); why != "" {
		return adminapi.CA{}, errors.New(why)
	}
	next, err := r.is.authorities.Rotated()
	if err != nil {
		return adminapi.CA{}, err
	}
	if err := r.put(ctx, next); err != nil {
		return adminapi.CA{}, err
	}
	r.say(events.NewCARotating(next.Signing.Hash(), next.Before.Hash()))
	return r.of(next), nil
}

// EndUnmoved implements adminapi.CAKeeper.
func (r *rotation) EndUnmoved(shown string) ([]adminapi.UnmovedCell, error) {
	ended, err := r.cells.EndUnmoved(shown)
	return unmovedCells(ended), err
}

// Reload implements adminapi.CAKeeper.
func (r *rotation) Reload() { r.cells.End(errNewCA) }
