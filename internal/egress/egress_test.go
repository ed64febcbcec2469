package egress

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// routed is a cloud that answers what a test says.
type routed struct {
	mu    sync.Mutex
	ways  map[string]cloud.Way
	err   error
	hangs bool
}

func (r *routed) Ways(ctx context.Context, subnets ...string) (map[string]cloud.Way, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hangs {
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return nil, ctx.Err()
	}
	ways := map[string]cloud.Way{}
	for _, id := range subnets {
		if way, has := r.ways[id]; has {
			ways[id] = way
		}
	}
	return ways, r.err
}

func (r *routed) set(change func(*routed)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

// bench is a Kip's knowledge in a bubble.
type bench struct {
	*testing.T
	cloud   *routed
	store   *store.Store
	changes atomic.Int32
	egress  *Egress
}

// while runs one that starts with what is stored.
func (b *bench) while(test func()) {
	b.Helper()
	var err error
	b.egress, err = Open(b.Context(), Config{
		Cloud: b.cloud,
		Store: b.store,
		Clock: clock.RealClock{},
		Log:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.egress.Run(ctx, func() { b.changes.Add(1) }); err != nil {
			b.Error(err)
		}
	})
	test()
	cancel()
	running.Wait()
}

func inBubble(t *testing.T, test func(*bench)) {
	synctest.Test(t, func(t *testing.T) {
		test(&bench{T: t, cloud: &routed{ways: map[string]cloud.Way{}}, store: store.Memory(nil)})
	})
}

func later(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

// unknown and none are what a subnet has; else it is the networks in one line.
const unknown, none = "unknown", "none"

func (b *bench) has(state, subnet, want string) {
	b.Helper()
	except, does, known := b.egress.Masquerade(subnet)
	var words []string
	for _, p := range except {
		words = append(words, p.String())
	}
	got := strings.Join(words, " ")
	switch {
	case !known:
		got = unknown
	case !does:
		got = none
	}
	if got != want {
		b.Errorf("%s: subnet %s has %q, want %q", state, subnet, got, want)
	}
}

func networks(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

const own = "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16"

func TestCellsMasqueradeWhereTheirSubnetHasAWayToTheInternet(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cloud.ways["in"] = cloud.Way{Internet: true, Direct: networks("10.0.0.0/16", "203.0.113.0/24")}
		b.cloud.ways["out"] = cloud.Way{Direct: networks("10.0.0.0/16")}
		b.while(func() {
			for _, subnet := range []string{"in", "out", "elsewhere"} {
				b.has("at first", subnet, unknown)
			}
			later(0)
			b.has("read", "in", own+" 203.0.113.0/24")
			b.has("read", "out", none)
			b.has("read", "elsewhere", none)
			if n := b.changes.Load(); n < 1 {
				t.Error("nobody was told")
			}
			before := b.changes.Load()
			later(10 * readEvery)
			if n := b.changes.Load(); n != before {
				t.Errorf("%d changes were told where nothing changed", n-before)
			}
			b.cloud.set(func(r *routed) {
				r.ways["in"] = cloud.Way{Internet: true, Direct: networks("10.0.0.0/16", "198.51.100.0/24")}
			})
			later(readEvery)
			// What comes counts at once. What is gone may be so for a moment, while a table is replaced.
			b.has("another route", "in", own+" 198.51.100.0/24 203.0.113.0/24")
			later(readEvery)
			b.has("another route, read twice", "in", own+" 198.51.100.0/24")
			if n := b.changes.Load(); n != before+2 {
				t.Errorf("%d changes were told, want 2", n-before)
			}
		})
	})
}

// A Kip that starts while the cloud does not answer changes nothing.
func TestAKipThatStartsKnowsTheWaysOfTheOneBefore(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cloud.ways["in"] = cloud.Way{Internet: true}
		b.while(func() {
			b.egress.Masquerade("in")
			later(0)
		})
		b.cloud.err, b.cloud.ways = errors.New("no route to EC2"), nil
		before := b.changes.Load()
		b.while(func() {
			b.has("at once", "in", own)
			later(time.Hour)
			b.has("without an answer", "in", own)
			if n := b.changes.Load() - before; n != 0 {
				t.Errorf("%d changes were told", n)
			}
			b.cloud.set(func(r *routed) { r.err = nil })
			later(retryEvery)
			b.has("an answer lacks the subnet", "in", own)
			later(10 * readEvery)
			b.has("all answers lack the subnet", "in", own)
			b.cloud.set(func(r *routed) { r.ways = map[string]cloud.Way{"in": {}} })
			later(2 * readEvery)
			b.has("it has no way", "in", none)
		})
		b.cloud.err = errors.New("no route to EC2")
		b.while(func() { b.has("that is stored, too", "in", none) })
	})
}

// Who replaces the association of a route table takes the way to the internet away for a moment.
func TestAWayToTheInternetIsGoneWhenTwoReadingsSaySo(t *testing.T) {
	inBubble(t, func(b *bench) {
		way := cloud.Way{Internet: true, Direct: networks("203.0.113.0/24")}
		b.cloud.ways["in"] = way
		b.while(func() {
			b.egress.Masquerade("in")
			later(0)
			before := b.changes.Load()
			set := func(way cloud.Way) { b.cloud.set(func(r *routed) { r.ways["in"] = way }) }
			for range 3 {
				set(cloud.Way{Direct: networks("10.0.0.0/16")})
				later(readEvery)
				b.has("one reading has none", "in", own+" 203.0.113.0/24")
				b.egress.Masquerade("another subnet, which is read at once" + time.Now().String())
				later(0)
				b.has("so has one that follows at once", "in", own+" 203.0.113.0/24")
				set(way)
				later(readEvery)
				b.has("the next reading has it", "in", own+" 203.0.113.0/24")
			}
			if n := b.changes.Load() - before; n != 3 { // of the other subnets
				t.Errorf("%d changes were told, want 3", n)
			}
			set(cloud.Way{})
			later(2 * readEvery)
			b.has("two readings have none", "in", none)
			set(way)
			later(readEvery)
			b.has("it is back", "in", own+" 203.0.113.0/24")
		})
	})
}

// While an association is replaced a subnet has the main table, which may have another way to the internet.
func TestANetworkIsReachedDirectlyUntilTwoReadingsSayOtherwise(t *testing.T) {
	inBubble(t, func(b *bench) {
		way := cloud.Way{Internet: true, Direct: networks("198.51.100.0/24", "203.0.113.0/24")}
		b.cloud.ways["in"] = way
		b.while(func() {
			b.egress.Masquerade("in")
			later(0)
			before := b.changes.Load()
			for _, direct := range [][]netip.Prefix{nil, way.Direct[:1], way.Direct[1:], way.Direct} {
				b.cloud.set(func(r *routed) { r.ways["in"] = cloud.Way{Internet: true, Direct: direct} })
				later(readEvery)
				if direct == nil {
					b.cloud.set(func(r *routed) { r.ways["in"] = way })
					later(readEvery)
				}
				b.has("each network is missing once", "in", own+" 198.51.100.0/24 203.0.113.0/24")
			}
			if n := b.changes.Load() - before; n != 0 {
				t.Errorf("%d changes were told", n)
			}
		})
	})
}

// A subnet that comes while the reading of another hangs has as long as any.
func TestEachSubnetIsWaitedForAsLong(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cloud.ways["a"], b.cloud.ways["b"] = cloud.Way{Internet: true}, cloud.Way{Internet: true}
		b.cloud.hangs = true
		b.while(func() {
			b.egress.Masquerade("a")
			later(firstTimeout - 100*time.Millisecond)
			b.egress.Masquerade("b")
			later(time.Second)
			b.has("after its time", "a", none)
			b.has("within its time", "b", unknown)
			b.cloud.set(func(r *routed) { r.hangs = false })
			later(firstTimeout)
			b.has("after its time", "b", none)
			later(2 * retryEvery)
			b.has("once it is read", "a", own)
			b.has("once it is read", "b", own)
		})
	})
}

// Routes of pods come and go, mostly to private networks.
func TestAWayThatMasqueradesAsBeforeIsNoChange(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cloud.ways["in"] = cloud.Way{Internet: true}
		b.cloud.ways["out"] = cloud.Way{}
		b.while(func() {
			b.egress.Masquerade("in")
			b.egress.Masquerade("out")
			later(0)
			before := b.changes.Load()
			b.cloud.set(func(r *routed) {
				r.ways["in"] = cloud.Way{Internet: true, Direct: networks("10.20.0.0/16")}
				r.ways["out"] = cloud.Way{Direct: networks("203.0.113.0/24")}
			})
			later(readEvery)
			if n := b.changes.Load() - before; n != 0 {
				t.Errorf("%d changes were told", n)
			}
		})
	})
}

// Cells of a subnet that is new wait for its reading, and for no other one.
func TestANewSubnetWaitsForNoReadingOfOthers(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cloud.ways["in"] = cloud.Way{Internet: true}
		b.while(func() {
			b.egress.Masquerade("in")
			later(0)
			b.cloud.set(func(r *routed) { r.hangs = true })
			later(readEvery + time.Second) // a reading of what is known hangs
			b.has("at first", "new", unknown)
			later(time.Second)
			b.has("at first", "newer", unknown)
			later(firstTimeout - time.Second)
			b.has("asked in vain", "new", none)
			later(time.Second)
			b.has("asked in vain", "newer", none)
			b.has("known", "in", own)
		})
	})
}

// Cells do not wait for a cloud that does not answer; they masquerade once it has.
func TestNobodyWaitsForACloudThatDoesNotAnswer(t *testing.T) {
	for name, broken := range map[string]func(*routed){
		"it fails": func(r *routed) { r.err = errors.New("denied") },
		"it hangs": func(r *routed) { r.hangs = true },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.cloud.ways["in"] = cloud.Way{Internet: true}
				broken(b.cloud)
				b.while(func() {
					b.has("at first", "in", unknown)
					later(firstTimeout)
					b.has("asked in vain", "in", none)
					if n := b.changes.Load(); n != 1 {
						t.Errorf("%d changes were told, want 1", n)
					}
					b.cloud.set(func(r *routed) { r.err, r.hangs = nil, false })
					later(retryEvery + readTimeout)
					b.has("it answers", "in", own)
					if n := b.changes.Load(); n != 2 {
						t.Errorf("%d changes were told, want 2", n)
					}
				})
			})
		})
	}
}

// What could not be stored is stored with the next reading.
func TestWaysThatWereNotStoredAreStoredLater(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cloud.ways["in"] = cloud.Way{Internet: true}
		b.while(func() {
			// Another process was here: this one's first write is refused.
			if _, err := b.store.Put(b.Context(), waysKey, map[string]cloud.Way{}, 0); err != nil {
				t.Fatal(err)
			}
			b.egress.Masquerade("in")
			later(readEvery)
		})
		var stored map[string]cloud.Way
		if _, err := b.store.Get(b.Context(), waysKey, &stored); err != nil || !stored["in"].Internet || len(stored) != 1 {
			t.Errorf("%v is stored: %v", stored, err)
		}
	})
}
