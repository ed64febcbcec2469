package metrics

import (
	"cmp"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

// tracked is what is remembered of a cell until it is Gone.
type tracked struct {
	steps   int  // of the cell that were observed
	running bool // its pod was seen running
}

// againMax bounds how many pods are remembered to have been started before, in
// each of two generations. More cells than that must end between the loss of a
// pod's cell and the start of its next one for the pod to count as new.
const againMax = 4096

// Known tells of the cells that were there when Kip started: what has happened to
// them was observed by an earlier process, or by nobody. Call it once, before
// CellChanged.
func (m *Metrics) Known(list []cells.Cell) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range list {
		c := &list[i]
		// Whether the pod of a bound cell runs already is not in the cell.
		m.tracked[c.ID] = tracked{steps: len(c.Steps), running: hasStep(c.Steps, apiv1.StepBound)}
	}
}

// CellChanged observes the steps that a cell has taken since it was last told of;
// the changes of one cell are to be told in their order.
func (m *Metrics) CellChanged(c cells.Cell) {
	gone := c.Phase == apiv1.Gone
	m.mu.Lock()
	t, known := m.tracked[c.ID]
	if gone && !known {
		// Told before, or never stored: it has not lived.
		m.mu.Unlock()
		return
	}
	// A step that is taken anew is removed first.
	from := min(t.steps, len(c.Steps))
	_, again := m.again[c.Pod.UID]
	if !again {
		_, again = m.againOld[c.Pod.UID]
	}
	switch {
	case gone:
		delete(m.tracked, c.ID)
		if !again && !c.PodEnded && hasStep(c.Steps, apiv1.StepBound) {
			m.rememberAgain(c.Pod.UID)
		}
	case !known || t.steps != len(c.Steps):
		t.steps = len(c.Steps)
		m.tracked[c.ID] = t
	}
	m.mu.Unlock()

	if from == len(c.Steps) && !gone {
		return
	}
	offering, launchType := c.Offering(), launchTypeOf(c.Offering().CapacityType())
	for i := from; i < len(c.Steps); i++ {
		step := &c.Steps[i]
		switch step.Name {
		case apiv1.StepSeen:
			m.standbyRequests.WithLabelValues(resultOf(c)).Inc()
		case apiv1.StepBound:
			if !again {
				m.observeStart(&c, stageBound, step.Time.Time)
			}
		}
		phase, outcome := m.phaseEndedBy(&c, i)
		if phase == "" {
			continue
		}
		// The latest, since a pod may have been seen before the standby cell
		// that it gets was ready.
		began := c.Steps[0].Time.Time
		for _, s := range c.Steps[1:i] {
			if s.Time.After(began) {
				began = s.Time.Time
			}
		}
		m.phaseDuration.WithLabelValues(phase, offering.InstanceType, launchType, outcome).Observe(max(0, step.Time.Sub(began).Seconds()))
	}
	if gone {
		m.cellsEnded.WithLabelValues(offering.InstanceType, launchType, string(m.endReason(&c))).Inc()
	}
}

// rememberAgain notes, under mu, that a pod which gets another cell is not
// started for the first time.
func (m *Metrics) rememberAgain(uid types.UID) {
	if len(m.again) >= againMax {
		m.again, m.againOld = make(map[types.UID]struct{}, againMax), m.again
	}
	m.again[uid] = struct{}{}
}

// PodRunning tells that the pod of a cell runs, and since when. It may be told as
// often as it is seen.
func (m *Metrics) PodRunning(c cells.Cell, since time.Time) {
	m.mu.Lock()
	t, known := m.tracked[c.ID]
	_, again := m.again[c.Pod.UID]
	if !again {
		_, again = m.againOld[c.Pod.UID]
	}
	first := known && !t.running
	if first {
		t.running = true
		m.tracked[c.ID] = t
	}
	m.mu.Unlock()
	if first && !again {
		m.observeStart(&c, stageRunning, since)
	}
}

func (m *Metrics) observeStart(c *cells.Cell, stage string, at time.Time) {
	seen := c.StepTime(apiv1.StepSeen)
	if seen.IsZero() {
		return
	}
	source := sourceLaunched
	if c.Standby != "" {
		source = sourceStandby
	}
	o := c.Offering()
	m.podStart.WithLabelValues(stage, source, o.InstanceType, launchTypeOf(o.CapacityType())).Observe(max(0, at.Sub(seen).Seconds()))
}

// phaseEndedBy says which phase of its life the cell's nth step has ended, and
// how; "" for none.
func (m *Metrics) phaseEndedBy(c *cells.Cell, n int) (phase, outcome string) {
	if n == 0 {
		return "", "" // a life begins
	}
	before := c.Steps[:n]
	switch c.Steps[n].Name {
	case apiv1.StepSeen:
		return phaseStandby, outcomeSuccess
	case apiv1.StepPlaced:
		if c.Attempt > 1 {
			return "", "" // the pod was seen before its earlier cells lived
		}
		return phasePlacing, outcomeSuccess
	case apiv1.StepLaunched:
		return phaseLaunching, outcomeSuccess
	case apiv1.StepJoined:
		return phaseJoining, outcomeSuccess
	case apiv1.StepReady:
		return phaseStarting, outcomeSuccess
	case apiv1.StepBound:
		return phaseBinding, outcomeSuccess
	case apiv1.StepLogsSaved:
		return phaseSavingLogs, outcomeSuccess
	case apiv1.StepTerminated:
		if hasStep(before, apiv1.StepEnded) {
			return phaseTerminating, outcomeSuccess
		}
	case apiv1.StepEnded:
	default:
		return "", ""
	}

	// The cell has ended in the middle of something.
	switch {
	case hasStep(before, apiv1.StepBound):
		phase = phaseRunning
	case hasStep(before, apiv1.StepReady) && c.Pod.UID == "":
		phase = phaseStandby
	case hasStep(before, apiv1.StepReady):
		phase = phaseBinding
	case hasStep(before, apiv1.StepJoined):
		phase = phaseStarting
	case hasStep(before, apiv1.StepLaunched):
		phase = phaseJoining
	default:
		phase = phaseLaunching
	}
	switch reason := m.endReason(c); {
	case reason == cells.CauseNotLaunched, reason == cells.CauseNotReady, reason == cells.CauseUnfit, reason == cells.CauseTooSmall,
		reason == cells.CauseNoDisk, reason == cells.CauseNoRoute, reason == cells.CauseKernelRefused, reason == cells.CauseLost,
		reason == cells.CauseInterrupted:
		return phase, outcomeFailed
	case phase == phaseRunning && (reason == cells.CausePodEnded || reason == cells.CausePodDeleted):
		return phase, outcomeSuccess
	}
	return phase, outcomeCancelled
}

// endReason says why a cell ends, or has ended.
func (m *Metrics) endReason(c *cells.Cell) cells.Cause {
	if r := c.Cause; slices.Contains(causes, r) {
		return r
	}
	switch {
	case c.PodEnded:
		return cells.CausePodEnded
	case !c.Interrupted.IsZero():
		return cells.CauseInterrupted
	case !hasStep(c.Steps, apiv1.StepLaunched):
		return cells.CauseNotLaunched
	case hasStep(c.Steps, apiv1.StepBound):
		return cells.CauseOther
	case !hasStep(c.Steps, apiv1.StepReady):
		return cells.CauseNotReady
	case c.Pod.UID == "":
		return cells.CauseStandbyRetired
	}
	return cells.CauseOther
}

func hasStep(steps []apiv1.Step, name string) bool {
	for i := range steps {
		if steps[i].Name == name {
			return true
		}
	}
	return false
}

func resultOf(c cells.Cell) string {
	if c.Standby != "" {
		return resultHit
	}
	return resultMiss
}

func launchTypeOf(m cloud.CapacityType) string { return string(cmp.Or(m, cloud.OnDemand)) }

// OrphanFound tells of an instance that has Kip's tags and no cell.
func (m *Metrics) OrphanFound() { m.Sweep(SweepOrphan, 1) }

// OrphanEnded tells that the end of such an instance was asked for; err is what
// the cloud answered.
func (m *Metrics) OrphanEnded(err error) {
	if err != nil {
		m.Sweep(SweepFailed, 1)
		return
	}
	m.Sweep(SweepTerminated, 1)
}

// OwnedLeft counts a resource that an instance has left.
func (m *Metrics) OwnedLeft() { m.sweepParts.WithLabelValues(partLeft).Inc() }

// OwnedDeleted counts that the deletion of such a resource was asked for; err is what the
// cloud answered.
func (m *Metrics) OwnedDeleted(err error) {
	if err != nil {
		m.sweepParts.WithLabelValues(partFailed).Inc()
		return
	}
	m.sweepParts.WithLabelValues(partDeleted).Inc()
}

// Sweep counts n instances of which a sweep has the same to tell.
func (m *Metrics) Sweep(result SweepResult, n int) {
	m.sweep.WithLabelValues(string(result)).Add(float64(n))
}
