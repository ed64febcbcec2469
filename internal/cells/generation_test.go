package cells

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/store"
)

func tagged(tag string) cloud.Instance {
	return cloud.Instance{ID: "i-" + tag, State: cloud.Running, Tags: map[string]string{cloud.TagOwner: "me", cloud.TagGeneration: tag}}
}

func TestAStoreKnowsTheLaunchesUpToItsNumberAndThoseThatItTookOver(t *testing.T) {
	g := generation{Line: "own", Number: 7, KnownLines: map[string]uint64{"old": 3}}
	for _, tc := range []struct {
		g    generation
		tag  string
		want bool
	}{
		{g, "own.1", true},
		{g, "own.7", true},
		{g, "own.8", false},
		{g, "old.3", true},
		{g, "old.4", false},
		{g, "another.1", false},
		{g, "", true}, // somebody has removed it
		{g, "garbage", true},
		{g, "own.-1", true},
		{g, "own.99999999999999999999", true},
		{g, ".8", true},
		{generation{Line: "own", Number: 2, Unproven: true}, "own.2", true},
		{generation{Line: "own", Number: 2, Unproven: true}, "own.3", false},
		{generation{Line: "own", Number: 2, Unproven: true}, "", false},
		{generation{Line: "own", Number: 2, Unproven: true}, "another.1", false},
		{generation{Line: "own"}, "own.0", false},
		{generation{Line: "own"}, "", false},
		{generation{Line: "own", KnownLines: map[string]uint64{"": 0}}, "", false},
	} {
		line, number := generationOf(tagged(tc.tag))
		if got := tc.g.knows(line, number); got != tc.want {
			t.Errorf("a store at %s that left %v knows of an instance with the tag %q: %t, want %t",
				tc.g.tag(), tc.g.KnownLines, tc.tag, got, tc.want)
		}
	}
}

func TestEachLaunchRaisesTheGenerationInItsOwnTransaction(t *testing.T) {
	var written []string
	inBubble(t, nil, func(op, key string) error {
		if op != "applied" && strings.Contains(key, launchesPrefix) && strings.Contains(key, keyPrefix) {
			written = append(written, key)
		}
		return nil
	}, func(t *testing.T, b *bubble) {
		sent := b.calls()
		b.later(time.Second)
		for n := range 3 {
			b.request(fmt.Sprint("p", n), "nano")
			b.later(time.Minute)
		}
		if len(*sent) != 3 {
			t.Fatalf("%d launches were sent", len(*sent))
		}
		g := b.cells.core.generation.current()
		for n, r := range *sent {
			if want := fmt.Sprintf("%s.%d", g.Line, n+1); r.Tags[cloud.TagGeneration] != want {
				t.Errorf("launch %d has the generation %q, want %q", n, r.Tags[cloud.TagGeneration], want)
			}
		}
		if g.Number != 3 {
			t.Errorf("after 3 launches the store is at %d", g.Number)
		}
		b.stop()
		b.run()
		if again := b.cells.core.generation.current(); again.tag() != g.tag() || again.Store != g.Store {
			t.Errorf("after a restart the store is %s at %s, it was %s at %s", again.Store, again.tag(), g.Store, g.tag())
		}
		b.later(time.Minute)
		if why, sure := b.cells.Behind(); why != "" || !sure {
			t.Errorf("after a restart the store is behind: %q, %t", why, sure)
		}
	})
	stores := slices.DeleteFunc(written, func(keys string) bool { return !strings.Contains(keys, ","+generationKey) })
	if len(stores) < 3 {
		t.Errorf("the generation is in %d of the transactions that store a launch: %v", len(stores), written)
	}
}

// behindStories are stores that lack what runs.
var behindStories = map[string]func(t *testing.T, b *bubble, backup []byte){
	"a lost store": func(t *testing.T, b *bubble, _ []byte) {
		b.store = store.Memory(nil)
	},
	"an older store": func(t *testing.T, b *bubble, backup []byte) {
		if err := b.store.Restore(t.Context(), bytes.NewReader(backup), true); err != nil {
			t.Fatal(err)
		}
	},
}

func TestAStoreThatIsBehindLaunchesAndSweepsNothingUntilAPersonDecides(t *testing.T) {
	for name, lose := range behindStories {
		inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
			kept := b.bound(2)
			var file bytes.Buffer
			if err := b.store.Backup(t.Context(), &file, time.Now()); err != nil {
				t.Fatal(err)
			}
			b.request("later", "small")
			b.later(time.Minute)
			running := b.cloud.running()
			b.stop()
			lose(t, b, file.Bytes())
			b.cfg.Store = b.store
			b.run()
			b.later(time.Second)
			b.request("later", "small")
			b.request("new", "nano")
			b.later(time.Hour)
			if got := b.cloud.running(); !slices.Equal(got, running) {
				t.Errorf("%s: %v ran, and %v run: want no launch and no end", name, running, got)
			}
			if got := b.phase("later"); got != apiv1.Requested {
				t.Errorf("%s: the cell of the pod that may run elsewhere is %q", name, got)
			}
			if n := len(b.said("StoreBehind")); n < 2 || n > 2*13 {
				t.Errorf("%s: %d Events in an hour, want one for each pod each five minutes", name, n)
			}
			cell, _ := b.cells.ForPod(ref("new").UID)
			if why := b.cells.WaitsFor(cell.ID); !strings.Contains(why, "kipctl generation") {
				t.Errorf("%s: the cell waits for %q", name, why)
			}
			if g := b.cells.Generation(); len(g.Unknown) == 0 || g.Behind == "" {
				t.Errorf("%s: it shows %+v", name, g)
			}
			// Not even an empty list, nor a new process, is a decision.
			b.cloud.set(func() {
				for _, id := range running {
					b.cloud.hidden[id] = true
				}
			})
			b.stop()
			b.run()
			b.later(2 * time.Minute)
			if why, _ := b.cells.Behind(); why != behind {
				t.Errorf("%s: after a restart, and without the instances in the list, it says %q", name, why)
			}
			b.cloud.set(func() { clear(b.cloud.hidden) })
			b.later(time.Minute)
			if got := b.cloud.running(); !slices.Equal(got, running) {
				t.Errorf("%s: %v ran, and %v run", name, running, got)
			}

			b.takeOver()
			b.request("later", "small")
			b.later(10 * time.Minute)
			if got := b.phase("later"); got != apiv1.Bound {
				t.Errorf("%s: after the take-over the cell of the pod is %q", name, got)
			}
			if name == "an older store" {
				if lost := b.unbound(kept); len(lost) > 0 {
					t.Errorf("%s: pods %v, which the store knows, do not run on", name, lost)
				}
			}
			if err := b.cells.TakeOver(t.Context(), b.cells.Generation().Shown); !errors.Is(err, ErrNotBehind) {
				t.Errorf("%s: a second take-over: %v", name, err)
			}
		})
	}
}

func TestTwoStoresOfOneIdentityStandOffAndTheOneThatTakesOverIsSeenByTheOther(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(2)
		first := b.cells
		running := b.cloud.running()
		b.store = store.Memory(nil)
		b.cfg.Store = b.store
		b.run()
		b.request("x", "small")
		b.later(10 * time.Minute)
		if got := b.cloud.running(); !slices.Equal(got, running) || !b.cells.core.generation.isBehind() || first.core.generation.isBehind() {
			t.Fatalf("%v ran, and %v run; the younger is behind: %t, the older: %t",
				running, got, b.cells.core.generation.isBehind(), first.core.generation.isBehind())
		}
		b.takeOver()
		b.request("x", "small")
		b.later(3 * idlePoll)
		if !first.core.generation.isBehind() {
			t.Errorf("the older does not notice that another has launched instances")
		}
	})
}

// The answers to writes of the record get lost as those to any other.
func TestAGenerationWhoseWriteWasNotAnsweredIsNeverTaggedTwice(t *testing.T) {
	failing := 0
	inBubble(t, nil, func(op, key string) error {
		if strings.Contains(key, generationKey) && failing > 0 {
			failing--
			if op == "applied" || failing%2 == 0 {
				return errors.New("no answer")
			}
		}
		return nil
	}, func(t *testing.T, b *bubble) {
		sent := b.calls()
		b.later(time.Second)
		for n := range 20 {
			failing = n % 5
			b.request(fmt.Sprint("p", n), "nano")
			b.later(2 * time.Minute)
		}
		failing = 0
		seen := map[string]bool{}
		for _, r := range *sent {
			if tag := r.Tags[cloud.TagGeneration]; seen[r.Token] != seen[tag] {
				t.Errorf("generation %s is of two launches", tag)
			} else {
				seen[tag], seen[r.Token] = true, true
			}
		}
		var stored generation
		if _, err := b.store.Get(t.Context(), generationKey, &stored); err != nil || stored.Number > b.cells.core.generation.current().Number {
			t.Errorf("the store is at %s and the process at %s, %v", stored.tag(), b.cells.core.generation.current().tag(), err)
		}
		if why, _ := b.cells.Behind(); why != "" || len(b.unbound([]string{"p0", "p1", "p2", "p3", "p4", "p19"})) > 0 {
			t.Errorf("behind %q, without a cell %v", why, b.unbound([]string{"p0", "p1", "p2", "p3", "p4", "p19"}))
		}
	})
}

// The answers to the write that begins a new line get lost, too, before or after it is made.
func TestANewLineBeginsThoughItsWriteWasNotAnswered(t *testing.T) {
	for _, lost := range []string{"put", "applied"} {
		t.Run(lost, func(t *testing.T) {
			failing := 0
			inBubble(t, nil, func(op, key string) error {
				if strings.Contains(key, generationKey) && failing > 0 && (op == "applied") == (lost == "applied") {
					failing--
					return errors.New("no answer")
				}
				return nil
			}, func(t *testing.T, b *bubble) {
				b.bound(1)
				b.stop()
				before := b.cells.core.generation.current()
				b.cloud.set(func() { b.cloud.blind = []string{"y"} })
				b.run()
				b.later(time.Second)
				failing = 1
				b.arrives("first")
				b.later(2 * time.Minute)
				b.cloud.set(func() { b.cloud.blind = nil }) // a launch that was stored is not sent again before
				b.later(2 * time.Minute)
				if failing > 0 || b.phase("first") != apiv1.Bound {
					t.Errorf("%d writes are still to fail, and the pod's cell is %s", failing, b.phase("first"))
				}
				var stored generation
				if _, err := b.store.Get(t.Context(), generationKey, &stored); err != nil || stored.Line == before.Line ||
					stored.KnownLines[before.Line] != before.Number {
					t.Errorf("the store is at %s with %v, %v; it was at %s", stored.tag(), stored.KnownLines, err, before.tag())
				}
			})
		})
	}
}

// What is compared with the store is not shown yet, or not all of it.
func TestAPodMayRunElsewhereUntilALookShowsAllZones(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.request("a", "nano")
		b.later(10 * time.Second)
		b.stop()
		b.store = store.Memory(nil)
		b.cfg.Store = b.store
		b.cloud.set(func() { b.cloud.linger = true })
		b.run()
		b.later(time.Second)
		b.takeOver()
		elsewhere := func(when string, c *Controller, want string, wantSure bool) {
			t.Helper()
			if why, sure := c.EndDuplicates(ref("a").UID, time.Now(), false); why == "" || !strings.Contains(why, want) || sure != wantSure {
				t.Errorf("%s: the instance of a lost store runs the pod, and it says %q, %t: want %q, %t", when, why, sure, want, wantSure)
			}
		}
		c := New(b.cfg.Config)
		defer c.core.loop.queue.ShutDown()
		if err := c.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		elsewhere("before a list", c, unread, false)
		if _, err := c.core.generation.noteList(t.Context(), snapshot{began: time.Now()}, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		if why, _ := c.Behind(); why != "" {
			t.Fatalf("a list was compared, and it says %q", why)
		}
		elsewhere("when a list was compared and is not shown", c, unread, false)
		c.core.inventory.adopt(snapshot{began: time.Now(), blind: true}, findings{}, nil)
		elsewhere("when a zone was not seen", c, "zone", true)
		b.later(time.Minute)
		elsewhere("when the instance is seen", b.cells, "i-0", true)
		b.cloud.set(func() { clear(b.cloud.instances) })
		b.later(time.Minute)
		if why, sure := b.cells.EndDuplicates(ref("a").UID, time.Now(), false); why != "" || !sure {
			t.Errorf("when it is gone it says %q, %t", why, sure)
		}
	})
}

// A cell that was never bound runs nothing, and ends because that was asked for.
func TestAPodsOwnCellIsNotElsewhere(t *testing.T) {
	silent := func(c *setup) { c.APIs.(*modelLinks).boots = func(string) bool { return false } }
	inBubble(t, silent, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.request("a", "nano")
		b.later(time.Minute)
		if shown := b.cells.core.inventory.last().byPod[ref("a").UID]; b.phase("a") != apiv1.Booting || len(shown) != 1 {
			t.Fatalf("its cell is %s, the snapshot shows %v", b.phase("a"), shown)
		}
		if why, sure := b.cells.EndDuplicates(ref("a").UID, time.Now(), false); why != "" || !sure {
			t.Errorf("the pod's own cell boots, and it says %q, %t", why, sure)
		}
		b.cells.core.terminations.mu.Lock()
		defer b.cells.core.terminations.mu.Unlock()
		if n := len(b.cells.core.terminations.byInstance); n != 0 {
			t.Errorf("the question ends %d instances, of a cell that is there", n)
		}
	})
}

// Any instance would say that it was lost, and a list may lack them for a while.
func TestAStoreThatHasLaunchedNothingIsNewAfterTwoCompleteLists(t *testing.T) {
	for _, tc := range []struct {
		name   string
		blind  []string // the zones that the first list lacks
		hidden bool     // it lacks the instances
	}{
		{"an empty list", nil, true},
		{"a list without their zone", []string{"z"}, false},
	} {
		inBubble(t, func(c *setup) { c.ListLag = 15 * time.Second }, nil, func(t *testing.T, b *bubble) {
			b.bound(1)
			running := b.cloud.running()
			b.stop()
			b.store = store.Memory(nil)
			b.cfg.Store = b.store
			b.cloud.set(func() {
				b.cloud.blind, b.cloud.hidden[running[0]] = tc.blind, tc.hidden
			})
			b.patient = true
			b.run()
			b.request("p000", "nano")
			b.later(15 * time.Second)
			if why, sure := b.cells.Behind(); why == "" || sure {
				t.Errorf("%s: after one it says %q, %t", tc.name, why, sure)
			}
			b.cloud.set(func() {
				b.cloud.blind = nil
				clear(b.cloud.hidden)
			})
			b.later(time.Hour)
			if got := b.cloud.running(); !slices.Equal(got, running) || !b.cells.core.generation.isBehind() {
				t.Errorf("%s: %v ran, and %v run; it is behind: %t", tc.name, running, got, b.cells.core.generation.isBehind())
			}
		})
	}
}

// arrives requests a cell for a pod that came after its node's pods were listed.
func (b *bubble) arrives(name string) {
	b.Helper()
	r := nano(name)
	r.NoEarlierCell = true
	if _, err := b.cells.Request(b.Context(), r); err != nil {
		b.Fatal(err)
	}
}

func TestAPodThatArrivesAtANewStoreIsLaunchedAtOnceAndAnotherIsToldWhatItWaitsFor(t *testing.T) {
	const lag = 20 * time.Second
	for _, tc := range []struct {
		name    string
		lag     time.Duration
		waits   bool // the pod that was there before
		because string
	}{
		{"its list does not lag", 0, false, ""},
		{"its list lags", lag, true, "lists its instances in the cloud again"},
	} {
		inBubble(t, func(c *setup) { c.ListLag = tc.lag }, nil, func(t *testing.T, b *bubble) {
			b.stop()
			b.patient, b.store = true, store.Memory(nil)
			b.cfg.Store = b.store
			sent := b.calls()
			b.run()
			b.request("before", "nano")
			b.arrives("new")
			synctest.Wait()
			time.Sleep(time.Second) // after which a request looks again whether there was a list
			synctest.Wait()
			var launched []string
			for _, r := range *sent {
				for _, m := range r.Machines {
					launched = append(launched, m.Tags[cloud.TagPod])
				}
			}
			slices.Sort(launched)
			want := []string{"before", "new"}
			if tc.waits {
				want = want[1:]
			}
			if !slices.Equal(launched, want) {
				t.Errorf("%s: after one list %v are launched, want %v", tc.name, launched, want)
			}
			cell, _ := b.cells.ForPod(ref("before").UID)
			said, waits := b.said(events.InstancesNotListed), b.cells.WaitsFor(cell.ID)
			due := time.Now().Add(lag - time.Second).UTC().Format(time.TimeOnly)
			if tc.waits && (len(said) != 1 || !strings.Contains(said[0], due+" UTC") || !strings.Contains(waits, tc.because)) {
				t.Errorf("%s: the Events are %q, and it waits for %q: want %q and %s", tc.name, said, waits, tc.because, due)
			}
			if !tc.waits && len(said) > 0 {
				t.Errorf("%s: the Events are %q", tc.name, said)
			}
			if g := b.cells.core.generation.current(); g.Unproven != tc.waits {
				t.Errorf("%s: the store is %+v", tc.name, g)
			}
			b.later(lag + 5*time.Second)
			if why, sure := b.cells.Behind(); why != "" || !sure || b.phase("before") != apiv1.Bound || b.phase("new") != apiv1.Bound {
				t.Errorf("%s: at last it says %q, and the pods are %s and %s", tc.name, why, b.phase("before"), b.phase("new"))
			}
			var stored generation
			if _, err := b.store.Get(t.Context(), generationKey, &stored); err != nil || stored.Unproven {
				t.Errorf("%s: the stored generation is %+v, %v", tc.name, stored, err)
			}
		})
	}
}

// A launch for a pod that nobody else can run says nothing of what runs besides.
func TestAStoreThatHasLaunchedBeforeTheSecondListIsNotBelievedForThat(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		for _, untagged := range []bool{false, true} { // somebody has removed the tag
			name := fmt.Sprintf("restarts %t, untagged %t", restarts, untagged)
			inBubble(t, func(c *setup) { c.ListLag = 20 * time.Second }, nil, func(t *testing.T, b *bubble) {
				b.bound(1)
				old := b.cloud.running()[0]
				b.stop()
				b.patient, b.store = true, store.Memory(nil)
				b.cfg.Store = b.store
				b.cloud.set(func() {
					b.cloud.hidden[old] = true
					if i := b.cloud.instances[old]; untagged {
						i.Tags = maps.Clone(i.Tags)
						delete(i.Tags, cloud.TagGeneration)
						b.cloud.instances[old] = i
					}
				})
				b.run()
				b.request("p000", "nano")
				b.arrives("new")
				b.later(5 * time.Second)
				if got := b.cloud.running(); len(got) != 2 || b.phase("p000") != apiv1.Requested {
					t.Fatalf("%s: after one list %v run, and the pod that may run already is %q", name, got, b.phase("p000"))
				}
				if restarts {
					b.stop()
					b.run()
				}
				b.cloud.set(func() { clear(b.cloud.hidden) })
				b.later(time.Hour)
				waits, came := b.phase("p000"), b.phase("new")
				if got := b.cloud.running(); len(got) != 2 || !b.cells.core.generation.isBehind() || waits != apiv1.Requested || came != apiv1.Bound {
					t.Errorf("%s: %v run, it is behind: %t, and the pods are %q and %q", name, got, b.cells.core.generation.isBehind(), waits, came)
				}
				b.arrives("later")
				b.later(time.Minute)
				if got := b.phase("later"); got != apiv1.Requested {
					t.Errorf("%s: the store is behind, and a pod that came later is %q", name, got)
				}
			})
		}
	}
}

// After a restart it is not known any more of a pod that nobody else can run it.
func TestThatAPodArrivedIsKnownToNoLaterProcess(t *testing.T) {
	var away atomic.Bool
	inBubble(t, func(c *setup) {
		c.ListLag = 20 * time.Second
		c.Cloud = listless{c.Cloud, &away}
	}, nil, func(t *testing.T, b *bubble) {
		b.stop()
		b.patient, b.store = true, store.Memory(nil)
		b.cfg.Store = b.store
		away.Store(true)
		b.run()
		b.arrives("a")
		b.later(quietStart + 5*time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if said := b.said(events.InstancesNotListed); b.phase("a") != apiv1.Requested || len(said) != 1 || b.cells.WaitsFor(cell.ID) != unread {
			t.Errorf("while the cloud lists nothing it is %q, is told %q and waits for %q", b.phase("a"), said, b.cells.WaitsFor(cell.ID))
		}
		b.stop()
		away.Store(false)
		b.run()
		b.later(5 * time.Second)
		if b.phase("a") != apiv1.Requested {
			t.Errorf("in the next process it is %q after one list", b.phase("a"))
		}
		b.later(30 * time.Second)
		if b.phase("a") != apiv1.Bound {
			t.Errorf("after two lists it is %q", b.phase("a"))
		}
	})
}

// listless is a cloud without a list while away says so.
type listless struct {
	cloud.Cloud
	away *atomic.Bool
}

func (l listless) List(ctx context.Context, owner string) (cloud.Listing, error) {
	if l.away.Load() {
		return cloud.Listing{}, errors.New("it is away")
	}
	return l.Cloud.List(ctx, owner)
}

// TestACellBootsAsLongAsItMayFromWhenKipConnectsToIt: what Kip does not know is no fault of
// a cell, however long that takes.
func TestACellBootsAsLongAsItMayFromWhenKipConnectsToIt(t *testing.T) {
	const late = 2 * time.Hour // longer than it may boot
	for _, tc := range []struct {
		name   string
		begin  func(b *bubble, away *atomic.Bool)
		decide func(b *bubble, away *atomic.Bool)
	}{
		{
			"the cloud's list was away",
			func(_ *bubble, away *atomic.Bool) { away.Store(true) },
			func(_ *bubble, away *atomic.Bool) { away.Store(false) },
		},
		{
			"a person was slow",
			func(b *bubble, _ *atomic.Bool) {
				b.cloud.set(func() { i := tagged("other.9"); b.cloud.instances[i.ID] = i })
			},
			func(b *bubble, _ *atomic.Bool) { b.takeOver() },
		},
	} {
		var away, up atomic.Bool
		inBubble(t, func(c *setup) {
			c.Cloud = listless{c.Cloud, &away}
			c.APIs.(*modelLinks).boots = func(string) bool { return up.Load() }
		}, nil, func(t *testing.T, b *bubble) {
			b.later(time.Second)
			b.request("a", "nano")
			b.later(20 * time.Second)
			first, _ := b.cells.ForPod(ref("a").UID)
			b.stop()
			up.Store(true)
			tc.begin(b, &away)
			b.run()
			b.later(late)
			if got := b.phase("a"); got != apiv1.Booting {
				t.Fatalf("%s: before it is known what runs the cell is %s", tc.name, got)
			}
			tc.decide(b, &away)
			b.later(30 * time.Second)
			now, _ := b.cells.ForPod(ref("a").UID)
			if now.ID != first.ID || now.Phase != apiv1.Bound {
				t.Errorf("%s: cell %s was booting, and the pod has cell %s, which is %s: %s",
					tc.name, first.ID, now.ID, now.Phase, b.said("CellNotReady"))
			}
		})
	}
}

func TestACellOfThisProcessRunsNoMoreThanItsRecordSays(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.cloud.set(func() { i := tagged("other.9"); b.cloud.instances[i.ID] = i })
		b.later(20 * time.Second)
		own, earlier := newEntry(Cell{}, 0), newEntry(Cell{}, 0)
		earlier.loaded = true
		if b.cells.core.generation.mayRunMore(own) || !b.cells.core.generation.mayRunMore(earlier) {
			t.Errorf("while the store is behind a cell of this process may run more: %t, one of an earlier: %t",
				b.cells.core.generation.mayRunMore(own), b.cells.core.generation.mayRunMore(earlier))
		}
	})
}

func TestATakeOverEndsOnlyWhatAPersonWasShown(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		kept := b.bound(1)
		foreign := func(tag, zone string) {
			i := tagged(tag)
			i.Zone = zone
			b.cloud.set(func() { b.cloud.instances[i.ID] = i })
		}
		foreign("other.9", "z")
		foreign("other.5", "y")
		takeOver := func(when string, is Generation, incomplete bool, want error) {
			t.Helper()
			if (is.Incomplete != "") != incomplete {
				t.Errorf("%s: it shows %+v", when, is)
			}
			if err := b.cells.TakeOver(t.Context(), is.Shown); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", when, err, want)
			}
			if !b.cells.core.generation.isBehind() {
				t.Fatalf("%s: the store has taken over", when)
			}
		}
		b.stop()
		b.cloud.set(func() { b.cloud.blind = []string{"y"} })
		b.run()
		b.later(20 * time.Second)
		takeOver("a zone was never shown", b.cells.Generation(), true, ErrNotAllSeen)
		b.cloud.set(func() { b.cloud.blind = nil })
		b.later(20 * time.Second)
		b.cloud.set(func() { b.cloud.blind = []string{"y"} })
		b.later(20 * time.Second)
		takeOver("a zone is away", b.cells.Generation(), true, ErrNotAllSeen)
		b.cloud.set(func() {
			b.cloud.blind = nil
			b.cloud.hidden["i-0"] = true
		})
		b.later(20 * time.Second)
		takeOver("the list lacks one that is alive", b.cells.Generation(), true, ErrNotAllSeen)
		b.cloud.set(func() { clear(b.cloud.hidden) })
		b.later(20 * time.Second)
		shown := b.cells.Generation()
		foreign("other.7", "z")
		b.later(20 * time.Second)
		takeOver("another has come", shown, false, ErrShownOther)
		takeOver("nothing was shown", Generation{}, false, ErrShownOther)
		b.takeOver()
		b.later(5 * time.Minute)
		if got := b.cloud.running(); !slices.Equal(got, []string{"i-0"}) || len(b.unbound(kept)) > 0 {
			t.Errorf("after a take-over of what was shown %v run", got)
		}
		b.patient, b.store = true, store.Memory(nil)
		b.stop()
		b.cfg.Store, b.cfg.ListLag = b.store, 15*time.Second
		b.run()
		b.later(time.Second)
		takeOver("a store that may be new has one list", b.cells.Generation(), true, ErrNotAllSeen)
	})
}

func TestUntilItsRecordsAreLoadedAnewAStoreThatHasTakenOverIsBehind(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(1)
		foreign := tagged("other.9")
		b.cloud.set(func() { b.cloud.instances[foreign.ID] = foreign })
		b.later(20 * time.Second)
		b.request("waits", "small")
		if err := b.cells.TakeOver(t.Context(), b.cells.Generation().Shown); err != nil {
			t.Fatal(err)
		}
		b.request("new", "small")
		b.later(5 * time.Minute)
		if got := b.cloud.running(); !slices.Equal(got, []string{"i-0", foreign.ID}) || !b.cells.core.generation.isBehind() {
			t.Errorf("%v run; it is behind: %t", got, b.cells.core.generation.isBehind())
		}
		if err := b.cells.core.generation.raise(t.Context(), nil); !errors.Is(err, errBehind) {
			t.Errorf("a launch: %v", err)
		}
		b.cells.Reload()
		<-b.ended
		b.run()
		b.later(5 * time.Minute)
		if b.cells.core.generation.isBehind() {
			t.Error("it is behind when its records are loaded anew")
		}
	})
}

// An instance of a zone that was never listed may be one that the store does not know of.
func TestBeforeEveryZoneWasListedNothingIsSentAgainAndNothingEndsUnasked(t *testing.T) {
	answers := errors.New("no answer")
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(1)
		b.cloud.set(func() { b.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return answers, false } })
		b.request("a", "small")
		b.later(5 * time.Second)
		b.stop()
		var sent int
		b.cloud.set(func() {
			b.cloud.fail, b.cloud.blind = nil, []string{"y"}
			sent = len(b.cloud.launches)
		})
		b.run()
		b.later(time.Minute)
		earlier := newEntry(Cell{}, 0)
		earlier.loaded = true
		held, isHeld := errors.AsType[*guard.HeldError](b.guard.Admit(t.Context(), guard.End{Instance: "i-0"}, 100))
		more := b.cells.core.generation.mayRunMore(earlier)
		if why, sure := b.cells.Behind(); why != unlisted || sure || !more || !isHeld || held.Reason != guard.ByStore {
			t.Errorf("it says %q, %t; a cell may run more: %t; the end of another is held back: %v", why, sure, more, held)
		}
		if got := b.phase("a"); got != apiv1.Launching || len(b.cloud.launches) != sent {
			t.Errorf("the cell is %s, %d launches were sent again", got, len(b.cloud.launches)-sent)
		}
		b.cloud.set(func() { b.cloud.blind = nil })
		b.later(time.Minute)
		if why, sure := b.cells.Behind(); why != "" || !sure || b.phase("a") != apiv1.Bound {
			t.Errorf("when all are listed it says %q, %t; the cell is %s", why, sure, b.phase("a"))
		}
	})
}

// Its own launches must not use up the numbers of those that it has lost, which would look like its own then.
func TestAnOlderStoreThatLaunchesWhileAZoneIsAwayIsBehindWhenTheZoneIsBack(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(1)
		var backup bytes.Buffer
		if err := b.store.Backup(t.Context(), &backup, time.Now()); err != nil {
			t.Fatal(err)
		}
		old := b.cloud.running()
		b.request("lost", "small")
		b.later(time.Minute)
		lost := slices.DeleteFunc(b.cloud.running(), func(id string) bool { return slices.Contains(old, id) })
		if len(lost) != 1 {
			t.Fatalf("the launches to be lost are %v", lost)
		}
		b.stop()
		if err := b.store.Restore(t.Context(), bytes.NewReader(backup.Bytes()), true); err != nil {
			t.Fatal(err)
		}
		b.cloud.set(func() {
			i := b.cloud.instances[lost[0]]
			i.Zone = "y"
			b.cloud.instances[lost[0]] = i
			b.cloud.blind = []string{"y"}
		})
		for _, name := range []string{"first", "second"} { // each by a process of its own
			b.run()
			b.later(time.Second)
			b.arrives(name)
			b.later(time.Minute)
			if b.phase(name) != apiv1.Bound {
				t.Errorf("while the zone is away %s is %s", name, b.phase(name))
			}
			b.stop()
		}
		b.cloud.set(func() { b.cloud.blind = nil })
		b.run()
		b.later(10 * time.Minute)
		if !b.cells.core.generation.isBehind() || !slices.Contains(b.cloud.running(), lost[0]) {
			why, sure := b.cells.Behind()
			t.Errorf("when the zone is back Kip says %q, %t, and %v run", why, sure, b.cloud.running())
		}
	})
}

// A zone that is away from the start, as after another Kip took over in its outage.
func TestWhileAZoneIsNotListedPodsThatArriveRunAndOthersSayWhyTheyWait(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(1)
		b.stop()
		b.cloud.set(func() { b.cloud.blind = []string{"y"} })
		b.run()
		b.later(time.Second)
		for name, noEarlierCell := range map[string]bool{"young": true, "old": false} {
			r := nano(name)
			r.NoEarlierCell = noEarlierCell
			if _, err := b.cells.Request(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		b.later(time.Minute)
		old, _ := b.cells.ForPod(ref("old").UID)
		if b.phase("young") != apiv1.Bound || b.phase("old") != apiv1.Requested || b.cells.WaitsFor(old.ID) != unlisted {
			t.Errorf("the young is %q, the old is %q and waits for %q", b.phase("young"), b.phase("old"), b.cells.WaitsFor(old.ID))
		}
		if said := b.said(events.InstancesNotListed); len(said) != 1 || !strings.HasSuffix(said[0], unlisted) {
			t.Errorf("the old is told %q", said)
		}
		b.cloud.set(func() { b.cloud.blind = nil })
		b.later(time.Minute)
		if b.phase("old") != apiv1.Bound {
			t.Errorf("when all are listed the old is %q", b.phase("old"))
		}
	})
}

// Nobody else can have launched a cell for such a pod, in whatever zone.
func TestAPodThatArrivedWaitsForNoList(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(1)
		b.stop()
		b.cloud.set(func() { b.cloud.blind = []string{"y"} })
		b.run()
		b.later(time.Minute)
		elsewhere := func(when, want string, noEarlierCell bool) {
			t.Helper()
			if why, sure := b.cells.EndDuplicates("a pod", time.Now(), noEarlierCell); why != want || !sure {
				t.Errorf("%s: %q, %t, want %q", when, why, sure, want)
			}
		}
		elsewhere("it was there before", unlisted, false)
		elsewhere("it came later", "", true)
		b.cloud.set(func() {
			i := tagged("")
			i.Zone, i.Tags[cloud.TagPodUID], i.Tags[cloud.TagCell] = "z", "a pod", "another"
			b.cloud.instances[i.ID] = i
		})
		b.later(time.Minute)
		elsewhere("an instance has its name", events.InstancesMayRun([]string{"i-"}), true)
		b.cloud.set(func() {
			i := tagged("other.9")
			i.Zone = "z"
			b.cloud.instances[i.ID] = i
		})
		b.later(time.Minute)
		elsewhere("the store is behind", behind, true)
	})
}
