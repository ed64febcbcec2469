package pods

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// movesBack asks to be moved back after an hour.
func movesBack(p *corev1.Pod) {
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, placement.AnnotationMoveBack, "1h")
}

// market is a cloud that pods ask for three types in order, of which it has some.
type market struct {
	*harness
	evicted *[]string
	has     map[string]bool
}

var inOrder = []string{"first", "second", "third"}

func newMarket(t *testing.T, forbids func(pod string) bool) *market {
	h, evicted := agedHarness(t, forbids)
	h.restarted(func(c *Config) { c.MaxAge = 0 })
	m := &market{harness: h, evicted: evicted, has: map[string]bool{"second": true, "third": true}}
	h.place = func(*corev1.Pod) (list []offering.Offering, err error) {
		for _, name := range inOrder {
			if m.has[name] {
				list = append(list, offering.Offering{InstanceType: name, Zone: "local"})
			}
		}
		if list == nil {
			return nil, &placement.NoCapacityError{}
		}
		return list, nil
	}
	h.rank = func(keys []offering.Key) (r placement.Ranks) {
		for _, k := range keys {
			r.Of = append(r.Of, 1+slices.Index(inOrder, k.InstanceType))
		}
		for _, name := range inOrder {
			var err error
			if !m.has[name] {
				err = fmt.Errorf("no %s", name)
			}
			r.WhyNot = append(r.WhyNot, err)
		}
		return r
	}
	return m
}

// runs has a pod run on a cell of a type that is bound now.
func (m *market) runs(p *corev1.Pod, instanceType string) {
	m.Helper()
	m.onCell(p)
	now := metav1.NewMicroTime(m.clock.Now())
	m.cells.set(p.UID, func(c *cells.Cell) {
		c.Offerings = []offering.Offering{{InstanceType: instanceType, Zone: "local"}}
		c.Steps = []apiv1.Step{{Name: apiv1.StepPlaced, Time: now}, {Name: apiv1.StepLaunched, Time: now}, {Name: apiv1.StepBound, Time: now}}
	})
	m.events, m.messages = nil, nil
}

// gone has a pod go that was evicted.
func (m *market) gone(name string) {
	p := pod(name)
	m.vanish(p)
	m.cells.gone(p.UID)
	m.c.core.registry.forget(p.UID)
}

// looks has Kip look at a pod as often as it asks to, for some time. It returns when the pod was evicted; zero if it was not.
func (m *market) looks(name string, during time.Duration) time.Time {
	m.Helper()
	for end := m.clock.Now().Add(during); m.clock.Now().Before(end); {
		again := m.must(name)
		if slices.Contains(*m.evicted, name) {
			return m.clock.Now()
		}
		if again <= 0 {
			return time.Time{}
		}
		m.clock.Step(again)
	}
	return time.Time{}
}

func TestAPodIsMovedBackToABetterChoiceAfterItsTime(t *testing.T) {
	m := newMarket(t, nil)
	m.runs(pod("a", running, ownedBy("ReplicaSet", "web"), movesBack), "second")
	if at := m.looks("a", 3*time.Hour); !at.IsZero() {
		t.Fatalf("without a better choice it was evicted at %s", at)
	}
	m.has["first"] = true
	if m.looks("a", 2*time.Minute); len(*m.evicted) != 1 || m.events[0] != "Normal Evicted" ||
		!strings.Contains(m.messages[0], "second in local, choice 2 of 3") {
		t.Errorf("evicted %q, and said %q", *m.evicted, m.messages)
	}

	m.runs(pod("b", running, ownedBy("ReplicaSet", "other"), movesBack), "third")
	began := m.clock.Now()
	if at := m.looks("b", 2*time.Hour); at.Sub(began) < time.Hour || at.Sub(began) > 62*time.Minute {
		t.Errorf("it was evicted after %s", at.Sub(began))
	}
}

func TestAPodStaysOnAWorseChoiceThatIsNotToMoveOrCannot(t *testing.T) {
	job := ownedBy("Job", "work")
	with := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
	}
	const safe, never = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
	web := ownedBy("ReplicaSet", "web")
	for what, tc := range map[string]struct {
		change []func(*corev1.Pod)
		is     string // the type that it has
		goes   bool
		says   string
	}{
		"that does not ask":      {change: []func(*corev1.Pod){web}, is: "second"},
		"with time 0":            {change: []func(*corev1.Pod){web, with(placement.AnnotationMoveBack, "0")}, is: "second"},
		"on its first choice":    {change: []func(*corev1.Pod){web, movesBack}, is: "first"},
		"on none of its own":     {change: []func(*corev1.Pod){web, movesBack}, is: "other", says: "is none of its choices"},
		"of nobody":              {change: []func(*corev1.Pod){movesBack}, is: "second", says: "no controller would replace it"},
		"of a Job":               {change: []func(*corev1.Pod){job, movesBack}, is: "second", says: "it is a Job's"},
		"of a Job that asks":     {change: []func(*corev1.Pod){job, movesBack, with(safe, "true")}, is: "second", goes: true},
		"of a Job with nonsense": {change: []func(*corev1.Pod){job, movesBack, with(never, "yes")}, is: "second", says: "it is a Job's"},
		"not to be disrupted":    {change: []func(*corev1.Pod){web, movesBack, with(never, "true"), with(safe, "true")}, is: "second", says: never},
		"that failed, and whose cell is kept": {
			change: []func(*corev1.Pod){web, movesBack, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}, is: "second",
		},
		"that moves": {change: []func(*corev1.Pod){web, movesBack}, is: "third", goes: true},
	} {
		m := newMarket(t, nil)
		m.has["first"] = true
		m.runs(pod("a", append([]func(*corev1.Pod){running}, tc.change...)...), tc.is)
		m.looks("a", 3*time.Hour)
		if tc.goes != (len(*m.evicted) > 0) {
			t.Errorf("a pod %s: evicted %q", what, *m.evicted)
		}
		if said := strings.Join(m.messages, "\n"); tc.says != "" && (strings.Count(said, "move-back") != 1 || !strings.Contains(said, tc.says)) {
			t.Errorf("a pod %s: said %q, want %q once", what, said, tc.says)
		}
	}
}

func TestAPodIsNotMovedForWhatItsNamespaceCannotPay(t *testing.T) {
	m := newMarket(t, nil)
	m.has["first"] = true
	m.cells.beyond = "first" // the next would have what this one has
	m.runs(pod("a", running, ownedBy("ReplicaSet", "web"), movesBack), "second")
	if at := m.looks("a", 3*time.Hour); !at.IsZero() {
		t.Error("the pod was evicted for another of the same choice")
	}
	m.cells.beyond = ""
	if at := m.looks("a", time.Hour); at.IsZero() {
		t.Error("with money it is not evicted")
	}
}

func TestAPodIsToBeEvictedOnceInItsTimeWhileABudgetForbidsIt(t *testing.T) {
	var at []time.Time
	var m *market
	m = newMarket(t, func(string) bool { at = append(at, m.clock.Now()); return true })
	m.has["first"] = true
	m.runs(pod("a", running, ownedBy("ReplicaSet", "web"), movesBack), "second")
	for end := m.clock.Now().Add(6 * time.Hour); m.clock.Now().Before(end); m.clock.Step(30 * time.Second) {
		m.must("a") // it is looked at for other reasons, too
	}
	if len(at) < 5 || len(at) > 6 {
		t.Fatalf("it was to be evicted %d times in six hours", len(at))
	}
	for i := range at[1:] {
		if since := at[i+1].Sub(at[i]); since < time.Hour {
			t.Errorf("it was to be evicted %s after the last time", since)
		}
	}
	if n := len(m.events); n != 1 || m.events[0] != "Normal EvictionBlocked" {
		t.Errorf("said %q", m.events)
	}
}

// A cloud says that it has capacity, as far as Kip knows, and has none.
func TestMovesInVainAreTriedAgainLaterAndLater(t *testing.T) {
	m := newMarket(t, nil)
	next := func(n int, instanceType string) string {
		name := fmt.Sprintf("web-%d", n)
		m.runs(pod(name, running, ownedBy("ReplicaSet", "web"), movesBack), instanceType)
		return name
	}
	moves := func(name string) (after time.Duration) {
		t.Helper()
		began := m.clock.Now()
		m.has["first"] = true
		at := m.looks(name, 72*time.Hour)
		if at.IsZero() {
			t.Fatalf("%s is never moved", name)
		}
		m.gone(name)
		m.clock.Step(time.Minute)
		return at.Sub(began)
	}
	name, waits := next(0, "second"), []time.Duration{}
	for n := range 7 {
		waits = append(waits, moves(name))
		if name = next(n+1, "second"); m.must(name) == 0 {
			t.Fatalf("%s is not looked at again", name)
		}
		if n > 0 && !slices.Contains(m.events, "Normal MovedBackInVain") {
			t.Errorf("of %s was said %q", name, m.messages)
		}
	}
	for i, want := range []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour, 24 * time.Hour,
		24 * time.Hour} {
		if got := waits[i]; got < want-2*time.Minute || got > want+2*time.Minute {
			t.Errorf("move %d was after %s, want %s", i, got, want)
		}
	}
	moves(name)
	name = next(10, "first")
	m.must(name) // it has what it asks for
	m.gone(name)
	if name = next(11, "second"); moves(name) > 62*time.Minute {
		t.Error("after a move that was not in vain Kip waits as before")
	}
}

func TestAMoveToABetterChoiceThanItHadIsNotInVain(t *testing.T) {
	m := newMarket(t, nil)
	web := ownedBy("ReplicaSet", "web")
	m.runs(pod("w-0", running, web, movesBack), "third")
	if m.looks("w-0", 2*time.Hour).IsZero() {
		t.Fatal("it is not moved from its third choice to its second")
	}
	m.gone("w-0")
	m.clock.Step(time.Minute)
	m.runs(pod("w-1", running, web, movesBack), "second")
	began := m.clock.Now()
	m.must("w-1")
	m.want("of a pod that got the second choice instead of the third", m.events)
	m.has["first"] = true
	if at := m.looks("w-1", 24*time.Hour); at.IsZero() || at.Sub(began) > 62*time.Minute {
		t.Errorf("it is moved on after %s, want an hour", at.Sub(began))
	}
	m.gone("w-1")
	m.clock.Step(time.Minute)
	m.runs(pod("w-2", running, web, movesBack), "third")
	m.must("w-2")
	m.want("of a pod that got the third choice instead of the second", m.events, "Normal MovedBackInVain")
}

func TestPodsOfAControllerMoveBackOneByOneAndNoneAfterAMoveInVain(t *testing.T) {
	m := newMarket(t, nil)
	names := []string{"w-0", "w-1", "w-2", "w-3"}
	for _, name := range names {
		m.runs(pod(name, running, ownedBy("ReplicaSet", "web"), movesBack), "second")
	}
	m.has["first"] = true
	m.clock.Step(time.Hour)
	look := func(during time.Duration) {
		for end := m.clock.Now().Add(during); m.clock.Now().Before(end); m.clock.Step(30 * time.Second) {
			for _, name := range names {
				if !slices.Contains(*m.evicted, name) {
					m.must(name)
				}
			}
		}
	}
	look(agedApart - time.Minute)
	if len(*m.evicted) != 1 {
		t.Fatalf("at once were evicted %q", *m.evicted)
	}
	first := (*m.evicted)[0]
	m.gone(first)
	m.runs(pod("w-0b", running, ownedBy("ReplicaSet", "web"), movesBack), "first")
	names = append(names, "w-0b")
	look(agedApart)
	if len(*m.evicted) != 2 {
		t.Fatalf("after a move that brought something were evicted %q", *m.evicted)
	}
	m.gone((*m.evicted)[1])
	m.runs(pod("w-1b", running, ownedBy("ReplicaSet", "web"), movesBack), "second")
	names = append(names, "w-1b")
	look(100 * time.Minute)
	if len(*m.evicted) != 2 {
		t.Errorf("after a move in vain were evicted %q", *m.evicted)
	}
	look(time.Hour)
	if len(*m.evicted) < 3 {
		t.Error("later none is tried again")
	}
}

func TestTheRankOfACellIsTold(t *testing.T) {
	m := newMarket(t, nil)
	p := pod("a", running, ownedBy("ReplicaSet", "web"), movesBack)
	m.runs(p, "third")
	cell, _ := m.cells.ForPod(p.UID)
	is, ranked := m.c.Rank(t.Context(), p, cell)
	if !ranked || is.Rank != 3 || is.Of != 3 || len(is.WhyNot) != 2 || is.WhyNot[0] == nil || is.WhyNot[1] != nil ||
		!is.MovesBack.Equal(m.clock.Now().Add(time.Hour)) {
		t.Errorf("it is %+v, %t", is, ranked)
	}
	p.Annotations = nil
	if is, ranked = m.c.Rank(t.Context(), p, cell); !ranked || !is.MovesBack.IsZero() {
		t.Errorf("of a pod that is not to move it is %+v, %t", is, ranked)
	}
	m.rank = nil
	if is, ranked = m.c.Rank(t.Context(), p, cell); ranked {
		t.Errorf("of a pod with one choice it is %+v", is)
	}
}
