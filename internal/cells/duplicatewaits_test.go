package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

// duplicateWaits returns what has cells wait until they are the only ones.
func (b *bench) duplicateWaits() *duplicateWaits {
	return &duplicateWaits{
		clock: b.clock, events: b.events, listening: &listening{},
		duplicates: &duplicates{
			table: b.table, generation: b.generation, inventory: b.inventory,
			orphans: &orphanTerminations{inventory: b.inventory, terminations: b.terminations},
		},
	}
}

func TestACellWaitsForTheEndOfWhatMayRunItsPod(t *testing.T) {
	of := func(id, state string) cloud.Instance {
		return cloud.Instance{ID: id, State: cloud.State(state), Tags: map[string]string{cloud.TagCell: "other"}}
	}
	pod := ref("pod of c").UID
	for name, tc := range map[string]struct {
		seen          snapshot
		noEarlierCell bool
		began         time.Duration // this process, before now
		behind        bool
		again         time.Duration
		ends          int
		said          int
		asks          bool // for a snapshot
	}{
		"nothing else runs it": {seen: snapshot{}},
		"another runs it": {
			seen:  snapshot{byID: map[string]cloud.Instance{"i": of("i", "")}, byPod: map[types.UID][]string{pod: {"i"}}},
			again: time.Second, ends: 1, said: 1, asks: true,
		},
		"another that ends": {
			seen:  snapshot{byID: map[string]cloud.Instance{"i": of("i", string(cloud.Terminating))}, byPod: map[types.UID][]string{pod: {"i"}}},
			again: time.Second, said: 1, asks: true,
		},
		"one of a lost store may": {
			seen:  snapshot{byID: map[string]cloud.Instance{"i": of("i", "")}, lostOrphans: []string{"i"}},
			again: time.Second, ends: 1, said: 1, asks: true,
		},
		"one of a lost store cannot": {
			seen:          snapshot{byID: map[string]cloud.Instance{"i": of("i", "")}, lostOrphans: []string{"i"}},
			noEarlierCell: true,
		},
		"a zone is not listed":   {seen: snapshot{blind: true}, again: time.Second, said: 1, asks: true},
		"the store is behind":    {seen: snapshot{}, behind: true, again: idlePoll, said: 1},
		"Kip has begun just now": {seen: snapshot{began: time.Unix(-1, 0)}, again: time.Second, asks: true},
		"nothing is listed yet":  {seen: snapshot{began: time.Unix(-1, 0)}, began: quietStart, again: time.Second, said: 1, asks: true},
	} {
		b := newBench(t)
		s := b.duplicateWaits()
		s.listening.restart(b.clock.Now().Add(-tc.began))
		if tc.seen.began.IsZero() {
			tc.seen.began = b.clock.Now()
			b.listed(tc.seen)
			b.generation.compared = true
		}
		b.inventory.born = b.clock.Now()
		if tc.behind {
			b.generation.now.UnknownLines = map[string]uint64{"other": 1}
		}
		e := b.requested("c")[0]
		e.noEarlierCell = tc.noEarlierCell
		for range 2 {
			got, err := (&launchDuplicates{duplicateWaits: s, inventory: b.inventory}).prepare(t.Context(), e)
			if got.again != tc.again || (got.state == isDone) != (tc.again == 0) || err != nil {
				t.Errorf("%s: %+v (%v), want again after %s", name, got, err, tc.again)
			}
		}
		if len(b.terminations.queued.items) != tc.ends || len(b.said) != tc.said || b.asked() != tc.asks {
			t.Errorf("%s: %d ends, said %v", name, len(b.terminations.queued.items), b.said)
		}
	}
}

func TestWhatACellIsLaunchedAsIsNoOtherThatRunsItsPod(t *testing.T) {
	b := newBench(t)
	s := b.duplicateWaits()
	b.generation.compared = true
	e := b.running("c")
	pod := e.cell().Pod.UID
	own := cloud.Instance{ID: "i-c", Tags: map[string]string{cloud.TagCell: "c"}}
	b.listed(snapshot{began: b.clock.Now(), byID: map[string]cloud.Instance{"i-c": own}, byPod: map[types.UID][]string{pod: {"i-c"}}})
	if why := s.endDuplicates(e); why != "" || e.cell().Phase != apiv1.Bound {
		t.Errorf("it is the only one, and waits for %q", why)
	}
}
