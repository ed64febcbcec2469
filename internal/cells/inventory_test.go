package cells

import (
	"bytes"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/utils/clock"
)

func TestAnOrphanIsTerminatedOnlyAfterASecondLook(t *testing.T) {
	w := newWorld(t)
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	w.stop() // looks are made by hand from here
	w.cloud.instances["i-orphan"] = cloud.Instance{
		ID:    "i-orphan",
		State: cloud.Running,
		Tags:  map[string]string{cloud.TagOwner: "me", cloud.TagCell: "cell-lost"},
	}
	w.cloud.instances["i-foreign"] = cloud.Instance{
		ID:    "i-foreign",
		State: cloud.Running,
		Tags:  map[string]string{cloud.TagOwner: "another"},
	}
	began := time.Now()
	for _, tc := range []struct {
		at   time.Duration
		want int
	}{{0, 0}, {orphanAge - 1, 0}, {orphanAge, 1}} {
		list, err := w.cloud.List(t.Context(), "me")
		if err != nil {
			t.Fatal(err)
		}
		w.cells.oversight.lister.comparing.compare(t.Context(), began.Add(tc.at), list)
		if got := len(w.cells.core.terminations.byInstance); got != tc.want {
			t.Fatalf("after %s %d are to end, want %d", tc.at, got, tc.want)
		}
	}
	w.cells.ends.terminateCalls.callAll(t.Context(), w.cells.core.terminations.queued.items)
	w.cells.core.loop.running.Wait()
	if w.cloud.terminated["i-orphan"] != 1 || len(w.cloud.terminated) != 1 {
		t.Fatalf("terminated %v", w.cloud.terminated)
	}
}

func TestAnInstanceThatListsHideHoldsUpTheOthersForAWhileOnly(t *testing.T) {
	var log strings.Builder
	inBubble(t, func(c *setup) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(2)
		hidden, _ := b.cells.ForPod(ref(pods[0]).UID)
		b.cloud.set(func() { b.cloud.hidden[hidden.Instance.ID], b.cloud.forgets = true, true })
		b.vanish(pods[1])
		b.later(4 * time.Minute)
		if b.phase(pods[1]) != apiv1.Terminating {
			t.Errorf("by a list that is wrong of another a cell is %q", b.phase(pods[1]))
		}
		b.later(3 * time.Minute)
		if b.phase(pods[0]) != apiv1.Bound || b.phase(pods[1]) != "" {
			t.Errorf("the hidden one is %q, the other %q", b.phase(pods[0]), b.phase(pods[1]))
		}
		b.later(time.Hour)
		if n := strings.Count(log.String(), "instance="+hidden.Instance.ID+" owner=me"); n != 1 {
			t.Errorf("it is told %d times: %s", n, log.String())
		}
		b.cloud.set(func() { clear(b.cloud.hidden) })
		b.later(time.Minute)
		if b.cells.core.inventory.mu.Lock(); len(b.cells.core.inventory.sightings) != 0 {
			t.Errorf("%v is kept for ever", b.cells.core.inventory.sightings)
		}
		b.cells.core.inventory.mu.Unlock()
	})
}

func TestALookCountsBeforeTheCloudSaysWhatItLacks(t *testing.T) {
	var b *bubble
	asked := 0
	inBubble(t, func(c *setup) {
		c.Cloud.(*modelCloud).describes = func() {
			if asked++; !b.cells.core.inventory.last().began.Equal(time.Now()) {
				t.Error("the cloud is asked of an instance before the snapshot counts for the others")
			}
		}
	}, nil, func(t *testing.T, in *bubble) {
		b = in
		pods := b.bound(2)
		b.vanish(pods[0])
		b.later(time.Minute)
		if asked == 0 || b.phase(pods[0]) != "" {
			t.Errorf("asked %d times, the cell that is gone is %q", asked, b.phase(pods[0]))
		}
	})
}

// Kip may have launched where it launches no more, of which the cloud's driver knows nothing.
func TestTheZoneOfACellThatTheCloudDidNotLookAtIsMissing(t *testing.T) {
	launching := &Cell{ID: "c", Phase: apiv1.Terminating, Launch: &Launch{}, Offerings: []Offering{{Zone: "e"}}}
	elsewhere := on("i", 1000)
	elsewhere.Instance.Zone = "e"
	for what, cell := range map[string]*Cell{"launching": launching, "launched": elsewhere} {
		v := newInventory(Health{}, 0)
		f := described(v, 2000, cloud.Gone, []known{{cell: cell}}, cloud.Listing{Looked: []string{"a"}})
		if look := v.last(); !look.blind || look.complete() || look.covers("e") || !look.covers("a") || len(f.lacking) > 0 {
			t.Errorf("%s: the snapshot is blind %t, complete %t, without %v", what, look.blind, look.complete(), look.missing)
		}
		described(v, 2020, cloud.Gone, []known{{cell: cell}}, cloud.Listing{Looked: []string{"a", "e"}})
		if look := v.last(); look.blind || !look.covers("e") {
			t.Errorf("%s: once the cloud has looked there: blind %t, without %v", what, look.blind, look.missing)
		}
	}
}

// found is what follows from a snapshot and from what the cloud says then.
type found struct {
	findings
	vanished []*Cell
}

// shown lets an inventory see a complete list at a time, in seconds. What the list
// lacks is gone.
func shown(v *inventory, seconds int, cells []known, list ...cloud.Instance) found {
	return described(v, seconds, cloud.Gone, cells, cloud.Listing{Instances: list})
}

// described is shown, with what the cloud says of each instance that a listing lacks.
func described(v *inventory, seconds int, state cloud.State, cells []known, listing cloud.Listing) found {
	for n, k := range cells {
		cells[n].addressed = k.cell.Instance == nil || k.cell.Instance.PodIP.IsValid()
	}
	v.born = time.Unix(100, 0)
	seen, f := v.compare(time.Unix(int64(seconds), 0), listing, cells)
	states := map[string]cloud.State{}
	for _, a := range f.absent {
		states[a.instance()] = state
	}
	v.adopt(seen, f, states)
	all := found{findings: f}
	for _, a := range f.absent {
		if a.due && v.last().ended[a.instance()] {
			all.vanished = append(all.vanished, a.cell)
		}
	}
	return all
}

// on is a bound cell on an instance that was launched at a time, in seconds.
func on(instance string, launched int) *Cell {
	return &Cell{ID: "cell-" + instance, Phase: apiv1.Bound, Instance: &cloud.Instance{
		ID:       instance,
		Launched: time.Unix(int64(launched), 0),
		PodIP:    netip.AddrFrom4([4]byte{127, 0, 0, 3}),
	}}
}

func TestACellVanishesOnlyWhenLooksHaveLackedItForLong(t *testing.T) {
	const lag = 10 * time.Second
	i := cloud.Instance{ID: "i", State: cloud.Running}
	type look struct {
		at     int
		there  bool
		cutOff bool
		lost   bool
	}
	for name, looks := range map[string][]look{
		"never seen":                           {{at: 1000}, {at: 1019}, {at: 1020, lost: true}},
		"cut off as well":                      {{at: 1000}, {at: 1003, cutOff: true}, {at: 1004, cutOff: true, lost: true}},
		"seen in between":                      {{at: 1000}, {at: 1019, there: true}, {at: 1021}, {at: 1040}, {at: 1041, lost: true}},
		"too young for the list":               {{at: 205}, {at: 209}, {at: 211}, {at: 230}, {at: 231, lost: true}},
		"the first snapshot is never the last": {{at: 100000, cutOff: true}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newInventory(Health{}, lag)
			for _, l := range looks {
				var list []cloud.Instance
				if l.there {
					list = append(list, i)
				}
				f := shown(v, l.at, []known{{cell: on("i", 200), cutOff: l.cutOff}}, list...)
				if got := len(f.vanished) == 1; got != l.lost {
					t.Errorf("at %d s it has vanished: %t, want %t", l.at, got, l.lost)
				}
			}
		})
	}
}

func TestACellIsGoneWhenTheCloudSaysSoOrTwoCompleteLooksLackIt(t *testing.T) {
	blind := cloud.Listing{Missing: []string{"a"}}
	type look struct {
		at      int
		listing cloud.Listing
		says    cloud.State
		lost    bool
	}
	for name, looks := range map[string][]look{
		"the cloud says so":          {{at: 1000}, {at: 1020, says: cloud.Gone, lost: true}},
		"the cloud has forgotten it": {{at: 1000}, {at: 1020, says: cloud.Unknown, lost: true}},
		"the cloud does not answer":  {{at: 1000}, {at: 1020}, {at: 1040}},
		"the list is wrong of it": {{at: 1000}, {at: 1020, says: cloud.Running}, {at: 1030, says: cloud.Gone},
			{at: 1050, says: cloud.Gone, lost: true}},
		"its zone is not covered":            {{at: 1000, listing: blind}, {at: 1020, listing: blind, says: cloud.Gone}},
		"its zone is not covered in between": {{at: 1000}, {at: 1010, listing: blind}, {at: 1020, says: cloud.Gone, lost: true}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newInventory(Health{}, 0)
			cell := on("i", 200)
			cell.Instance.Zone = "a"
			for _, l := range looks {
				f := described(v, l.at, l.says, []known{{cell: cell}}, l.listing)
				if got := len(f.vanished) == 1; got != l.lost {
					t.Errorf("at %d s it has vanished: %t, want %t", l.at, got, l.lost)
				}
			}
		})
	}
}

// What runs on such an instance goes on until it has ended.
func TestACellThatEndsIsGoneByTwoLooksThatAreAsFarApartAsAListMayLag(t *testing.T) {
	const lag = 10 * time.Second
	for name, looks := range map[string][]struct {
		at   int
		says cloud.State
		gone bool
	}{
		"the cloud does not know it":   {{at: 1000, says: cloud.Unknown}, {at: 1009, says: cloud.Unknown}, {1010, cloud.Unknown, true}},
		"the cloud says that it ended": {{1000, cloud.Gone, true}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newInventory(Health{}, lag)
			cell := on("i", 200)
			cell.Phase = apiv1.Terminating
			for _, l := range looks {
				described(v, l.at, l.says, []known{{cell: cell, terminated: time.Unix(900, 0)}}, cloud.Listing{})
				if got := v.last().ended["i"]; got != l.gone {
					t.Errorf("at %d s it is gone: %t, want %t", l.at, got, l.gone)
				}
			}
		})
	}
}

func TestTheEndOfACellIsNoLoss(t *testing.T) {
	v := newInventory(Health{}, 0)
	cell := on("i", 200)
	cell.Phase = apiv1.Terminating
	for _, at := range []int{1000, 2000} {
		f := shown(v, at, []known{{cell: cell}})
		if len(f.vanished) != 0 || !slices.Equal(f.wake, []string{cell.ID}) {
			t.Errorf("at %d s %d have vanished, and %v are woken", at, len(f.vanished), f.wake)
		}
	}
}

func TestALookWakesTheCellsThatWaitForOne(t *testing.T) {
	bound, addressless := on("i-1", 200), on("i-2", 200)
	addressless.Phase, addressless.Instance.PodIP = apiv1.Booting, netip.Addr{}
	stopping := on("i-3", 200)
	stopping.Phase, stopping.Stopped, stopping.Instance.State = apiv1.Ready, true, cloud.Running
	requested, launching := &Cell{ID: "requested", Phase: apiv1.Requested}, &Cell{ID: "launching", Phase: apiv1.Launching}
	var all []known
	for _, cell := range []*Cell{bound, addressless, stopping, requested, launching} {
		all = append(all, known{cell: cell})
	}
	f := shown(newInventory(Health{}, 0), 1000, all, cloud.Instance{ID: "i-3", State: cloud.Stopped})
	if want := []string{"cell-i-2", "cell-i-3", "requested", "launching"}; !slices.Equal(f.wake, want) {
		t.Errorf("it wakes %v, want %v", f.wake, want)
	}
}

func TestAnInstanceOfALostStoreIsAStrangerUnlessItSaysItsPod(t *testing.T) {
	v := newInventory(Health{}, 0)
	old, ahead, young := time.Unix(99, 0), time.Unix(99+120, 0), time.Unix(101, 0).Add(cloudSkew)
	tagged := func(id string, launched time.Time, tags map[string]string) cloud.Instance {
		return cloud.Instance{ID: id, Launched: launched, Tags: tags}
	}
	shown(v, 1000, []known{{cell: on("i-own", 50)}, {cell: &Cell{ID: "launching", Phase: apiv1.Launching}}},
		tagged("i-own", old, nil),
		tagged("i-launching", old, map[string]string{cloud.TagCell: "launching"}),
		tagged("i-pod", old, map[string]string{cloud.TagPodUID: "uid"}),
		tagged("i-young", young, nil),
		tagged("i-ahead", ahead, nil), // by a cloud's clock that is two minutes ahead
		tagged("i-stranger", old, nil),
	)
	last := v.last()
	slices.Sort(last.lostOrphans)
	if !slices.Equal(last.lostOrphans, []string{"i-ahead", "i-stranger"}) || !slices.Equal(last.byPod["uid"], []string{"i-pod"}) {
		t.Errorf("lost orphans %v, instances by pod %v", last.lostOrphans, last.byPod)
	}
}

func TestACellsOwnInstanceIsTheOneThatItsRecordNames(t *testing.T) {
	for _, ids := range [][]string{{"i-own", "i-double"}, {"i-double", "i-own"}} {
		v := newInventory(Health{}, 0)
		var list []cloud.Instance
		for _, id := range ids {
			list = append(list, cloud.Instance{ID: id, Tags: map[string]string{cloud.TagCell: "cell-i-own"}})
		}
		f := shown(v, 1000, []known{{cell: on("i-own", 200)}}, list...)
		if got := v.last().byCell["cell-i-own"]; got != "i-own" || f.newOrphans != 1 {
			t.Errorf("the cell's instance is %s, %d orphans are found", got, f.newOrphans)
		}
	}
}

func TestAListThatLacksACellThatIsHeardProvesNothingOfOthers(t *testing.T) {
	v := newInventory(Health{}, 0)
	heard, silent := on("i-heard", 200), on("i-silent", 200)
	cells := []known{{cell: heard, heard: true}, {cell: silent, cutOff: true}}
	for at := 1000; at < 2000; at += 100 {
		if f := described(v, at, cloud.Unknown, cells, cloud.Listing{}); len(f.vanished) != 0 {
			t.Fatalf("at %d s %d have vanished by a list that is empty, while a cell is heard", at, len(f.vanished))
		}
	}
	if f := described(v, 2000, cloud.Gone, cells, cloud.Listing{}); len(f.vanished) != 2 {
		t.Errorf("%d have vanished when the cloud says of each that it is gone, want both: the guard has the last word", len(f.vanished))
	}
	cells[0].heard = false
	for _, at := range []int{2100, 2200} {
		described(v, at, cloud.Unknown, cells, cloud.Listing{})
	}
	if f := described(v, 2300, cloud.Unknown, cells, cloud.Listing{}); len(f.vanished) != 2 {
		t.Errorf("%d have vanished when none is heard, want both", len(f.vanished))
	}
}

func TestAnInstanceWithoutACellIsNotGoneForOneLookThatLacksIt(t *testing.T) {
	v := newInventory(Health{}, 0)
	i := cloud.Instance{ID: "i", State: cloud.Running, Tags: map[string]string{cloud.TagPodUID: "uid"}}
	there := func() bool { return len(v.last().byPod["uid"]) == 1 }
	cell := on("i-heard", 200)
	shown(v, 1000, nil, i)
	for _, l := range []struct {
		at   int
		list []cloud.Instance
		wait bool
		want bool
	}{
		{at: 1010, want: true},
		{at: 1020, list: []cloud.Instance{i}, want: true},
		{at: 1030, want: true},
		{at: 1040, wait: true, want: true}, // the list is wrong of another
		{at: 1050},
	} {
		shown(v, l.at, []known{{cell: cell, heard: l.wait}}, l.list...)
		if there() != l.want {
			t.Errorf("at %d s it is there: %t, want %t", l.at, there(), l.want)
		}
	}
}

func TestAnEmptyListEndsNoCellThatIsHeard(t *testing.T) {
	for name, health := range map[string]Health{
		"by the lease": {HealthyTimeout: 90 * time.Second, Check: 5 * time.Second},
		"by the list":  {CloudAPI: true, HealthyTimeout: 3 * time.Minute, Interval: time.Minute, Check: 5 * time.Second},
	} {
		inBubble(t, func(c *setup) { c.Health = health }, nil, func(t *testing.T, b *bubble) {
			pods := b.bound(30)
			b.cloud.set(func() { // of another account: it knows nothing, and refuses nothing
				clear(b.cloud.instances)
				b.cloud.forgets = true
			})
			b.later(time.Hour)
			if ended := b.unbound(pods); len(ended) != 0 {
				t.Fatalf("%s: %v have ended", name, ended)
			}
			b.stop()
			b.run() // nor right after a start, when none could be heard yet
			b.later(time.Hour)
			if ended := b.unbound(pods); len(ended) != 0 {
				t.Fatalf("%s: %v have ended after a restart", name, ended)
			}
		})
	}
}

func TestAnInstanceThatIsNotDescribedHidesNoOther(t *testing.T) {
	m := &modelCloud{instances: map[string]cloud.Instance{"i-1": {ID: "i-1", State: cloud.Running}}, odd: "i-2"}
	c := &describing{
		calls: pipe.New(pipe.Config{Cloud: m, Clock: clock.RealClock{}}),
		log:   slog.New(slog.DiscardHandler),
	}
	var asked []absent
	for _, id := range []string{"i-1", "i-2", "i-3"} {
		asked = append(asked, absent{cell: &Cell{Instance: &cloud.Instance{ID: id}}})
	}
	states, _ := c.describe(t.Context(), asked)
	if want := map[string]cloud.State{"i-1": cloud.Running, "i-3": cloud.Gone}; !maps.Equal(states, want) {
		t.Errorf("told of %v, want %v", states, want)
	}
}

// As whoever may tag instances, and may not end them, would have Kip do.
func TestAnInstanceThatSomebodyElseHasLaunchedIsLeftAlone(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, func(c *setup) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.cloud.set(func() {
			for id, tags := range map[string]map[string]string{
				"i-stray":   {},
				"i-unknown": {cloud.TagGeneration: "another.9"},
				"i-pods":    {cloud.TagPodUID: "b"},
				"i-cells":   {cloud.TagCell: cell.ID},
			} {
				tags[cloud.TagOwner] = b.cfg.ControllerID
				b.cloud.instances[id] = cloud.Instance{
					ID: id, Zone: "z", State: cloud.Running, Launched: time.Now(), Tags: tags, Origin: cloud.Origin{Token: "another's"},
				}
			}
			own := b.cloud.instances[cell.Instance.ID]
			own.Origin.Token = "that of no launch" // of a cell's own nobody asks
			b.cloud.instances[own.ID] = own
		})
		b.later(5 * time.Minute)
		b.request("b", "nano")
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 6 || b.phase("a") != apiv1.Bound || b.phase("b") != apiv1.Bound {
			t.Errorf("%d instances run, want 6; the cells are %q and %q: %v", n, b.phase("a"), b.phase("b"), b.events)
		}
		if why, _ := b.cells.Behind(); why != "" {
			t.Errorf("the store counts as behind: %s", why)
		}
		if n := strings.Count(log.String(), "was launched by somebody else"); n != 4 {
			t.Errorf("it is told %d times: %s", n, &log)
		}
	})
}
