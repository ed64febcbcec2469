package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/cloud"
)

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestListsLagBehindTheTruth follows one machine by the second.
func TestListsLagBehindTheTruth(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{
		ListLag: always(2 * time.Second), Pending: always(3 * time.Second), AddressDelay: always(time.Second),
		Termination: always(5 * time.Second),
	}}, func(t *testing.T, c *Cloud) {
		if i := launch(t, c, request("1", 1))[0]; i.State != cloud.Pending || i.ManagementIP.IsValid() {
			t.Errorf("launched %+v: want it pending, without addresses", i)
		}
		seen := func() string {
			l := list(t, c)
			if len(l) == 0 {
				return "nothing"
			}
			if l[0].ManagementIP.IsValid() {
				return string(l[0].State) + " with addresses"
			}
			return string(l[0].State)
		}
		var got []string
		for second := range 20 {
			if second == 10 {
				ok(t, c.Terminate(ctx, c.Truth()[0].ID).Err())
			}
			got = append(got, fmt.Sprintf("%d %d %s", second, len(c.Truth()), seen()))
			pass(time.Second)
		}
		var want []string
		for _, s := range []struct {
			seconds, exist int
			seen           string
		}{
			{2, 1, "nothing"}, {1, 1, "pending"}, {2, 1, "pending with addresses"}, {7, 1, "running with addresses"},
			{3, 1, "terminating with addresses"}, {2, 0, "terminating with addresses"}, {3, 0, "nothing"},
		} {
			for range s.seconds {
				want = append(want, fmt.Sprintf("%d %d %s", len(want), s.exist, s.seen))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestALaterListMayBeOlder(t *testing.T) {
	inBubble(t, Config{Seed: 3, Knobs: Knobs{StaleLists: 0.5, StaleBy: time.Minute}}, func(t *testing.T, c *Cloud) {
		pass(time.Hour)
		got := launch(t, c, request("1", 1))
		counts := map[int]int{}
		for range 100 {
			counts[len(list(t, c))]++
		}
		if counts[0] < 30 || counts[1] < 30 {
			t.Errorf("a list showed the instance %d times of 100: want about 50", counts[1])
		}
		pass(time.Minute)
		if len(list(t, c)) != 1 {
			t.Error("a minute later it is not shown")
		}
		ok(t, c.Terminate(ctx, got[0].ID).Err())
		counts = map[int]int{}
		for range 100 {
			counts[len(list(t, c))]++
		}
		if counts[0] < 30 || counts[1] < 30 {
			t.Errorf("a list showed what has ended %d times of 100: want about 50", counts[1])
		}
		pass(time.Minute)
		if len(list(t, c)) != 0 || len(c.byID) != 0 {
			t.Errorf("a minute later it is still known")
		}
	})
}

// What a list has long shown it does not hide because answers may be older from
// now on.
func TestAListThatBecomesStaleShowsWhatWasLongThere(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{BootTimes: []BootTime{{Distribution: always(time.Minute)}}}}, func(t *testing.T, c *Cloud) {
		got := launch(t, c, request("1", 1))
		pass(time.Hour) // it has booted since, and its history is forgotten
		ok(t, c.Stopper.Stop(ctx, got[0].ID).Err())
		ok(t, c.Change(func(k *Knobs) { k.StaleLists, k.StaleBy = 1, time.Hour-time.Second }))
		if n := len(list(t, c)); n != 1 {
			t.Errorf("the list shows %d instances as of a second after the launch: want 1", n)
		}
	})
}

func TestCallsDoNotKnowANewMachineYet(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{UnknownFor: always(time.Second)}}, func(t *testing.T, c *Cloud) {
		got := launch(t, c, request("1", 1))
		ok(t, c.Terminate(ctx, got[0].ID).Err())
		if err := c.Stopper.Stop(ctx, got[0].ID).Err(); !errors.Is(err, cloud.ErrRefused) || len(c.Truth()) != 1 {
			t.Errorf("a stop too early got %v and left %d: want ErrRefused and 1", err, len(c.Truth()))
		}
		pass(time.Second)
		ok(t, c.Terminate(ctx, got[0].ID).Err())
		if len(c.Truth()) != 0 {
			t.Error("it runs on")
		}
	})
}

func TestTerminationsComeToNothing(t *testing.T) {
	inBubble(t, Config{Seed: 5, Knobs: Knobs{TerminationLost: 0.5}}, func(t *testing.T, c *Cloud) {
		got := ids(launch(t, c, request("1", 50)))
		ok(t, c.Terminate(ctx, got...).Err())
		if n := len(c.Truth()); n < 10 || n > 40 {
			t.Errorf("%d of 50 run on: want about half", n)
		}
		for range 100 {
			ok(t, c.Terminate(ctx, got...).Err())
		}
		if n := len(c.Truth()); n != 0 {
			t.Errorf("%d run on after a hundred terminations", n)
		}
	})
}

// booted records what Config.Boot is called for.
type booted struct {
	mu   sync.Mutex
	log  []string
	when time.Time
}

func (b *booted) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, fmt.Sprintf("%v ", time.Since(b.when))+fmt.Sprintf(format, args...))
}

func (b *booted) boot(ctx context.Context, i cloud.Instance, userData []byte) {
	b.note("boot %s %s %t", userData, i.State, i.ManagementIP.IsValid() && i.PodIP.IsValid())
	<-ctx.Done()
	b.note("end %s", userData)
}

func TestBootRunsInAMachineAsLongAsIt(t *testing.T) {
	for name, test := range map[string]struct {
		knobs Knobs
		do    func(t *testing.T, c *Cloud, id string)
		want  []string
	}{
		"terminated": {Knobs{Termination: always(20 * time.Second)}, func(t *testing.T, c *Cloud, id string) {
			pass(time.Minute)
			ok(t, c.Terminate(ctx, id).Err())
			pass(time.Minute)
		}, []string{"10s boot 1/0 running true", "1m20s end 1/0"}},
		"terminated before it has booted": {Knobs{}, func(t *testing.T, c *Cloud, id string) {
			pass(9 * time.Second)
			ok(t, c.Terminate(ctx, id).Err())
			pass(time.Minute)
		}, nil},
		"terminating before it has booted": {Knobs{Termination: always(time.Minute)}, func(t *testing.T, c *Cloud, id string) {
			pass(2 * time.Second)
			ok(t, c.Terminate(ctx, id).Err())
			pass(30 * time.Second)
			if i := c.Truth()[0]; i.State != cloud.Terminating {
				t.Errorf("half a minute after its termination it is %+v", i)
			}
		}, nil},
		"stopped before it has booted": {Knobs{Stopping: always(time.Minute)}, func(t *testing.T, c *Cloud, id string) {
			pass(5 * time.Second)
			ok(t, c.Stopper.Stop(ctx, id).Err())
			pass(time.Hour)
		}, nil},
		"without addresses at first": {Knobs{AddressDelay: always(15 * time.Second)}, func(t *testing.T, c *Cloud, id string) {
			pass(time.Minute)
		}, []string{"15s boot 1/0 running true", "1m0s end 1/0"}},
		"stopped and started": {Knobs{Stopping: always(5 * time.Second)}, func(t *testing.T, c *Cloud, id string) {
			pass(time.Minute)
			ok(t, c.Stopper.Stop(ctx, id).Err())
			pass(time.Minute)
			ok(t, c.Stopper.Start(ctx, id).Err())
			pass(time.Minute)
		}, []string{"10s boot 1/0 running true", "1m5s end 1/0", "2m10s boot 1/0 running true", "3m0s end 1/0"}},
		"vanished": {Knobs{}, func(t *testing.T, c *Cloud, id string) {
			pass(time.Minute)
			ok(t, c.Interrupter.Vanish(id))
			pass(time.Second)
		}, []string{"10s boot 1/0 running true", "1m0s end 1/0"}},
		"taken back": {Knobs{}, func(t *testing.T, c *Cloud, id string) {
			pass(time.Minute)
			ok(t, c.Interrupter.Interrupt(id))
			pass(time.Hour)
		}, []string{"10s boot 1/0 running true", "3m0s end 1/0"}},
		"never": {Knobs{BootTimes: []BootTime{{Types: "m5.*"}, {Types: "c5.*", Never: 1}, {}}}, func(t *testing.T, c *Cloud, id string) {
			pass(time.Hour)
			if i := c.Truth()[0]; i.State != cloud.Running || !i.Booted.IsZero() {
				t.Errorf("it is %+v: want it running, and not booted", i)
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &booted{when: time.Now()}
				test.knobs.Pending = always(4 * time.Second)
				if test.knobs.BootTimes == nil {
					test.knobs.BootTimes = []BootTime{{Types: "*.large", Distribution: always(6 * time.Second)}}
				}
				c := newCloud(t, Config{Boot: b.boot, Knobs: test.knobs})
				test.do(t, c, launch(t, c, request("1", 1))[0].ID)
				c.Close() // waits for what runs
				if !slices.Equal(b.log, test.want) {
					t.Errorf("got %q: want %q", b.log, test.want)
				}
			})
		})
	}
}

func TestStoppedMachinesTakeNoCapacityAndCostNothing(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keeps its addresses: %t", keep), func(t *testing.T) {
			inBubble(t, Config{Knobs: Knobs{
				Capacity: []Capacity{{Pool{Zone: "z1"}, 1}}, Stopping: always(time.Minute), StoppedKeepsAddresses: keep,
			}}, func(t *testing.T, c *Cloud) {
				first := launch(t, c, request("1", 1))[0]
				pass(time.Hour)
				ok(t, c.Stopper.Stop(ctx, first.ID).Err())
				if state := list(t, c)[0].State; state != cloud.Stopping {
					t.Errorf("it is %s: want it stopping", state)
				}
				if err := c.Stopper.Start(ctx, first.ID).Err(); !errors.Is(err, cloud.ErrRefused) {
					t.Errorf("a start while it stops got %v: want ErrRefused", err)
				}
				if _, err := try(ctx, c, request("2", 1)); !errors.Is(err, cloud.ErrCapacity) {
					t.Errorf("a launch while it stops got %v: want ErrCapacity", err)
				}
				pass(time.Minute)
				stopped := list(t, c)[0]
				if stopped.State != cloud.Stopped || stopped.ManagementIP.IsValid() != keep {
					t.Errorf("it is %+v: want it stopped; with addresses: %t", stopped, keep)
				}
				second := launch(t, c, request("2", 1))[0]
				if second.ManagementIP == first.ManagementIP {
					t.Errorf("a new machine has the address of one that is stopped")
				}
				var short *cloud.Error
				err := c.Stopper.Start(ctx, first.ID).Err()
				if !errors.As(err, &short) || short.Scope.Zone != "z1" || c.Truth()[0].State != cloud.Stopped {
					t.Errorf("a start without capacity got %v: want a shortage in z1", err)
				}
				pass(time.Hour)
				ok(t, c.Terminate(ctx, second.ID).Err())
				ok(t, c.Stopper.Start(ctx, first.ID).Err())
				if again := list(t, c)[0]; again.State != cloud.Running || !again.ManagementIP.IsValid() ||
					(again.ManagementIP == first.ManagementIP) != keep {
					t.Errorf("it started as %+v and was %+v; keeps its addresses: %t", again, first, keep)
				}
				pass(time.Hour)
				if bill := c.Bill(); len(bill) != 1 || bill[0].Time != 3*time.Hour+time.Minute || bill[0].Instances != 2 {
					t.Errorf("the bill is %+v: want 3h1m for two instances", bill)
				}
			})
		})
	}
}

func TestWhatCannotBeStopped(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{Pending: always(time.Second), Termination: always(time.Second), Stopping: always(time.Second)}},
		func(t *testing.T, c *Cloud) {
			spot := launch(t, c, spot(request("spot", 1)))[0].ID
			good := launch(t, c, request("on-demand", 2))
			if err := c.Stopper.Stop(ctx, good[0].ID).Err(); !errors.Is(err, cloud.ErrRefused) {
				t.Errorf("stopping what is pending got %v: want ErrRefused", err)
			}
			pass(time.Second)
			for _, bad := range []string{spot, "i-unknown"} {
				if err := c.Stopper.Stop(ctx, good[0].ID, bad).Err(); !errors.Is(err, cloud.ErrRefused) {
					t.Errorf("stopping %s got %v: want ErrRefused", bad, err)
				}
			}
			if err := c.Stopper.Start(ctx, "i-unknown").Err(); !errors.Is(err, cloud.ErrRefused) {
				t.Errorf("starting what is unknown got %v: want ErrRefused", err)
			}
			for _, i := range c.Truth() {
				if i.State != cloud.Running {
					t.Errorf("a refused call has stopped %+v", i)
				}
			}
			ok(t, c.Stopper.Stop(ctx, good[0].ID, good[0].ID).Err())
			ok(t, c.Terminate(ctx, good[1].ID).Err())
			if err := c.Stopper.Stop(ctx, good[1].ID).Err(); !errors.Is(err, cloud.ErrRefused) {
				t.Errorf("stopping what is terminating got %v: want ErrRefused", err)
			}
			pass(time.Second)
			ok(t, c.Terminate(ctx, good[0].ID).Err()) // stopped by now
			pass(time.Second)
			if !equal(trueIDs(c), []string{spot}) {
				t.Errorf("%v exist: want %s", trueIDs(c), spot)
			}
		})
}

func TestStartOfManyIsAllOrNothing(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, c *Cloud) {
		got := ids(launch(t, c, request("1", 3)))
		ok(t, c.Stopper.Stop(ctx, got...).Err())
		for name, bound := range map[string]func(k *Knobs){
			"capacity":  func(k *Knobs) { k.Capacity = []Capacity{{Pool{}, 2}} },
			"addresses": func(k *Knobs) { k.SubnetAddresses = map[string]int{"s1": 2} },
			"quota":     func(k *Knobs) { k.Quotas = []Quota{{VCPUs: 5}} },
		} {
			ok(t, c.Change(func(k *Knobs) { *k = Knobs{}; bound(k) }))
			if err := c.Stopper.Start(ctx, got...).Err(); !errors.Is(err, cloud.ErrCapacity) && !errors.Is(err, cloud.ErrQuota) {
				t.Errorf("%s: starting three with room for two got %v", name, err)
			}
			for _, i := range c.Truth() {
				if i.State != cloud.Stopped || i.ManagementIP.IsValid() {
					t.Errorf("%s: a start that failed left %+v", name, i)
				}
			}
			ok(t, c.Stopper.Start(ctx, got[:2]...).Err()) // so nothing was kept back
			ok(t, c.Stopper.Stop(ctx, got[:2]...).Err())
		}
	})
}

func TestInterruptionsAreAnnounced(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, c *Cloud) {
		watch := func(ctx context.Context) (*[]cloud.Interruption, chan error) {
			var told []cloud.Interruption
			ended := make(chan error, 1)
			go func() {
				ended <- c.Interrupter.Interruptions(ctx, cloud.Listener{Notify: func(i cloud.Interruption) { told = append(told, i) }})
			}()
			synctest.Wait()
			return &told, ended
		}
		is := func(told *[]cloud.Interruption, want ...string) {
			t.Helper()
			var got []string
			for _, i := range *told {
				got = append(got, i.InstanceID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("told of %v: want %v", got, want)
			}
		}
		got := ids(launch(t, c, spot(request("1", 3))))
		life, cancel := context.WithCancel(ctx)
		defer cancel()
		early, _ := watch(life)
		ok(t, c.Interrupter.Interrupt(got[0]))
		ok(t, c.Interrupter.Interrupt(got[0])) // once decided is enough
		synctest.Wait()
		is(early, got[0])
		if at := (*early)[0].At; !at.Equal(time.Now().Add(2 * time.Minute)) {
			t.Errorf("told of an end at %v: want two minutes from %v", at, time.Now())
		}
		pass(time.Minute)
		ok(t, c.Interrupter.Interrupt(got[1]))
		late, lateEnded := watch(ctx)
		is(early, got[0], got[1])
		is(late, got[0], got[1])
		pass(time.Minute - time.Nanosecond)
		if !equal(trueIDs(c), got) {
			t.Errorf("%v run before the time: want %v", trueIDs(c), got)
		}
		pass(time.Nanosecond)
		if !equal(trueIDs(c), got[1:]) {
			t.Errorf("%v run: want %v", trueIDs(c), got[1:])
		}
		later, laterEnded := watch(life)
		is(later, got[1]) // of what has ended there is nothing to tell

		boom := errors.New("boom")
		c.Interrupter.CutInterruptions(boom)
		if err := <-lateEnded; !errors.Is(err, boom) {
			t.Errorf("the cut watch ended with %v: want %v", err, boom)
		}
		if err := <-laterEnded; !errors.Is(err, boom) {
			t.Errorf("the cut watch ended with %v: want %v", err, boom)
		}
		again, againEnded := watch(life)
		is(again, got[1])
		ok(t, c.Change(func(k *Knobs) { k.NoticesLost = 1 }))
		ok(t, c.Interrupter.Interrupt(got[2]))
		pass(2 * time.Minute)
		is(again, got[1])
		if n := len(c.Truth()); n != 0 {
			t.Errorf("%d run: want the unannounced one to have ended too", n)
		}
		for _, i := range c.History() {
			if i.Cause != Interrupted {
				t.Errorf("%s was %s", i.ID, i.Cause)
			}
		}
		cancel()
		if err := <-againEnded; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
	})
}

func TestMachinesEndByThemselvesInTheMeanTimeSaid(t *testing.T) {
	for name, test := range map[string]struct {
		knobs Knobs
		cause Cause
	}{
		"vanish":    {Knobs{MTBF: 100 * time.Hour}, Vanished},
		"interrupt": {Knobs{SpotMTBF: 100*time.Hour - 2*time.Minute}, Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Knobs: test.knobs}, func(t *testing.T, c *Cloud) {
				for n := range 40 {
					launch(t, c, spot(request(fmt.Sprint(n), 50)))
				}
				pass(5000 * time.Hour)
				var sum time.Duration
				all := c.History()
				for _, i := range all {
					if i.Cause != test.cause {
						t.Fatalf("after 5000 hours %+v", i)
					}
					sum += i.Ended.Sub(i.Launched)
				}
				// The mean of 2000 has a standard deviation of 2.2 hours.
				if mean := sum.Hours() / float64(len(all)); len(all) != 2000 || math.Abs(mean-100) > 9 {
					t.Errorf("%d instances ran for %.1f hours: want about 100", len(all), mean)
				}
			})
		})
	}
	inBubble(t, Config{Knobs: Knobs{SpotMTBF: time.Hour}}, func(t *testing.T, c *Cloud) {
		launch(t, c, request("on-demand", 5))
		pass(1000 * time.Hour)
		if n := len(c.Truth()); n != 5 {
			t.Errorf("%d of 5 on-demand instances run", n)
		}
	})
}

func TestBootTimesAreDistributedAsSaid(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{BootTimes: []BootTime{{
		Distribution: Distribution{Median: 30 * time.Second, Spread: 1.2, Tail: 0.1, TailFactor: 10}, Never: 0.2,
	}}}}, func(t *testing.T, c *Cloud) {
		for n := range 40 {
			launch(t, c, request(fmt.Sprint(n), 50))
		}
		pass(time.Hour)
		var times []time.Duration
		slow := 0
		for _, i := range c.Truth() {
			if i.Booted.IsZero() {
				continue
			}
			took := i.Booted.Sub(i.Launched)
			times = append(times, took)
			if took > 100*time.Second {
				slow++
			}
		}
		slices.Sort(times)
		if n := len(times); n < 1520 || n > 1680 {
			t.Errorf("%d of 2000 have booted: want about 1600", n)
		}
		if share := float64(slow) / float64(len(times)); share < 0.07 || share > 0.13 {
			t.Errorf("%.2f are slow: want about 0.1", share)
		}
		// A tenth being slow, the median of the others is at 0.45 of all.
		if m := times[len(times)*45/100]; m < 29*time.Second || m > 31*time.Second {
			t.Errorf("the median of the ordinary ones is %v: want about 30s", m)
		}
	})
}

// TestWorksOnASteppedClock runs without a bubble's time. A step may jump over
// many events; they happen at the times they were due.
func TestWorksOnASteppedClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		b := &booted{when: time.Now()}
		c := newCloud(t, Config{Clock: clock, Boot: b.boot, Knobs: Knobs{
			Pending: always(3 * time.Second), BootTimes: []BootTime{{Distribution: always(4 * time.Second)}}, Termination: always(10 * time.Second),
			Latency: map[Kind]Distribution{KindTerminate: always(time.Second)},
		}})
		i := launch(t, c, request("1", 1))[0]
		clock.Step(time.Minute)
		synctest.Wait()
		if got := c.Truth()[0]; got.State != cloud.Running || !got.Booted.Equal(i.Launched.Add(7*time.Second)) || len(b.log) != 1 {
			t.Fatalf("a minute later it is %+v, and %q", got, b.log)
		}
		done := make(chan error, 1)
		go func() { done <- c.Terminate(ctx, i.ID).Err() }()
		for range 2 {
			synctest.Wait()
			clock.Step(500 * time.Millisecond)
		}
		ok(t, <-done)
		clock.Step(time.Minute)
		synctest.Wait()
		want := Charge{InstanceType: "c5.large", Zone: "z1", PricePerHour: 0.08, Instances: 1, Time: 70500 * time.Millisecond,
			Dollars: 0.08 * 70.5 / 3600}
		got := c.Bill()[0]
		if math.Abs(got.Dollars-want.Dollars) > 1e-12 {
			t.Errorf("charged %v dollars: want %v", got.Dollars, want.Dollars)
		}
		got.Dollars = want.Dollars
		if got != want {
			t.Errorf("the bill is %+v: want %+v", got, want)
		}
	})
}

func TestBadKnobsAreNamed(t *testing.T) {
	for want, spoil := range map[string]func(*Config){
		"Catalogue is empty":              func(c *Config) { c.Catalogue = nil },
		"Catalogue[1].Name":               func(c *Config) { c.Catalogue[1].Name = c.Catalogue[0].Name },
		"Catalogue[0].Offerings[2].Price": func(c *Config) { c.Catalogue[0].Offerings[2].PricePerHour = -1 },
		"ManagementCIDR":                  func(c *Config) { c.ManagementCIDR = mustPrefix("fd00::/64") },
		"PodCIDR":                         func(c *Config) { c.PodCIDR = mustPrefix("10.0.0.0/31") },
		"Pending.Median":                  func(c *Config) { c.Pending.Median = -1 },
		"ListLag.Spread":                  func(c *Config) { c.ListLag.Spread = 0.5 },
		"Termination.TailFactor":          func(c *Config) { c.Termination.Tail = 0.1 },
		"BootTimes[0].Types":              func(c *Config) { c.BootTimes = []BootTime{{Types: "["}} },
		"BootTimes[0].Never":              func(c *Config) { c.BootTimes = []BootTime{{Never: 1.1}} },
		`Latency has the key "lunch"`:     func(c *Config) { c.Latency = map[Kind]Distribution{"lunch": {}} },
		"the sum of Faults[list]":         func(c *Config) { c.Faults = map[Kind]FaultRates{KindList: {Failed: 0.6, LostAfter: 0.6}} },
		"RateLimits[list].Requests": func(c *Config) {
			c.RateLimits = map[Kind]RateLimit{KindList: {Requests: Bucket{Capacity: 0, Refill: 1}}}
		},
		"Capacity[0].Instances": func(c *Config) { c.Capacity = []Capacity{{Pool{}, -1}} },
		`SubnetAddresses["s1"]`: func(c *Config) { c.SubnetAddresses = map[string]int{"s1": -1} },
		"Quotas[0]":             func(c *Config) { c.Quotas = []Quota{{VCPUs: -1}} },
		"StaleLists":            func(c *Config) { c.StaleLists = math.NaN() },
		"SpotMTBF":              func(c *Config) { c.SpotMTBF = -1 },
	} {
		cfg := Config{Catalogue: forSale()}
		spoil(&cfg)
		if c, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v: want an error about %q", err, want)
			if err == nil {
				c.Close()
			}
		}
	}
	ok(t, EC2().validate())

	c := newCloud(t, Config{})
	before := c.knobs
	if err := c.Change(func(k *Knobs) { k.MTBF, k.NoticesLost = time.Hour, 2 }); err == nil || !reflect.DeepEqual(c.knobs, before) {
		t.Errorf("a bad change got %v and left %+v", err, c.knobs)
	}
}

func TestTheEndIsToldOfWhatHasBooted(t *testing.T) {
	var told []string
	inBubble(t, Config{
		LikeEC2: true, Knobs: Knobs{Pending: always(time.Minute)},
		End: func(_ context.Context, i cloud.Instance) { told = append(told, i.Place) },
	}, func(t *testing.T, c *Cloud) {
		first := launch(t, c, request("1", 1))
		ok(t, c.Terminate(ctx, first[0].ID).Err()) // before it boots
		second := launch(t, c, request("2", 1))
		pass(2 * time.Minute)
		if got, want := c.Truth()[0].ManagementIP, mustPrefix("127.64.0.5/32").Addr(); got != want {
			t.Errorf("the second address is %s, want %s: the first four are nobody's", got, want)
		}
		if len(told) != 0 {
			t.Errorf("the end of one that never booted is told")
		}
		ok(t, c.Terminate(ctx, second[0].ID).Err())
		synctest.Wait()
		if len(told) != 1 {
			t.Errorf("told of %d ends, want 1", len(told))
		}
	})
}
