package stats

import (
	"context"
	"sync"
	"time"
)

const (
	// meterPeriod is how often the meter asks each cell. A pod that ends earlier is not
	// measured, and of each pod up to as much at its end.
	meterPeriod = time.Minute
	// meterKept is for how long the meter knows of a cell that it does not see: until its
	// instance is gone, and its cost is final.
	meterKept = time.Hour
)

// Meter asks all cells, now and then, what their pods use, and notes in its Uses how much of their
// machines stood idle. What a cell says of its pod changes nothing but what is told of
// that cell, and no more than its machine can use is believed.
type Meter struct {
	s   *Stats
	src *source
}

// NewMeter returns a meter that writes to of. NodeName and Gathered in c have no effect.
func NewMeter(c Config, of *Uses) *Meter {
	m := &Meter{s: New(c)}
	m.s.parsing = make(chan struct{}, 1) // nobody waits for it
	m.src = newSource(m.s, summaryName, summaryPath+onlyCPU, of)
	return m
}

// Run measures until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	tick := m.s.c.Clock.NewTimer(meterPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		// Whom it lacks is unmeasured; gather has logged why.
		if _, _, err := m.src.gather(ctx); err != nil && ctx.Err() == nil {
			m.s.c.Log.Error("measure what pods use", "err", err)
		}
		tick.Reset(meterPeriod)
	}
}

// Use is how much of a cell's machine its pod has used. Its zero value is of a cell of which
// that is not known.
type Use struct {
	// Measured is for how long it is known, in seconds.
	Measured float64
	// Idle is what of those was not used: of CPU time or of memory, of whichever less was
	// idle, since a machine is as large as the larger of both needs.
	Idle float64
}

// Uses are what the pods of cells have used, by the cells' IDs.
type Uses struct {
	mu    sync.Mutex
	cells map[string]*used
}

// NewUses returns those of no cell yet.
func NewUses() *Uses { return &Uses{cells: map[string]*used{}} }

// Use tells of a cell by its ID.
func (u *Uses) Use(cell string) Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	if of := u.cells[cell]; of != nil {
		return of.Use
	}
	return Use{}
}

// used is what is known of one cell.
type used struct {
	Use
	// until is when it last answered, by Kip's clock, and cpu what its pod had used then, in
	// seconds of a core.
	until time.Time
	cpu   float64
	// seen is when it was last among the cells.
	seen time.Time
}

func (u *Uses) begin(now time.Time) merger { return &useMerger{Uses: u, now: now} }

// useMerger takes the answers of one round.
type useMerger struct {
	*Uses
	now time.Time
}

// held is nothing: of an answer two numbers are kept.
func (m *useMerger) held() int { return 0 }

func (m *useMerger) add(c *Cell, body []byte) error {
	s, err := readSummary(body)
	if err != nil {
		return err
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if ref := p.PodRef; ref.Namespace != c.Namespace || ref.Name != c.Pod || ref.UID != string(c.UID) {
			continue
		}
		if p.CPU == nil || p.CPU.UsageCoreNanoSeconds == nil || p.Memory == nil || p.Memory.WorkingSetBytes == nil {
			return nil // its kubelet has not looked yet
		}
		m.measure(c, float64(*p.CPU.UsageCoreNanoSeconds)/1e9, float64(*p.Memory.WorkingSetBytes))
		return nil // a cell has one pod
	}
	return nil
}

// measure counts the time since the cell answered last, or since its pod was given to it. Then
// memory is taken to have been as it is now.
func (m *useMerger) measure(c *Cell, cpu, memory float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.cells[c.ID]
	if u == nil {
		u = &used{until: c.Given}
		m.cells[c.ID] = u
	}
	seconds := m.now.Sub(u.until).Seconds()
	if seconds <= 0 || c.Machine.MilliCPU <= 0 || c.Machine.MemoryBytes <= 0 {
		return
	}
	grown := cpu - u.cpu
	if grown < 0 {
		grown = cpu // the pod's counter began anew
	}
	share := max(grown/(float64(c.Machine.MilliCPU)/1000*seconds), memory/float64(c.Machine.MemoryBytes))
	u.Measured += seconds
	u.Idle += seconds * (1 - min(share, 1))
	u.until, u.cpu = m.now, cpu
}

// end forgets cells that are long gone.
func (m *useMerger) end(cells []Cell) (*answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range cells {
		if u := m.cells[cells[i].ID]; u != nil {
			u.seen = m.now
		}
	}
	for id, u := range m.cells {
		if m.now.Sub(u.seen) > meterKept {
			delete(m.cells, id)
		}
	}
	return nil, nil
}
