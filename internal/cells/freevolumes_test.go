package cells

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/keyed"
	"k8s.io/utils/clock"
)

// detaching are disks that are detached, with how much time there is for each.
type detaching struct {
	cloud.Disks
	err  error
	did  []string
	time []time.Duration
}

func (d *detaching) DetachDisk(ctx context.Context, id, instance string) error {
	until, _ := ctx.Deadline()
	d.did, d.time = append(d.did, id+" of "+instance), append(d.time, time.Until(until))
	return d.err
}

// freeing returns what has cells let go of volumes. Its clock is that of the bubble.
func (b *bench) freeing() *freeingVolumes {
	b.loop.clock = clock.RealClock{}
	return &freeingVolumes{
		loop: b.loop, calls: b.calls, agents: b.agents, connections: b.connecting(), events: b.events, places: keyed.NewPlaces[string](1, 1),
	}
}

func TestACellLetsGoOfItsVolumesBeforeItsInstanceEnds(t *testing.T) {
	const often = 100 // times, or more
	const ok, busy, refuses = http.StatusOK, http.StatusServiceUnavailable, http.StatusInternalServerError
	driver, disk := Wants{Plugins: []Plugin{{Driver: "nfs"}}}, Wants{Disks: []Disk{{ID: "d", Volume: "pv"}}}
	both := Wants{Plugins: driver.Plugins, Disks: append(slices.Clone(disk.Disks), Disk{ID: "e", Volume: "pv-e"})}
	for name, tc := range map[string]struct {
		wants          Wants
		plugins, disks int // codes with which its agent answers
		busyFor        int // so many times first
		cause          Cause
		away           bool
		noDisks        bool // of the cloud
		fails          error
		kept           bool // until the instance ends
		asked          int
		detached       []string
		said           int
		within         time.Duration
	}{
		"it has none":                   {},
		"its driver lets go":            {wants: driver, plugins: ok, asked: 1},
		"its driver writes for a while": {wants: driver, plugins: ok, busyFor: 3, asked: 4, within: 3 * pluginPoll},
		"its driver writes for too long": {
			wants: driver, plugins: busy, kept: true, asked: often, said: 1, within: drainTimeout,
		},
		"its driver is not done, and it is lost": {wants: driver, plugins: busy, cause: CauseLost, kept: true, asked: 1, said: 1},
		"its driver refuses":                     {wants: driver, plugins: refuses, kept: true, asked: 1, said: 1},
		"it is away":                             {wants: driver, away: true, kept: true, said: 1, within: drainTimeout},
		"it is away, and lost":                   {wants: driver, away: true, cause: CauseLost, kept: true, said: 1},
		"its disk is unmounted":                  {wants: disk, disks: ok, asked: 1, detached: []string{"d of i-c"}},
		"its disk is unmounted in a while": {
			wants: disk, disks: ok, busyFor: 3, asked: 4, detached: []string{"d of i-c"}, within: 3 * diskPoll,
		},
		"its disk cannot be unmounted": {wants: disk, disks: refuses, kept: true, asked: 1},
		"its disk cannot be detached":  {wants: disk, disks: ok, fails: errors.New("no"), kept: true, asked: 1, detached: []string{"d of i-c"}},
		"its cloud has no disks":       {wants: disk, noDisks: true},
		"all of them":                  {wants: both, plugins: ok, disks: ok, asked: 2, detached: []string{"d of i-c", "e of i-c"}},
		"all but those of its driver": {
			wants: both, plugins: refuses, disks: ok, kept: true, asked: 2, detached: []string{"d of i-c", "e of i-c"}, said: 1,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			disks := &detaching{err: tc.fails}
			if !tc.noDisks {
				b.cloud.set(func() { b.cloud.optional.Disks = disks })
			}
			s := b.freeing()
			if tc.cause == "" {
				tc.cause = CausePodDeleted
			}
			e := b.draining("c", tc.cause, tc.wants)
			link := b.linked(e)
			e.change(func(c *connection) { c.configured = !tc.away })
			if tc.away {
				link.connected, link.ready = false, make(chan struct{})
			}
			n := 0
			asked := link.answering(func(path string) int {
				if n++; n <= tc.busyFor {
					return busy
				}
				if path == agentapi.PathDisks {
					return tc.disks
				}
				return tc.plugins
			})
			began := time.Now()
			has := s.has(e.cell())
			err := s.free(t.Context(), e)
			within := time.Since(began)
			if errors.Is(err, errNotFreed) != tc.kept || !tc.kept && err != nil || within != tc.within || min(len(*asked), often) != tc.asked {
				t.Errorf("%s: after %s %v, asked for %d", name, within, err, len(*asked))
			}
			if !slices.Equal(disks.did, tc.detached) || len(b.said) != tc.said || has != (tc.asked > 0 || tc.away) {
				t.Errorf("%s: has volumes %t, detached %v, said %v", name, has, disks.did, b.said)
			}
			for _, left := range disks.time { // however long its agent took
				if left != drainTimeout {
					t.Errorf("%s: there are %s to detach a disk", name, left)
				}
			}
			if leave, free := s.places.TryTake(e.cell().Pod.Namespace); !free {
				t.Fatalf("%s: its place is not free afterwards", name)
			} else {
				leave()
			}
		})
	}
}

func TestAKipThatEndsSaysNothingOfVolumes(t *testing.T) {
	for name, wants := range map[string]Wants{
		"of a driver": {Plugins: []Plugin{{Driver: "nfs"}}},
		"a disk":      {Disks: []Disk{{ID: "d", Volume: "pv"}}},
	} {
		b := newBench(t)
		disks := &detaching{}
		b.cloud.set(func() { b.cloud.optional.Disks = disks })
		s := b.freeing()
		e := b.draining("c", CausePodDeleted, wants)
		b.linked(e)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.free(ctx, e); !errors.Is(err, context.Canceled) || errors.Is(err, errNotFreed) || len(b.said) != 0 || len(disks.did) != 0 {
			t.Errorf("%s: %v, said %v, detached %v", name, err, b.said, disks.did)
		}
	}
}
