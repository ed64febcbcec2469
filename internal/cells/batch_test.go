package cells

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

// sharing gives the model the trait and a Tagger.
func (b *bubble) sharing() {
	b.cloud.set(func() {
		b.cloud.capabilities.SharedUserData = true
		b.cloud.optional.Tagger = b.cloud
	})
}

// calls are the requests that the cloud gets from now on.
func (b *bubble) calls() *[]cloud.LaunchRequest {
	var sent []cloud.LaunchRequest
	b.cloud.set(func() {
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
			sent = append(sent, r)
			return nil, false
		}
	})
	return &sent
}

// stored is all that is in the store, as text.
func (b *bubble) stored() string {
	b.Helper()
	var text strings.Builder
	if err := b.store.List(b.Context(), "", func(key string, data []byte, _ int64) error {
		text.WriteString(key + " " + string(data) + "\n")
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return text.String()
}

func (b *bubble) hour(pod string) Cell {
	b.Helper()
	return b.ask(pod, Options{}, "nano")
}

func TestABatchSharesItsUserDataAndEachMachineIsTheCellOfItsPlace(t *testing.T) {
	inBubble(t, func(c *setup) { c.NameTag, c.CAHash = "prod", strings.Repeat("ab", 32) }, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		sent := b.calls()
		b.later(time.Second)
		for _, pod := range []string{"a", "b", "c"} {
			b.hour(pod)
		}
		b.later(10 * time.Second)
		machines := 0
		for _, r := range *sent {
			machines += len(r.Machines)
			if !r.Shared() || r.OwnData() {
				t.Fatalf("the machines of a launch have data of their own: %+v", r.Machines)
			}
			want := map[string]string{
				cloud.TagOwner:      "me",
				cloud.TagNameTag:    "prod",
				cloud.TagBatch:      r.Tags[cloud.TagBatch],
				cloud.TagGeneration: r.Tags[cloud.TagGeneration],
			}
			if !maps.Equal(r.Tags, want) || want[cloud.TagBatch] == "" || want[cloud.TagGeneration] == "" {
				t.Errorf("the launch has the tags %v", r.Tags)
			}
		}
		if machines != 3 {
			t.Fatalf("%d machines were launched for 3 pods", machines)
		}
		tokens := map[string]bool{}
		for _, pod := range []string{"a", "b", "c"} {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			if cell.Phase != apiv1.Bound {
				t.Fatalf("the cell of %s is %s; said %v", pod, cell.Phase, b.events)
			}
			n := slices.IndexFunc(*sent, func(r cloud.LaunchRequest) bool { return r.Tags[cloud.TagBatch] == cell.Launch.ID })
			machine, err := cloudinit.Parse((*sent)[n].UserData, cell.Instance.Place)
			if err != nil {
				t.Fatal(err)
			}
			// What Kip dials the instance for is what its machine knows.
			target := b.links.of(cell.ID).target
			if target.CellID != machine.CellID || target.Token.Reveal() != machine.Token || machine.CellID == cell.ID {
				t.Errorf("the machine of %s is %s, and Kip expects %s", cell.ID, machine.CellID, target.CellID)
			}
			if cell.Token != "" || strings.Contains(b.stored(), machine.Token) {
				t.Errorf("the token of %s is stored after it was spent", cell.ID)
			}
			tokens[machine.Token] = true
		}
		if len(tokens) != 3 {
			t.Errorf("%d tokens for 3 machines", len(tokens))
		}
	})
}

func TestTheSecretOfABatchIsDroppedWithItsCallAndNeverSaid(t *testing.T) {
	var log strings.Builder
	verbose := func(c *setup) {
		c.CAHash = strings.Repeat("ab", 32)
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	inBubble(t, verbose, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		sent := b.calls()
		b.links.boots = func(string) bool { return false }
		b.later(time.Second)
		b.hour("a")
		b.later(5 * time.Second)
		text := string((*sent)[0].UserData)
		_, after, _ := strings.Cut(text, "secret: ")
		secret, _, _ := strings.Cut(after, "\n")
		if len(secret) < 40 {
			t.Fatalf("no secret in %q", text)
		}
		cell, _ := b.cells.ForPod(ref("a").UID)
		token := cell.Token
		if cell.Phase != apiv1.Booting || token == "" || strings.Contains(b.stored(), secret) {
			t.Fatalf("its cell is %s, has a token: %t; or the secret is stored still", cell.Phase, token != "")
		}
		if !strings.Contains(b.stored(), token) {
			t.Fatal("the token is not stored: the test shows nothing")
		}
		b.later(time.Hour) // its boot timeout
		if strings.Contains(b.stored(), token) {
			t.Error("a token is stored after its boot timeout")
		}
		said := log.String() + strings.Join(b.events, "\n")
		if strings.Contains(said, secret) || strings.Contains(said, token) {
			t.Error("a secret is in the log or in an event")
		}
	})
}

func TestAMachineThatJoinsTooLateIsRefused(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.links.boots = func(string) bool { return false }
		b.later(time.Second)
		id := b.hour("a").ID
		b.later(5 * time.Second)
		b.cells.core.table.mu.Lock()
		e := b.cells.core.table.byID[id]
		b.cells.core.table.mu.Unlock()
		b.stop() // as if its worker were held up
		b.later(time.Hour)
		if err := b.cells.links.connections.dialling.tokens.spend(context.Background(), e, "key"); err == nil || e.cell().KeyHash != "" {
			t.Errorf("the token is spent on %q after the boot timeout: %v", e.cell().KeyHash, err)
		}
		b.run()
		b.later(time.Minute)
		if b.phase("a") == apiv1.Booting || len(b.cloud.running()) != 0 {
			t.Errorf("the cell is %s, instances %v: want it replaced", b.phase("a"), b.cloud.running())
		}
	})
}

// A launch whose outcome stays open goes with its secret: at the boot timeout, also where
// Kip was down for so long.
func TestALaunchIsNotSentAfterItsSecretHasExpired(t *testing.T) {
	for _, c := range []struct {
		what          string
		fails         error
		started, down bool
		anew          bool // it is launched again, with another secret
	}{
		{what: "throttled, nothing done", fails: cloud.No(cloud.ErrThrottled, cloud.Scope{}, nil), anew: true},
		{what: "throttled, perhaps done", fails: &cloud.Error{Cause: cloud.ErrThrottled}, started: true},
		{what: "answer lost, and Kip down", fails: errors.New("connection reset"), started: true, down: true},
	} {
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.sharing()
			var batches []string
			b.cloud.set(func() {
				b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
					if batch := r.Tags[cloud.TagBatch]; !slices.Contains(batches, batch) {
						batches = append(batches, batch)
					}
					return c.fails, c.started
				}
			})
			b.later(time.Second)
			b.hour("a")
			b.later(time.Second)
			before := b.launchesStored()
			if len(before) != 1 {
				t.Fatalf("%s: stored calls %v", c.what, before)
			}
			if c.down {
				b.stop()
				b.later(time.Hour)
				b.run()
				b.later(time.Minute)
			} else {
				b.later(time.Hour)
			}
			if slices.Contains(b.launchesStored(), before[0]) {
				t.Errorf("%s: the call is stored after its boot timeout", c.what)
			}
			b.later(time.Minute) // calls of its kind pause, as the cloud throttles them
			if got := len(batches) > 1; got != c.anew {
				t.Errorf("%s: batches %v: want another %t", c.what, batches, c.anew)
			}
			if n := len(b.cloud.running()); n != 0 {
				t.Errorf("%s: %d instances are left", c.what, n)
			}
			if len(b.cooled) != 0 && c.anew {
				t.Errorf("%s: the offering is cooled, of which nothing is known", c.what)
			}
		})
	}
}

func TestAnInstanceAtAPlaceIsTheCellsThatWasGivenUp(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.cloud.set(func() {
			b.cloud.linger = true
			b.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return errors.New("no answer"), true }
		})
		b.later(time.Second)
		b.hour("a")
		b.hour("b")
		b.later(3 * time.Minute) // it is given up
		for _, pod := range []string{"a", "b"} {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			if cell.Phase != apiv1.Terminating || cell.Instance == nil || joinIDOf(*cell.Instance) != cell.JoinID() {
				t.Errorf("the cell of %s is %s, on %+v: want the instance at its place", pod, cell.Phase, cell.Instance)
			}
		}
	})
}

func TestAnAnswerWithAnotherPlaceIsNotBelieved(t *testing.T) {
	l := &launch{group: make([]*entry, 2), request: cloud.LaunchRequest{UserData: []byte("x")}}
	results := cloud.AllLaunched(cloud.Instance{ID: "i-1", Place: "1"}, cloud.Instance{ID: "i-2", Place: "1"})
	got := checked(results, l)
	if got[0].Err == nil || cloud.NothingDone(got[0].Err) || got[1].Err != nil {
		t.Errorf("places 1 and 1 of a launch of two: %v, %v", got[0].Err, got[1].Err)
	}
}

func TestAStoredCallOfTheFirstVersionIsSentAsItIs(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return errors.New("timeout"), true }
		b.later(time.Second)
		b.request("a", "nano")
		b.later(time.Second)
		b.stop()
		var record map[string]json.RawMessage
		key := b.launchesStored()[0]
		revision, err := b.store.Get(t.Context(), key, &record)
		if err != nil || len(record) != 2 {
			t.Fatalf("a call that shares nothing is stored as %s, %v", record, err)
		}
		record["version"] = json.RawMessage("1")
		if _, err := b.store.Put(t.Context(), key, record, revision); err != nil {
			t.Fatal(err)
		}
		b.sharing() // the model refuses a token that comes with another request
		b.cloud.fail = nil
		b.run()
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 1 || b.phase("a") != apiv1.Bound {
			t.Errorf("%d instances, the cell is %s; said %v", n, b.phase("a"), b.events)
		}
	})
}

func TestTheTagsOfEachMachineOfABatchAreWrittenAfterwards(t *testing.T) {
	inBubble(t, func(c *setup) { c.NameTag = "prod" }, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.cloud.set(func() { b.cloud.failTags["i-0"] = errors.New("throttled") })
		b.later(time.Second)
		first := b.hour("a")
		b.hour("b")
		b.later(30 * time.Second)
		b.stop() // and a Kip that begins before the tags are there writes them
		b.cloud.set(func() { clear(b.cloud.failTags) })
		b.run()
		b.later(30 * time.Second)
		for id, i := range b.cloud.instances {
			cell, _ := b.cells.ForPod(ref(i.Tags[cloud.TagPod]).UID)
			want := tags(cell)
			want[cloud.TagOwner], want[cloud.TagNameTag], want[cloud.TagBatch] = "me", "prod", cell.Launch.ID
			want[cloud.TagGeneration] = i.Tags[cloud.TagGeneration]
			if !maps.Equal(i.Tags, want) {
				t.Errorf("instance %s has the tags %v, want %v", id, i.Tags, want)
			}
		}
		before := maps.Clone(b.cloud.tagged)
		b.later(time.Hour)
		if !maps.Equal(b.cloud.tagged, before) {
			t.Errorf("tags that are there are written again: %v, then %v", before, b.cloud.tagged)
		}
		if first.ID == "" {
			t.Fatal("no cell")
		}
	})
}

func TestTagsThatCannotBeWrittenAreGivenUpAndHoldUpNothing(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.cloud.set(func() { b.cloud.failTags["i-0"] = cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, errors.New("denied")) })
		b.later(time.Second)
		b.hour("a")
		b.later(10 * time.Hour)
		if b.phase("a") != apiv1.Bound || b.cloud.tagged["i-0"] != mostTagTries {
			t.Errorf("the cell is %s, its tags were tried %d times: want %d", b.phase("a"), b.cloud.tagged["i-0"], mostTagTries)
		}
	})
}

func TestAnInstanceIsTaggedAloneOnlyAfterTriesWithItsParts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.cloud.set(func() {
			b.cloud.failTagging = func(t cloud.Tagging) error {
				if t.Whole {
					return cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, errors.New("denied"))
				}
				return nil
			}
		})
		b.later(time.Second)
		b.hour("a")
		b.later(time.Hour)
		if n := b.cloud.tagged["i-0"]; n != wholeTries+1 || b.cloud.instances["i-0"].Tags[cloud.TagPod] != "a" {
			t.Errorf("after %d tries the instance has the tags %v", n, b.cloud.instances["i-0"].Tags)
		}
	})
}

// Nothing of an outage is because of the tags: Kip writes them, with their labels, when it is over.
func TestAnOutageDoesNotUseUpTheTriesOfTags(t *testing.T) {
	for what, outage := range map[string]error{
		"no answer":           errors.New("connection refused"),
		"a part is not known": cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("InvalidVolume.NotFound")),
		"expired credentials": cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("ExpiredToken")),
	} {
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.sharing()
			b.cloud.set(func() { b.cloud.failTags["i-0"] = outage })
			b.later(time.Second)
			b.requestFor("a", labels("team", "blue"))
			b.later(time.Hour)
			if n := b.cloud.tagged["i-0"]; n > 2*int(time.Hour/longestTagRetry) {
				t.Errorf("%s: its tags were tried %d times in an hour", what, n)
			}
			b.cloud.set(func() { clear(b.cloud.failTags) })
			b.later(2 * longestTagRetry)
			if last := b.cloud.taggings["i-0"]; last.Tags[cloud.TagPod] != "a" || last.Tags["team"] != "blue" {
				t.Errorf("%s: afterwards the tagging is %+v", what, last)
			}
		})
	}
}

// After a lost store an instance without a pod's tag may run any pod that is older; a
// pod that is younger runs at once.
func TestAnUntaggedInstanceOfALostStoreHoldsUpOlderPodsOnly(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.cloud.set(func() {
			b.cloud.linger = true
			b.cloud.failTags["i-0"], b.cloud.failTags["i-1"] = errors.New("denied"), nil
		})
		b.later(time.Second)
		created := time.Now()
		b.hour("a")
		b.later(20 * time.Second)
		b.hour("b")
		b.later(20 * time.Second)
		b.stop()
		b.store = store.Memory(nil)
		b.cfg.Store = b.store
		b.later(time.Hour)
		b.run()
		b.takeOver()
		ask := func(pod string, created time.Time) {
			t.Helper()
			if _, err := b.cells.Request(b.Context(), Request{Pod: ref(pod), Attempt: 1, Seen: time.Now(), Created: created,
				Offerings: []Offering{{InstanceType: "nano", Zone: "z", PricePerHour: 1, BootTimeout: time.Hour}}}); err != nil {
				t.Fatal(err)
			}
		}
		ask("a", created)
		ask("b", created)
		ask("old", created)
		ask("unknown", time.Time{})
		ask("skewed", time.Now().Add(clockSkew/2))
		ask("young", time.Now().Add(2*clockSkew))
		b.later(time.Minute)
		for pod, want := range map[string]apiv1.Phase{
			"a": apiv1.Requested, "b": apiv1.Requested, "old": apiv1.Requested, "unknown": apiv1.Requested, "skewed": apiv1.Requested,
			"young": apiv1.Bound,
		} {
			if got := b.phase(pod); got != want {
				t.Errorf("while an instance of the lost store is there, the cell of %s is %s: want %s", pod, got, want)
			}
		}
		b.cloud.set(func() { delete(b.cloud.instances, "i-0") })
		b.later(time.Minute)
		if got := b.phase("old"); got != apiv1.Bound {
			t.Errorf("what is left says its pod, and the cell of another is %s", got)
		}
		if got := b.phase("b"); got != apiv1.Requested {
			t.Errorf("the cell of the pod that it says is %s", got)
		}
	})
}

func TestAnOrphanOfABatchIsEndedAndItsMembersAreNot(t *testing.T) {
	v := newInventory(Health{}, 0)
	old := time.Unix(99, 0)
	member := func(id, place string) cloud.Instance {
		return cloud.Instance{ID: id, Place: place, Launched: old, Tags: map[string]string{cloud.TagBatch: "launch-a"}}
	}
	waits := &Cell{ID: "cell-1", Phase: apiv1.Launching, Launch: &Launch{ID: "launch-a", Index: 1, Cells: 3, Shared: true}}
	owns := on("i-0", 50)
	owns.Launch = &Launch{ID: "launch-a", Index: 0, Cells: 3, Shared: true}
	var f found
	for _, at := range []int{1000, 1000 + int(orphanAge/time.Second)} {
		f = shown(v, at, []known{{cell: waits}, {cell: owns}}, member("i-0", "0"), member("i-1", "1"), member("i-2", "2"), member("i-x", ""))
	}
	var orphans []string
	for _, i := range f.dueOrphans {
		orphans = append(orphans, i.ID)
	}
	if slices.Sort(orphans); !slices.Equal(orphans, []string{"i-2", "i-x"}) {
		t.Errorf("orphans %v", orphans)
	}
	if last := v.last(); last.byCell["launch-a-1"] != "i-1" || last.byCell["launch-a-0"] != "i-0" ||
		!slices.Equal(slices.Sorted(slices.Values(last.lostOrphans)), []string{"i-2", "i-x"}) {
		t.Errorf("by cell %v, lost orphans %v", last.byCell, last.lostOrphans)
	}
}

func TestThePartsOfABatchGoWithTheirInstances(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.later(time.Second)
		b.hour("a")
		b.later(10 * time.Second)
		b.cloud.set(func() {
			b.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return errors.New("no answer"), false }
		})
		b.hour("b")
		b.later(time.Second)
		runs, _ := b.cells.ForPod(ref("a").UID)
		launching, _ := b.cells.ForPod(ref("b").UID)
		if runs.Phase != apiv1.Bound || launching.Phase != apiv1.Launching {
			t.Fatalf("a is %s, b is %s", runs.Phase, launching.Phase)
		}
		part := func(id, batch, instance string) cloud.OwnedResource {
			return cloud.OwnedResource{ID: id, Zone: "z", Instance: instance, Tags: map[string]string{cloud.TagOwner: "me", cloud.TagBatch: batch}}
		}
		list := []cloud.OwnedResource{
			part("of an instance", runs.Launch.ID, runs.Instance.ID),
			part("left", runs.Launch.ID, ""),
			part("being made", launching.Launch.ID, ""),
			part("of a batch that is gone", "launch-gone", ""),
			part("the owner's own", "", ""),
		}
		now := time.Now()
		left, _ := b.cells.upkeep.sweeping.find(now, list, nil)
		_, due := b.cells.upkeep.sweeping.find(now.Add(orphanAge), list, left)
		var ids []string
		for _, p := range due {
			ids = append(ids, p.ID)
		}
		if !slices.Equal(ids, []string{"left", "of a batch that is gone"}) {
			t.Errorf("deleted would be %q", ids)
		}
	})
}
