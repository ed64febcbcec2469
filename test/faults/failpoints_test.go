package faults

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	pointFlag      = flag.Int("point", 0, "kill Kip at this write or call only")
	shortEveryFlag = flag.Int("short-every", int(envUint("FAULTS_SHORT_EVERY", 25)), "with -short: kill Kip at one of so many writes or calls")
)

// scenario is a short story that ends well, also if Kip is killed in it.
type scenario struct {
	name     string
	pools    []poolOf
	shared   bool // the machines of a launch share their user data
	ec2      bool // Kip asks a model of EC2, by its driver
	spot     bool // where that has spot instances
	routed   bool // networks are led to pods there
	reserved bool // the account has reserved capacity there
	unbilled bool // the ledger is lost on the way
	story    func(s *stage)
	// every is of how many points Kip is killed at one, in a story that waits long; 0 for at each.
	every int
}

// stage is a world in which a scenario is played.
type stage struct {
	*world
	lost bool // a condition was never met
	// another says that the order of goroutines was not the one that the story is
	// about, and that it is to be played again.
	another bool
}

// noticing is the longest until Kip knows that an instance has ended: one whose cell was
// heard lately is not lost for what a list says.
const noticing = max(listLag, guard.Fresh) + 10*time.Second

const stopping = 3 * time.Second // of an instance

const patience = 15 * time.Minute

// until waits for a condition.
func (s *stage) until(what string, ok func() bool) {
	if s.lost {
		return
	}
	if !s.await(patience, ok) {
		s.lost = true
		s.violate("never: %s: %s", what, s.describe())
	}
}

// soon waits for a condition that a death of Kip may keep from ever being met.
func (s *stage) soon(ok func() bool) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if s.rest(); ok() {
			return
		}
	}
}

// alive says that Kip is not to die in this play: only then is certain what it says.
func (s *stage) alive() bool { return s.armed == (failpoint{}) }

// shows fails a story that did not come to what it is about.
func (s *stage) shows(what string, ok bool) {
	if !ok && !s.lost {
		s.violate("the story does not show: %s: %s", what, s.describe())
	}
}

// called says that calls of a kind have ended so.
func (s *stage) called(kind sim.Kind, outcomes ...sim.Outcome) bool {
	calls := s.cloud.Calls()
	return slices.ContainsFunc(outcomes, func(o sim.Outcome) bool { return calls[sim.CallKey{Kind: kind, Outcome: o}] > 0 })
}

// told says that Kip has reported something of a pod.
func (s *stage) told(uid types.UID, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.reports[uid], func(r report) bool { return r.reason == reason })
}

// atWrite does something once, as soon as a write makes a condition true; the returned
// function says whether it did.
func (s *stage) atWrite(ok func() bool, do func()) (done func() bool) {
	var once sync.Once
	var did atomic.Bool
	s.mu.Lock()
	defer s.mu.Unlock()
	s.afterWrite = func() {
		if ok() {
			once.Do(func() { did.Store(true); do() })
		}
	}
	return did.Load
}

// instanceType returns that of an instance.
func (s *stage) instanceType(id string) string {
	for _, i := range s.cloud.Truth() {
		if i.ID == id {
			return i.InstanceType
		}
	}
	return ""
}

func (s *stage) phase(uid types.UID) corev1.PodPhase {
	for _, p := range s.api.list() {
		if p.UID == uid {
			return p.Status.Phase
		}
	}
	return ""
}

func (s *stage) runs(uids ...types.UID) func() bool {
	return func() bool {
		for _, uid := range uids {
			if s.phase(uid) != corev1.PodRunning {
				return false
			}
		}
		return true
	}
}

// cellIs says that the pod's cell has reached a phase.
func (s *stage) cellIs(uid types.UID, phase apiv1.Phase) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, a := range s.books.cells {
			if a.cell.Pod.UID == uid && a.cell.Phase == phase {
				return true
			}
		}
		return false
	}
}

func (s *stage) delete(uids ...types.UID) {
	for _, p := range s.api.list() {
		for _, uid := range uids {
			if p.UID == uid {
				s.deletePod(p, nil)
			}
		}
	}
}

func (s *stage) exit(uid types.UID, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		if m.up && m.running && m.pod == uid {
			m.exit = &code
			m.poke()
		}
	}
}

func (s *stage) machineOf(uid types.UID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		if m.up && m.running && m.pod == uid {
			return m.id
		}
	}
	return ""
}

func (s *stage) pod(policy corev1.RestartPolicy, size string) types.UID {
	return s.addPod(policy, size, true, 5)
}

func (s *stage) gone(uids ...types.UID) func() bool {
	return func() bool {
		for _, uid := range uids {
			if s.phase(uid) != "" {
				return false
			}
		}
		return true
	}
}

// cloudAway lets each call to the cloud fail, or heals it.
func (s *stage) cloudAway(away bool) {
	s.change(func(k *sim.Knobs) {
		k.Faults = nil
		if away {
			k.Faults = map[sim.Kind]sim.FaultRates{sim.AnyKind: {Failed: 1}}
		}
	})
}

// startsWithout lets Kip start while something is away: every pod runs on where it was.
func startsWithout(what string, set func(s *stage, away bool)) scenario {
	return scenario{name: "Kip starts again without " + what, story: func(s *stage) {
		uids := []types.UID{s.pod(corev1.RestartPolicyNever, "small"), s.pod(corev1.RestartPolicyNever, "large")}
		s.until("they run", s.runs(uids...))
		var before []string
		for _, uid := range uids {
			before = append(before, s.machineOf(uid))
		}
		set(s, true)
		s.kill()
		for range 60 {
			time.Sleep(10 * time.Second)
			s.rest()
		}
		set(s, false)
		s.mu.Lock()
		s.troubled(time.Now())
		s.mu.Unlock()
		late := s.pod(corev1.RestartPolicyNever, "small")
		s.until("one that is made later runs", s.runs(late))
		for n, uid := range uids {
			if on := s.machineOf(uid); on != before[n] {
				s.violate("pod %s ran on %s, and after a start of Kip without %s it runs on %q", uid, before[n], what, on)
			}
		}
	}}
}

// deletedIn deletes a pod when its cell is in a phase.
func deletedIn(phase apiv1.Phase) scenario {
	return scenario{name: "a pod is deleted while its cell is " + string(phase), story: func(s *stage) {
		inPhase := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, a := range s.books.cells {
				if a.cell.Phase == phase {
					return true
				}
			}
			return false
		}
		deleted := s.atWrite(inPhase, func() {
			for _, p := range s.api.list() {
				s.deletePod(p, nil)
			}
		})
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("its cell is "+string(phase), deleted)
		s.until("the pod is gone", s.gone(uid))
	}}
}

var scenarios = []scenario{
	{name: "a pod runs to its end", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyNever, "small")
		s.until("it runs", s.runs(uid))
		s.exit(uid, 0)
		s.until("it has succeeded", func() bool { return s.phase(uid) == corev1.PodSucceeded })
		s.until("its cell is gone", func() bool { return len(s.cloud.Truth()) == 0 })
	}},
	{name: "the cell of a failed pod is kept for its time, and the pod is deleted meanwhile", story: func(s *stage) {
		const keep = 3 * time.Minute
		s.mu.Lock()
		s.annotations = map[string]string{placement.AnnotationKeepFailed: keep.String()}
		s.mu.Unlock()
		uid := s.pod(corev1.RestartPolicyNever, "small")
		s.until("it runs", s.runs(uid))
		s.exit(uid, 1)
		s.until("it has failed", func() bool { return s.phase(uid) == corev1.PodFailed })
		failed := time.Now()
		s.until("its cell is kept", s.cellIs(uid, apiv1.Draining))
		s.delete(uid)
		s.until("the pod is gone", s.gone(uid))
		s.until("its cell is gone", func() bool { return len(s.cloud.Truth()) == 0 })
		if took := time.Since(failed); took < keep || s.alive() && took > keep+time.Minute {
			s.violate("the cell of a failed pod stays for its time: it was there for %s, and not for %s", took, keep)
		}
	}},
	{name: "a pod is deleted while it runs", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		s.delete(uid)
		s.until("the pod is gone", s.gone(uid))
	}},
	{name: "a DaemonSet beside pods rolls out", every: 4, story: aSetRollsOut},
	deletedIn(apiv1.Requested), deletedIn(apiv1.Launching), deletedIn(apiv1.Booting), deletedIn(apiv1.Ready), deletedIn(apiv1.Bound),
	startsWithout("the API server", func(s *stage, away bool) { s.api.setAway(away) }),
	startsWithout("the cloud", (*stage).cloudAway),
	startsWithout("the API server and the cloud", func(s *stage, away bool) { s.api.setAway(away); s.cloudAway(away) }),
	{name: "a burst finds room for a part of it", story: func(s *stage) {
		s.cloud.SetCapacity(sim.Pool{InstanceType: "small", Zone: "a"}, 2)
		s.cloud.SetCapacity(sim.Pool{InstanceType: "small", Zone: "b"}, 1)
		var uids []types.UID
		for range 5 {
			uids = append(uids, s.pod(corev1.RestartPolicyAlways, "small"))
		}
		s.until("all run", s.runs(uids...))
		// The order of goroutines may make groups that just fit.
		s.another = s.alive() && !s.called(sim.KindLaunch, sim.Partial)
		s.shows("there is no room for all", s.called(sim.KindLaunch, sim.Partial, sim.NoCapacity))
	}},
	{name: "a burst shares its user data", shared: true, story: func(s *stage) {
		var uids []types.UID
		for range 3 {
			uids = append(uids, s.pod(corev1.RestartPolicyAlways, "small"))
		}
		s.until("all run", s.runs(uids...))
		s.until("each instance says its pod", s.tagged)
		if s.alive() {
			batches := map[string]bool{}
			for _, i := range s.cloud.Truth() {
				batches[i.Tags[cloud.TagBatch]] = true
			}
			s.shows("each instance is of a batch", !batches[""])
			s.another = len(batches) == len(uids)
		}
	}},
	{name: "a part of a batch finds room, and the answer is lost", shared: true, story: func(s *stage) {
		s.cloud.SetCapacity(sim.Pool{InstanceType: "small", Zone: "a"}, 2)
		for n := range 6 { // however many calls the order of goroutines makes of it
			s.cloud.FailNth(sim.KindLaunch, n+1, sim.Fault{After: sim.ErrLost})
		}
		var uids []types.UID
		for range 4 {
			uids = append(uids, s.pod(corev1.RestartPolicyAlways, "small"))
		}
		s.until("all run", s.runs(uids...))
		s.shows("an instance was launched of which Kip was not told", s.called(sim.KindLaunch, sim.Lost))
	}},
	{name: "a standby cell is taken", pools: []poolOf{{"small", 2, false}}, story: func(s *stage) {
		s.until("the pool is full", s.settled)
		standby := s.cloud.Truth()
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		on := s.machineOf(uid)
		if s.alive() { // one that has just begun may not have them yet
			s.shows("the pod runs on a cell of the pool", slices.ContainsFunc(standby, func(i sim.Instance) bool { return i.ID == on }))
		}
		s.until("the pool is full again", s.settled)
	}},
	{name: "a stopped standby cell is taken", pools: []poolOf{{"small", 1, true}}, story: func(s *stage) {
		s.until("the pool is full", s.settled)
		standby := s.cloud.Truth()
		s.shows("the pool's instance is stopped", len(standby) == 1 && standby[0].State == cloud.Stopped)
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		if s.alive() {
			s.shows("it was started for the pod", s.called(sim.KindStart, sim.OK) && s.machineOf(uid) == standby[0].ID)
		}
		s.until("the pool is full again", s.settled)
	}},
	{name: "a cell that is lost is replaced", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		first := s.machineOf(uid)
		s.shows("its instance vanishes", s.cloud.Interrupter.Vanish(first) == nil)
		s.until("it runs elsewhere", func() bool { m := s.machineOf(uid); return m != "" && m != first && s.settled() })
	}},
	{name: "a cell that is cut off for ever is replaced", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		first := s.machineOf(uid)
		s.mu.Lock()
		s.machines[first].cutOff = true
		s.linksChanged()
		s.mu.Unlock()
		s.until("it runs elsewhere", func() bool { m := s.machineOf(uid); return m != "" && m != first && s.settled() })
		if s.alive() {
			s.shows("its pod was told that it is silent, and lost", s.told(uid, "CellSilent") && s.told(uid, "CellLost"))
		}
	}},
	{name: "a cell whose kubelet hangs is replaced", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		first := s.machineOf(uid)
		s.mu.Lock()
		if m := s.machines[first]; m.session != nil {
			m.session.api.freezeBeat()
		}
		s.machines[first].hung = true
		s.mu.Unlock()
		s.until("it runs elsewhere", func() bool { m := s.machineOf(uid); return m != "" && m != first && s.settled() })
		if s.alive() {
			s.shows("its pod was told that its agent answers and its kubelet does not", s.explained(uid, "its agent answers, its kubelet does not"))
		}
	}},
	{name: "a Kip that was paused ends no cell", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		first := s.machineOf(uid)
		s.pauseKip(event{t: 5 * time.Minute})
		s.mu.Lock()
		paused := s.paused != nil
		s.mu.Unlock()
		// It is not while it is dead.
		s.shows("Kip is paused", paused || !s.alive())
		time.Sleep(10 * time.Minute)
		s.until("it is settled", s.settled)
		s.shows("the pod runs where it did", s.machineOf(uid) == first && !s.told(uid, "CellLost"))
		if s.alive() {
			s.mu.Lock()
			held := s.plays["pause"]
			s.mu.Unlock()
			s.shows("the pause held something up", held == 1)
		}
	}},
	{name: "while the network to all cells is down none ends, nor the one whose link heals late", story: func(s *stage) {
		var uids []types.UID
		for range 4 {
			uids = append(uids, s.pod(corev1.RestartPolicyAlways, "small"))
		}
		s.until("they run", s.runs(uids...))
		machines := map[types.UID]string{}
		for _, uid := range uids {
			machines[uid] = s.machineOf(uid)
		}
		links := func(down bool, uids ...types.UID) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, uid := range uids {
				s.machines[machines[uid]].cutOff = down
			}
			s.linksChanged()
		}
		links(true, uids...)
		time.Sleep(10 * time.Minute)
		held := s.told(uids[0], "EndHeldBack")
		links(false, uids[1:]...)
		// A Kip that was killed up to silentAfter before knows of no disruption, and gives the cell its time from when it began.
		time.Sleep(40 * time.Second)
		links(false, uids[0])
		s.until("it is settled", s.settled)
		for _, uid := range uids {
			s.shows("each pod runs where it did", s.machineOf(uid) == machines[uid] && !s.told(uid, events.CellLost))
		}
		if s.alive() {
			s.shows("an end was held back", held)
		}
	}},
	{name: "a lost pod that may not be restarted fails", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyNever, "small")
		s.until("it runs", s.runs(uid))
		s.shows("its instance vanishes", s.cloud.Interrupter.Vanish(s.machineOf(uid)) == nil)
		s.until("it has failed", func() bool { return s.phase(uid) == corev1.PodFailed })
	}},
	{name: "a pod ends and its cell is lost before Kip has heard of it", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyNever, "small")
		s.until("it runs", s.runs(uid))
		time.Sleep(listLag)
		s.setLag(event{t: longestLag - 1})
		s.exit(uid, 0)
		time.Sleep(time.Second)
		s.shows("it has ended", s.phase(uid) == corev1.PodSucceeded)
		if s.alive() {
			s.shows("Kip has not heard of it", s.seenPhase(uid) == corev1.PodRunning)
		}
		for _, i := range s.cloud.Truth() {
			s.shows("its instance vanishes", s.cloud.Interrupter.Vanish(i.ID) == nil)
		}
		s.until("it has succeeded, and its cell is gone", func() bool { return s.phase(uid) == corev1.PodSucceeded && len(s.cloud.Truth()) == 0 })
		s.setLag(event{a: 1})
		time.Sleep(2 * longestLag)
		s.until("it has still succeeded", func() bool { return s.phase(uid) == corev1.PodSucceeded })
	}},
	{name: "a pod is deleted while the launch of its group is being stored", story: func(s *stage) {
		var uids []types.UID
		for range 5 {
			uids = append(uids, s.pod(corev1.RestartPolicyAlways, "small"))
		}
		var once sync.Once
		s.mu.Lock()
		stored := false
		s.beforeWrite = func(op string) {
			if op == "apply" {
				once.Do(func() {
					s.mu.Lock()
					stored = true
					s.mu.Unlock()
					s.delete(uids[:2]...)
					// Whoever hears of it comes as far as the locks of this write
					// let him: virtual time cannot pass here.
					for range 10_000 {
						runtime.Gosched()
					}
				})
			}
		}
		s.mu.Unlock()
		s.until("the deleted are gone", s.gone(uids[:2]...))
		s.until("the others run", s.runs(uids[2:]...))
		s.mu.Lock()
		deleted := stored
		s.mu.Unlock()
		s.shows("the launch of a group is stored in one write, and two pods go in it", deleted)
	}},
	{name: "the cloud takes an instance back", spot: true, story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "spot")
		s.until("it runs", s.runs(uid))
		s.shows("its instance is taken back", s.cloud.Interrupter.Interrupt(s.machineOf(uid)) == nil)
		s.until("the pod was moved away", s.gone(uid))
		if s.alive() {
			s.shows("the pod was evicted", s.told(uid, "Evicted"))
		}
	}},
	{name: "an eviction that a disruption budget forbids is tried again", spot: true, story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "spot")
		s.until("it runs", s.runs(uid))
		s.blockEvictions(3)
		s.shows("its instance is taken back", s.cloud.Interrupter.Interrupt(s.machineOf(uid)) == nil)
		s.until("the pod was moved away", s.gone(uid))
		if s.alive() {
			s.shows("the pod was evicted after three refusals", s.told(uid, "EvictionBlocked") && s.told(uid, "Evicted"))
			s.mu.Lock()
			again := s.plays["eviction tried again"]
			s.mu.Unlock()
			s.shows("the eviction was tried four times", again == 3)
		}
	}},
	{name: "the cloud refuses for a while to end an instance", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		on := s.machineOf(uid)
		s.mu.Lock()
		s.lasting["termination refused"] = true
		for !s.hit("termination refused", on) {
			s.salt["termination refused"]++
		}
		s.mu.Unlock()
		s.delete(uid)
		s.until("the pod is gone", s.gone(uid))
		s.until("the cloud refuses again and again", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.plays["termination refused"] >= 3
		})
		s.shows("the instance is there", s.instanceType(on) != "")
		s.set("termination refused", false, event{})
		s.until("the instance is gone", func() bool { return len(s.cloud.Truth()) == 0 })
	}},
	{name: "the next offering is tried when there is no capacity", story: func(s *stage) {
		s.cloud.SetCapacity(sim.Pool{InstanceType: "small"}, 0)
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		s.shows("the cloud had no small one", s.called(sim.KindLaunch, sim.NoCapacity))
		s.shows("it runs on a large one", s.instanceType(s.machineOf(uid)) == "large")
	}},
	{name: "there is capacity again after a while", story: func(s *stage) {
		s.cloud.SetCapacity(sim.Pool{}, 0)
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		time.Sleep(time.Minute)
		s.shows("there was no capacity", s.called(sim.KindLaunch, sim.NoCapacity) && s.phase(uid) == corev1.PodPending)
		if s.alive() {
			s.shows("the pod was told so", s.told(uid, "NoCapacity"))
		}
		s.cloud.SetCapacity(sim.Pool{}, -1)
		s.until("it runs", s.runs(uid))
	}},
	{name: "there is no capacity, and the answer of the store to that is lost", story: func(s *stage) {
		s.cloud.SetCapacity(sim.Pool{}, 0)
		lost := false
		s.mu.Lock()
		s.storeFail = func(op string) (before, after error) {
			if lost || op != "applied" || s.cloud.Calls()[sim.CallKey{Kind: sim.KindLaunch, Outcome: sim.NoCapacity}] == 0 {
				return nil, nil
			}
			lost = true
			return nil, errStore
		}
		s.mu.Unlock()
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		told := func() bool { return s.explained(uid, "no other type fits now") }
		isLost := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return lost
		}
		s.soon(isLost)
		s.soon(told)
		if s.armed == (failpoint{}) && !told() { // a Kip that dies then says it no more
			s.violate("nothing says why the pod's first cell was not launched: %s", s.describe())
		}
		s.shows("the store's answer was lost", isLost())
		s.cloud.SetCapacity(sim.Pool{}, -1)
		s.until("it runs", s.runs(uid))
	}},
	{name: "the answer to a launch is lost", story: func(s *stage) {
		s.cloud.FailNth(sim.KindLaunch, 1, sim.Fault{After: sim.ErrLost})
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		s.shows("an instance was launched of which Kip was not told", s.called(sim.KindLaunch, sim.Lost))
	}},
	{name: "a machine never boots", story: func(s *stage) {
		boots := s.knobs.BootTimes
		s.change(func(k *sim.Knobs) { k.BootTimes = []sim.BootTime{{Never: 1}} })
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it boots", s.cellIs(uid, apiv1.Booting))
		s.change(func(k *sim.Knobs) { k.BootTimes = boots })
		s.until("it runs", s.runs(uid))
		s.shows("another machine was ended, and never booted", slices.ContainsFunc(s.cloud.History(), func(i sim.Instance) bool {
			return i.Booted.IsZero() && (!i.Ended.IsZero() || i.State == cloud.Terminating)
		}))
	}},
}

// tagged says that each instance has the tags of its cell and its pod.
func (s *stage) tagged() bool {
	truth := s.cloud.Truth()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range truth {
		a := s.books.cells[s.cellOfLocked(i.Instance)]
		if a == nil || i.Tags[cloud.TagCell] != a.cell.ID || i.Tags[cloud.TagPodUID] != string(a.cell.Pod.UID) {
			return false
		}
	}
	return len(truth) > 0
}

// explained says that Kip has said something of a pod in these words.
func (s *stage) explained(uid types.UID, words string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.reports[uid], func(r report) bool { return strings.Contains(r.message, words) })
}

// seenPhase is a pod's phase as Kip's informer has it.
func (s *stage) seenPhase(uid types.UID) corev1.PodPhase {
	s.mu.Lock()
	k := s.kip
	s.mu.Unlock()
	if k == nil {
		return ""
	}
	for _, o := range k.informer.GetStore().List() {
		if p := o.(*corev1.Pod); p.UID == uid {
			return p.Status.Phase
		}
	}
	return ""
}

func (w *world) change(change func(*sim.Knobs)) {
	if err := w.cloud.Change(change); err != nil {
		panic(err)
	}
}

// perform plays a scenario with a death at one point, 0 for none, and returns what
// is violated, at which points Kip could have been killed if it was at none, how many it came to, and whether it was killed
// at the one. No point is in the quiet hour at the end, in which Kip only looks at the
// cloud, some hundred times.
func perform(t *testing.T, sc scenario, f failpoint) (violations []string, passed []failpoint, points int, reached bool) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, 1)
	defer watchdog(fmt.Sprintf("%q with a death at %+v", sc.name, f), mostCPU)()
	synctest.Test(t, func(*testing.T) {
		looks := time.Duration(0)
		if sc.spot {
			looks = spotLooks
		}
		w := newWorld(setting{seed: 1, armed: f, pools: sc.pools, shared: sc.shared, ec2: sc.ec2, routed: sc.routed,
			reserved: sc.reserved, looksEvery: looks, movingAddr: !sc.ec2,
			knobs: sim.Knobs{
				Pending:     sim.Distribution{Median: time.Second},
				BootTimes:   []sim.BootTime{{Distribution: sim.Distribution{Median: 5 * time.Second}}},
				Termination: sim.Distribution{Median: 3 * time.Second},
				Stopping:    sim.Distribution{Median: stopping},
				Latency:     map[sim.Kind]sim.Distribution{sim.AnyKind: {Median: 100 * time.Millisecond}},
				ListLag:     sim.Distribution{Median: 700 * time.Millisecond},
			}})
		s := &stage{world: w}
		sc.story(s)
		violations = w.check()
		if len(violations) == 0 {
			w.finish()
			if f.n > 0 && !w.failed() && !w.wasKilled() {
				// The order of goroutines may put the last calls behind the end.
				if w.await(2*pollTime, w.wasKilled); !w.await(cellBackoff, w.empty) {
					w.violate("something is left of nothing: %s", w.describe())
				}
			}
			w.compareDays()
			violations = w.check()
		}
		if f.n == 0 && !sc.unbilled && len(violations) == 0 {
			violations = w.compareWithTheBill(stopping, noticing, nil)
		}
		w.mu.Lock()
		passed, points, reached = w.passed, w.points, w.killedAt == f && !s.another
		w.mu.Unlock()
		w.close()
	})
	return violations, passed, points, reached
}

// mostPlays is how often a story is played until Kip is killed where it is to be: the
// order of goroutines may give the last writes and calls of a story other numbers, or
// make fewer of them: a burst is one call of three machines or two of fewer, and on a
// machine that is busy one of these is rare.
const mostPlays = 200

// playUntil plays a scenario until Kip was killed at a point of it, or without a point until
// the order was the one that it is about. It returns what is violated on the way, and
// what the last play passed. That neither ever comes is a violation, unless each play ended before it
// came to that point: then the play that had it was of a rare order, with more calls.
func playUntil(t *testing.T, sc scenario, f failpoint) (violations []string, passed []failpoint) {
	t.Helper()
	shorter := true
	for range mostPlays {
		violations, passed, points, reached := perform(t, sc, f)
		if reached || len(violations) > 0 {
			return violations, passed
		}
		shorter = shorter && points < f.n
	}
	if shorter {
		t.Logf("no play of %q comes to write or call %d again", sc.name, f.n)
		return nil, nil
	}
	return []string{fmt.Sprintf("what it is about did not come in %d plays: the write or call at which Kip is killed, or the order", mostPlays)}, nil
}

func (w *world) wasKilled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.killedAt != failpoint{}
}

// compareWithTheBill checks the cost counter against what the cloud asks for, by
// type and spot. Kip counts each instance until it knows that it has ended, late by
// most, but not while it is stopping, early by most; unknown instances it never had
// a record of.
func (w *world) compareWithTheBill(early, late time.Duration, unknown map[string]bool) []string {
	type bounds struct{ seconds, leastSeconds, mostSeconds, leastDollars, mostDollars float64 }
	billed := map[string]bounds{}
	for _, c := range w.cloud.Bill() {
		key, n := fmt.Sprint(c.InstanceType, c.Spot), float64(c.Instances)
		b := billed[key]
		b.seconds += c.Time.Seconds()
		least, most := c.Time.Seconds()-n*early.Seconds()-slack, c.Time.Seconds()+n*late.Seconds()+slack
		b.leastSeconds, b.mostSeconds = b.leastSeconds+least, b.mostSeconds+most
		b.leastDollars, b.mostDollars = b.leastDollars+least/3600*c.PricePerHour, b.mostDollars+most/3600*c.PricePerHour
		billed[key] = b
	}
	now := time.Now()
	for _, i := range w.cloud.History() {
		if !unknown[i.ID] {
			continue
		}
		end := i.Ended
		if end.IsZero() {
			end = now
		}
		key := fmt.Sprint(i.InstanceType, i.Spot)
		b := billed[key]
		b.leastSeconds -= end.Sub(i.Launched).Seconds()
		b.leastDollars -= end.Sub(i.Launched).Hours() * mostPrice
		billed[key] = b
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	counted := w.books.costs(now)
	for _, key := range slices.Sorted(maps.Keys(counted)) {
		if _, has := billed[key]; !has {
			w.violateLocked("Kip counts %.1f s of %s, of which the cloud bills nothing", counted[key].Seconds, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(billed)) {
		b, c := billed[key], counted[key]
		w.live["bill"]++
		if c.Seconds < b.leastSeconds || c.Seconds > b.mostSeconds {
			w.violateLocked("Kip counts %.1f s of %s, the cloud bills %.1f s: want %.1f to %.1f", c.Seconds, key, b.seconds, b.leastSeconds,
				b.mostSeconds)
		}
		if c.Dollars < b.leastDollars || c.Dollars > b.mostDollars {
			w.violateLocked("Kip counts %.5f $ of %s, the cloud bills %.1f s: want %.5f to %.5f $", c.Dollars, key, b.seconds, b.leastDollars,
				b.mostDollars)
		}
	}
	return w.violations
}

const mostPrice = 0.22 // of the catalogue

// TestKipIsKilledAtEveryWriteAndEveryCloudCall counts the writes and the calls to
// the cloud of each scenario, and plays it again for each of them twice: Kip is
// killed before it, and after its effect.
func TestKipIsKilledAtEveryWriteAndEveryCloudCall(t *testing.T) {
	deaths, all := 0, true
	for _, sc := range slices.Concat(scenarios, diskScenarios, storeScenarios, rotationScenarios) {
		t.Run(strings.ReplaceAll(sc.name, " ", "_"), func(t *testing.T) {
			violations, passed := playUntil(t, sc, failpoint{})
			if len(violations) > 0 {
				t.Fatalf("%s, and Kip is not killed:\n  %s", sc.name, strings.Join(violations, "\n  "))
			}
			step := 1
			if testing.Short() {
				step = max(*shortEveryFlag, 1)
			}
			if len(passed) < leastPoints {
				t.Errorf("%d points at which to die: want %d or more, or the scenario does nothing", len(passed), leastPoints)
			}
			for _, f := range passed {
				if *pointFlag != 0 && f.n != *pointFlag || *pointFlag == 0 && f.n%step != 0 {
					all = false
					continue
				}
				if violations, _ := playUntil(t, sc, f); len(violations) > 0 {
					t.Fatalf("%s, and Kip is killed %s write or call %d:\n  %s\nreplay: go test ./test/faults -run '%s' -point %d [-trace]",
						sc.name, map[bool]string{false: "before", true: "after"}[f.after], f.n, strings.Join(violations, "\n  "), t.Name(), f.n)
				}
				deaths++
			}
			t.Logf("%d points at which to die", len(passed))
		})
	}
	t.Log(fmt.Sprint(deaths, " deaths"))
	if all && whole() && deaths < leastDeaths {
		t.Errorf("Kip was killed %d times, want %d or more: see leastDeaths", deaths, leastDeaths)
	}
}

// whole says that a test plays all of its stories, with all points of each.
func whole() bool {
	return !strings.Contains(flag.Lookup("test.run").Value.String(), "/") && !testing.Short() && *pointFlag == 0
}

// The least points at which to die of a scenario, and the least deaths in all. Both
// are little below what they are: a change that makes the counts much smaller lets
// this test prove less, and must say so here.
const leastPoints, leastDeaths = 20, 8500
