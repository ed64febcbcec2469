package cells

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// boosts is a cloud whose instances are boosted when they are launched, and until it is told otherwise.
type boosts struct {
	mu    sync.Mutex
	plain bool           // its instances are not boosted
	told  map[string]int // how often it was told, by instance
	fails error          // what it answers
	after bool           // it has done it all the same
	ended map[string]bool
}

func (m *boosts) Resolve(context.Context, cloud.LaunchSpec) (cloud.Resolved, error) {
	return cloud.Resolved{Image: "image", Boosted: !m.plain}, nil
}

func (m *boosts) EndBoost(_ context.Context, ids ...string) cloud.Results {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.told[id]++
		m.ended[id] = m.ended[id] || m.fails == nil || m.after
	}
	return cloud.Each(m.fails, ids...)
}

func (m *boosts) fail(err error, after bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails, m.after = err, after
}

// of returns how often the cloud was told of the instance of a pod, and whether that is boosted yet.
func (m *boosts) of(b *bubble, pod string) (told int, boosted bool) {
	b.Helper()
	cell, has := b.cells.ForPod(ref(pod).UID)
	if !has || cell.Instance == nil {
		b.Fatalf("the cell of %s is %s", pod, cell.Phase)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told[cell.Instance.ID], !m.ended[cell.Instance.ID]
}

// boosted is a bubble with such a cloud.
func boosted(t *testing.T, change func(*setup), f func(t *testing.T, b *bubble, m *boosts)) {
	t.Helper()
	m := &boosts{told: map[string]int{}, ended: map[string]bool{}}
	inBubble(t, func(c *setup) {
		model := c.Cloud.(*modelCloud)
		model.optional.Resolver, model.optional.Booster = m, m
		if change != nil {
			change(c)
		}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		f(t, b, m)
	})
}

// stillBoosted reports whether a record in the store has a boost that is to be ended.
func (b *bubble) stillBoosted() bool {
	b.Helper()
	still := false
	for _, cell := range b.records() {
		still = still || cell.boosted()
	}
	return still
}

// records are the stored records of all cells.
func (b *bubble) records() map[string]Cell {
	b.Helper()
	all := map[string]Cell{}
	if err := b.store.List(b.Context(), keyPrefix, func(key string, data []byte, _ int64) error {
		var cell Cell
		err := json.Unmarshal(data, &cell)
		all[key] = cell
		return err
	}); err != nil {
		b.Fatal(err)
	}
	return all
}

// writtenByTheReleaseBefore has the records as a Kip writes them that does not know boosts.
func (b *bubble) writtenByTheReleaseBefore() {
	b.Helper()
	for key := range b.records() {
		record := map[string]json.RawMessage{}
		revision, err := b.store.Get(b.Context(), key, &record)
		if err != nil {
			b.Fatal(err)
		}
		delete(record, "boosted")
		delete(record, "boostEnded")
		if _, err := b.store.Put(b.Context(), key, record, revision); err != nil {
			b.Fatal(err)
		}
	}
}

func TestACellIsBoostedUntilItsPodRuns(t *testing.T) {
	boosted(t, nil, func(t *testing.T, b *bubble, m *boosts) {
		for _, pod := range []string{"a", "b"} {
			b.ask(pod, Options{}, "nano")
		}
		b.later(time.Minute)
		if told, boosted := m.of(b, "a"); b.phase("a") != apiv1.Bound || told != 0 || !boosted || !b.stillBoosted() {
			t.Fatalf("before its pod runs the cell is %s, and the cloud was told %d times", b.phase("a"), told)
		}
		for range 3 {
			b.cells.PodRunning(ref("a").UID)
			b.later(time.Second)
		}
		b.later(2 * boostRetry)
		if told, boosted := m.of(b, "a"); told != 1 || boosted {
			t.Errorf("its pod runs, and the cloud was told %d times", told)
		}
		if told, _ := m.of(b, "b"); told != 0 {
			t.Errorf("of a cell whose pod does not run yet the cloud was told %d times", told)
		}
		b.cells.PodRunning(ref("b").UID)
		b.later(time.Second)
		if b.stillBoosted() {
			t.Error("that no cell is boosted any more is not stored")
		}
		b.stop()
		b.run()
		b.cells.PodRunning(ref("a").UID)
		b.later(boostLimit + 2*boostRetry)
		if told, _ := m.of(b, "a"); told != 1 {
			t.Errorf("after a restart of Kip the cloud was told %d times", told)
		}
	})
}

// What the cloud did not do, and what it did without an answer, is told again: by this Kip or the next.
func TestAnEndOfABoostThatFailsIsRepeated(t *testing.T) {
	for name, after := range map[string]bool{"it is refused": false, "its answer is lost": true} {
		for _, restart := range []bool{false, true} {
			boosted(t, nil, func(t *testing.T, b *bubble, m *boosts) {
				m.fail(errors.New("connection reset"), after)
				b.ask("a", Options{}, "nano")
				b.later(time.Minute)
				b.cells.PodRunning(ref("a").UID)
				b.later(time.Second)
				if told, boosted := m.of(b, "a"); told != 1 || boosted == after || !b.stillBoosted() {
					t.Fatalf("%s: told %d times, boosted %t, and stored as boosted %t", name, told, boosted, b.stillBoosted())
				}
				m.fail(nil, false)
				if restart {
					b.stop()
					b.run()
					b.later(time.Second)
					b.cells.PodRunning(ref("a").UID) // as it is seen anew
				}
				b.later(2*boostRetry + time.Minute)
				if told, boosted := m.of(b, "a"); told != 2 || boosted || b.stillBoosted() {
					t.Errorf("%s, then Kip restarted %t: told %d times, boosted %t, stored as boosted %t", name, restart, told, boosted, b.stillBoosted())
				}
				if b.phase("a") != apiv1.Bound {
					t.Errorf("%s: the cell is %s", name, b.phase("a"))
				}
			})
		}
	}
}

// A Kip of the release before may lead for a while, and writes what it knows of a record.
func TestABoostEndsAlsoWhenTheReleaseBeforeHasWrittenItsRecord(t *testing.T) {
	for _, ended := range []bool{false, true} {
		boosted(t, nil, func(t *testing.T, b *bubble, m *boosts) {
			b.ask("a", Options{}, "nano")
			b.later(time.Minute)
			want := 1
			if ended {
				b.cells.PodRunning(ref("a").UID)
				b.later(time.Second)
				want = 2 // once more does no harm
			}
			b.stop()
			b.writtenByTheReleaseBefore()
			b.run()
			b.later(time.Second)
			b.cells.PodRunning(ref("a").UID)
			b.later(boostLimit + 2*boostRetry)
			if told, boosted := m.of(b, "a"); told != want || boosted || b.stillBoosted() {
				t.Errorf("ended before %t: the cloud was told %d times, boosted %t, stored as boosted %t", ended, told, boosted, b.stillBoosted())
			}
		})
	}
}

func TestAPodThatDoesNotRunIsNotBoostedForLong(t *testing.T) {
	boosted(t, nil, func(t *testing.T, b *bubble, m *boosts) {
		b.ask("a", Options{}, "nano")
		b.later(boostLimit + 2*time.Minute)
		if told, boosted := m.of(b, "a"); told != 1 || boosted {
			t.Errorf("its pod has not run for %s, and the cloud was told %d times", boostLimit, told)
		}
	})
}

func TestAStandbyCellIsBoostedUntilAPodRunsOnIt(t *testing.T) {
	boosted(t, keep(1), func(t *testing.T, b *bubble, m *boosts) {
		b.later(2 * boostLimit)
		m.mu.Lock()
		early := len(m.told)
		m.mu.Unlock()
		if early != 0 || len(b.cloud.running()) != 1 {
			t.Fatalf("of %v without a pod the cloud was told %d times", b.cloud.running(), early)
		}
		b.request("a", "nano")
		b.later(time.Second)
		b.cells.PodRunning(ref("a").UID)
		b.later(time.Second)
		if told, boosted := m.of(b, "a"); b.phase("a") != apiv1.Bound || told != 1 || boosted {
			t.Errorf("a pod runs on it, it is %s, and the cloud was told %d times", b.phase("a"), told)
		}
	})
}

func TestTheCloudIsToldOfNoCellThatIsNotBoosted(t *testing.T) {
	boosted(t, nil, func(t *testing.T, b *bubble, m *boosts) {
		m.plain = true
		b.ask("a", Options{}, "nano")
		b.later(time.Minute)
		b.cells.PodRunning(ref("a").UID)
		b.later(boostLimit)
		if told, _ := m.of(b, "a"); told != 0 {
			t.Errorf("it was told %d times", told)
		}
	})
}
