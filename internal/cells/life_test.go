package cells

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
	"k8s.io/apimachinery/pkg/types"
)

func keep(count int) func(*Config) {
	return func(c *Config) {
		c.Pools = []Pool{{Name: "nano", Count: count, Offers: func() ([]Offer, error) {
			return []Offer{{InstanceType: "nano", Zone: "z", PricePerHour: 1, BootTimeout: time.Minute}}, nil
		}}}
	}
}

func TestEachPodOfABurstGetsAStandbyCellOrOneOfItsOwn(t *testing.T) {
	inBubble(t, keep(3), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		if s := b.cells.Standby(); len(s) != 1 || s[0].Ready != 3 || s[0].Booting != 0 {
			t.Fatalf("pools %+v, want one with 3 ready", s)
		}
		// No cell boots before the burst is over: else those that refill the
		// pool are ready in no time, and are taken too.
		over := make(chan struct{})
		b.links.boots = func(string) bool {
			<-over
			return true
		}
		var burst sync.WaitGroup
		for n := range 5 {
			burst.Go(func() { b.request(fmt.Sprint(n), "nano") })
		}
		burst.Wait()
		close(over)
		b.later(10 * time.Second)
		cells := map[string]bool{}
		standby := 0
		for n := range 5 {
			cell, ok := b.cells.ForPod(ref(fmt.Sprint(n)).UID)
			if !ok || cell.Phase != apiv1.Bound {
				t.Fatalf("pod %d has a cell: %t, %s", n, ok, cell.Phase)
			}
			if got := b.links.of(cell.ID).bound; !slices.Equal(got, slices.Clip(got[:1])) || got[0] != ref(fmt.Sprint(n)).UID {
				t.Fatalf("the cell of pod %d shows %v", n, got)
			}
			cells[cell.ID] = true
			if cell.Standby != "" {
				standby++
			}
		}
		if len(cells) != 5 || standby != 3 {
			t.Fatalf("%d cells for 5 pods, %d of them standby; want 5 and 3", len(cells), standby)
		}
		if n := len(b.cloud.running()); n != 8 {
			t.Fatalf("%d instances, want 5 for pods and 3 on standby", n)
		}
	})
}

func TestAPoolIsRefilledOnceThePodHasHadItsTimeToStart(t *testing.T) {
	slowly := func(c *Config) {
		keep(2)(c)
		c.RefillDelay = 2 * time.Second
	}
	inBubble(t, slowly, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		for i, step := range []struct {
			take  string
			after time.Duration
			want  int
		}{
			{"a", 1900 * time.Millisecond, 2},
			{"b", 1900 * time.Millisecond, 2}, // one that is taken meanwhile has its time, too
			{"", 200 * time.Millisecond, 4},
			{"c", 1900 * time.Millisecond, 4},
			{"", 200 * time.Millisecond, 5},
		} {
			if step.take != "" {
				b.request(step.take, "nano")
			}
			b.later(step.after)
			if n := len(b.cloud.running()); n != step.want {
				t.Errorf("step %d: %d instances, want %d", i, n, step.want)
			}
		}
	})
}

func TestAStandbyCellIsTakenOnlyForWhatItIs(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		b.request("a", "small", "nano") // small is cheaper for it
		special := Request{Pod: ref("b"), Attempt: 1, Seen: time.Now(), Special: true, Offers: []Offer{{InstanceType: "nano", Zone: "z", BootTimeout: time.Minute}}}
		if _, err := b.cells.Request(t.Context(), special); err != nil {
			t.Fatal(err)
		}
		elsewhere := Request{Pod: ref("c"), Attempt: 1, Seen: time.Now(), Offers: []Offer{{InstanceType: "nano", Zone: "y", BootTimeout: time.Minute}}}
		if _, err := b.cells.Request(t.Context(), elsewhere); err != nil {
			t.Fatal(err)
		}
		b.later(10 * time.Second)
		for _, pod := range []string{"a", "b", "c"} {
			if cell, _ := b.cells.ForPod(ref(pod).UID); cell.Standby != "" || cell.Phase != apiv1.Bound {
				t.Errorf("pod %s: %s, standby %q", pod, cell.Phase, cell.Standby)
			}
		}
		if s := b.cells.Standby(); s[0].Ready != 1 {
			t.Errorf("pools %+v", s)
		}
	})
}

func TestAPoolIsRolledOnlyAsTheNewBecomeReady(t *testing.T) {
	inBubble(t, keep(2), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		old := b.cloud.running()
		b.stop()
		b.cfg.Template = "new"
		boot := make(chan struct{})
		b.links.boots = func(cell string) bool {
			select {
			case <-boot:
				return true
			default:
				return outdated(b, cell)
			}
		}
		b.run()
		b.later(30 * time.Second)
		for _, id := range old {
			if !slices.Contains(b.cloud.running(), id) {
				t.Fatalf("%s was ended before a new one was ready", id)
			}
		}
		close(boot)
		b.later(10 * time.Minute) // the new ones that did not boot are replaced
		for _, id := range old {
			if slices.Contains(b.cloud.running(), id) {
				t.Fatalf("%s is still there", id)
			}
		}
		if s := b.cells.Standby(); s[0].Ready != 2 || len(b.cloud.running()) != 2 {
			t.Fatalf("pools %+v, instances %v", s, b.cloud.running())
		}
	})
}

// cellOf says whether a cell is of the old template.
// outdated says that a cell was made from the template before this one.
func outdated(b *bubble, id string) bool {
	for _, cell := range b.cells.List() {
		if cell.ID == id {
			return cell.Template == ""
		}
	}
	return false
}

func TestABurstIsLaunchedInFewCalls(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		var burst sync.WaitGroup
		for n := range 120 {
			burst.Go(func() { b.request(fmt.Sprint(n), "nano") })
		}
		burst.Wait()
		b.later(time.Second)
		if n := len(b.cloud.running()); n != 120 {
			t.Fatalf("%d instances", n)
		}
		if n := len(b.cloud.launches); n > 60 {
			t.Fatalf("%d calls for 120 cells", n)
		}
	})
}

func TestACutOffCellIsLostInTimeAndItsPodWaitsForTheEndOfIt(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.cloud.linger = true
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
		b.later(35 * time.Second)
		if got := b.said("silent a"); len(got) != 0 {
			t.Fatalf("silent too soon: %v", got)
		}
		b.later(20 * time.Second)
		if len(b.said("silent a")) == 0 || b.phase("a") != apiv1.Bound {
			t.Fatalf("it is %s, said %v", b.phase("a"), b.events)
		}
		b.later(time.Minute)
		if b.phase("a") != apiv1.Terminating || len(b.said("CellLost", "it is cut off, while its instance runs: no route to host")) != 1 {
			t.Fatalf("it is %s, said %v", b.phase("a"), b.events)
		}
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Offers: []Offer{{InstanceType: "nano"}}}); !errors.Is(err, ErrHasCell) {
			t.Fatalf("another cell before the end of the first: %v", err)
		}
		b.cloud.mu.Lock()
		clear(b.cloud.instances)
		b.cloud.mu.Unlock()
		b.later(10 * time.Second)
		if b.phase("a") != "" {
			t.Fatalf("it is %s", b.phase("a"))
		}
	})
}

func TestACellThatIsHeardAgainInTimeGoesOn(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
		b.later(80 * time.Second)
		b.links.of(cell.ID).set(true, nil)
		b.later(10 * time.Minute)
		if b.phase("a") != apiv1.Bound {
			t.Fatalf("it is %s, said %v", b.phase("a"), b.events)
		}
	})
}

func TestAPodsOwnTimeoutOverridesTheConfiguredOne(t *testing.T) {
	never, long := time.Duration(0), 5*time.Minute
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		for name, own := range map[string]*time.Duration{"never": &never, "long": &long} {
			if _, err := b.cells.Request(t.Context(), Request{Pod: ref(name), Seen: time.Now(), HealthyTimeout: own, Offers: []Offer{{InstanceType: "nano", Zone: "z", BootTimeout: time.Minute}}}); err != nil {
				t.Fatal(err)
			}
		}
		b.later(time.Minute)
		for _, cell := range b.cells.List() {
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(4 * time.Minute)
		if b.phase("long") != apiv1.Bound || b.phase("never") != apiv1.Bound {
			t.Fatalf("long %s, never %s", b.phase("long"), b.phase("never"))
		}
		b.later(2 * time.Minute)
		if b.phase("long") == apiv1.Bound {
			t.Fatal("a cell outlived its pod's timeout")
		}
		b.later(time.Hour)
		if b.phase("never") != apiv1.Bound {
			t.Fatalf("a cell without a timeout is %q", b.phase("never"))
		}
	})
}

func TestWhenMostCellsAreSilentNoneIsEnded(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		for n := range 4 {
			b.request(fmt.Sprint(n), "nano")
		}
		b.later(time.Minute)
		list := b.cells.List()
		for _, cell := range list {
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(10 * time.Minute)
		if n := len(b.cloud.running()); n != 4 {
			t.Fatalf("%d of 4 instances are left; said %v", n, b.said("CellLost"))
		}
		for _, cell := range list[1:] {
			b.links.of(cell.ID).set(true, nil)
		}
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 3 {
			t.Fatalf("%d instances when one of 4 is silent, want 3", n)
		}
	})
}

func TestTheCloudsWordAloneDecidesWithCloudAPI(t *testing.T) {
	inBubble(t, func(c *Config) {
		c.Health = Health{CloudAPI: true, HealthyTimeout: 3 * time.Minute, Interval: time.Minute, Check: 5 * time.Second}
	}, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.request("b", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.links.of(cell.ID).set(false, errors.New("cut"))
		cell, _ = b.cells.ForPod(ref("b").UID)
		b.cloud.mu.Lock()
		delete(b.cloud.instances, cell.Instance.ID)
		b.cloud.mu.Unlock()
		b.later(2 * time.Minute)
		if b.phase("b") != apiv1.Bound {
			t.Fatalf("b is %q too soon", b.phase("b"))
		}
		b.later(time.Hour)
		if b.phase("a") != apiv1.Bound || b.phase("b") != "" {
			t.Fatalf("a is %q, b is %q; want a to run and b to be gone", b.phase("a"), b.phase("b"))
		}
	})
}

func TestACellThatDoesNotJoinInTimeIsReplacedAndSaysSo(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Seen: time.Now(), Offers: []Offer{{InstanceType: "mac2.metal", Zone: "z", BootTimeout: time.Hour}}}); err != nil {
			t.Fatal(err)
		}
		b.request("b", "nano") // an hour too; changed below
		b.later(59 * time.Minute)
		if b.phase("a") != apiv1.Booting {
			t.Fatalf("it is %q before its time", b.phase("a"))
		}
		b.later(2 * time.Minute)
		if b.phase("a") != "" || len(b.said("CellNotReady", "not joined in time", "its agent has not joined")) != 2 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
	})
}

func TestALaunchThatNobodyCanExplainIsGivenUpWithoutALeak(t *testing.T) {
	inBubble(t, func(c *Config) { c.ListLag = 20 * time.Second }, nil, func(t *testing.T, b *bubble) {
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) { return errors.New("InternalError"), true }
		b.request("a", "nano")
		b.later(30 * time.Second)
		if b.phase("a") != apiv1.Launching || len(b.said("LaunchDelayed")) != 1 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
		b.later(5 * time.Minute)
		if b.phase("a") != "" || len(b.cloud.running()) != 0 || !slices.Contains(b.cooled, "nano") {
			t.Fatalf("it is %q, instances %v, cooled %v", b.phase("a"), b.cloud.running(), b.cooled)
		}
	})
}

func TestARefusalAfterAnUnknownOutcomeIsNotBelieved(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		calls := 0
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
			if calls++; calls == 1 {
				return errors.New("connection reset"), true // it did start
			}
			return cloud.ErrUnauthorised, false
		}
		b.request("a", "nano", "small")
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 0 || slices.Contains(b.cloud.launches, "small") {
			t.Fatalf("%d instances, launches %v", n, b.cloud.launches)
		}
		if b.phase("a") != "" {
			t.Fatalf("it is %q", b.phase("a"))
		}
	})
}

func TestAnInterruptedCellIsToldOnceAndEndsWithTheNotice(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.request("a", "small")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		for range 2 {
			b.cells.interrupt(t.Context(), cloud.Interruption{InstanceID: cell.Instance.ID, At: time.Now().Add(2 * time.Minute), Reason: "spot"})
		}
		b.later(time.Minute)
		if b.phase("a") != apiv1.Bound || len(b.said("interrupted a")) != 1 || len(b.said("Warning Interrupted")) != 1 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
		b.later(2 * time.Minute)
		if b.phase("a") != "" {
			t.Fatalf("it is %q after its end", b.phase("a"))
		}
		// A standby cell is replaced at once.
		standby := b.cloud.running()[0]
		b.cells.interrupt(t.Context(), cloud.Interruption{InstanceID: standby, At: time.Now().Add(2 * time.Minute), Reason: "spot"})
		b.later(10 * time.Second)
		if now := b.cloud.running(); len(now) != 1 || now[0] == standby {
			t.Fatalf("instances %v, want another than %s", now, standby)
		}
	})
}

func TestARestartAtEachPhaseNeitherLosesNorDoubles(t *testing.T) {
	phases := []apiv1.Phase{
		apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Ready, apiv1.Bound, apiv1.Draining, apiv1.Terminating,
	}
	for _, phase := range phases {
		t.Run(string(phase), func(t *testing.T) {
			// The first Kip stores nothing more once it has stored the phase; what
			// it does then, nobody learns.
			var dead atomic.Bool
			hook := func(_, key string) error {
				if dead.Load() && strings.Contains(key, keyPrefix) {
					return errors.New("this Kip is dead")
				}
				return nil
			}
			dies := func(c *Config) {
				changed, once := c.Changed, sync.Once{}
				c.Changed = func(cell Cell) {
					changed(cell)
					if cell.Phase == phase {
						once.Do(func() { dead.Store(true) })
					}
				}
			}
			inBubble(t, dies, hook, func(t *testing.T, b *bubble) {
				b.request("a", "nano")
				b.later(10 * time.Second)
				ends := order(phase) > order(apiv1.Bound)
				if ends {
					b.cloud.linger = true
					b.cells.Release(ref("a").UID, "done", true)
					b.later(10 * time.Second)
				}
				if got := b.phase("a"); got != phase || !dead.Load() {
					t.Fatalf("the cell is %q", got)
				}
				b.stop()
				dead.Store(false)
				b.cloud.linger = false
				began := time.Now()
				b.run()
				b.later(10 * time.Second)
				if look := b.cells.lastLook(); look.began.Before(began) {
					t.Fatal("the second Kip has not looked at the cloud")
				}
				if !ends {
					cell, _ := b.cells.ForPod(ref("a").UID)
					if cell.Phase != apiv1.Bound || !slices.Equal(b.cloud.running(), []string{cell.Instance.ID}) {
						t.Fatalf("the cell is %+v, instances %v", cell, b.cloud.running())
					}
					if got := b.links.of(cell.ID).bound; !slices.Equal(got, []types.UID{ref("a").UID}) {
						t.Errorf("it shows %v", got)
					}
					b.cells.Release(ref("a").UID, "done", true)
					b.later(10 * time.Second)
				}
				if got := b.phase("a"); got != "" || len(b.cloud.running()) != 0 {
					t.Errorf("the cell is %q, instances %v are left", got, b.cloud.running())
				}
				if n := len(b.cloud.byToken); n != 1 {
					t.Errorf("%d instances were launched, by the calls %v", n, b.cloud.launches)
				}
			})
		})
	}
}

func TestAWriteWhoseAnswerIsLostIsNeitherRepeatedNorForgotten(t *testing.T) {
	for _, done := range []bool{false, true} {
		for n := 1; n <= 11; n++ { // as many as there are
			t.Run(fmt.Sprintf("write %d done %t", n, done), func(t *testing.T) {
				var mu sync.Mutex
				writes := 0
				hook := func(op, key string) error {
					if !strings.Contains(key, keyPrefix) || (op == "applied") != done {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					if writes++; writes == n {
						return errors.New("no answer")
					}
					return nil
				}
				inBubble(t, nil, hook, func(t *testing.T, b *bubble) {
					r := Request{Pod: ref("a"), Attempt: 1, Seen: time.Now(), Offers: []Offer{{InstanceType: "nano", Zone: "z", PricePerHour: 1, BootTimeout: time.Minute}}}
					for range 5 {
						if _, err := b.cells.Request(t.Context(), r); err == nil || errors.Is(err, ErrHasCell) {
							break
						}
						b.later(time.Minute)
					}
					b.later(time.Minute)
					if _, has := b.cells.ForPod(r.Pod.UID); !has {
						if _, err := b.cells.Request(t.Context(), r); err != nil {
							t.Fatal(err)
						}
						b.later(time.Minute)
					}
					if b.phase("a") != apiv1.Bound || len(b.cloud.running()) != 1 {
						t.Fatalf("it is %q, instances %v", b.phase("a"), b.cloud.running())
					}
					b.cells.Release(r.Pod.UID, "done", true)
					b.later(time.Minute)
					if b.phase("a") != "" || len(b.cloud.running()) != 0 {
						t.Fatalf("it is %q, instances %v", b.phase("a"), b.cloud.running())
					}
					if err := b.store.List(t.Context(), keyPrefix, func(key string, _ []byte, _ int64) error { return errors.New(key) }); err != nil {
						t.Fatalf("a record is left: %v", err)
					}
				})
				if writes < n {
					t.Errorf("there were %d writes only", writes)
				}
			})
		}
	}
}

func TestTheLedgerHoldsWhatCellsCostOverRestarts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.request("b", "nano")
		b.later(time.Hour)
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Hour)
		b.stop()
		b.run()
		b.later(time.Hour)
		// a ran an hour and b three, at a dollar an hour; what the end of a
		// takes is a second or two of polling.
		got := b.cells.Costs()
		if len(got) != 1 || got[0].InstanceType != "nano" || math.Abs(got[0].Dollars-4) > 0.002 || math.Abs(got[0].Seconds-4*3600) > 6 {
			t.Fatalf("%+v, want some 4 dollars", got)
		}
	})
}

func TestAFencedKipEnds(t *testing.T) {
	fenced := false
	hook := func(string, string) error {
		if fenced {
			return store.ErrNotLeader
		}
		return nil
	}
	inBubble(t, nil, hook, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		fenced = true
		_, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Offers: []Offer{{InstanceType: "nano"}}})
		if !errors.Is(err, store.ErrNotLeader) {
			t.Fatal(err)
		}
		b.later(time.Minute)
		select {
		case err := <-b.ended:
			b.stop = func() {}
			if !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("it goes on")
		}
	})
}

// stopping is a model cloud that can stop instances.
type stopping struct{ *modelCloud }

func (s stopping) set(state cloud.State, ids []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if i, ok := s.instances[id]; ok {
			i.State = state
			s.instances[id] = i
		}
	}
	return nil
}

func (s stopping) Stop(_ context.Context, ids ...string) error  { return s.set(cloud.Stopped, ids) }
func (s stopping) Start(_ context.Context, ids ...string) error { return s.set(cloud.Running, ids) }

func TestAStoppedStandbyCellCostsNothingAndBootsForItsPod(t *testing.T) {
	inBubble(t, func(c *Config) {
		keep(1)(c)
		c.Pools[0].Stopped = true
		c.Cloud = stopping{c.Cloud.(*modelCloud)}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		cells := b.cells.List()
		if len(cells) != 1 || !cells[0].Stopped || cells[0].Phase != apiv1.Ready || b.cloud.instances["i-0"].State != cloud.Stopped {
			t.Fatalf("%+v, instances %v", cells, b.cloud.instances)
		}
		before := b.cells.Costs()[0].Seconds
		b.later(time.Hour)
		if after := b.cells.Costs()[0].Seconds; after != before || after > 60 {
			t.Fatalf("it has cost %v seconds, %v an hour later", before, after)
		}
		b.stop() // a restart leaves it stopped
		b.run()
		b.later(time.Minute)
		if b.cloud.instances["i-0"].State != cloud.Stopped {
			t.Fatal("a restart of Kip has started it")
		}
		b.request("a", "nano")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Phase != apiv1.Bound || cell.Instance.ID != "i-0" || cell.Stopped || b.cloud.instances["i-0"].State != cloud.Running {
			t.Fatalf("%+v", cell)
		}
		if got := b.links.of(cell.ID).bound; !slices.Equal(got, []types.UID{ref("a").UID}) {
			t.Fatalf("it shows %v", got)
		}
		if n := len(b.cloud.running()); n != 2 {
			t.Fatalf("%d instances, want one for the pod and one on standby", n)
		}
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Minute)
		if b.phase("a") != "" || len(b.cloud.running()) != 1 {
			t.Fatalf("it is %q, instances %v", b.phase("a"), b.cloud.running())
		}
	})
}

// An agent that has started anew may have lost what it was told: each connection
// is told of, also when the break before it was too short for the cell's worker to
// see.
func TestEveryConnectionToAnAgentIsToldOf(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	inBubble(t, func(c *Config) {
		c.Connected = func(cell Cell, agent http.RoundTripper) {
			mu.Lock()
			defer mu.Unlock()
			if agent == nil {
				t.Error("no way to the agent")
			}
			told[cell.Pod.Name]++
		}
	}, nil, func(t *testing.T, b *bubble) {
		times := func() int {
			mu.Lock()
			defer mu.Unlock()
			return told["a"]
		}
		b.request("a", "nano")
		b.later(10 * time.Second)
		if n := times(); n != 1 {
			t.Fatalf("told of %d connections, want 1", n)
		}
		cell, _ := b.cells.ForPod(ref("a").UID)
		l := b.links.of(cell.ID)
		l.onState(false, errors.New("cut")) // and connected again at once
		l.onState(true, nil)
		b.later(10 * time.Second)
		if n := times(); n != 2 {
			t.Fatalf("told of %d connections, want 2", n)
		}
		l.set(false, errors.New("cut"))
		b.later(time.Second)
		l.set(true, nil)
		b.later(10 * time.Second)
		if n := times(); n != 3 {
			t.Fatalf("told of %d connections, want 3", n)
		}
	})
}
