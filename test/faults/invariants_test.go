package faults

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// What Kip's own constants add up to.
const (
	callTimeout    = time.Minute      // cells: of a call whose answer never comes
	cellBackoff    = 30 * time.Second // cells: longest wait before a failed step is retried
	podBackoff     = time.Minute      // pods: the same
	drainTimeout   = 30 * time.Second // cells: for the logs of a cell that is silent
	terminateAgain = 3 * time.Minute  // cells: before a termination that came to nothing is repeated
	overdue        = time.Minute      // pods: after the grace period of a pod that is not deleted
	orphanTime     = 15*time.Second + 10*time.Second + 15*time.Second
	pollTime       = 15 * time.Second // cells: between two looks at the cloud
	terminationMax = time.Minute      // of the simulated cloud: how long an instance runs on
	attemptBackoff = 5 * time.Minute  // pods: longest wait between two cells for a pod
	readyTimeout   = 2 * time.Minute  // cells: from the join to a ready kubelet

	// evictionBound is when an eviction that was forbidden must have been tried again:
	// pods waits for 5 s.
	evictionBound = 10 * time.Second

	// outliveBound is how long an instance may run on after the end of its pod,
	// counted from the last fault if that is later: whatever Kip was waiting for,
	// the logs, a termination that came to nothing and is repeated.
	outliveBound = callTimeout + max(cellBackoff, podBackoff) + drainTimeout + terminateAgain + listLag + 2*pollTime + terminationMax
	// reasonBound is how long a pod may be without a cell and without a reason.
	reasonBound = podBackoff + 30*time.Second
	// reachBound is how long a pod may take to a bound cell when there is capacity
	// and nothing fails: the cell that it waits for is lost first, then the longest
	// wait for another.
	reachBound = bootTimeout + readyTimeout + outliveBound + attemptBackoff + bootTimeout
)

// check looks at all invariants. The world rests.
func (w *world) check() []string {
	truth := w.cloud.Truth()
	podList := w.api.list()
	disks, torn := w.disksNow(), w.tornDisks()
	w.api.mu.Lock()
	endings, forbidden := maps.Clone(w.api.ended), maps.Clone(w.api.forbidden)
	w.api.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	now, calm := time.Now(), w.calm()
	k := w.kip

	// 1. At most one cell runs a pod: seen at each start, and here.
	runs := map[types.UID]string{}
	for _, m := range w.machines {
		if !m.up || !m.running {
			continue
		}
		if other := runs[m.pod]; other != "" {
			w.violateLocked("invariant 1: cells %s and %s both run pod %s", other, m.cell, m.pod)
		}
		runs[m.pod] = m.cell
	}

	// Of that: a launch that is sent again is the one that was stored, though each
	// life of Kip has another configuration.
	if n := w.cloud.Calls()[sim.CallKey{Kind: sim.KindLaunch, Outcome: sim.Mismatch}]; n > 0 {
		w.violateLocked("invariant 2: %d launches were sent again and differed from the first", n)
	}

	// Of that: a cell has one instance, ever. The sweep of orphans would hide it.
	instances, cellOf := map[string]string{}, map[string]string{}
	for _, i := range truth {
		cell := w.cellOfLocked(i.Instance)
		cellOf[i.ID] = cell
		if other := instances[cell]; other != "" {
			w.violateLocked("invariant 2: cell %s has instances %s and %s", cell, other, i.ID)
		}
		instances[cell] = i.ID
	}

	latest := func(first time.Time, others ...time.Time) time.Time {
		for _, t := range others {
			if t.After(first) {
				first = t
			}
		}
		return first
	}
	live := map[string]bool{} // by the bounds that this check could have seen broken
	defer func() {
		for bound, is := range live {
			if is && !w.ending {
				w.live[bound]++
			}
		}
	}()

	// A disk is on one machine, with a record, and is not torn off.
	live["disks"] = w.checkDisksLocked(slices.DeleteFunc(disks, func(d cloud.Disk) bool { return d.ID == w.foreign }), torn, cellOf) > 0

	// 2. No instance outlives its pod.
	for _, ended := range endings {
		live["outlive"] = live["outlive"] || now.Sub(latest(ended, calm)) > outliveBound
	}
	for _, i := range truth {
		cell := w.cellOfLocked(i.Instance)
		var needless time.Time
		switch a := w.books.cells[cell]; {
		case a == nil:
			if needless = w.books.removed[cell]; needless.Before(i.Launched) {
				needless = i.Launched
			}
		case a.cell.Pod.UID != "":
			ended, over := endings[a.cell.Pod.UID]
			if !over {
				continue
			}
			needless = latest(ended, a.cell.KeepUntil)
		default:
			continue // of a standby pool
		}
		needless = latest(needless, calm)
		if now.Sub(needless) > outliveBound {
			w.violateLocked("invariant 2: instance %s of cell %s (%s) is %s %s after the end of its pod", i.ID, cell, w.phaseOf(cell), i.State,
				now.Sub(needless))
		}
	}

	// 3 is checked where pods change.

	// 4. Every pod reaches a cell or has a reason.
	if k != nil && k.up {
		for _, p := range podList {
			if terminal(p) || p.DeletionTimestamp != nil {
				continue
			}
			if isShipper(p) {
				w.checkSetLocked(k, p, runs[p.UID], now, calm)
				continue
			}
			if apiv1.DaemonSetOf(p) != nil {
				w.checkDaemonLocked(k, p, runs[p.UID], now, calm)
				continue
			}
			if runs[p.UID] != "" || w.boundTo(p.UID) != nil {
				w.lastCell[p.UID], w.lastLive[p.UID], w.lastBound[p.UID] = now, now, now
				continue
			}
			if cell, has := k.cells.ForPod(p.UID); has {
				cell.Pod.UID = p.UID
				w.hadCell(cell, now)
			}
			if k.pods.Waiting(p.UID) != "" {
				w.lastWaiting[p.UID] = now
			}
			// A reason is of the end of the last cell or newer: an old one, or news
			// that all is well, explains nothing.
			explained := func(since time.Time) bool {
				return k.pods.Waiting(p.UID) != "" || slices.ContainsFunc(w.reports[p.UID], func(r report) bool {
					return r.kind == corev1.EventTypeWarning && !r.at.Before(since)
				})
			}
			lost, unbound := latest(w.created[p.UID], w.lastCell[p.UID]), latest(w.created[p.UID], w.lastBound[p.UID])
			if without := now.Sub(latest(lost, calm)); without > reasonBound {
				live["reason"] = true
				if !explained(latest(w.created[p.UID], w.lastLive[p.UID])) {
					w.violateLocked("invariant 4: pod %s has no cell and no reason for %s", p.Name, without)
				}
			}
			if waits := now.Sub(latest(unbound, calm)); waits > reachBound {
				live["reach"] = true
				// It is counted anew from when there was no capacity.
				if w.lastWaiting[p.UID].Before(now.Add(-reachBound)) && !explained(latest(unbound, calm)) {
					w.violateLocked("invariant 4: pod %s has reached no cell in %s, and nothing was reported", p.Name, waits)
				}
			}
		}
	}

	// A store that lacks nothing is not behind.
	if k != nil && k.up && !w.behind {
		if why, sure := k.cells.Behind(); sure && why != "" {
			w.violateLocked("the store was never swapped, and Kip says that it is behind: %+v", k.cells.Generation())
		}
	}

	// An eviction that was forbidden is tried again until the pod is gone, or its
	// instance, unless too many have ended.
	held := map[string]bool{}
	if len(forbidden) > 0 && k != nil && k.up {
		for _, h := range k.guard.Held() {
			held[h.Instance] = true
		}
	}
	for _, p := range podList {
		at, blocked := forbidden[p.UID]
		a := w.boundTo(p.UID)
		if !blocked || terminal(p) || p.DeletionTimestamp != nil || a == nil || !a.cell.Interrupted.After(now) || k == nil || !k.up {
			continue
		}
		if held[a.cell.Instance.ID] {
			continue
		}
		live["eviction"] = true
		if waits := now.Sub(latest(at, calm)); waits > evictionBound {
			w.violateLocked("an eviction that is forbidden is tried again: that of pod %s was not in %s", p.Name, waits)
		}
	}

	// 5. The cost counter. While Kip does not know whether a write was done, it
	// cannot know what it changed.
	if k != nil && k.up && !w.lasting["store faults"] && !w.lasting["store reads"] && w.paused == nil &&
		now.Sub(w.storeTrouble) > cellBackoff+callTimeout {
		want, costs := w.books.costs(now), map[string]cells.Cost{}
		for _, c := range k.cells.Costs() { // those on a host of one's own are apart there
			key := fmt.Sprint(c.InstanceType, c.Spot)
			c.Seconds, c.Dollars = c.Seconds+costs[key].Seconds, c.Dollars+costs[key].Dollars
			costs[key] = c
		}
		for _, key := range slices.Sorted(maps.Keys(costs)) {
			got := costs[key]
			if d := math.Abs(got.Seconds - want[key].Seconds); d > slack {
				w.violateLocked("invariant 5: %s costs %.3f s by Kip's counter, %.3f s by its cells", key, got.Seconds, want[key].Seconds)
			}
			if d := math.Abs(got.Dollars - want[key].Dollars); d > slack/3600+1e-9 {
				w.violateLocked("invariant 5: %s costs %.6f $ by Kip's counter, %.6f $ by its cells", key, got.Dollars, want[key].Dollars)
			}
			live["cost"] = live["cost"] || want[key].Seconds > slack
			delete(want, key)
		}
		for key, c := range want {
			if c.Seconds > slack {
				w.violateLocked("invariant 5: %s costs nothing by Kip's counter, %.3f s by its cells", key, c.Seconds)
			}
		}
		w.compareNamespaces(k.cells.CostsByNamespace(), now)
	}
	return slices.Clone(w.violations)
}

// longestKept is the longest time for which the cell of a failed pod stays.
const longestKept = 10 * time.Minute

// mostKept is how many of them a namespace has at a time.
const mostKept = 3

// checkKeptLocked checks a change of a record: only the cell of a failed pod that asks for it stays, and those of few others, no
// longer than that, and no shorter while somebody can look inside.
func (w *world) checkKeptLocked(was, cell cells.Cell, now time.Time) {
	asked, until := w.keeps[cell.Pod.UID], cell.KeepUntil
	switch {
	case !was.KeepUntil.IsZero() && !was.KeepUntil.Equal(until):
		w.violateLocked("invariant 2: cell %s was to stay until %s, and now until %s", cell.ID, was.KeepUntil.Sub(w.began), until.Sub(w.began))
	case was.KeepUntil.IsZero() && !until.IsZero():
		// It may have asked for it when Kip saw that it had failed.
		if asked > 0 && until.After(now.Add(asked)) || until.After(now.Add(longestKept)) || cell.Phase != apiv1.Draining || !cell.PodEnded {
			w.violateLocked("invariant 2: cell %s (%s) stays for %s, and its pod asks for %s", cell.ID, cell.Phase, until.Sub(now), asked)
		}
		others := 0
		for id, a := range w.books.cells {
			// Kip does not count those whose pods do not ask for it any more.
			if a.cell.Kept() && id != cell.ID && a.cell.Pod.Namespace == cell.Pod.Namespace && w.keeps[a.cell.Pod.UID] > 0 {
				others++
			}
		}
		if others >= mostKept {
			w.violateLocked("invariant 2: cell %s is kept, and its namespace keeps %d others", cell.ID, others)
		}
	}
	if was.Phase != apiv1.Draining || cell.Phase != apiv1.Terminating || until.IsZero() {
		return
	}
	if !now.Before(until) {
		w.plays["kept to its time"]++
		return
	}
	m := w.machines[cell.Instance.ID]
	if looks := m != nil && m.up && m.session != nil && m.session.flows(); looks && asked > 0 && w.diskOf[cell.Pod.UID] == "" {
		w.violateLocked("the cell of a failed pod stays for its time: %s ends %s before, and is connected", cell.ID, until.Sub(now))
	}
}

// checkDaemonLocked checks that a DaemonSet's pod stands without a machine, and is told so once.
func (w *world) checkDaemonLocked(k *kip, p *corev1.Pod, runs string, now, calm time.Time) {
	if cell, has := k.cells.ForPod(p.UID); has || runs != "" {
		w.violateLocked("pod %s of a DaemonSet has cell %s, or runs on cell %q", p.Name, cell.ID, runs)
	}
	since := w.created[p.UID]
	if calm.After(since) {
		since = calm
	}
	if waits := now.Sub(since); waits > reasonBound && (apiv1.WithoutMachine(p) == nil || !ready(p)) && k.pods.Waiting(p.UID) == "" {
		w.violateLocked("pod %s of a DaemonSet does not stand Ready in %s: %+v", p.Name, waits, p.Status)
	}
	told := 0
	for _, r := range w.reports[p.UID] {
		if r.reason == events.NoMachine {
			told++
		}
	}
	if told > 1 {
		w.violateLocked("pod %s of a DaemonSet is told %d times that it has no machine", p.Name, told)
	}
	if apiv1.WithoutMachine(p) != nil {
		w.live["daemon"]++
	}
}

// slack is how far two sums of seconds may differ by their rounding.
const slack = 0.01

func (w *world) phaseOf(cell string) apiv1.Phase {
	if a := w.books.cells[cell]; a != nil {
		return a.cell.Phase
	}
	return "no record"
}

// boundTo returns the bound cell of a pod.
func (w *world) boundTo(uid types.UID) *account {
	for _, a := range w.books.cells {
		if a.cell.Pod.UID == uid && a.cell.Phase == apiv1.Bound {
			return a
		}
	}
	return nil
}

// settled says that nothing is under way: each pod runs where it should, or has
// ended and has no cell, and the pools are full.
func (w *world) settled() bool {
	podList, truth := w.api.list(), map[string]cloud.State{}
	for _, i := range w.cloud.Truth() {
		truth[i.ID] = i.State
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kip == nil || !w.kip.up || w.straying > 0 || len(w.lasting) > 0 || time.Since(w.trouble) < podBackoff {
		return false
	}
	bound, idle := map[types.UID]string{}, 0
	has := map[string]bool{}
	for _, a := range w.books.cells {
		if a.cell.Instance != nil {
			has[a.cell.Instance.ID] = true
		}
	}
	for id, state := range truth {
		if !has[id] && state != cloud.Terminating {
			return false // Kip has yet to end it
		}
	}
	for _, a := range w.books.cells {
		if i := a.cell.Instance; i == nil || truth[i.ID] != i.State && truth[i.ID] != cloud.Running {
			return false
		}
		switch {
		case a.cell.Phase == apiv1.Bound:
			bound[a.cell.Pod.UID] = a.cell.ID
		case a.cell.Pod.UID == "" && a.cell.Phase == apiv1.Ready:
			idle++
			if w.stoppable(a.cell) && (a.cell.Instance.State != cloud.Stopped || !a.cell.Stopped) {
				return false
			}
		default:
			return false
		}
	}
	want := 0
	for _, p := range w.pools {
		want += p.count
	}
	if idle != want {
		return false
	}
	runs := map[string]bool{}
	for _, m := range w.machines {
		if m.up && m.running && !m.cutOff && m.exit == nil {
			runs[m.cell] = true
		}
	}
	for _, p := range podList {
		cell := bound[p.UID]
		switch {
		case p.DeletionTimestamp != nil:
			return false
		case terminal(p):
			if cell != "" {
				return false
			}
		case isShipper(p):
			if cell != "" || !w.setSettledLocked(p) {
				return false
			}
		case apiv1.DaemonSetOf(p) != nil:
			if cell != "" || apiv1.WithoutMachine(p) == nil || !ready(p) {
				return false
			}
		// Who waits has been told what for: else it has another look before it.
		case cell == "" && p.Labels["size"] == "huge":
			if !strings.Contains(w.kip.pods.Waiting(p.UID), "needs cpu 1000") {
				return false
			}
		case cell == "" && w.waitsForDiskLocked(p) != nil:
			if !strings.Contains(w.kip.pods.Waiting(p.UID), "is used by pod "+w.waitsForDiskLocked(p).String()+":") {
				return false
			}
		case p.Status.Phase != corev1.PodRunning || !runs[cell] || !ready(p):
			return false
		}
		delete(bound, p.UID)
	}
	return len(bound) == 0
}

func ready(p *corev1.Pod) bool {
	return len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == corev1.ConditionTrue
}

func (w *world) stoppable(c cells.Cell) bool {
	return slices.ContainsFunc(w.pools, func(p poolOf) bool { return p.instanceType == c.Standby && p.stopped })
}

// quiet lets time pass in a settled world, and checks that nothing is written.
func (w *world) quiet(d time.Duration) {
	w.mu.Lock()
	writes, events := w.writes, len(w.said)
	w.idle = true
	w.mu.Unlock()
	w.api.mu.Lock()
	apiWrites := w.api.writes
	w.api.mu.Unlock()
	time.Sleep(d)
	w.rest()
	w.api.mu.Lock()
	apiWrites = w.api.writes - apiWrites
	w.api.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = false
	w.live["quiet"]++
	writes, said := w.writes-writes, w.said[events:]
	if writes+len(said)+apiWrites > 0 {
		w.violateLocked("invariant 6: in %s in which nothing changed, Kip wrote %d times to its store, Events %q, and %d times else to the API server", d, writes, said, apiWrites)
	}
}

// await lets time pass until ok, at most for a while, and checks all along.
func (w *world) await(most time.Duration, ok func() bool) bool {
	for end := time.Now().Add(most); ; {
		w.rest()
		w.check()
		if ok() {
			return true
		}
		if !time.Now().Before(end) {
			return false
		}
		time.Sleep(time.Second)
	}
}

// moveBack reports whether Kip may evict pods for a better choice of machine, though nothing changes.
func (w *world) moveBack() bool {
	return slices.ContainsFunc(w.api.list(), func(p *corev1.Pod) bool { return p.Annotations[placement.AnnotationMoveBack] != "" })
}

// stayWhereTheyAre takes from all pods that they move back to a better choice of machine, and waits until the world is settled.
func (w *world) stayWhereTheyAre() {
	if !w.moveBack() {
		return
	}
	for _, p := range w.api.list() {
		_ = w.api.edit(nameOf(p), nil, func(p *corev1.Pod) watch.EventType { // it is gone
			p.Annotations = maps.Clone(p.Annotations)
			delete(p.Annotations, placement.AnnotationMoveBack)
			return watch.Modified
		})
	}
	if !w.await(reachBound, w.settled) {
		w.violate("not settled %s after pods were told to stay: %s", reachBound, w.describe())
	}
}

// finish ends a history well: the faults are over, every pod gets what it needs,
// an hour of nothing is quiet, and when the pods are deleted nothing is left.
func (w *world) finish() {
	w.calmDown()
	w.mu.Lock()
	w.ending = true
	strikes, stalls := w.strikes, w.stallsUntil
	w.mu.Unlock()
	time.Sleep(max(time.Until(strikes), time.Until(stalls)))
	if !w.await(reachBound, w.settled) {
		w.violate("not settled %s after the last fault: %s", reachBound, w.describe())
	}
	w.check()
	if w.failed() {
		return
	}
	w.stayWhereTheyAre()
	quiet := time.Hour
	if w.stormy || w.ec2 && w.armed != (failpoint{}) { // hundreds of kubelets renew their leases; the SDK is dear
		quiet = 5 * time.Minute
	}
	w.quiet(quiet)
	w.check()
	w.restartWithout()
	for _, p := range w.api.list() {
		w.deletePod(p, nil)
	}
	if !w.await(overdue+outliveBound, w.empty) {
		w.violate("something is left %s after the last pod was deleted: %s", overdue+outliveBound, w.describe())
	}
	w.check()
	err := w.store.List(context.Background(), "", func(key string, _ []byte, _ int64) error {
		if !slices.Contains([]string{"born", "ends", "ledger", "generation", leaderKey}, key) && !strings.HasPrefix(key, "costs/") {
			w.violate("the store still has %s", key)
		}
		return nil
	})
	if err != nil {
		w.violate("%v", err)
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.violations) > 0
}

// empty says that nothing is left of what was.
func (w *world) empty() bool {
	truth, parts, pods, attached := w.cloud.Truth(), w.cloud.OwnedResources.OwnedNow(), w.api.list(), w.attached()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(truth) == 0 && len(parts) == 0 && len(attached) == 0 && len(pods) == 0 &&
		len(w.books.cells) == 0 && w.kip != nil && len(w.kip.apis) == 0
}

// describe says what there is, for people.
func (w *world) describe() string {
	truth, parts, pods, disks := w.cloud.Truth(), w.cloud.OwnedResources.OwnedNow(), w.api.list(), w.disksNow()
	w.mu.Lock()
	k, ids := w.kip, slices.Sorted(maps.Keys(w.books.cells))
	up := k != nil && k.up
	w.mu.Unlock()
	links := map[string]string{}
	for _, id := range ids {
		if up {
			l, ok := k.cells.Link(id)
			links[id] = fmt.Sprintf("link %t connected %t (%v), it waits for: %s", ok, l.Connected, l.LastError, k.cells.WaitsFor(id))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "\n  now %s, kip up %t, lasting faults %v, trouble until %s", time.Since(w.began), w.kip != nil && w.kip.up, w.lasting,
		w.trouble.Sub(w.began))
	for _, p := range pods {
		fmt.Fprintf(&b, "\n  pod %s %s %s policy %s deleted %v conditions %v", p.Name, p.UID, p.Status.Phase, p.Spec.RestartPolicy,
			p.DeletionTimestamp, p.Status.Conditions)
		if w.kip != nil && w.kip.up {
			fmt.Fprintf(&b, " waiting %q", w.kip.pods.Waiting(p.UID))
		}
		if r := w.reports[p.UID]; len(r) > 0 {
			for _, r := range r[max(0, len(r)-6):] {
				fmt.Fprintf(&b, "; %s at %s: %s", r.reason, r.at.Sub(w.began).Round(time.Millisecond), r.message)
			}
		}
	}
	for _, id := range ids {
		a := w.books.cells[id]
		if a == nil {
			continue // it went meanwhile
		}
		fmt.Fprintf(&b, "\n  cell %s %s pod %s standby %q stopped %t reason %q", id, a.cell.Phase, a.cell.Pod.Name, a.cell.Standby,
			a.cell.Stopped, a.cell.Reason)
		if a.cell.Instance != nil {
			fmt.Fprintf(&b, " on %s", a.cell.Instance.ID)
		}
		fmt.Fprintf(&b, ", disks %v, %s", a.cell.Disks, links[id])
	}
	for _, d := range disks {
		fmt.Fprintf(&b, "\n  disk %s is on %q, mounted on %q", d.ID, d.Instance, w.mountedOn(d.ID))
	}
	for _, p := range parts {
		fmt.Fprintf(&b, "\n  %s %s of %q, tags %v", p.Kind, p.ID, p.Instance, p.Tags)
	}
	if w.kip != nil && len(w.kip.apis) > 0 {
		fmt.Fprintf(&b, "\n  Kip serves %v", slices.Sorted(maps.Keys(w.kip.apis)))
	}
	for _, i := range truth {
		fmt.Fprintf(&b, "\n  instance %s of cell %s is %s", i.ID, w.cellOfLocked(i.Instance), i.State)
		if m := w.machines[i.ID]; m != nil {
			fmt.Fprintf(&b, ", up %t cut off %t joined %t configured %t pod %s running %t over %t", m.up, m.cutOff, m.joined, m.configured,
				m.name.Name, m.running, m.over)
		}
	}
	return b.String()
}

// freshLease is how long a sign of life keeps a cell from being ended.
const freshLease = 40 * time.Second

// checkLostLocked is called when Kip says that the cell of a pod is lost: one that
// runs its pod, and whose lease is fresh, is not, whatever the cloud says. Of one whose
// kubelet hangs its tunnel says nothing.
func (w *world) checkLostLocked(k *kip, pod types.UID, message string) {
	a := w.boundTo(pod)
	if a == nil {
		return
	}
	api := k.apis[a.cell.ID]
	if api == nil {
		return
	}
	api.freezeBeat()
	if ago := time.Since(api.beat); ago < freshLease {
		w.violateLocked("a cell with a fresh lease ends: that of %s was renewed %s ago: %s", a.cell.ID, ago, message)
	}
}

// attempts are those at one thing since the first.
type attempts struct {
	n     int
	first time.Time
	lives int // of Kip, then
}

// attemptLocked notes an attempt. While the cloud refuses an end, calls and Events come
// with a back-off of up to a minute, which begins anew with each life of Kip; the
// first of them search a batch for the machine that is refused.
func (w *world) attemptLocked(what string) {
	const firstFew, aMinute = 20, 2
	a := w.attempts[what]
	if a == nil {
		a = &attempts{first: time.Now(), lives: w.lives}
		w.attempts[what] = a
	}
	a.n++
	if most := firstFew*(1+w.lives-a.lives) + int(aMinute*time.Since(a.first).Minutes()); a.n > most {
		w.violateLocked("%q: %d times within %s, want %d at most", what, a.n, time.Since(a.first), most)
	}
}
