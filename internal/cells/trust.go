package cells

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
)

const (
	// trustEvery is how often Kip checks which cells are to be told of Kip's CA, and
	// trustAtOnce how many are then.
	trustEvery, trustAtOnce = 5 * time.Second, 256
	// trustTimeout bounds the telling of one, with a connection that proves it.
	trustTimeout = 10 * time.Second
	// trustAgain is the first pause after one that was not moved, trustSeldom the longest.
	trustAgain, trustSeldom = time.Minute, time.Hour
)

// trusting is how far a cell is in being told of Kip's CA, in this process.
type trusting struct {
	now bool // it is being told
	// forgot reports whether it was found by the CA from before, whatever its record says: its
	// agent has lost what it was told. It stays set until the agent is told again, whatever the cell says meanwhile.
	forgot bool
	failed int
	err    error     // of the last try
	next   time.Time // none is made before
}

// authorities are the hashes of Kip's CAs: of that which signs, and of that from before, "" for none.
type authorities struct{ now, old string }

// trust has cells know Kip by the CA that signs, and no other.
type trust struct {
	table       *table
	loop        *loop
	records     *records
	agents      *asking
	ends        *cellEnds
	authorities authorities
	cells       perCell[trusting] // under table.mu
}

// noteForgotLocked notes that a cell was found by the CA from before, although its record says another. The caller holds
// table.mu.
func (s *trust) noteForgotLocked(e *entry) {
	if old := s.authorities.old; old != "" && e.cell().CA != old && e.session().ca() == old {
		s.cells.of(e).forgot = true
	}
}

// knowsOldLocked reports whether a cell knows Kip by the CA from before. The caller holds table.mu, and has called noteForgotLocked.
func (s *trust) knowsOldLocked(e *entry) bool {
	old := s.authorities.old
	return old != "" && (e.cell().CA == old || s.cells.of(e).forgot)
}

// outdatedLocked reports whether a cell does not know Kip by the CA that signs, or may trust one that
// Kip has no more. The caller holds table.mu, and has called noteForgotLocked.
func (s *trust) outdatedLocked(e *entry) bool {
	cell := e.cell()
	return s.knowsOldLocked(e) || cell.CA != s.authorities.now || cell.OldCA != "" && cell.OldCA != s.authorities.old
}

// run tells cells by which CAs to know Kip, until ctx ends.
func (s *trust) run(ctx context.Context) {
	ticker := s.loop.clock.NewTicker(trustEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		s.loop.watchdog.Track(ctx, "authorities", s.updateSome)
	}
}

// updateSome begins to tell those that are due, a bounded number at a time.
func (s *trust) updateSome(ctx context.Context) {
	now := s.loop.clock.Now()
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	begun := 0
	for _, e := range s.table.byID {
		if s.cells.of(e).now {
			begun++
		}
	}
	for _, e := range s.table.byID {
		if begun >= trustAtOnce {
			return
		}
		state, link := s.cells.of(e), e.connection()
		// With its configuration the agent has shown on this connection that it is there.
		if state.now || !link.configured || !link.session.opened() || e.ending != "" || !e.cell().Live() || now.Before(state.next) {
			continue
		}
		if s.noteForgotLocked(e); !s.outdatedLocked(e) {
			continue
		}
		begun++
		state.now = true
		s.loop.spawn(ctx, "trust", func(ctx context.Context) { s.update(ctx, e, link.session) })
	}
}

// update has one cell trust Kip's CAs and no others. That it did is stored when it has
// proven it: until then Kip goes on by the CA that it surely knows.
func (s *trust) update(ctx context.Context, e *entry, session agentSession) {
	err := s.agents.within(ctx, e, trustTimeout, session.trust)
	if err == nil {
		err = s.records.save(ctx, e, func(cell *Cell) error {
			cell.CA, cell.OldCA = s.authorities.now, s.authorities.old
			return nil
		})
		if refusedWrite(err) {
			s.loop.fail(err)
		}
	}
	if errors.Is(err, errGone) || errors.Is(err, errMoved) { // the next check sees to what is left
		err = nil
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	state := s.cells.of(e)
	forgot := state.forgot
	state.now, state.err, state.forgot = false, err, forgot && err != nil
	if err == nil && !forgot || ctx.Err() != nil {
		state.failed = 0
		return
	}
	state.failed++
	state.next = s.loop.clock.Now().Add(s.loop.random.After(state.failed, trustAgain, trustSeldom))
	if state.failed == 1 && err != nil {
		s.loop.log.Warn("a cell does not know Kip by its new CA, and goes on with the old one; retrying", "cell", e.id,
			"pod", e.cell().Pod.String(), "err", err)
	}
}

// Unmoved is a cell that knows Kip by the CA from before, while that is being replaced.
type Unmoved struct {
	Cell Cell
	Why  string // what it waits for
}

// unmovedCells is Controller.Unmoved.
func (s *trust) unmovedCells() (all []Unmoved) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.unmovedOfLocked(s.unmovedLocked())
}

// unmovedLocked returns the entries of Unmoved. The caller holds table.mu.
func (s *trust) unmovedLocked() (all []*entry) {
	for _, e := range s.table.byID {
		if cell := e.cell(); cell.Launch == nil || cell.Phase == apiv1.Terminating {
			continue
		}
		if s.noteForgotLocked(e); s.knowsOldLocked(e) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.id, b.id) })
	return all
}

// unmovedOfLocked returns what a person is shown of unmoved cells. The caller holds table.mu.
func (s *trust) unmovedOfLocked(entries []*entry) (all []Unmoved) {
	for _, e := range entries {
		all = append(all, Unmoved{Cell: *e.cell(), Why: s.unmovedForLocked(e)})
	}
	return all
}

// unmovedForLocked returns what a cell waits for that is to be moved. The caller holds table.mu.
func (s *trust) unmovedForLocked(e *entry) string {
	state, session := s.cells.of(e), e.session()
	switch cell := e.cell(); {
	case e.ending != "" || !cell.Live():
		return "it ends"
	case cell.Stopped:
		return "it is stopped, until its standby pool has another or a pod takes it"
	case cell.Phase == apiv1.Launching:
		return "it is being launched"
	case !session.connected():
		if err := session.lastError(); err != nil {
			return "it is not connected: " + err.Error()
		}
		return "it is not connected"
	case state.err != nil:
		return state.err.Error()
	}
	return "it is told in a moment"
}

// untoldCells is Controller.Untold.
func (s *trust) untoldCells() (n int) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range s.table.byID {
		if cell := e.cell(); cell.OldCA != "" && cell.OldCA != s.authorities.old && cell.Live() {
			n++
		}
	}
	return n
}

// ShownUnmoved names cells that a person is shown.
func ShownUnmoved(all []Unmoved) string {
	hash := sha256.New()
	for _, u := range all {
		fmt.Fprintf(hash, "%s %q\n", u.Cell.ID, u.Cell.Pod.UID)
	}
	return hex.EncodeToString(hash.Sum(nil)[:6])
}

// ErrOtherUnmoved reports that nobody has decided on what would end now.
var ErrOtherUnmoved = errors.New("the cells that know Kip by the old CA are others than those that were shown: look again")

// endUnmoved is Controller.EndUnmoved.
func (s *trust) endUnmoved(shown string) ([]Unmoved, error) {
	s.table.mu.Lock()
	entries := s.unmovedLocked()
	all := s.unmovedOfLocked(entries)
	if ShownUnmoved(all) != shown {
		s.table.mu.Unlock()
		return nil, ErrOtherUnmoved
	}
	// All at once, under the same hold: otherwise one gets another pod after it was judged.
	const why = "it knows Kip by a CA that is dropped, as a person has decided"
	end := func(e *entry) cellEnd { return cellEnd{CauseOther, why, events.NewCellLost(e.id, why)} }
	entries = slices.DeleteFunc(entries, func(e *entry) bool { return !e.cell().Live() || !s.ends.beginLocked(e, end(e)) })
	s.table.mu.Unlock()
	for _, e := range entries {
		s.ends.report(e, end(e))
	}
	return all, nil
}
