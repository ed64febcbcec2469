package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// AfterPod is what becomes of a cell whose pod has ended.
type AfterPod struct {
	// PodEnded is true when the cell ends because its pod did, so that the
	// container logs are worth saving.
	PodEnded bool `json:"podEnded,omitempty"`
	// KeepUntil is until when the cell of a failed pod stays, for people to look inside; zero if it does not.
	KeepUntil time.Time `json:"keepUntil,omitzero"`
}

// keeping keeps the cells of failed pods for a time, for people to look inside.
type keeping struct {
	loop        *loop
	records     *records
	inventory   *inventory
	connections *connections
	routes      *routes
	events      *reporter
	releases    *releases
	givenUp     perCell[error] // why cells are not kept; of their workers
}

var _ preparation = (*keeping)(nil)

// prepare waits until a cell need not stay any longer. Meanwhile it keeps the cell connected.
func (s *keeping) prepare(ctx context.Context, e *entry) (progress, error) {
	cell := e.cell()
	left := cell.KeepUntil.Sub(s.loop.clock.Now())
	if s.releases.keepOver(e) || left <= 0 || *s.givenUp.of(e) != nil {
		return done, nil
	}
	if cell.StepTime(apiv1.StepKept).IsZero() {
		if got, err := s.begin(ctx, e); err != nil || !got.isDone() {
			return got, err
		}
	}
	if why := s.lost(e); why != "" {
		s.loop.log.Info("the cell of a failed pod ends before its time", "cell", e.id, "pod", cell.Pod.String(), "why", why)
		return done, nil
	}
	got, err := s.connections.connect(ctx, e)
	if err == nil && got.isDone() {
		got = await("")
	}
	got.why = fmt.Sprintf("its pod has failed, and Kip keeps it until %s for a look inside", cell.KeepUntil.UTC().Format(time.RFC3339))
	return got.atMost(min(left, idlePoll)), err
}

// begin stores that a cell is kept: what must outlive it is saved, and its pod's networks can be routed to the pod's successor.
func (s *keeping) begin(ctx context.Context, e *entry) (progress, error) {
	if got, err := s.routes.unrouteEnding(ctx, e); err != nil || !got.isDone() {
		return got, err
	}
	err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepKept, s.loop.clock.Now())
		return nil
	})
	if err == nil {
		s.events.report(e.cell(), events.NewCellKept(e.id, e.cell().KeepUntil))
	}
	return done, err
}

// giveUp notes that a cell is not kept, and reports it.
func (s *keeping) giveUp(e *entry, why error) {
	if *s.givenUp.of(e) = why; !e.cell().KeepUntil.IsZero() {
		s.events.report(e.cell(), events.NewCellNotKept(e.id, why))
	}
}

// lost returns why nobody can look into a cell any more: it is silent, and the cloud does not show that its instance runs. It is ""
// otherwise. The end of such a cell harms nobody, so one list is enough.
func (s *keeping) lost(e *entry) string {
	link := e.connection()
	session, since := link.session, link.connecting
	if !session.cutOff() {
		return ""
	}
	if heard := session.lastHeard(); heard.After(since) {
		since = heard
	}
	seen, instance := s.inventory.last(), e.cell().Instance
	if s.loop.clock.Since(since) < silentAfter || !seen.began.After(since) || seen.wrong || !seen.covers(instance.Zone) {
		return ""
	}
	switch i, there := seen.byID[instance.ID]; {
	case !there:
		return "its instance is no longer in the cloud's list"
	case i.State == cloud.Stopped, i.State == cloud.Terminating:
		return fmt.Sprintf("its instance is %s", i.State)
	}
	return ""
}
