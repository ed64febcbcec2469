package cells

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

// launchesStored are the keys of the stored calls.
func (b *bubble) launchesStored() (keys []string) {
	b.Helper()
	if err := b.store.List(b.Context(), launchesPrefix, func(key string, _ []byte, _ int64) error {
		keys = append(keys, key)
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return keys
}

// ask requests a cell with options.
func (b *bubble) ask(pod string, o Options, offerings ...string) Cell {
	b.Helper()
	var list []Offering
	for _, name := range offerings {
		list = append(list, Offering{InstanceType: name, Zone: "z", PricePerHour: 1, DiskBytes: 5 << 30, BootTimeout: time.Hour})
	}
	r := Request{Pod: ref(pod), Attempt: 1, Seen: time.Now(), Offerings: list, Options: o, Special: b.special}
	cell, err := b.cells.Request(b.Context(), r)
	if err != nil {
		b.Fatal(err)
	}
	return cell
}

func TestALaunchHasAllThatWasResolvedForItsPod(t *testing.T) {
	inBubble(t, func(c *setup) { c.NameTag = "prod" }, nil, func(t *testing.T, b *bubble) {
		var sent []cloud.LaunchRequest
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			sent = append(sent, r)
			return nil, false
		}
		b.later(time.Second)
		o := Options{
			Image: map[string]string{"name": "kip-7"}, SecurityGroups: []string{"sg-1"}, InstanceProfile: "reader", PrivateIPOnly: true,
			AllowMetadata: true,
			CloudRoutes:   []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")},
		}
		b.ask("a", o, "nano")
		b.ask("b", Options{}, "nano")
		b.later(10 * time.Second)
		if len(sent) != 2 {
			t.Fatalf("%d calls for two pods that differ in their options", len(sent))
		}
		slices.SortFunc(sent, func(x, y cloud.LaunchRequest) int { return len(x.SecurityGroups) - len(y.SecurityGroups) })
		if got := sent[1]; !reflect.DeepEqual(got.Options, o) || got.RootDiskBytes != 5<<30 || got.CapacityType != cloud.OnDemand ||
			got.TagsOf(0)[cloud.TagNameTag] != "prod" || got.TagsOf(0)[cloud.TagPod] != "a" || got.TagsOf(0)[cloud.TagOwner] != "me" {
			t.Errorf("launched %+v", got)
		}
		if !reflect.DeepEqual(sent[0].Options, Options{}) {
			t.Errorf("a pod that asked for nothing was launched with %+v", sent[0].Options)
		}
		if left := b.launchesStored(); len(left) != 0 {
			t.Errorf("calls whose outcome is known are still stored: %v", left)
		}
	})
}

func TestWhatIsSentAgainIsWhatWasStoredWhateverTheConfigurationSaysByThen(t *testing.T) {
	inBubble(t, func(c *setup) { c.NameTag, c.CAHash = "old", "ca-old" }, nil, func(t *testing.T, b *bubble) {
		lost := true
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
			if lost {
				return errors.New("connection reset by peer"), true
			}
			return nil, false
		}
		b.later(time.Second)
		b.ask("a", Options{SecurityGroups: []string{"sg-1"}}, "nano")
		b.ask("b", Options{SecurityGroups: []string{"sg-1"}}, "nano")
		b.later(5 * time.Second)
		if n := len(b.launchesStored()); n == 0 {
			t.Fatal("no call is stored while its outcome is unknown")
		}
		b.stop()
		instances := len(b.cloud.running())
		lost = false
		b.cfg.NameTag, b.cfg.CAHash, b.cfg.Template, b.cfg.Options = "new", "ca-new", "new", Options{InstanceProfile: "new"}
		b.run()
		b.later(time.Minute)
		// The model refuses a token that comes with another request.
		if n := len(b.cloud.running()); n != instances || b.phase("a") != apiv1.Bound || b.phase("b") != apiv1.Bound {
			t.Fatalf("%d instances became %d; a is %s, b is %s; said %v", instances, n, b.phase("a"), b.phase("b"), b.events)
		}
		if left := b.launchesStored(); len(left) != 0 {
			t.Errorf("calls whose outcome is known are still stored: %v", left)
		}
	})
}

func TestARecordOfALaterVersionIsNotSent(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return errors.New("timeout"), false }
		b.later(time.Second)
		b.request("a", "nano")
		b.later(time.Second)
		b.stop()
		key := b.launchesStored()[0]
		var record storedCall
		revision, err := b.store.Get(t.Context(), key, &record)
		if err != nil {
			t.Fatal(err)
		}
		record.Version = callVersion + 1
		if _, err := b.store.Put(t.Context(), key, record, revision); err != nil {
			t.Fatal(err)
		}
		before := len(b.cloud.launches)
		b.run()
		b.later(time.Minute)
		if len(b.cloud.launches) != before || b.phase("a") != apiv1.Launching {
			t.Fatalf("it was sent; the cell is %s", b.phase("a"))
		}
		b.later(10 * time.Minute)
		if len(b.cloud.launches) != before || b.phase("a") != "" || len(b.launchesStored()) > 0 {
			t.Errorf("later it is not given up: the cell is %q, stored are %v", b.phase("a"), b.launchesStored())
		}
	})
}

// slowFirstLaunch delays the storing of the first launch for a second: what is
// requested meanwhile comes together.
func slowFirstLaunch(launches *atomic.Int32) func(op, key string) error {
	return func(op, key string) error {
		if op == "apply" && strings.Contains(key, launchesPrefix) && launches.Add(1) == 1 {
			time.Sleep(time.Second)
		}
		return nil
	}
}

func TestOfThreeMachinesOnlyTheOneThatFailedIsTriedElsewhere(t *testing.T) {
	var launches atomic.Int32
	inBubble(t, nil, slowFirstLaunch(&launches), func(t *testing.T, b *bubble) {
		var first cloud.LaunchRequest
		b.cloud.failOne = func(r cloud.LaunchRequest, n int) error {
			if r.InstanceType == "nano" && r.Machines[n].Tags[cloud.TagPod] == "b" {
				first = r
				return cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "nano", Zone: "z"}, errors.New("sold out"))
			}
			return nil
		}
		b.later(time.Second)
		b.request("x", "nano")
		time.Sleep(100 * time.Millisecond) // its launch is being stored
		for _, pod := range []string{"a", "b", "c"} {
			b.request(pod, "nano", "small")
		}
		b.later(30 * time.Second)
		types := map[string]string{}
		for _, pod := range []string{"a", "b", "c"} {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			if cell.Phase != apiv1.Bound {
				t.Errorf("the cell of %s is %s", pod, cell.Phase)
			}
			types[pod] = cell.Offering().InstanceType
		}
		if types["a"] != "nano" || types["b"] != "small" || types["c"] != "nano" || len(b.cloud.running()) != 4 {
			t.Errorf("launched %v, instances %v", types, b.cloud.running())
		}
		if len(first.Machines) != 3 {
			t.Errorf("the failed machine was one of %d: the test is about one of three", len(first.Machines))
		}
		if !slices.Equal(b.cooled, []string{"nano"}) {
			t.Errorf("cooled %v", b.cooled)
		}
	})
}

func TestAMachineWhoseOutcomeIsOpenHoldsUpNoOther(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		open := true
		b.cloud.failOne = func(r cloud.LaunchRequest, n int) error {
			if open && r.Machines[n].Tags[cloud.TagPod] == "b" {
				return errors.New("internal error")
			}
			return nil
		}
		for _, pod := range []string{"a", "b", "c"} {
			b.request(pod, "nano")
		}
		b.later(10 * time.Second)
		if b.phase("a") != apiv1.Bound || b.phase("c") != apiv1.Bound || b.phase("b") != apiv1.Launching || len(b.launchesStored()) != 1 {
			t.Fatalf("a is %s, b %s, c %s; stored %v", b.phase("a"), b.phase("b"), b.phase("c"), b.launchesStored())
		}
		b.stop()
		b.run() // what is left of the launch is taken up
		b.later(5 * time.Second)
		b.cloud.set(func() { open = false })
		b.later(30 * time.Second)
		if b.phase("b") != apiv1.Bound || len(b.cloud.running()) != 3 || len(b.launchesStored()) != 0 {
			t.Fatalf("b is %s, instances %v, stored %v", b.phase("b"), b.cloud.running(), b.launchesStored())
		}
	})
}

func TestAThrottledLaunchMayHaveStartedItsMachinesUnlessTheCloudSaysNot(t *testing.T) {
	for name, test := range map[string]struct {
		throttled error
		want      apiv1.Phase
	}{
		"it does not say": {&cloud.Error{Cause: cloud.ErrThrottled}, apiv1.Terminating},
		"nothing is done": {&cloud.Error{Cause: cloud.ErrThrottled, NothingDone: true}, apiv1.Bound},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(c *setup) { c.ListLag = time.Hour }, nil, func(t *testing.T, b *bubble) {
				tries := 0
				b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
					if r.InstanceType != "nano" {
						return nil, false
					}
					if tries++; tries == 1 {
						return test.throttled, false
					}
					return cloud.No(cloud.ErrCapacity, cloud.Scope{}, nil), false
				}
				b.later(time.Second)
				b.request("a", "nano", "small")
				b.later(time.Minute)
				if got := b.phase("a"); got != test.want {
					t.Errorf("after a throttled call and a refusal the cell is %s: want %s", got, test.want)
				}
			})
		})
	}
}

func TestOneInstanceThatCannotBeTerminatedKeepsNoOther(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.request("a", "nano")
		b.request("b", "nano")
		b.later(10 * time.Second)
		a, _ := b.cells.ForPod(ref("a").UID)
		b.cloud.set(func() { b.cloud.keep = map[string]error{a.Instance.ID: errors.New("protected")} })
		b.cells.Release(ref("a").UID, "done", false)
		b.cells.Release(ref("b").UID, "done", false)
		b.later(10 * time.Second)
		if b.phase("a") != apiv1.Terminating || b.phase("b") != "" {
			t.Fatalf("a is %s, b %q", b.phase("a"), b.phase("b"))
		}
		if len(b.said("CellNotTerminated", "protected")) == 0 {
			t.Error("nothing was said")
		}
		b.cloud.set(func() { b.cloud.keep = nil })
		b.later(2 * time.Minute)
		if b.phase("a") != "" {
			t.Errorf("a is %s", b.phase("a"))
		}
	})
}

func TestAnInstanceThatAListLacksIsLostOnlyIfTheCloudDoesNotKnowIt(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.request("a", "nano")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.cloud.set(func() { b.cloud.hidden[cell.Instance.ID] = true })
		b.later(10 * time.Minute)
		if b.phase("a") != apiv1.Bound || b.cloud.described == 0 {
			t.Fatalf("the cell is %s though its instance runs; described %d times", b.phase("a"), b.cloud.described)
		}
		b.vanish("a")
		b.later(2 * time.Minute)
		if len(b.said("CellLost", "no longer in the cloud's list")) != 1 || b.phase("a") != "" {
			t.Errorf("the cell is %q; said %v", b.phase("a"), b.events)
		}
	})
}

func TestOfAnInstanceThatTheCloudHasForgottenTwoCompleteLooksDecide(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.set(func() { b.cloud.forgets = true })
		b.later(time.Second)
		b.request("a", "nano")
		b.later(10 * time.Second)
		b.cells.Release(ref("a").UID, "done", false)
		looks := func() (n int) {
			b.cloud.mu.Lock()
			defer b.cloud.mu.Unlock()
			return b.cloud.described
		}
		before := looks()
		b.later(time.Minute)
		if b.phase("a") != "" || looks()-before < 2 {
			t.Errorf("the cell is %q after %d looks that asked for it: want two at least", b.phase("a"), looks()-before)
		}
	})
}

func TestAListThatIsNotCompleteEndsNothing(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.set(func() { b.cloud.linger = true })
		b.later(time.Second)
		b.request("a", "nano")
		b.request("b", "nano")
		b.later(10 * time.Second)
		b.cells.Release(ref("b").UID, "done", false)
		b.later(10 * time.Second)
		b.cloud.mu.Lock()
		b.cloud.blind, b.cloud.forgets = []string{"z"}, true
		b.cloud.mu.Unlock()
		b.later(10 * time.Minute)
		if b.phase("a") != apiv1.Bound || b.phase("b") != apiv1.Terminating {
			t.Fatalf("without zone z a is %s, b %q", b.phase("a"), b.phase("b"))
		}
		b.cloud.mu.Lock()
		b.cloud.blind = nil
		clear(b.cloud.instances)
		b.cloud.mu.Unlock()
		b.vanish("a")
		b.later(2 * time.Minute)
		if b.phase("a") != "" || b.phase("b") != "" {
			t.Errorf("when zone z is seen again a is %q, b %q", b.phase("a"), b.phase("b"))
		}
	})
}

func TestAPodOfALostStoreWaitsUntilEveryZoneWasSeen(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.request("a", "nano")
		b.later(10 * time.Second)
		b.stop()
		b.store = store.Memory(nil)
		b.cloud.set(func() { b.cloud.linger, b.cloud.blind = true, []string{"z"} })
		b.cfg.Store = b.store
		b.run()
		b.request("a", "nano")
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 1 || b.phase("a") != apiv1.Requested {
			t.Fatalf("%d instances may run the pod; its cell is %s", n, b.phase("a"))
		}
		b.cloud.mu.Lock()
		b.cloud.blind = nil
		b.cloud.mu.Unlock()
		b.later(10 * time.Second) // the old one is seen
		b.takeOver()
		b.request("a", "nano")
		b.later(30 * time.Second) // and ends slowly
		b.cloud.mu.Lock()
		b.cloud.blind = []string{"z"}
		b.cloud.mu.Unlock()
		b.later(time.Minute)
		if b.phase("a") != apiv1.Requested {
			t.Fatalf("its cell is %s, since a list that does not cover zone z no longer shows the old instance", b.phase("a"))
		}
		b.cloud.mu.Lock()
		b.cloud.blind = nil
		clear(b.cloud.instances)
		b.cloud.mu.Unlock()
		b.later(30 * time.Second)
		if b.phase("a") != apiv1.Bound {
			t.Errorf("its cell is %s", b.phase("a"))
		}
	})
}

func TestMissingRightsPauseLaunchesAndAreSaidOnce(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.request("runs", "nano")
		b.later(10 * time.Second)
		b.cloud.mu.Lock()
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
			return cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("AuthFailure")), false
		}
		before := len(b.cloud.launches)
		b.cloud.mu.Unlock()
		for _, pod := range []string{"a", "b", "c"} {
			b.request(pod, "nano", "small")
		}
		b.later(10 * time.Minute)
		for _, pod := range []string{"a", "b", "c"} {
			if b.phase(pod) != apiv1.Requested {
				t.Errorf("the cell of %s is %q", pod, b.phase(pod))
			}
			if n := len(b.said("LaunchesPaused")); n > 3 {
				t.Errorf("said %d times for 3 pods", n)
			}
		}
		if n := len(b.cloud.launches) - before; n > 20 {
			t.Errorf("%d calls in ten minutes", n)
		}
		if b.phase("runs") != apiv1.Bound || len(b.cooled) != 0 {
			t.Errorf("the cell that runs is %s; cooled %v", b.phase("runs"), b.cooled)
		}
		b.cells.Release(ref("c").UID, "deleted", false)
		b.later(2 * time.Minute)
		b.cloud.mu.Lock()
		b.cloud.fail = nil
		b.cloud.mu.Unlock()
		b.later(2 * time.Minute)
		if b.phase("a") != apiv1.Bound || b.phase("b") != apiv1.Bound || b.phase("c") != "" {
			t.Errorf("with rights again a is %s, b %s, c %q", b.phase("a"), b.phase("b"), b.phase("c"))
		}
	})
}

func TestALaunchThatIsTooEarlyIsRepeatedAndBlamesNoOffering(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		early, tokens := 3, map[string]bool{}
		b.cloud.mu.Lock()
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			tokens[r.Token] = true
			if early--; early < 0 {
				return nil, false
			}
			return cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("InvalidGroup.NotFound")), false
		}
		b.cloud.mu.Unlock()
		b.request("soon", "nano")
		b.later(5 * time.Minute)
		b.cloud.mu.Lock()
		calls, names := len(b.cloud.launches), len(tokens)
		early = 1 << 30
		b.cloud.mu.Unlock()
		if b.phase("soon") != apiv1.Bound || calls != 4 || names != 1 {
			t.Errorf("the cell is %q after %d calls with %d tokens: want one bound after 4 with one", b.phase("soon"), calls, names)
		}
		b.request("never", "nano")
		b.later(time.Hour)
		if len(b.cooled) != 0 {
			t.Errorf("that the call is too early cools %v", b.cooled)
		}
	})
}

// Rights may be to some types only: the next offering is tried, and nobody else waits.
func TestAMissingRightToATypeIsARefusalOfThatTypeAlone(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		allowed := "small"
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			if r.InstanceType == allowed {
				return nil, false
			}
			scope := cloud.Scope{InstanceType: r.InstanceType, Zone: r.Zone}
			return cloud.No(cloud.ErrUnauthorised, scope, errors.New("UnauthorizedOperation")), false
		}
		b.later(time.Second)
		b.request("a", "nano", "small")
		b.request("b", "nano")
		b.later(time.Minute)
		if b.phase("a") != apiv1.Bound || b.phase("b") != "" || len(b.said("LaunchesPaused")) != 0 {
			t.Errorf("a is %q, b %q; said %v", b.phase("a"), b.phase("b"), b.events)
		}
		if !slices.Contains(b.cooled, "nano") || slices.Contains(b.cooled, "small") {
			t.Errorf("remembered %v", b.cooled)
		}
		// Where whatever is tried is refused, Kip asks now and then.
		b.cloud.set(func() { allowed = "" })
		for n := range 10 {
			b.request("c"+strconv.Itoa(n), "nano", "small", "medium", "large", "huge")
		}
		b.later(time.Second) // how many had gone together by then is the order of goroutines
		b.cloud.set(func() { b.cloud.launches = nil })
		b.later(10 * time.Minute)
		if n := len(b.cloud.launches); n > 20 || len(b.said("LaunchesPaused")) == 0 {
			t.Errorf("%d calls in ten minutes; said %v", n, b.events)
		}
		b.cloud.set(func() { allowed = "nano" })
		b.request("d", "nano")
		b.later(time.Hour) // one asks a minute, in any order: the others until nothing is left to ask for
		if b.phase("d") != apiv1.Bound {
			t.Errorf("with a right again d is %q", b.phase("d"))
		}
	})
}

func TestAMachineWithoutAnAddressForItsPodSaysSo(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.set(func() { b.cloud.onlyManagement = true })
		b.later(time.Second)
		b.request("a", "nano")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		const want = "alone and no address for its pod"
		if waits := b.cells.WaitsFor(cell.ID); cell.Phase != apiv1.Booting || !strings.Contains(waits, want) {
			t.Errorf("the cell is %s, and waits since %s", cell.Phase, waits)
		}
		b.later(time.Hour)
		if len(b.said("CellNotReady", "did not join in time", want)) == 0 {
			t.Errorf("said: %v", b.said("CellNotReady"))
		}
	})
}

func TestKipDialsTheAddressThatTheContractNames(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.set(func() { b.cloud.capabilities.DialPublic = true })
		b.later(time.Second)
		b.request("a", "nano")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Phase != apiv1.Booting || !strings.Contains(b.cells.WaitsFor(cell.ID), "it has no public address, at which") {
			t.Fatalf("without a public address the cell is %s, and waits since %s", cell.Phase, b.cells.WaitsFor(cell.ID))
		}
		public := netip.MustParseAddr("192.0.2.7")
		b.cloud.mu.Lock()
		i := b.cloud.instances[cell.Instance.ID]
		i.PublicIP = public
		b.cloud.instances[i.ID] = i
		b.cloud.mu.Unlock()
		b.later(time.Minute)
		if got := b.links.of(cell.ID).addr; got.Addr() != public || b.phase("a") != apiv1.Bound {
			t.Errorf("dialled %s, the cell is %s", got, b.phase("a"))
		}
	})
}

func TestALaunchWaitsForAMemberThatDoesNotKnowThatItIsStored(t *testing.T) {
	var launches atomic.Int32
	var deaf atomic.Pointer[string] // the cell whose record nobody can read
	var lost atomic.Bool
	isDeaf := func(key string) bool { id := deaf.Load(); return id != nil && strings.Contains(key, *id) }
	slow := slowFirstLaunch(&launches)
	st := store.MemoryWith(func(op, key string) error {
		if op == "applied" && strings.Contains(key, launchesPrefix) && isDeaf(key) && lost.CompareAndSwap(false, true) {
			return errors.New("the answer is lost")
		}
		return slow(op, key)
	}, func(key string) error {
		if lost.Load() && isDeaf(key) {
			return errors.New("the store does not answer")
		}
		return nil
	})
	inBubble(t, func(c *setup) { c.Store = st }, nil, func(t *testing.T, b *bubble) {
		b.store = st
		b.later(time.Second)
		b.ask("x", Options{}, "nano")
		time.Sleep(100 * time.Millisecond) // its launch is being stored
		a := b.ask("a", Options{}, "nano")
		deaf.Store(&a.ID)
		b.ask("b", Options{}, "nano")
		b.later(20 * time.Second)
		if waits := b.phase("b"); !lost.Load() || waits != apiv1.Launching && waits != apiv1.Requested {
			t.Fatalf("lost %t, b is %s: want it to wait for a", lost.Load(), waits)
		}
		deaf.Store(nil)
		b.later(time.Minute)
		for _, pod := range []string{"x", "a", "b"} {
			if got := b.phase(pod); got != apiv1.Bound {
				t.Errorf("pod %s has a cell that is %q, want it bound", pod, got)
			}
		}
		if left, running := b.launchesStored(), b.cloud.running(); len(left) != 0 || len(running) != 3 {
			t.Errorf("stored launches %v, instances %v", left, running)
		}
	})
}

func TestALaunchWhoseCallIsNowhereIsGivenUp(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return errors.New("no answer"), false }
		b.later(time.Second)
		cell := b.ask("a", Options{}, "nano")
		b.later(time.Second)
		b.stop()
		// What a restored backup may hold: a cell of a launch of two, and no call.
		for _, key := range b.launchesStored() {
			var any json.RawMessage
			revision, err := b.store.Get(b.Context(), key, &any)
			if err != nil || b.store.Delete(b.Context(), key, revision) != nil {
				t.Fatal(key, err)
			}
		}
		stored := Cell{}
		revision, err := b.store.Get(b.Context(), keyPrefix+cell.ID, &stored)
		if err != nil || stored.Launch == nil {
			t.Fatalf("%+v, %v", stored.Launch, err)
		}
		stored.Launch.Cells = 2
		if _, err := b.store.Put(b.Context(), keyPrefix+cell.ID, stored, revision); err != nil {
			t.Fatal(err)
		}
		b.run()
		b.later(2 * time.Minute)
		if _, has := b.cells.ForPod(ref("a").UID); has {
			t.Errorf("its cell is %s: want it to be gone", b.phase("a"))
		}
		if said := b.said("CellNotLaunched", "is lost"); len(said) == 0 {
			t.Errorf("said %v", b.events)
		}
	})
}

// resumed has the launch of two pods outlive a Kip that has not heard of its outcome. The
// next Kip tells of its reads of the call first, and of its writes of it when they are done.
func resumed(t *testing.T, f func(b *bubble, reads, writes *atomic.Pointer[func()])) {
	var reads, writes atomic.Pointer[func()]
	var call atomic.Pointer[string] // its key
	tell := func(of *atomic.Pointer[func()], key string) {
		if do, of := of.Load(), call.Load(); do != nil && strings.Contains(key, *of) {
			(*do)()
		}
	}
	slow := slowFirstLaunch(new(atomic.Int32))
	st := store.MemoryWith(func(op, key string) error {
		if op == "applied" {
			tell(&writes, key)
		}
		return slow(op, key)
	}, func(key string) error { tell(&reads, key); return nil })
	inBubble(t, func(c *setup) { c.Store = st }, nil, func(t *testing.T, b *bubble) {
		b.store = st
		b.cloud.set(func() {
			b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
				if len(r.Machines) == 2 {
					return errors.New("timeout"), true
				}
				return nil, false
			}
		})
		b.later(time.Second)
		b.request("x", "nano")
		time.Sleep(100 * time.Millisecond) // its launch is being stored: the others gather
		b.request("a", "nano")
		b.request("b", "nano")
		b.later(10 * time.Second)
		b.stop()
		stored := b.launchesStored()
		if len(stored) != 1 || b.phase("a") != apiv1.Launching || b.phase("b") != apiv1.Launching {
			t.Fatalf("stored launches %v, a is %s, b is %s: want one of both", stored, b.phase("a"), b.phase("b"))
		}
		call.Store(&stored[0])
		b.cloud.set(func() { b.cloud.fail, b.cloud.launches = nil, nil })
		f(b, &reads, &writes)
	})
}

// A Kip that no longer leads: between its looks at the store another one stores what became
// of the launch.
func TestALaunchWhoseOutcomeASuccessorHasStoredIsNotSentAgain(t *testing.T) {
	resumed(t, func(b *bubble, reads, _ *atomic.Pointer[func()]) {
		var once sync.Once
		succeed := func() {
			once.Do(func() {
				var changes []store.Change
				of := func(key string, data []byte, revision int64) error {
					var cell Cell
					err := json.Unmarshal(data, &cell)
					if cell.Phase == apiv1.Launching {
						cell.Phase, cell.Instance = apiv1.Booting, &cloud.Instance{ID: "i-" + cell.ID}
						changes = append(changes, store.Change{Key: key, Value: cell, Revision: revision})
					}
					return err
				}
				err := b.store.List(b.Context(), keyPrefix, of)
				if err == nil {
					err = b.store.List(b.Context(), launchesPrefix, func(key string, _ []byte, revision int64) error {
						changes = append(changes, store.Change{Key: key, Revision: revision})
						return nil
					})
				}
				if err == nil {
					_, err = b.store.Apply(b.Context(), changes...)
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		reads.Store(&succeed)
		b.run()
		b.later(time.Minute)
		select {
		case err := <-b.ended:
			if !errors.Is(err, store.ErrConflict) {
				b.Errorf("a Kip whose records another writes ended with %v", err)
			}
			b.stop = func() {}
		default:
			b.Error("a Kip whose records another writes goes on")
		}
		if n := len(b.cloud.launches); n != 0 {
			b.Errorf("it sent %d launches", n)
		}
	})
}

// Of the workers of one Kip one has sent the launch and stored its outcome when the other
// looks for the call.
func TestALaunchThatAnotherOfItsCellsHasTakenUpIsLeftToThat(t *testing.T) {
	resumed(t, func(b *bubble, reads, writes *atomic.Pointer[func()]) {
		var read atomic.Int32
		var once sync.Once
		both, resolved := make(chan struct{}), make(chan struct{})
		wait := func() {
			switch read.Add(1) {
			case 1:
				<-both // else it may have begun before the other looks
			case 2:
				close(both)
				<-resolved
			}
		}
		tell := func() { once.Do(func() { close(resolved) }) }
		reads.Store(&wait)
		writes.Store(&tell)
		b.run()
		b.later(time.Minute)
		if read.Load() < 2 {
			b.Error("only one has asked for the call: the test is about both")
		}
		if n := len(b.cloud.launches); n != 1 || b.phase("a") != apiv1.Bound || b.phase("b") != apiv1.Bound || len(b.ended) != 0 {
			b.Errorf("it was sent %d times; a is %q, b is %q; Kip has ended: %d", n, b.phase("a"), b.phase("b"), len(b.ended))
		}
	})
}
