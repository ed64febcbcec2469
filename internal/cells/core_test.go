package cells

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/store"
	clocktesting "k8s.io/utils/clock/testing"
)

// bench is what a single step stands on: an empty store, a clock that stands, and a cloud
// that has nothing. No loop runs.
type bench struct {
	*testing.T
	Unobserved
	core
	clock   *clocktesting.FakeClock
	hook    func(op, key string) error // of the store
	cloud   *modelCloud
	calls   *pipe.Pipe
	guard   *guard.Guard
	holds   *holds
	retries *resolveRetries
	mu      sync.Mutex // of what is noted, while something runs aside
	said    []string   // Events
	shown   []Cell     // to observers, with each change
	orphans []error    // of calls that ended orphans
	found   int        // orphans
	marked  []error    // what the cloud did not serve
	moved   []Cell     // of which observers were told that they are interrupted
	taken   []Cell     // of which they were told that they are taken back
}

var _ Shortages = (*bench)(nil)

func newBench(t *testing.T) *bench {
	b := &bench{T: t, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), cloud: newModelCloud()}
	b.calls = b.pipe()
	b.guard = guard.New(guard.Config{Clock: b.clock})
	b.core = newCore(Config{
		Store: store.Memory(func(op, key string) error {
			if b.hook != nil {
				return b.hook(op, key)
			}
			return nil
		}),
		Calls:  b.calls,
		Guard:  b.guard,
		Events: b,
		Clock:  b.clock,
		Random: func() float64 { return 1 },
		Log:    slog.New(slog.DiscardHandler),
	})
	b.holds = &holds{
		table: b.table, clock: b.clock, records: b.records, events: b.events, guard: b.guard, inventory: b.inventory,
	}
	b.retries = &resolveRetries{clock: b.clock, random: b.loop.random}
	*b.observers = observers{b}
	t.Cleanup(b.loop.queue.ShutDown)
	return b
}

// pipe returns a pipe to the cloud, with its budgets as they are now.
func (b *bench) pipe() *pipe.Pipe { return pipe.New(pipe.Config{Cloud: b.cloud, Clock: b.clock}) }

func (b *bench) note(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
}

func (b *bench) Event(_ apiv1.PodReference, e events.Event) {
	b.note(func() { b.said = append(b.said, e.Type+" "+e.Reason+": "+e.Message) })
}

func (b *bench) CellInterrupted(cell Cell) { b.note(func() { b.moved = append(b.moved, cell) }) }

func (b *bench) CellTakenBack(cell Cell) { b.note(func() { b.taken = append(b.taken, cell) }) }

func (b *bench) CellChanged(cell Cell) { b.note(func() { b.shown = append(b.shown, cell) }) }

func (b *bench) Mark(_ Offering, answer error) {
	b.note(func() { b.marked = append(b.marked, answer) })
}

func (*bench) Unavailable(Offering) bool { return false }

// losing returns what ends cells that are lost.
func (b *bench) endingLost() *lostCells {
	return &lostCells{table: b.table, ends: b.ends, holds: b.holds, blockers: b.blocking(), shortages: b}
}

// interrupting returns what stores notices.
func (b *bench) interrupting() *interruptions {
	return &interruptions{loop: b.loop, records: b.records, guard: b.guard, events: b.events, observers: b.observers}
}

// connecting returns what connects to cells. Machines that are dialled are not connected.
func (b *bench) connecting() *connections {
	return &connections{
		table: b.table, loop: b.loop,
		apis: &cellAPIs{
			apis: &modelLinks{cells: map[string]*modelLink{}}, nodeNames: &nodeNames{one: "kip-0"}, notices: &notices{},
		},
		dialling: &dialling{loop: b.loop, calls: b.calls, tunnels: &dials{}},
		configuring: &configuring{
			reports: &connectionReports{},
			table:   b.table, agents: b.agents, upgrades: &upgrades{}, cloudInits: &cloudInits{}, blockers: b.blocking(),
			configs: &agentConfigs{calls: b.calls},
		},
		reports: &connectionReports{
			table: b.table, loop: b.loop, records: b.records, observers: b.observers,
			cloudInits: &cloudInits{events: b.events}, versions: &versions{},
		},
	}
}

// linked connects a cell whose agent and kubelet do what they are asked to.
func (b *bench) linked(e *entry) *modelLink {
	done := make(chan struct{})
	close(done)
	link := &modelLink{
		id: e.id, all: &modelLinks{}, ready: done, nodeReady: done, connected: true, heard: b.clock.Now(),
		onState: func(bool, error) {},
	}
	e.change(func(c *connection) { c.session, c.api = agentSession{link}, link })
	return link
}

// evacuating returns what acts on them.
func (b *bench) evacuating() *evacuating {
	return &evacuating{
		clock: b.clock, observers: b.observers, ends: b.ends, holds: b.holds, lost: b.lost(), interruptions: b.interrupting(),
	}
}

// lost returns what ends the cells whose instances are lost.
func (b *bench) lost() *lostInstances {
	return &lostInstances{
		table: b.table, loop: b.loop, inventory: b.inventory, listening: &listening{}, holds: b.holds, lostCells: b.endingLost(),
	}
}

// end has a cell end.
func (b *bench) end(e *entry, cause Cause) {
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	b.ends.beginLocked(e, cellEnd{cause: cause, evidence: "why"})
}

// blocking returns what keeps cells from being launched.
func (b *bench) blocking() *blockers {
	return &blockers{
		table: b.table, loop: b.loop, records: b.records, recipe: b.recipe, events: b.events, byKind: map[launchKind]*launchBlocker{},
		retries: b.retries,
	}
}

// releasing returns what lets go of cells.
func (b *bench) releasing() *releases {
	return &releases{table: b.table, loop: b.loop, holds: b.holds, ends: b.ends, events: b.events}
}

// waiting returns what reports what ready cells wait for.
func (b *bench) waiting() *bindWaits {
	return &bindWaits{table: b.table, loop: b.loop, records: b.records, events: b.events, ends: b.ends}
}

func (b *bench) OrphanFound() { b.note(func() { b.found++ }) }

func (b *bench) OrphanEnded(err error) { b.note(func() { b.orphans = append(b.orphans, err) }) }

// stored is a cell with a record.
func (b *bench) stored(cell Cell) *entry {
	b.Helper()
	e := newEntry(cell, 0)
	b.table.mu.Lock()
	b.table.reserveLocked(e)
	b.table.indexLocked(e, cell.Instance)
	b.table.mu.Unlock()
	if err := b.additions.add(b.Context(), e); err != nil {
		b.Fatal(err)
	}
	b.woken()
	b.shown = nil
	return e
}

// woken returns the cells that are to be looked at since it was last asked.
func (b *bench) woken() (cells []string) {
	for b.loop.queue.Len() > 0 {
		id, _ := b.loop.queue.Get()
		b.loop.queue.Done(id)
		cells = append(cells, id)
	}
	return cells
}

// listed makes a snapshot the last one.
func (b *bench) listed(seen snapshot) {
	b.inventory.mu.Lock()
	defer b.inventory.mu.Unlock()
	b.inventory.latest = seen
}

// asked reports whether a snapshot was asked for since it was last asked.
func (b *bench) asked() bool {
	select {
	case <-b.inventory.polls:
		return true
	default:
		return false
	}
}

// through does something until what is done aside for it has ended.
func (b *bench) through(do func() (progress, error)) (progress, error) {
	for {
		if got, err := do(); got.state != isUnderWay {
			return got, err
		}
		b.loop.running.Wait()
	}
}

// after returns after how long a step runs again.
func after(got progress, err error) (time.Duration, error) { return got.again, err }

// bare returns a progress without what the cell waits for.
func bare(got progress, err error) (progress, error) {
	got.why = ""
	return got, err
}

// booting is a cell that has a minute to join.
func (b *bench) booting(id string) *entry {
	return b.stored(Cell{
		ID: id, Pod: ref("pod of " + id), Phase: apiv1.Booting, Offerings: []Offering{{BootTimeout: time.Minute}},
		Instance: &cloud.Instance{ID: "i-" + id, Launched: b.clock.Now()},
	})
}

// running is a cell that runs a pod.
func (b *bench) running(id string) *entry {
	return b.stored(Cell{
		ID: id, Pod: ref("pod of " + id), Phase: apiv1.Bound, Offerings: []Offering{{InstanceType: "nano"}},
		Instance: &cloud.Instance{ID: "i-" + id},
	})
}

// edit changes the record of a cell, as an earlier step has.
func (b *bench) edit(e *entry, change func(*Cell)) {
	cell := e.cell().clone()
	change(&cell)
	e.current.Store(&cell)
}

// answering has the agent of a cell answer with codes of HTTP, and returns what it was asked.
func (l *modelLink) answering(code func(path string) int) (asked *[]string) {
	asked = new([]string)
	l.all.agents = func(r *http.Request) *http.Response {
		*asked = append(*asked, r.URL.Path)
		return &http.Response{StatusCode: code(r.URL.Path), Body: io.NopCloser(strings.NewReader("{}"))}
	}
	return asked
}
