package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// behindFor is how long a store stays behind in a story before a person decides.
const behindFor = 6 * time.Minute

// storeAt is a store, as it was at some time, and what had been spent by then.
type storeAt struct {
	file  []byte
	stays []stay
}

// backup is the store as it is now.
func (s *stage) backup() *storeAt {
	s.mu.Lock()
	stays := slices.Clone(s.books.stays)
	s.mu.Unlock()
	var file bytes.Buffer
	if err := s.store.Backup(context.Background(), &file, time.Now()); err != nil {
		panic(err)
	}
	return &storeAt{file.Bytes(), stays}
}

// swapStore gives the next Kip another store: one of a backup, or an empty one. The
// books then have what that one has.
func (s *stage) swapStore(backup *storeAt) {
	s.kill()
	s.rest()
	w := s.world
	fresh := store.MemoryWith(w.onWrite, w.onRead)
	w.mu.Lock()
	w.swapping = true
	w.mu.Unlock()
	var stays []stay
	if backup != nil {
		stays = slices.Clone(backup.stays)
		if err := fresh.Restore(context.Background(), bytes.NewReader(backup.file), false); err != nil {
			panic(err)
		}
	}
	costs := map[string]cells.Cost{}
	_, err := fresh.Get(context.Background(), "ledger", &costs)
	var keys []string
	if err == nil {
		err = fresh.List(context.Background(), cellPrefix, func(key string, _ []byte, _ int64) error {
			keys = append(keys, key)
			return nil
		})
	}
	if err != nil {
		panic(err)
	}
	now := time.Now()
	w.mu.Lock()
	w.swapping, w.behind, w.store = false, true, fresh
	for id := range w.books.cells {
		w.books.removed[id] = now
	}
	clear(w.books.cells)
	clear(w.books.closed)
	w.books.stays = stays
	for _, c := range costs {
		w.books.closed[fmt.Sprint(c.InstanceType, c.Spot)] = c
	}
	w.mu.Unlock()
	for _, key := range keys {
		w.audit(key)
	}
}

// running are the machines that run a pod.
func (s *stage) running() map[string]types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	on := map[string]types.UID{}
	for _, m := range s.machines {
		if m.up && m.running {
			on[m.id] = m.pod
		}
	}
	return on
}

// staysBehind lets time pass in which a person has not decided yet: what runs goes on,
// and nothing is launched.
func (s *stage) staysBehind(waits types.UID) {
	before, launched := s.running(), len(s.cloud.History())
	for end := time.Now().Add(behindFor); time.Now().Before(end) && !s.lost; {
		time.Sleep(10 * time.Second)
		s.rest()
		s.check()
		if now := s.running(); !maps.Equal(now, before) {
			s.violate("while the store is behind, %v ran, and %v run", before, now)
			return
		}
		if n := len(s.cloud.History()); n != launched {
			s.violate("while the store is behind, %d instances became %d", launched, n)
			return
		}
	}
	s.shows("the pod that waits is told why", s.told(waits, events.StoreBehind))
}

// hasListedPods says that the Kip that runs has the first list of pods.
func (s *stage) hasListedPods() bool {
	s.mu.Lock()
	k := s.kip
	up := k != nil && k.up && k.ctx.Err() == nil
	s.mu.Unlock()
	return up && k.informer.HasSynced()
}

// knowsThatItIsBehind says that the Kip that runs knows that its store is behind.
func (s *stage) knowsThatItIsBehind() bool {
	s.mu.Lock()
	k := s.kip
	up := k != nil && k.up && k.ctx.Err() == nil
	s.mu.Unlock()
	if !up {
		return false
	}
	why, sure := k.cells.Behind()
	return why != "" && sure
}

// isGiven says that a kubelet has a pod, and has not started it.
func (s *stage) isGiven(uid types.UID) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, m := range s.machines {
			if m.up && m.pod == uid && !m.running && !m.over {
				return true
			}
		}
		return false
	}
}

// hasInstance says that an instance was launched for a pod.
func (s *stage) hasInstance(uid types.UID) func() bool {
	return func() bool {
		return slices.ContainsFunc(s.cloud.History(), func(i sim.Instance) bool { return i.Tags[cloud.TagPodUID] == string(uid) })
	}
}

// takeOver is what a person does, as often as it takes.
func (s *stage) takeOver() {
	s.until("the store has taken over", func() bool {
		s.mu.Lock()
		k := s.kip
		up := k != nil && k.up && k.ctx.Err() == nil
		s.mu.Unlock()
		if !up {
			return false
		}
		why, sure := k.cells.Behind()
		if sure && why == "" {
			return true
		}
		if sure && k.cells.TakeOver(context.Background(), k.cells.Generation().Shown) == nil {
			k.cells.Reload()
		}
		return false
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = false
	s.troubled(time.Now())
}

// runsElsewhere says that a pod runs, and not on that machine.
func (s *stage) runsElsewhere(uid types.UID, machine string) func() bool {
	return func() bool {
		on := s.machineOf(uid)
		return on != "" && on != machine && s.phase(uid) == corev1.PodRunning
	}
}

// stallsAt has the Kip that decides on a call of a kind first be deposed while it stalls
// before that call.
func (s *stage) stallsAt(kind sim.Kind, stall time.Duration) (did func() bool) {
	var once sync.Once
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.plays["deposed"]
	s.decided = func(k sim.Kind) {
		if k == kind {
			once.Do(func() { s.deposeKip(stall) })
		}
	}
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.plays["deposed"] > before && !s.lasting["deposed"]
	}
}

// stalls is until when a Kip that was deposed may act.
func (s *stage) stalls() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stallsUntil
}

// deposedBefore is a story of a Kip that decides on a call, sleeps while another takes
// its place, and then makes the call.
func deposedBefore(kind sim.Kind, stall time.Duration) scenario {
	return scenario{name: fmt.Sprintf("a deposed Kip makes a call to %s %s late", kind, leaseTime+stall), story: func(s *stage) {
		first := s.pod(corev1.RestartPolicyNever, "small")
		other := s.pod(corev1.RestartPolicyAlways, "large")
		if kind == sim.KindTerminate {
			s.until("they run", s.runs(first, other))
		}
		did := s.stallsAt(kind, stall)
		if kind == sim.KindTerminate {
			s.delete(first)
		} else {
			first = s.pod(corev1.RestartPolicyNever, "small")
		}
		s.soon(func() bool { return s.stalls().After(time.Now()) })
		for time.Now().Before(s.stalls()) {
			time.Sleep(time.Second)
			s.rest()
			s.check()
		}
		if s.alive() {
			s.shows("the deposed Kip has acted", did())
		}
		late := s.pod(corev1.RestartPolicyNever, "small")
		s.until("the others run", s.runs(other, late))
		if kind == sim.KindTerminate {
			s.until("the pod is gone", s.gone(first))
			return
		}
		s.until("the pod runs", s.runs(first))
		tokens := map[string]int{}
		for _, i := range s.cloud.History() {
			tokens[s.cellOf(i.Instance)]++
		}
		for cell, n := range tokens {
			if n > 1 {
				s.violate("cell %s was launched %d times", cell, n)
			}
		}
	}}
}

// deposedDials is a story of a Kip that wakes when its successor has given a cell to a
// pod, and dials that cell: it knows of no pod there.
func deposedDials(stall time.Duration) scenario {
	return scenario{
		name:  fmt.Sprintf("a deposed Kip dials a cell that runs a pod by now, %s late", leaseTime+stall),
		pools: []poolOf{{"small", 1, false}},
		story: func(s *stage) {
			s.until("the pool is full", s.settled)
			before := s.played("dial of a deposed Kip")
			s.mu.Lock()
			life := s.lives
			s.mu.Unlock()
			s.deposeKip(stall)
			s.soon(func() bool { return s.follows(life) })
			uid := s.pod(corev1.RestartPolicyNever, "small")
			for time.Now().Before(s.stalls()) {
				time.Sleep(time.Second)
				s.rest()
				s.check()
			}
			if s.alive() {
				// It wakes to both the pod and the cell. If it asks for a machine for the pod first, the store tells it that another
				// leads, and it dials no more.
				s.another = s.played("dial of a deposed Kip") == before
			}
			s.until("the pod runs", s.runs(uid))
		},
	}
}

// follows says that a Kip after that of a life is connected to a machine.
func (s *stage) follows(life int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		if m.session != nil && m.session.flows() && m.session.kip.life > life {
			return true
		}
	}
	return false
}

// played is how often something has happened.
func (s *stage) played(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plays[what]
}

var storeScenarios = []scenario{
	{name: "the store is lost", unbilled: true, story: func(s *stage) {
		a, b := s.pod(corev1.RestartPolicyAlways, "small"), s.pod(corev1.RestartPolicyNever, "large")
		s.until("they run", s.runs(a, b))
		on := s.machineOf(a)
		s.swapStore(nil)
		c := s.pod(corev1.RestartPolicyNever, "small")
		s.delete(b)
		s.staysBehind(c)
		s.takeOver()
		s.until("the pods run elsewhere", func() bool { return s.runsElsewhere(a, on)() && s.runs(c)() })
		s.until("the deleted pod is gone", s.gone(b))
		s.until("what the store does not know has ended", func() bool { return len(s.cloud.Truth()) == 2 })
	}},
	{name: "the store is lost, and the list does not show yet what runs", unbilled: true, story: func(s *stage) {
		a := s.pod(corev1.RestartPolicyAlways, "small")
		has := func() bool { return s.isGiven(a)() || s.machineOf(a) != "" }
		for end := time.Now().Add(patience); !has() && time.Now().Before(end); {
			s.soon(has)
		}
		if s.alive() {
			s.shows("a kubelet has the pod, and has not started it", s.isGiven(a)())
		}
		s.change(func(k *sim.Knobs) { k.StaleLists, k.StaleBy = 1, listLag-s.slowestList-time.Second })
		s.swapStore(nil)
		s.until("it runs", func() bool { return s.machineOf(a) != "" })
		on := s.machineOf(a)
		s.until("Kip has listed the pods", s.hasListedPods)
		came := time.Now()
		later := s.pod(corev1.RestartPolicyAlways, "large")
		s.soon(s.hasInstance(later))
		if s.alive() {
			s.shows("a pod that came later is launched at once", s.hasInstance(later)() && time.Since(came) < time.Second)
			s.shows("the list does not show yet what runs", !s.knowsThatItIsBehind())
			s.shows("nothing says that the pod runs", s.phase(a) == corev1.PodPending)
			s.soon(func() bool { return s.told(a, events.InstancesNotListed) })
			s.shows("it is told what it waits for", s.told(a, events.InstancesNotListed))
		}
		s.until("the list shows what runs", s.knowsThatItIsBehind)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
			s.rest() // the one that came later boots
			s.check()
		}
		if s.alive() {
			s.shows("the one that came later runs", s.runs(later)())
		}
		if now := s.machineOf(a); now != on {
			s.violate("the pod ran on %s, and runs on %q", on, now)
		}
		waits := s.pod(corev1.RestartPolicyNever, "small")
		s.staysBehind(waits)
		s.takeOver()
		s.until("the pods run", func() bool { return s.runsElsewhere(a, on)() && s.runs(later, waits)() })
		s.until("what the store does not know has ended", func() bool { return len(s.cloud.Truth()) == 3 })
	}},
	{name: "the store is older than what runs", pools: []poolOf{{"small", 1, false}}, unbilled: true, story: func(s *stage) {
		known := s.pod(corev1.RestartPolicyNever, "large")
		s.until("it runs", s.runs(known))
		s.until("the pool is full", s.settled)
		old := s.backup()
		// The standby cell of the backup runs a pod now.
		taken, later := s.pod(corev1.RestartPolicyAlways, "small"), s.pod(corev1.RestartPolicyAlways, "large")
		s.until("they run", s.runs(taken, later))
		s.until("the pool is full again", s.settled)
		on, knownOn := s.machineOf(taken), s.machineOf(known)
		s.swapStore(old)
		waits := s.pod(corev1.RestartPolicyNever, "large")
		s.staysBehind(waits)
		s.takeOver()
		s.until("the pods run elsewhere", func() bool { return s.runsElsewhere(taken, on)() && s.runs(waits, later)() })
		if now := s.machineOf(known); now != knownOn {
			s.violate("the pod that the store knows ran on %s, and runs on %q", knownOn, now)
		}
	}},
	{name: "a second Kip of the same identity has a store of its own", story: func(s *stage) {
		a := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(a))
		second := &kip{w: s.world, apis: map[string]*cellAPI{}, deposed: make(chan struct{}), store: store.Memory(nil)}
		second.ctx, second.cancel = context.WithCancel(s.ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); _ = second.run() }() // that it was cancelled
		s.until("the second says that it is behind", func() bool {
			s.mu.Lock()
			up := second.up
			s.mu.Unlock()
			if !up {
				return false
			}
			why, sure := second.cells.Behind()
			return sure && why != ""
		})
		b, c := s.pod(corev1.RestartPolicyNever, "small"), s.pod(corev1.RestartPolicyAlways, "large")
		s.until("others run", s.runs(a, b, c))
		s.exit(b, 0)
		s.until("one has succeeded", func() bool { return s.phase(b) == corev1.PodSucceeded })
		s.delete(c)
		s.until("one is gone", s.gone(c))
		for range 30 {
			time.Sleep(10 * time.Second)
			s.rest()
			s.check()
		}
		var made []string
		if err := second.store.List(context.Background(), "", func(key string, value []byte, _ int64) error {
			if strings.HasPrefix(key, cellPrefix) {
				made = append(made, key)
			}
			return json.Unmarshal(value, new(any))
		}); err != nil {
			s.violate("%v", err)
		}
		if len(made) > 0 {
			s.violate("the second has cells: %v", made)
		}
		second.cancel()
		<-ended
	}},
	deposedBefore(sim.KindLaunch, 5*time.Second),
	deposedBefore(sim.KindLaunch, 70*time.Second),
	deposedBefore(sim.KindTerminate, 5*time.Second),
	deposedBefore(sim.KindTerminate, 70*time.Second),
	deposedDials(20 * time.Second),
	deposedDials(70 * time.Second),
}
