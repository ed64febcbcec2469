package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"k8s.io/apimachinery/pkg/api/resource"
)

// joining has machines that were launched join: their agents, and then their kubelets.
type joining struct {
	table         *table
	loop          *loop
	records       *records
	events        *reporter
	observers     *observers
	inventory     *inventory
	lineage       *lineage
	connections   *connections
	interruptions *interruptions
	blockers      *blockers
	consoles      *consoles
	ends          *ends
	reserved      int64 // bytes of memory that are the cell's own
}

// Step waits for the machine's agent to prove that it has the token, gives it
// its configuration, and waits for its kubelet.
func (s *joining) Step(ctx context.Context, e *entry) (time.Duration, error) {
	if why, _ := s.table.endingOf(e); why != "" {
		cause := s.table.causeOf(e)
		if err := s.ends.startTerminating(ctx, e, why); err != nil {
			return 0, err
		}
		if cause == CauseLost || cause == CauseInterrupted {
			s.consoles.tell(ctx, e.cell())
		}
		return 0, nil
	}
	if _, ends := s.interruptions.interrupted(ctx, e); ends {
		return 0, nil
	}
	if s.lineage.mayRunMore(e) {
		s.lineage.holdBack(s.loop.clock.Now())
		return time.Second, nil
	}
	left, what := s.connections.bootTime(e, e.cell(), e.session)
	if left = e.timeLeft(left); left <= 0 {
		waitsFor := e.waitsFor()
		why := fmt.Sprintf("cell %s on %s was not %s in time: %s", e.id, e.cell().Instance.ID, what, waitsFor)
		s.events.report(e.cell(), events.NewCellNotReady(e.id, e.cell().Instance.ID, what, waitsFor))
		s.table.mu.Lock()
		e.cause = CauseNotReady
		noAgent := !e.goesOver.IsZero()
		if noAgent {
			e.cause = CauseUnfit
		}
		s.table.mu.Unlock()
		if noAgent {
			s.blockers.heardNoAgent(e.cell(), errors.New(why))
		}
		if err := s.ends.startTerminating(ctx, e, why); err != nil {
			return 0, err
		}
		s.consoles.tell(ctx, e.cell())
		return 0, nil
	}
	if !s.connections.addressed(e.cell().Instance) {
		look, launched := s.inventory.last(), e.cell().launched()
		// What an instance had before it was stopped is of no use.
		found, there := look.byID[e.cell().Instance.ID]
		if there && look.began.After(launched) && s.connections.addressed(&found) {
			found.Launched = launched // by Kip's clock, and when it was started again, which not every cloud tells
			if err := s.records.save(ctx, e, func(cell *Cell) error { cell.Instance = &found; return nil }); err != nil {
				return 0, err
			}
		} else {
			s.table.mu.Lock()
			if e.lacks = ""; there && look.began.After(launched) {
				e.lacks = addressLacking(&found)
			}
			s.table.mu.Unlock()
			s.inventory.pollSoon()
			return min(left, time.Second), nil
		}
	}
	if err := s.connections.connect(ctx, e); err != nil {
		return s.notSetUp(ctx, e, left, err)
	}
	if !s.connections.kubeletReady(e) {
		return left, nil // the tunnel and the kubelet wake the cell
	}
	return 0, s.arrive(ctx, e)
}

// noAddress is the wait of a cell without an address.
const noAddress = "it has no address yet"

// addressLacking says which address an instance that is not addressed has not got.
func addressLacking(i *cloud.Instance) string {
	switch {
	case !i.ManagementIP.IsValid():
		return noAddress
	case !i.PodIP.IsValid() && i.State == cloud.Running:
		return fmt.Sprintf("it runs, and the cloud has given it %s alone and no address for its pod", i.ManagementIP)
	case !i.PodIP.IsValid():
		return "it has no address for its pod yet"
	}
	return "it has no public address, at which Kip would reach it"
}

// notSetUp takes an error of connecting: a cell whose agent or cloud-init file is under way is
// asked again soon, one that cannot have them ends; of one that cannot carry out its file no
// other is launched like it for a while. What else there is is the caller's.
func (s *joining) notSetUp(ctx context.Context, e *entry, left time.Duration, err error) (time.Duration, error) {
	switch {
	case errors.Is(err, errNoAgent):
		why := fmt.Sprintf("cell %s on %s: %v", e.id, e.cell().Instance.ID, err)
		s.blockers.heardNoAgent(e.cell(), err)
		s.events.report(e.cell(), events.NewAgentNotStarted(e.id, e.cell().Instance.ID, err.Error()))
		return 0, s.endNotSetUp(ctx, e, CauseUnfit, why)
	case errors.Is(err, errNoCloudInit):
		why := fmt.Sprintf("cell %s on %s: %v", e.id, e.cell().Instance.ID, err)
		s.blockers.heardUnfit(e.cell(), err)
		s.events.report(e.cell(), events.NewCloudInitNotDone(e.id, e.cell().Instance.ID, err))
		return 0, s.endNotSetUp(ctx, e, CauseUnfit, why)
	case errors.Is(err, errAgentFetched):
		return min(left, agentPoll), nil
	case errors.Is(err, agentapi.ErrNotYet) && e.cell().CloudInit() != "" && e.cell().StepTime(apiv1.StepJoined).IsZero():
		if e.cell().StepTime(apiv1.StepCloudInit).IsZero() {
			// Stored, since a Kip that begins anew is not to take it for one that does not join.
			if err := s.records.save(ctx, e, func(cell *Cell) error {
				cell.step(apiv1.StepCloudInit, s.loop.clock.Now())
				return nil
			}); err != nil {
				return 0, err
			}
		}
		e.setup.polls++
		return min(left, s.loop.random.After(e.setup.polls, firstSetUpPoll, longestSetUpPoll)), nil
	}
	return left, err
}

// endNotSetUp ends a cell that cannot have what it is to have.
func (s *joining) endNotSetUp(ctx context.Context, e *entry, cause Cause, why string) error {
	s.table.mu.Lock()
	e.cause = cause
	s.table.mu.Unlock()
	return s.ends.startTerminating(ctx, e, why)
}

// arrive makes a cell Ready whose kubelet is, or ends one whose machine is too small for
// its pod: its kubelet would refuse the pod, or the kernel end it.
func (s *joining) arrive(ctx context.Context, e *entry) error {
	cell := e.cell()
	room, measured := cell.Room, false
	if room.None() {
		room = roomOf(e.api.Node(), cell.Offering())
		measured = !room.None()
	}
	short := lacksRoom(room, cell.Needs, s.reserved)
	err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.Room = room
		if short {
			return nil
		}
		now := s.loop.clock.Now()
		cell.step(apiv1.StepReady, now)
		if !cell.Boot.Told.IsZero() && !cell.Boot.Told.Before(cell.launched()) {
			cell.Boot.Ready = now
		}
		return cell.enter(apiv1.Ready)
	})
	if err != nil {
		return err
	}
	if measured {
		s.observers.CellMeasured(*e.cell())
	}
	if !short {
		return nil
	}
	need := cell.Needs
	why := fmt.Sprintf("the machine of %s has %s, and the pod needs %s (+%s for the cell)", cell.Offering(), roomText(room), roomText(need),
		resource.NewQuantity(s.reserved, resource.BinarySI))
	s.events.report(cell, events.NewCellTooSmall(e.id, why))
	s.table.mu.Lock()
	e.cause = CauseTooSmall
	s.table.mu.Unlock()
	return s.ends.startTerminating(ctx, e, why)
}
