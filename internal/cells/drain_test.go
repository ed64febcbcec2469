package cells

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/keyed"
)

// streamed are Logs of pods that people read. lags is full while one of them lags.
type streamed struct {
	saves
	lags chan struct{}
}

func (s streamed) HasStreams(types.UID) bool { return true }

// Finish returns when nobody lags.
func (s streamed) Finish(_ context.Context, pod types.UID) {
	if pod == ref("a").UID {
		s.lags <- struct{}{}
		<-s.lags
	}
}

// On a node, who lags reads on after the pod has ended, and after it was deleted. Other pods may wait for the volumes meanwhile.
func TestWhatIsReadOfACellIsReadToItsEndBeforeTheInstanceEnds(t *testing.T) {
	for name, tc := range map[string]struct{ ended, later bool }{
		"of a pod that ended":                       {ended: true},
		"of a pod that was deleted":                 {},
		"by who begins while the volumes are freed": {ended: true, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
				unmounts := func(can bool) { d.mu.Lock(); d.busy = !can; d.mu.Unlock() }
				lags := make(chan struct{}, 1)
				b.stop()
				b.cfg.Logs = streamed{saves(func(context.Context, Cell, agentapi.Conn) error { return nil }), lags}
				b.run()
				if err := b.requestDisk("a", "d"); err != nil {
					t.Fatal(err)
				}
				b.later(10 * time.Second)
				if !tc.later {
					lags <- struct{}{}
				}
				unmounts(false)
				b.cells.Release(ref("a").UID, "done", tc.ended)
				b.later(10 * time.Second)
				if tc.later {
					lags <- struct{}{}
				}
				unmounts(true)
				b.later(time.Minute)
				if did, left := d.done(), b.cloud.running(); !slices.Contains(did, "detach d i-0") || len(left) != 1 {
					t.Errorf("while somebody lags, done %q, instances %v: want that the disk is free and the instance runs", did, left)
				}
				<-lags
				b.later(10 * time.Second)
				if left := b.cloud.running(); b.phase("a") != "" || len(left) != 0 {
					t.Errorf("when all is read, the cell is %q, instances %v", b.phase("a"), left)
				}
			})
		})
	}
}

// The agents of one namespace send no logs, or let go of no volume, until their time is over.
func TestCellsOfOneNamespaceThatEndSlowlyHoldUpNoOthers(t *testing.T) {
	hangs := func(ctx context.Context, cell *Cell) error {
		if cell.Pod.Namespace == ref("").Namespace {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	for name, end := range map[string]func(context.Context, *draining, *entry) error{
		"logs": func(ctx context.Context, s *draining, e *entry) error { return s.saving.save(ctx, e) },
		"volumes": func(ctx context.Context, s *draining, e *entry) error {
			return s.volumes.askUntilFree(ctx, e, time.Second, func(ctx context.Context) error { return hangs(ctx, e.cell()) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *setup) {
				c.Logs = saves(func(ctx context.Context, cell Cell, _ agentapi.Conn) error { return hangs(ctx, &cell) })
			}, nil, func(t *testing.T, b *bubble) {
				ctx, cancel := context.WithCancel(t.Context())
				b.bound(max(logsSaved, lettingGo))
				small := nano("small")
				small.Pod.Namespace = "other"
				cell, err := b.cells.Request(ctx, small)
				if err != nil {
					t.Fatal(err)
				}
				b.later(time.Minute)
				b.cells.core.table.mu.Lock()
				others := maps.Clone(b.cells.core.table.byID)
				b.cells.core.table.mu.Unlock()
				own := others[cell.ID]
				delete(others, cell.ID)
				var running sync.WaitGroup
				for _, e := range others {
					running.Go(func() { _ = end(ctx, b.cells.ends.draining, e) })
				}
				synctest.Wait()
				ended := errors.New("it waits")
				running.Go(func() { ended = end(ctx, b.cells.ends.draining, own) })
				synctest.Wait()
				if ended != nil {
					t.Errorf("the end of the other namespace's cell: %v", ended)
				}
				cancel()
				running.Wait()
			})
		})
	}
}

func TestACellIsTerminatedOnceWhatMustOutliveItIsSaved(t *testing.T) {
	full := errors.New("disk full")
	for name, tc := range map[string]struct {
		ended  bool
		plugin bool
		fails  error
		away   bool
		asked  string // what its agent was asked
		saved  bool
		said   int
	}{
		"its pod was deleted":                {},
		"its pod ended":                      {ended: true, asked: "/v1/config ", saved: true},
		"its pod ended, and nothing is kept": {ended: true, fails: full, asked: "/v1/config ", said: 1},
		"its pod had a volume of a driver":   {plugin: true, asked: "/v1/config /v1/plugins "},
		"it has a volume, and is away":       {plugin: true, away: true, said: 1},
	} {
		b := newBench(t)
		logs := saves(func(context.Context, Cell, agentapi.Conn) error { return tc.fails })
		connections := b.connecting()
		s := &draining{
			loop: b.loop, connections: connections, logs: logs, ends: b.ends,
			saving: b.savingLogs(logs),
			volumes: &freeingVolumes{
				loop: b.loop, calls: b.calls, agents: b.agents, connections: connections, events: b.events,
				places: keyed.NewPlaces[string](1, 1),
			},
			keeping: &keeping{
				loop: b.loop, records: b.records, inventory: b.inventory, connections: connections, events: b.events,
				releases: b.releasing(),
			},
		}
		e := b.running("c")
		if err := b.records.save(t.Context(), e, func(cell *Cell) error {
			cell.PodEnded, cell.Reason = tc.ended, "why"
			if tc.plugin {
				cell.Plugins = []Plugin{{Driver: "d"}}
			}
			return cell.enter(apiv1.Draining)
		}); err != nil {
			t.Fatal(err)
		}
		link, asked := b.linked(e), ""
		link.connected = !tc.away
		link.all.agents = func(r *http.Request) *http.Response {
			asked += r.URL.Path + " "
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}
		}
		if _, err := b.through(func() (progress, error) { return s.Step(t.Context(), e) }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := e.cell()
		if got.Phase != apiv1.Terminating || got.Reason != "why" || asked != tc.asked || len(b.said) != tc.said {
			t.Errorf("%s: it is %s for %q, asked for %q, said %v", name, got.Phase, got.Reason, asked, b.said)
		}
		if saved := !got.StepTime(apiv1.StepLogsSaved).IsZero(); saved != tc.saved {
			t.Errorf("%s: logs are saved %t", name, saved)
		}
	}
}
