package cells

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"k8s.io/utils/clock"
)

// Pool is a number of cells of one kind that are kept ready for the next pods.
type Pool struct {
	Name  string
	Count int
	// Stopped keeps them stopped, where the cloud can: they cost a disk each,
	// and a boot when they are taken.
	Stopped bool
	// Offerings returns what can be launched for it now, best first, or why
	// nothing can.
	Offerings func() ([]Offering, error)
	// Useless says that no pod may be given a cell of an offering: it is ended. Optional.
	Useless func(Offering) bool
}

// pool is a Pool and how it fares.
type pool struct {
	Pool
	failures int       // cells in a row that did not become ready
	until    time.Time // none is made before
	why      string    // what was last reported
}

const (
	// poolCheck is how often pools are checked when nothing asks for it.
	poolCheck = 5 * time.Second
	// firstPoolWait and longestPoolWait are how long none is made after standby cells that failed.
	firstPoolWait, longestPoolWait = time.Second, 5 * time.Minute
)

// pools say how many standby cells are wanted of which kind, and when none is to be
// made. The cells themselves are the controller's.
type pools struct {
	clock       clock.PassiveClock
	random      backoff.Random
	refillDelay time.Duration
	maxAge      time.Duration // of cells; 0 for any
	recipe      *recipe       // of the next cell
	refill      chan struct{} // asks for a check of the pools

	mu     sync.Mutex
	byName map[string]*pool // which are there does not change
}

func newPools(cfg Config, recipe *recipe) *pools {
	all := &pools{
		clock:       cfg.Clock,
		random:      cfg.Random,
		refillDelay: cfg.RefillDelay,
		maxAge:      cfg.MaxAge,
		recipe:      recipe,
		refill:      make(chan struct{}, 1),
		byName:      map[string]*pool{},
	}
	for _, p := range cfg.Pools {
		all.byName[p.Name] = &pool{Pool: p}
	}
	return all
}

// none says that no pool is configured.
func (all *pools) none() bool { return len(all.byName) == 0 }

// plan returns which of the standby cells are too many, and how many are to be made
// for which pool.
func (all *pools) plan(cells []*Cell) (surplus []string, lacking map[string]int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	template := all.recipe.template(all.recipe.digest())
	current, outdated := map[string][]*Cell{}, map[string][]*Cell{}
	ready := map[string]int{}
	for _, cell := range cells {
		switch p := all.byName[cell.Standby]; {
		case p == nil: // it is of an earlier configuration
			surplus = append(surplus, cell.ID)
		case p.Useless != nil && p.Useless(cell.Offering()):
			surplus = append(surplus, cell.ID)
		case cell.Template != template, all.isOld(cell):
			outdated[cell.Standby] = append(outdated[cell.Standby], cell)
		default:
			current[cell.Standby] = append(current[cell.Standby], cell)
			if cell.Phase == apiv1.Ready {
				ready[cell.Standby]++
			}
		}
	}
	lacking = map[string]int{}
	end := func(cells []*Cell) {
		for _, cell := range cells {
			surplus = append(surplus, cell.ID)
		}
	}
	for name, p := range all.byName {
		n := len(current[name])
		if n > p.Count {
			// The youngest of their boot are the least loss.
			slices.SortFunc(current[name], func(a, b *Cell) int {
				return b.StepTime(apiv1.StepPlaced).Compare(a.StepTime(apiv1.StepPlaced))
			})
			end(current[name][:n-p.Count])
		}
		if n < p.Count {
			lacking[name] = p.Count - n
		}
		// The old go one by one as the new become ready, never before.
		if old := outdated[name]; len(old) > 0 {
			end(old[:min(len(old), max(0, ready[name]+len(old)-p.Count))])
		}
	}
	return surplus, lacking
}

// isOld reports whether a standby cell is half as old as cells may be: so a pod that takes a younger one is not soon evicted.
func (all *pools) isOld(cell *Cell) bool {
	launched := cell.launched()
	return all.maxAge > 0 && !launched.IsZero() && all.clock.Since(launched) >= all.maxAge/2
}

// offerings returns what can be launched for a pool; nothing while none is to be made.
func (all *pools) offerings(name string) ([]Offering, error) {
	all.mu.Lock()
	p := all.byName[name]
	wait := all.clock.Now().Before(p.until)
	all.mu.Unlock()
	if wait {
		return nil, errLater
	}
	return p.Offerings()
}

// errLater: no cell is to be made for the pool yet.
var errLater = errors.New("the standby pool waits")

// newCell returns the record of a new cell for a pool.
func (all *pools) newCell(name string, offerings []Offering) Cell {
	return all.recipe.standbyCell(name, offerings, all.clock.Now())
}

// next returns the time until the pools are to be checked again, unasked.
func (all *pools) next() time.Duration {
	all.mu.Lock()
	defer all.mu.Unlock()
	now, next := all.clock.Now(), poolCheck
	for _, p := range all.byName {
		if wait := p.until.Sub(now); wait > 0 {
			next = min(next, wait)
		}
	}
	return next
}

// noteTaken puts off the making of another cell once one of a pool is a pod's.
func (all *pools) noteTaken(name string) {
	defer all.refillSoon()
	all.mu.Lock()
	defer all.mu.Unlock()
	if p := all.byName[name]; p != nil {
		if until := all.clock.Now().Add(all.refillDelay); until.After(p.until) {
			p.until = until
		}
	}
}

// noteGone counts standby cells that were gone before they were ready, so that a pool
// that cannot work does not launch for ever at full speed.
func (all *pools) noteGone(cell Cell) {
	all.mu.Lock()
	defer all.mu.Unlock()
	p := all.byName[cell.Standby]
	switch {
	case p == nil:
	case !cell.StepTime(apiv1.StepReady).IsZero():
		p.failures = 0
	default:
		p.failures++
		p.until = all.clock.Now().Add(all.random.After(p.failures, firstPoolWait, longestPoolWait))
	}
}

// noteFilled notes why a pool could not be filled, or that it could: nil. It returns
// false when the same was noted last.
func (all *pools) noteFilled(name string, err error) bool {
	why := ""
	if err != nil {
		why = err.Error()
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	p := all.byName[name]
	changed := p.why != why
	p.why = why
	return changed
}

// empty wants no standby cells from now on.
func (all *pools) empty() {
	defer all.refillSoon()
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, p := range all.byName {
		p.Count, p.why = 0, ""
	}
}

// stops says that a pool keeps its cells stopped.
func (all *pools) stops(name string) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	p := all.byName[name]
	return p != nil && p.Stopped
}

// StandbyState is how a pool fares.
type StandbyState struct {
	Name                 string
	Want, Ready, Booting int
	// Why says why it is not full; empty when it only takes time.
	Why string
}

// states returns how the pools fare with these cells, in order of name.
func (all *pools) states(cells []*Cell) (list []StandbyState) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for name, p := range all.byName {
		s := StandbyState{Name: name, Want: p.Count, Why: p.why}
		for _, cell := range cells {
			switch {
			case cell.Standby != name:
			case cell.Phase == apiv1.Ready:
				s.Ready++
			default:
				s.Booting++
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b StandbyState) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// refillSoon asks for a check of the pools.
func (all *pools) refillSoon() {
	select {
	case all.refill <- struct{}{}:
	default:
	}
}
