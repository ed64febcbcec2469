package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestAKubeletSeesItsPodOnlyWhenTheRecordSaysSo(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		shown := 0
		b.links.binds = func(id string) {
			shown++
			var stored Cell
			if _, err := b.store.Get(t.Context(), keyPrefix+id, &stored); err != nil || stored.Phase != apiv1.Bound {
				t.Errorf("the pod is shown while the record says %q (%v)", stored.Phase, err)
			}
		}
		b.request("a", "nano")
		b.later(10 * time.Second)
		if shown != 1 {
			t.Errorf("the pod is shown %d times, want once", shown)
		}
	})
}

func TestAReadyCellIsBoundOnceItIsPrepared(t *testing.T) {
	broken := errors.New("broken")
	of := func(pod apiv1.PodReference) func(*bench, *entry) {
		return func(_ *bench, e *entry) {
			cell := e.cell().clone()
			cell.Pod = pod
			e.current.Store(&cell)
		}
	}
	for name, tc := range map[string]struct {
		got     progress // of its preparation
		err     error
		before  func(*bench, *entry)
		last    func(*bench, *entry) // while it is prepared
		phase   apiv1.Phase
		again   time.Duration
		fails   bool
		anew    bool
		binding bool
	}{
		"it is prepared": {got: done, phase: apiv1.Bound, binding: true},
		"it waits":       {got: waitFor("", time.Second), phase: apiv1.Ready, again: time.Second},
		"it fails":       {got: waitFor("", time.Second), err: broken, phase: apiv1.Ready, again: time.Second, fails: true},
		"its pod is gone": {got: leave, last: func(b *bench, e *entry) {
			b.end(e, CausePodDeleted)
		}, phase: apiv1.Terminating},
		"its pod went at the last moment": {got: done, last: func(b *bench, e *entry) {
			b.end(e, CausePodDeleted)
		}, phase: apiv1.Terminating},
		"it leaves for no reason": {got: leave, phase: apiv1.Ready, anew: true},
		"the cloud takes its instance": {got: done, before: func(b *bench, e *entry) {
			b.noticed(e, b.clock.Now().Add(time.Minute), true)
		}, phase: apiv1.Terminating},
		"no pod has it": {got: done, before: of(apiv1.PodReference{}), phase: apiv1.Ready},
		"a pod takes it at the last moment": {
			got: done, before: of(apiv1.PodReference{}), last: of(ref("a")), phase: apiv1.Ready, anew: true,
		},
		"it is stopped, and nobody can start it": {got: leave, before: func(_ *bench, e *entry) {
			stopped := e.cell().clone()
			stopped.Stopped = true
			e.current.Store(&stopped)
		}, phase: apiv1.Ready, fails: true},
	} {
		b := newBench(t)
		var asked []string
		s := &binding{
			records: b.records, ends: b.ends, releases: b.releasing(), waits: b.waiting(),
			idling: &idling{calls: b.calls, pools: b.pools, inventory: b.inventory, connections: b.connecting()},
		}
		e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready, Instance: &cloud.Instance{ID: "i"}})
		second := &stage{name: "second", asked: &asked, got: tc.got, err: tc.err}
		if tc.last != nil {
			second.then = func() { tc.last(b, e) }
		}
		s.preparations = preparations{table: b.table, list: []preparation{
			&stage{name: "first", asked: &asked, got: done}, second, b.evacuating(),
		}}
		link := b.linked(e)
		if tc.before != nil {
			tc.before(b, e)
		}
		got, err := s.Step(t.Context(), e)
		is := e.cell().Phase
		if is != tc.phase || got.again != tc.again || (got == anew) != tc.anew || (err != nil) != tc.fails || len(asked) != 2 ||
			s.releases.cells.of(e).binding != tc.binding {
			t.Errorf("%s: it is %s, %+v (%v); asked %v, binding %t", name, is, got, err, asked, s.releases.cells.of(e).binding)
		}
		if shown := len(link.bound) == 1; shown != (tc.phase == apiv1.Bound) {
			t.Errorf("%s: its kubelet sees %d pods", name, len(link.bound))
		}
	}
}
