package cells

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells/ledger"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// budgeted gives namespace ns, which ref names, a budget.
func budgeted(perHour, perMonth float64, more ...func(*setup)) func(*setup) {
	return func(c *setup) {
		c.Budgets = []Budget{{Namespace: "*", PerHour: 0.5}, {Namespace: "ns", PerHour: perHour, PerMonth: perMonth}}
		for _, f := range more {
			f(c)
		}
	}
}

// costing is an offering of a price.
func costing(name string, perHour float64) Offering {
	return Offering{
		InstanceType: name,
		Zone:         "z",
		PricePerHour: perHour,
		BootTimeout:  time.Minute,
	}
}

// buy requests a cell, and returns what the budget says against it.
func (b *bubble) buy(pod string, offerings ...Offering) *BudgetError {
	b.Helper()
	_, err := b.cells.Request(b.Context(), Request{Pod: ref(pod), Attempt: 1, Seen: time.Now(), Offerings: offerings})
	over, is := errors.AsType[*BudgetError](err)
	if err != nil && !is {
		b.Fatal(err)
	}
	return over
}

func TestABurstNeverCostsMoreThanTheBudgetOfAnHour(t *testing.T) {
	inBubble(t, budgeted(1, 0), nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		var burst sync.WaitGroup
		var mu sync.Mutex
		refused := map[string]*BudgetError{}
		for n := range 30 {
			burst.Go(func() {
				pod := fmt.Sprint(n)
				if over := b.buy(pod, costing("small", 0.3), costing("large", 0.6)); over != nil {
					mu.Lock()
					refused[pod] = over
					mu.Unlock()
				}
			})
		}
		burst.Wait()
		b.later(time.Minute)
		if got := len(b.cloud.running()); got != 3 || len(refused) != 27 {
			t.Fatalf("%d instances at 0.3 dollars run in a budget of 1, and %d were refused", got, len(refused))
		}
		const want = "namespace ns may cost $1 an hour (cells.budgets of provider.yaml): its 3 cells cost $0.9, and small in z would add $0.3 an hour"
		for pod, over := range refused {
			if over.Error() != want {
				t.Errorf("pod %s: %v, want %s", pod, over, want)
			}
		}
		b.stop()
		b.run()
		b.later(time.Second)
		if over := b.buy("later", costing("small", 0.3)); over == nil || over.Running != 3 {
			t.Errorf("after a restart: %v", over)
		}
		if over := b.buy("tiny", costing("tiny", 0.1)); over != nil {
			t.Errorf("what is left is not given: %v", over)
		}
		if got := len(b.cloud.terminated); got != 0 {
			t.Errorf("%d cells were ended for money", got)
		}
	})
}

func TestARequestLeavesOutWhatTheBudgetDoesNotAllow(t *testing.T) {
	inBubble(t, budgeted(1, 0), nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		r := Request{
			Pod:       ref("a"),
			Attempt:   1,
			Seen:      time.Now(),
			Offerings: []Offering{costing("huge", 3), costing("small", 0.3), costing("large", 2), costing("tiny", 0.1)},
		}
		cell, err := b.cells.Request(b.Context(), r)
		if err != nil || len(cell.Offerings) != 2 || cell.Offering() != r.Offerings[1] || cell.Offerings[1] != r.Offerings[3] ||
			len(cell.Best) != 2 || cell.Reason != r.Offerings[1].Reason {
			t.Fatalf("requested %+v, %v", cell, err)
		}
		r.Pod, r.Offerings = ref("b"), r.Offerings[:1]
		over, is := errors.AsType[*BudgetError](func() error { _, err := b.cells.Request(b.Context(), r); return err }())
		if !is || over.Offering.InstanceType != "huge" {
			t.Fatalf("requested beyond the budget: %v", over)
		}
		if _, has := b.cells.ForPod(ref("b").UID); has {
			t.Error("the pod has a cell all the same")
		}
	})
}

func TestWhatEndsMakesRoomInTheBudget(t *testing.T) {
	inBubble(t, budgeted(1, 0), nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		if over := b.buy("a", costing("large", 1)); over != nil {
			t.Fatal(over)
		}
		b.later(time.Minute)
		b.cloud.set(func() { b.cloud.linger = true })
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Second)
		if over := b.buy("b", costing("small", 0.1)); over == nil {
			t.Error("a cell whose instance still runs costs nothing")
		}
		b.cloud.set(func() { b.cloud.linger = false })
		b.later(5 * time.Minute)
		if over := b.buy("b", costing("large", 1)); over != nil {
			t.Errorf("the only cell is %q: %v", b.phase("a"), over)
		}
	})
}

func TestACellIsAffordedInThePlaceOfThePodsOwn(t *testing.T) {
	inBubble(t, budgeted(1, 2), nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		if over := b.buy("a", costing("large", 0.8)); over != nil {
			t.Fatal(over)
		}
		b.later(30 * time.Minute)
		for name, tc := range map[string]struct {
			pod   string
			price float64
			over  bool
		}{
			"as dear":                         {"a", 0.8, false},
			"dearer than an hour may be":      {"a", 1.1, true},
			"of another pod":                  {"b", 0.8, true},
			"of another pod, and it has room": {"b", 0.2, false},
		} {
			err := b.cells.Affords(t.Context(), Request{Pod: ref(tc.pod), Offerings: []Offering{costing("x", tc.price)}})
			if _, over := errors.AsType[*BudgetError](err); over != tc.over || err != nil && !over {
				t.Errorf("%s: %v", name, err)
			}
		}
		b.later(90 * time.Minute) // what it has cost this month stays spent
		err := b.cells.Affords(t.Context(), Request{Pod: ref("a"), Offerings: []Offering{costing("x", 0.8)}})
		if over, is := errors.AsType[*BudgetError](err); !is || !over.Monthly {
			t.Errorf("with 1.6 of 2 dollars spent: %v", err)
		}
	})
}

func TestAFallBackThatIsDearerThanTheBudgetIsNotTaken(t *testing.T) {
	inBubble(t, budgeted(1, 0), nil, func(t *testing.T, b *bubble) {
		bought := make(chan struct{}) // one that asks after a fall-back is given no dear offering at all
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			if r.InstanceType == "small" {
				<-bought
				return cloud.ErrCapacity, false
			}
			return nil, false
		}
		b.later(time.Second)
		for _, pod := range []string{"a", "b", "c"} {
			if over := b.buy(pod, costing("small", 0.2), costing("large", 0.6)); over != nil {
				t.Fatal(over)
			}
		}
		close(bought)
		b.later(time.Minute)
		// There is room for one, in whichever order they ask; then for one that asks anew.
		if got := len(b.cloud.running()); got != 1 {
			t.Errorf("%d instances at 0.6 dollars run: want the first", got)
		}
		if over := b.buy("again", costing("large", 0.4)); over != nil {
			t.Error(over)
		}
		if over := b.buy("more", costing("tiny", 0.01)); over == nil {
			t.Error("the budget of 1 dollar is used up, and another cell is given")
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		const want = "its 2 cells cost $0.8, and large in z would add $0.6 an hour"
		if all := strings.Join(b.events, "\n"); !strings.Contains(all, want) {
			t.Errorf("events are\n%s\nwithout %q", all, want)
		}
	})
}

func TestTheBudgetOfAMonthCountsWhatHasEnded(t *testing.T) {
	inBubble(t, budgeted(0, 10), nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		if over := b.buy("a", costing("nano", 1)); over != nil {
			t.Fatal(over)
		}
		b.later(6 * time.Hour)
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Minute)
		for range 2 { // before and after a restart
			over := b.buy("b", costing("dear", 5))
			if over == nil || !over.Monthly || over.Spent < 5.9 || over.Spent > 6.1 || over.Running != 0 {
				t.Fatalf("of 10 dollars 6 are spent, and 5 more an hour: %v", over)
			}
			b.stop()
			b.run()
			b.later(time.Second)
		}
		if over := b.buy("c", costing("nano", 1)); over != nil {
			t.Fatalf("of 10 dollars 6 are spent: %v", over)
		}
		b.later(4 * time.Hour)
		over := b.buy("d", costing("nano", 1))
		const want = "namespace ns may cost $10 a month (cells.budgets of provider.yaml): it has cost $10."
		if over == nil || !strings.HasPrefix(over.Error(), want) {
			t.Fatalf("all is spent: %v", over)
		}
		if b.phase("c") != apiv1.Bound {
			t.Errorf("a running pod was ended for money: its cell is %q", b.phase("c"))
		}
	})
}

func TestEachMonthHasABudgetOfItsOwn(t *testing.T) {
	january := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	february := ledger.MonthOf(january.AddDate(0, 1, 1).In(time.FixedZone("east", 3600)))
	c := Cell{
		Pod:       ref("a"),
		Offerings: []Offering{costing("nano", 2)},
		Instance:  &cloud.Instance{Launched: february.Add(-48 * time.Hour)},
	}
	now := february.Add(3 * time.Hour)
	if got, all := c.spentSince(february, now), c.spentSince(january, now); got != 6 || all != 102 {
		t.Errorf("a cell that runs from January costs %v of February and %v of both, want 6 and 102", got, all)
	}
	c.step(apiv1.StepSeen, now.Add(-2*time.Hour))
	c.step(apiv1.StepGiven, now.Add(-time.Hour))
	if got := c.spentSince(february, now); got != 2 {
		t.Errorf("a standby cell that was taken an hour ago has cost its pod's namespace %v, want 2", got)
	}
}

func TestAStandbyCellCostsItsNamespaceNothingBeforeItIsGiven(t *testing.T) {
	inBubble(t, budgeted(0, 3, keep(1)), nil, func(t *testing.T, b *bubble) {
		b.later(5 * time.Hour)
		r := Request{Pod: ref("waited"), Attempt: 1, Seen: time.Now().Add(-4 * time.Hour), Offerings: []Offering{costing("nano", 1)}}
		cell, err := b.cells.Request(b.Context(), r)
		if err != nil || cell.Standby == "" {
			t.Fatalf("the standby cell was not taken: %+v, %v", cell, err)
		}
		b.later(time.Second)
		if over := b.buy("b", costing("dear", 9)); over == nil || over.Spent > 0.1 || over.Running != 1 {
			t.Errorf("a pod that waited four hours for its cell is charged for them: %v", over)
		}
		b.later(time.Hour)
		if over := b.buy("b", costing("dear", 9)); over == nil || over.Spent < 0.9 || over.Spent > 1.1 {
			t.Errorf("a pod that has had a standby cell for an hour: %v", over)
		}
	})
}

// looked is a clock that counts how often it was looked at.
type looked struct {
	clock.RealClock
	times int
}

func (l *looked) Now() time.Time {
	l.times++
	return l.RealClock.Now()
}

// crowded is a controller with so many cells of a namespace with a budget, and what another
// pod of it asks for.
func crowded(t testing.TB, cells int) (*Controller, *looked, Request) {
	now := &looked{}
	c := New(Config{Clock: now, Budgets: []Budget{{Namespace: "ns", PerHour: 2 * float64(cells), PerMonth: 1000 * float64(cells)}}})
	t.Cleanup(c.core.loop.queue.ShutDown)
	for n := range cells {
		pod := ref(fmt.Sprint(n))
		pod.UID = types.UID(fmt.Sprint("uid-", n))
		c.core.table.reserveLocked(newEntry(Cell{
			ID:        fmt.Sprint("cell-", n),
			Pod:       pod,
			Offerings: []Offering{costing("nano", 1)},
			Instance:  &cloud.Instance{Launched: time.Now().Add(-time.Hour)},
		}, 0))
	}
	r := Request{Pod: ref("another")}
	for n := range 20 {
		r.Offerings = append(r.Offerings, costing("nano", float64(cells-n)))
	}
	return c, now, r
}

func TestABudgetIsSummedOnceForAllOffers(t *testing.T) {
	c, now, r := crowded(t, 100)
	was := now.times
	offerings, over := c.core.budgets.withinLocked(r.Pod.Namespace, r.Offerings, 0, nil)
	if over != nil || len(offerings) != len(r.Offerings) {
		t.Fatalf("of %d offerings %d are in the budget: %v", len(r.Offerings), len(offerings), over)
	}
	if n := now.times - was; n != 1 {
		t.Errorf("the cells of the namespace were summed %d times for one request", n)
	}
	was = now.times
	left, err := c.core.budgets.reserveNext(&Cell{ID: "cell-0", Pod: ref("0")}, r.Offerings)
	if err != nil || len(left) != len(r.Offerings) {
		t.Fatalf("%d offerings are left, %v", len(left), err)
	}
	if n := now.times - was; n != 1 {
		t.Errorf("the cells of the namespace were summed %d times for the next offering", n)
	}
}

func BenchmarkABudgetOfManyCells(b *testing.B) {
	c, _, r := crowded(b, 5000)
	b.ReportAllocs()
	for b.Loop() {
		if _, over := c.core.budgets.withinLocked(r.Pod.Namespace, r.Offerings, 0, nil); over != nil {
			b.Fatal(over)
		}
	}
}

func TestOtherNamespacesAndUnknownPricesInBudgets(t *testing.T) {
	unpriced := Offering{InstanceType: "new", Zone: "z", Unpriced: true, BootTimeout: time.Minute}
	inBubble(t, budgeted(1, 0, keep(1)), nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		if over := b.buy("u", unpriced); over == nil || !over.Unpriced ||
			over.Error() != "the price of new in z is not known, and namespace ns has a budget (cells.budgets of provider.yaml)" {
			t.Errorf("a price that is not known: %v", over)
		}
		if over := b.buy("s", unpriced, costing("nano", 1)); over != nil {
			t.Fatal(over)
		}
		if cell, has := b.cells.ForPod(ref("s").UID); !has || cell.Standby == "" {
			t.Errorf("the standby cell was not taken: %+v", cell)
		}
		if over := b.buy("t", costing("nano", 0.1)); over == nil || over.Cells != 1 {
			t.Errorf("a standby cell that was taken does not count: %v", over)
		}
		other := ref("o")
		other.Namespace = "other"
		for n, price := range []float64{0.4, 0.2} {
			other.UID += "x"
			_, err := b.cells.Request(b.Context(), Request{Pod: other, Attempt: 1, Seen: time.Now(), Offerings: []Offering{costing("nano", price)}})
			if over, is := errors.AsType[*BudgetError](err); is != (n == 1) || is && over.For != "other" {
				t.Errorf("%v dollars in a namespace with the budget of all: %v", price, err)
			}
		}
	})
}
