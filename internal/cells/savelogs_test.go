package cells

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/keyed"
)

// draining is a cell whose pod lets it go, for a cause, with what its record has besides.
func (b *bench) draining(id string, cause Cause, wants Wants) *entry {
	b.Helper()
	e := b.running(id)
	if err := b.records.save(b.Context(), e, func(cell *Cell) error {
		cell.Cause, cell.PodEnded, cell.Reason, cell.Wants = cause, cause == CausePodEnded, "why", wants
		return cell.enter(apiv1.Draining)
	}); err != nil {
		b.Fatal(err)
	}
	return e
}

// savingLogs returns what has logs saved.
func (b *bench) savingLogs(logs Logs) *savingLogs {
	return &savingLogs{
		clock: b.clock, records: b.records, connections: b.connecting(), logs: logs, events: b.events, places: keyed.NewPlaces[string](1, 1),
	}
}

func TestTheLogsOfACellAreSavedIfItsPodHasEnded(t *testing.T) {
	full, broken := errors.New("disk full"), errors.New("broken")
	for name, tc := range map[string]struct {
		cause  Cause
		err    error // with which it was dialled
		fails  error // to save them
		away   bool
		none   bool // no session
		ended  bool // ctx
		asked  int  // for the logs
		saved  bool
		said   int
		within time.Duration
	}{
		"its pod was deleted":            {cause: CausePodDeleted},
		"its pod ended":                  {cause: CausePodEnded, asked: 1, saved: true},
		"they cannot be written":         {cause: CausePodEnded, fails: full, asked: 1, said: 1},
		"it takes no configuration":      {cause: CausePodEnded, err: broken, asked: 1, saved: true},
		"it cannot be dialled":           {cause: CausePodEnded, err: broken, none: true, said: 1},
		"it is away":                     {cause: CausePodEnded, away: true, said: 1, within: drainTimeout},
		"Kip ends before they are":       {cause: CausePodEnded, ended: true},
		"Kip ends, and no pod has ended": {cause: CausePodDeleted, ended: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked := 0
			s := b.savingLogs(saves(func(ctx context.Context, cell Cell, agent agentapi.Conn) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if asked++; cell.ID != "c" || cell.Phase != apiv1.Draining || agent == nil {
					t.Errorf("%s: those of a cell that is %s are asked of %v", name, cell.Phase, agent)
				}
				return tc.fails
			}))
			e := b.draining("c", tc.cause, Wants{})
			if !tc.none {
				link := b.linked(e)
				link.answering(func(string) int { return http.StatusOK })
				if tc.away {
					link.connected, link.ready = false, make(chan struct{})
				}
			}
			if tc.ended {
				cancel()
			}
			began := time.Now()
			err := s.saveOfEnded(ctx, e, tc.err)
			if got := time.Since(began); got != tc.within || errors.Is(err, context.Canceled) != (tc.ended && tc.cause == CausePodEnded) {
				t.Errorf("%s: after %s %v", name, got, err)
			}
			if err != nil && !tc.ended {
				t.Errorf("%s: %v", name, err)
			}
			saved := e.cell().StepTime(apiv1.StepLogsSaved).Equal(b.clock.Now())
			if saved != tc.saved || asked != tc.asked || len(b.said) != tc.said {
				t.Errorf("%s: saved %t, asked %d times, said %v", name, saved, asked, b.said)
			}
			leave, free := s.places.TryTake(e.cell().Pod.Namespace)
			if !free {
				t.Fatalf("%s: its place is not free afterwards", name)
			}
			leave()
		})
	}
}
