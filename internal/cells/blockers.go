package cells

import (
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

const (
	// firstBlock and longestBlock are how long nothing is launched that an agent has refused to
	// set up, or that the cloud has ended at once. To see whether that is fixed costs an instance.
	firstBlock, longestBlock = time.Minute, 30 * time.Minute
	// blockedPoll is how often Kip checks whether another cloud-init file counts.
	blockedPoll = 5 * time.Second
)

// refusedAgents is how many machines on end have to refuse the agent of cells.itzo before others
// wait: one may have a bad disk, or have asked a server that was just being repaired.
const refusedAgents = 3

// launchKind is what launches have in common that fail for the same fault. A cloud-init file, or an agent, may not go together with
// the image, of which one name may stand for one of each architecture. Or the cloud cannot start a machine, by the template, which has
// the key of the root disk, and by the image, of which one name may also stand for that with the driver of GPUs or other
// accelerators. EC2 lets spot instances use a key by another grant.
type launchKind struct {
	cloudInit, agent, image, arch string
	starts, spot, driver          bool
	template                      string
}

func cloudInitKind(cloudInit string, cell *Cell) launchKind {
	return launchKind{cloudInit: cloudInit, image: fmt.Sprint(cell.Options.Image), arch: cell.Offering().Arch}
}

func agentKind(a *agentapi.Agent, cell *Cell) launchKind {
	return launchKind{agent: fmt.Sprint(*a), image: fmt.Sprint(cell.Options.Image), arch: cell.Offering().Arch}
}

// launchBlocker is a fault for which agents, or the cloud, refuse launches of one kind: the operator has to fix it, and no pod is at fault.
type launchBlocker struct {
	kind launchKind
	breaker
	count    int       // of machines that refused an agent
	heardAt  time.Time // when it was refused last
	reported dedup     // to the node, of an agent
}

// blockers keep cells from being launched for which the operator has to fix something first.
type blockers struct {
	table   *table
	loop    *loop
	records *records
	recipe  *recipe
	events  *reporter
	node    nodeReporter
	// byKind has the faults that are known now. It is under the table's lock.
	byKind  map[launchKind]*launchBlocker
	retries *resolveRetries
	cells   perCell[blocked] // under the table's lock
}

// blocked is what keeps a cell from being launched.
type blocked struct {
	why      string // what the operator has to fix; "" for nothing
	reported dedup  // of that
}

// isProbedLocked reports whether a probe is on its way, a cell that is to show whether the fault is fixed. The caller holds table.mu.
func (s *blockers) isProbedLocked(u *launchBlocker) bool {
	return u.breaker.isProbedLocked(s.table, s.loop.clock.Now(), func(e *entry) bool {
		// One whose offering was refused goes on with another, and shows nothing of the first.
		cell := e.cell()
		if start := s.recipe.startKind(cell); u.kind.image != start.image || u.kind.arch != start.arch || u.kind.starts && u.kind != start {
			return false
		}
		return e.launching || cell.Phase == apiv1.Launching || cell.Phase == apiv1.Booting
	})
}

// noteCloudInitRefused notes that an agent has refused what its cell was to be set up with.
func (s *blockers) noteCloudInitRefused(cell *Cell, refusal error) {
	now, counts := s.loop.clock.Now(), s.recipe.digest()
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for of := range s.byKind {
		if of.agent == "" && !of.starts && of.cloudInit != counts {
			delete(s.byKind, of)
		}
	}
	if cell.CloudInit() != counts {
		return // nothing is launched with it any more
	}
	s.noteRefusalLocked(s.ofKindLocked(cloudInitKind(counts, cell)), cell, refusal, now)
}

// ofKindLocked returns the blocker of a kind; a new one if there is none. The caller holds table.mu.
func (s *blockers) ofKindLocked(of launchKind) *launchBlocker {
	if s.byKind[of] == nil {
		s.byKind[of] = &launchBlocker{kind: of}
	}
	return s.byKind[of]
}

// noteRefusalLocked notes a refusal. One that comes while launches wait says nothing new. While a probe is on its way, only that one's
// counts. The caller holds table.mu.
func (s *blockers) noteRefusalLocked(u *launchBlocker, cell *Cell, refusal error, now time.Time) {
	if now.Before(u.until) || u.probe != cell.ID && s.isProbedLocked(u) {
		return
	}
	u.extendLocked(now, s.loop.random, firstBlock, longestBlock)
	u.why, u.heardAt = refusal.Error(), now
}

// noteAgentMissing notes that a machine could not have the agent of its launch.
func (s *blockers) noteAgentMissing(cell *Cell, refusal error) {
	now := s.loop.clock.Now()
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if !cell.StepTime(apiv1.StepJoined).IsZero() {
		return // it had it, and has come back without: that says nothing of new ones
	}
	if s.recipe.agent == nil || agentKind(s.recipe.agent, cell) != agentKind(cell.Agent(), cell) {
		return // nothing is launched with it any more
	}
	s.forgetOldLocked(now)
	u := s.ofKindLocked(agentKind(s.recipe.agent, cell))
	if u.count++; u.count < refusedAgents {
		u.heardAt = now
		return
	}
	s.noteRefusalLocked(u, cell, refusal, now)
}

// forgetOldLocked forgets blockers of which nothing was heard for long. The caller holds table.mu.
func (s *blockers) forgetOldLocked(now time.Time) {
	for of, old := range s.byKind {
		if (of.agent != "" || of.starts) && now.Sub(old.heardAt) > 2*longestBlock {
			delete(s.byKind, of)
		}
	}
}

// noteNotStarted notes that the cloud has accepted a launch, and ended the cell's instance for what the operator has
// configured.
func (s *blockers) noteNotStarted(cell *Cell, fault error) {
	if cell.Template != s.recipe.template(cell.CloudInit()) {
		return // nothing is launched so any more
	}
	now := s.loop.clock.Now()
	s.table.mu.Lock()
	s.forgetOldLocked(now)
	u := s.ofKindLocked(s.recipe.startKind(cell))
	s.noteRefusalLocked(u, cell, fault, now)
	left := u.until.Sub(now)
	s.table.mu.Unlock()
	s.loop.log.Warn("the cloud has ended an instance for what is configured: launches like it wait, and then one shows whether that is fixed",
		"cell", cell.ID, "wait", left, "err", fault)
}

// noteStarted notes that the agent of a new machine has been heard.
func (s *blockers) noteStarted(cell *Cell) {
	if cell.Template != s.recipe.template(cell.CloudInit()) {
		return
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	// One that was launched before the fault says nothing of it.
	u := s.byKind[s.recipe.startKind(cell)]
	if u == nil || !cell.StepTime(apiv1.StepLaunched).After(u.heardAt) {
		return
	}
	delete(s.byKind, s.recipe.startKind(cell))
	// What others were refused for, in the same words, is probably fixed, too. Each of them shows it by a probe of its own.
	now := s.loop.clock.Now()
	for of, other := range s.byKind {
		if of.starts && other.why == u.why && now.Before(other.until) {
			other.until = now
		}
	}
}

// noteAgentRuns notes that a new machine has the agent of its launch.
func (s *blockers) noteAgentRuns(cell *Cell) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	delete(s.byKind, agentKind(cell.Agent(), cell))
}

// noteCloudInitDone notes that an agent has set its cell up.
func (s *blockers) noteCloudInitDone(cell *Cell) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	delete(s.byKind, cloudInitKind(cell.CloudInit(), cell))
}

// ofLocked returns the blockers of launches like that of a cell: that of its image and root disk, of its agent, and of its cloud-init
// file. Those that there are not are nil. The caller holds table.mu.
func (s *blockers) ofLocked(cell *Cell) (start, agent, file *launchBlocker) {
	if s.recipe.agent != nil {
		agent = s.byKind[agentKind(s.recipe.agent, cell)]
	}
	return s.byKind[s.recipe.startKind(cell)], agent, s.byKind[cloudInitKind(s.recipe.digest(), cell)]
}

// delayLocked returns done if a cell need not wait, else why it does: agents of cells like it have refused the cloud-init file, or the
// agent of cells.itzo, or the cloud could not start instances like its own. Of those that wait one is launched in time as the probe, to see
// whether the fault is fixed. The caller holds table.mu.
func (s *blockers) delayLocked(e *entry) (got progress, report func()) {
	now := s.loop.clock.Now()
	start, agent, file := s.ofLocked(e.cell())
	for _, u := range []*launchBlocker{start, agent, file} {
		if u == nil {
			continue
		}
		left := u.leftLocked(e, now, s.isProbedLocked(u))
		if left == 0 {
			continue
		}
		why, reason := u.why, events.CloudInitUnfit
		switch u {
		case agent:
			reason = events.AgentNotStarted
		case start:
			reason = events.LaunchDelayed
		}
		toNode := u == agent && u.reported.note(why, now)
		return waitFor(why, min(left, blockedPoll)), func() { s.report(e, why, reason, toNode) }
	}
	return done, nil
}

// markProbeLocked makes a cell that is launched now the probe of all that has kept cells like it from being launched. The caller holds
// table.mu.
func (s *blockers) markProbeLocked(e *entry) {
	start, agent, file := s.ofLocked(e.cell())
	for _, u := range []*launchBlocker{start, agent, file} {
		if u != nil && !u.until.IsZero() {
			u.probe, u.probing = e.id, s.loop.clock.Now().Add(firstBlock+e.cell().Offering().BootTimeout)
		}
	}
	if !s.retries.due(e) {
		s.cells.of(e).why = ""
	}
}

// whyLocked returns what the operator has to fix before a cell is launched; "" for nothing. The caller holds table.mu.
func (s *blockers) whyLocked(e *entry) string { return s.cells.of(e).why }

// report reports to the pod's owner why a cell is not launched: by the reason, for its agent, for its cloud-init
// file, or for its image or its root disk. The operator is told of that file here, of an image or a disk by the log; the
// node is told of an agent if toNode.
func (s *blockers) report(e *entry, why, reason string, toNode bool) {
	now := s.loop.clock.Now()
	s.table.mu.Lock()
	state := s.cells.of(e)
	changed := state.why != why
	state.why = why
	isNews := state.reported.note(why, now)
	s.table.mu.Unlock()
	switch {
	case toNode && s.node.listens():
		s.node.report(events.NewAgentsNotStarted(refusedAgents, why))
	case isNews && reason == events.CloudInitUnfit && s.recipe.file != nil:
		s.recipe.file.Unfit(why)
	}
	if isNews {
		s.events.report(e.cell(), events.NewLaunchHeld(reason, why))
	}
	if changed {
		s.records.showAgain(e)
	}
}
