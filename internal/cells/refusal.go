package cells

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/tunnel"
)

// refusalReports report cells that refuse this process.
type refusalReports struct {
	loop      *loop
	events    *reporter
	listening *listening

	reported perCell[dedup] // of the one that checks

	mu   sync.Mutex
	last refusals
}

// act reports what cells say of this Kip, and has it begin a new term where its clock was behind. cells are those with a pod
// that have refused it for long.
func (s *refusalReports) act(refused refusals, cells []silence, now time.Time) {
	s.mu.Lock()
	was := s.last
	s.last = refused
	s.mu.Unlock()
	if is := refused.summary(); (is != "") != (was.summary() != "") {
		s.loop.log.Error("most cells refuse this Kip, or do so no more", "by_term", refused.cells, "by_ca", refused.rotated, "of", refused.of,
			"why", is)
	}
	if refused.summary() == "" {
		s.reportRefusing(cells, now)
	}
	if refused.cells > refused.of-refused.cells && s.beganAfter(refused.term) {
		s.loop.fail(ErrBehindTime)
	}
}

// refusedPoll is after how long to check a cell again that refuses this process.
const refusedPoll = 5 * time.Second

// spared returns what is left of the time that a cell has to be ready: one that refuses this
// process is not given up, and is checked again.
func (e *entry) spared(left time.Duration) time.Duration {
	if e.session().refusal() != nil {
		return max(left, refusedPoll)
	}
	return left
}

// refusals are of cells that are there: that another Kip has connected to since, and that
// know a CA of Kip's that is not in the store.
type refusals struct {
	of      int // so many cells could
	cells   int
	term    uint64 // the highest of those
	rotated int
}

func (r *refusals) add(refusal error) {
	if followed, is := errors.AsType[*tunnel.FollowedError](refusal); is {
		r.cells, r.term = r.cells+1, max(r.term, followed.Term)
		return
	}
	r.rotated++
}

// refusalReportAfter is how long a cell refuses this process before its pod's owner is told: longer than another Kip takes to
// give way.
const refusalReportAfter = 2 * time.Minute

// reportRefusing tells the owners of the pods of a few cells that these refuse this process. That may be a lie of their roots, or the
// store may be older than the cell's last Kip: no cell is ended for it, so a person has to decide.
func (s *refusalReports) reportRefusing(cells []silence, now time.Time) {
	for _, one := range cells {
		if why := one.e.session().refusal(); why != nil && s.reported.of(one.e).note(events.CellRefuses, now) {
			s.events.report(one.e.cell(), events.NewCellRefuses(one.e.id, now.Sub(one.since), why))
		}
	}
}

// refusalsLeast is how many cells are believed at least that Kip is not obeyed.
const refusalsLeast = 2

// summary returns what the cells say of this Kip, if most of them do. A Kip that is followed, and a
// store that is older than a rotation, are refused by all cells that the store knows, but for
// new ones. What a few say, their roots may have made up.
func (r refusals) summary() string {
	if n := r.cells + r.rotated; n < refusalsLeast || n <= r.of-n {
		return ""
	}
	if r.rotated >= r.cells {
		return fmt.Sprintf("%d cells of %d refuse this Kip, since they trust a CA that is not in its store: the store is older than the rotation"+
			" of the CA; they run on, and none is ended for it, until a newer backup is restored or their pods are deleted", r.rotated, r.of)
	}
	return fmt.Sprintf("%d cells of %d refuse this Kip, since one of the higher term %d has connected to them: either another Kip has the same"+
		" identity, or the clock of this one was behind when it began, or that of one before ahead; they run on, and none is ended for it",
		r.cells, r.of, r.term)
}

// refused returns why most cells, which are well, do not obey this Kip; "" if they do. They are
// not lost.
func (s *refusalReports) refused() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.summary()
}

// ErrBehindTime ends Run: the clock was behind when this process began, and has been set since.
// With a term of now cells would know it for the last that began.
var ErrBehindTime = errors.New("cells take this Kip for an older one, since its clock was behind when it began: it begins anew")

// leastStep is how far the clock has to have been set: less is the time between two readings of it.
const leastStep = time.Second

// beganAfter reports whether the clock has been set forward since this process began its term, and whether it began after
// that of another term by the clock as it is now. The clock is Kip's own, so cells that lie about terms have Kip begin
// anew once at most each time that it is set.
func (s *refusalReports) beganAfter(term uint64) bool {
	now, lasted := s.loop.clock.Now(), s.loop.clock.Since(s.listening.termBegan)
	began := now.Round(0).Add(-lasted) // Round(0): of the clock that is set, not of the one that measures
	return began.Sub(s.listening.termBegan.Round(0)) >= leastStep && began.UnixMilli() > 0 && uint64(began.UnixMilli()) > term
}
