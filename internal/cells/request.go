package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"k8s.io/utils/clock"
)

// Request is what a pod asks for.
type Request struct {
	Pod apiv1.PodReference
	// Node is the virtual node that the pod is on.
	Node    string
	Attempt int
	// Account is whom the pod's cost is put down to.
	Account Account
	// Seen is when Kip first saw the pod, and Created when it was created, by the API
	// server's clock; zero where that is not known.
	Seen, Created time.Time
	// NoEarlierCell reports whether the pod came to its node after this process had listed the pods there, and
	// nothing had run it then: no other Kip can have launched a cell for it.
	NoEarlierCell bool
	// Offerings come best first; there is at least one. The cell is launched by those that its namespace can pay.
	Offerings []Offering
	// RuledOut is why other types are none, for people.
	RuledOut []apiv1.RuledOut
	Wants
	// Options are what a cell for it is launched with.
	Options Options
	// Needs is as in Cell.
	Needs catalog.Resources
	// Special is as in Cell.
	Special bool
}

// requests takes what pods ask for.
type requests struct {
	table     *table
	additions *additions
	budgets   *budgets
	standbys  *standbys
	recipe    *recipe
	clock     clock.PassiveClock
}

// request is Controller.Request.
func (s *requests) request(ctx context.Context, r Request) (Cell, error) {
	if len(r.Offerings) == 0 {
		return Cell{}, fmt.Errorf("request a cell for pod %s: no offerings", r.Pod)
	}
	var taken, added *entry
	err := s.budgets.within(ctx, r.Pod.Namespace, func(spent float64) (err error) {
		if _, has := s.table.byPod[r.Pod.UID]; has {
			return ErrHasCell
		}
		if err := s.table.claimedLocked(r.Disks); err != nil {
			return err
		}
		// Here alone, under the lock: pods of one namespace have one budget, and ask at the same time.
		if r.Offerings, err = s.budgets.withinLocked(r.Pod.Namespace, r.Offerings, spent, nil); err != nil {
			return err
		}
		if taken, err = s.standbys.takeLocked(r); err != nil || taken != nil {
			return err
		}
		added = s.reserveLocked(r)
		return nil
	})
	switch {
	case err != nil:
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", r.Pod, err)
	case taken != nil:
		return s.standbys.give(ctx, taken, r)
	}
	cell := *added.cell()
	return cell, s.additions.add(ctx, added)
}

// reserveLocked reserves a new cell for a pod while it is being stored. The caller holds table.mu.
func (s *requests) reserveLocked(r Request) *entry {
	cell := Cell{
		ID:        newID("cell-"),
		Phase:     apiv1.Requested,
		Offerings: r.Offerings,
		Reason:    r.Offerings[0].Reason,
		Options:   r.Options,
		OfPool:    OfPool{Template: s.recipe.template(s.recipe.digest())},
	}
	cell.give(r)
	cell.step(apiv1.StepPlaced, s.clock.Now())
	e := newEntry(cell, 0)
	e.noEarlierCell = r.NoEarlierCell
	s.table.reserveLocked(e)
	return e
}

// affords is Controller.Affords.
func (s *requests) affords(ctx context.Context, r Request) (over error) {
	err := s.budgets.within(ctx, r.Pod.Namespace, func(spent float64) error {
		_, over = s.budgets.withinLocked(r.Pod.Namespace, r.Offerings, spent, s.table.byID[s.table.byPod[r.Pod.UID]])
		return nil
	})
	if err != nil {
		return fmt.Errorf("ask what a cell for pod %s may cost: %w", r.Pod, err)
	}
	return over
}

// best returns the offerings that people are shown.
func (r Request) best() []Offering { return r.Offerings[:min(len(r.Offerings), apiv1.MaxCandidates)] }

// ErrHasCell reports that the pod has a cell: it has at most one at a time.
var ErrHasCell = errors.New("the pod has a cell already")

// ErrConnecting reports that Kip has begun a moment ago, and has yet to connect to a standby cell that the
// pod may be given. It is to be requested again soon.
var ErrConnecting = errors.New("connecting to standby cells that the pod may be given")
