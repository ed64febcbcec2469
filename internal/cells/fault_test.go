package cells

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

// seenEnds are the ends of cells, as an observer is told of them.
type seenEnds struct {
	Unobserved
	mu  sync.Mutex
	all []string
}

func (e *seenEnds) CellChanged(c Cell) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.Phase == apiv1.Terminating {
		e.all = append(e.all, string(c.Cause)+": "+c.Reason)
	}
}

func (e *seenEnds) has(end string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.all, end)
}

// of is how many ended for a cause, of how many.
func (e *seenEnds) of(cause Cause) (n, all int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.all {
		if strings.HasPrefix(end, string(cause)+": ") {
			n++
		}
	}
	return n, len(e.all)
}

// An instance that the cloud ends by itself is told as what it is, booting or bound.
func TestAnInstanceThatTheCloudHasEndedSaysWhy(t *testing.T) {
	for what, tc := range map[string]struct {
		fault error
		cause Cause
		cools bool
	}{
		"capacity":      {&cloud.Error{Cause: cloud.ErrCapacity, Err: errors.New("none")}, CauseInterrupted, true},
		"a quota":       {&cloud.Error{Cause: cloud.ErrQuota, Err: errors.New("of volumes")}, CauseInterrupted, true},
		"what is asked": {&cloud.Error{Cause: cloud.ErrRefused, Err: errors.New("a key of KMS")}, CauseLost, false},
		"nobody knows":  {errors.New("InternalError"), CauseLost, false},
	} {
		for _, phase := range []apiv1.Phase{apiv1.Booting, apiv1.Bound} {
			seen := &seenEnds{}
			inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
				if phase == apiv1.Booting {
					b.links.boots = func(string) bool { return false }
				}
				b.request("a", "nano")
				b.later(5 * time.Second)
				if b.phase("a") != phase {
					t.Fatalf("it is %s, want %s", b.phase("a"), phase)
				}
				cell, _ := b.cells.ForPod(ref("a").UID)
				b.cloud.set(func() { b.cloud.faults = map[string]error{cell.Instance.ID: tc.fault} })
				b.vanish("a")
				b.later(2 * time.Minute)
				why := "the cloud has ended instance " + cell.Instance.ID + ": " + tc.fault.Error()
				if !seen.has(string(tc.cause)+": "+why) || len(b.said("CellLost", why)) != 1 ||
					slices.Contains(b.cooled, "nano") != tc.cools {
					t.Errorf("%s, %s: cooled %v, said %v, %v", what, phase, b.cooled, b.events, seen.all)
				}
			}, seen)
		}
	}
}

func TestAShortageIsMarkedWhereTheEndIsDecidedAndOnce(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.limit = guard.Limit{Least: 2, Window: time.Hour}
		b.stop()
		b.run()
		pods := b.bound(3)
		b.cloud.set(func() {
			b.cloud.forgets, b.cloud.faults = true, map[string]error{} // it does not say that they are gone
			for id := range b.cloud.instances {
				b.cloud.faults[id] = &cloud.Error{Cause: cloud.ErrCapacity, Err: errors.New("none")}
			}
		})
		for _, pod := range pods {
			b.vanish(pod)
		}
		b.later(10 * time.Minute)
		if n := len(b.unbound(pods)); n != 2 || len(b.guard.Held()) != 1 || len(b.cooled) != 2 {
			t.Fatalf("%d of 3 have ended and %v is held back, want the 2 that may; marked %v, want those 2", n, b.guard.Held(), b.cooled)
		}
		b.guard.Allow(time.Now())
		b.later(time.Minute)
		if n := len(b.unbound(pods)); n != 3 || len(b.cooled) != 3 {
			t.Errorf("%d of 3 have ended once a person has allowed it; marked %v, want each once", n, b.cooled)
		}
	})
}

// One that had ended when its launch was sent again is told as what it is, too. What the operator has configured is not the pod's fault.
func TestALaunchOfWhatTheCloudHasEndedSaysWhy(t *testing.T) {
	for cause, want := range map[cloud.Cause]string{
		cloud.ErrCapacity: "interrupted",
		cloud.ErrUnfit:    "unfit",
		cloud.ErrRefused:  "lost",
	} {
		seen := &seenEnds{}
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			fault := &cloud.Error{Cause: cause, Err: errors.New("words of the cloud")}
			b.cloud.answer = func(i cloud.Instance) cloud.Instance {
				i.State, i.Fault = cloud.Gone, fault
				return i
			}
			b.request("a", "nano")
			b.later(5 * time.Second)
			cooled := slices.Contains(b.cooled, "nano")
			if !seen.has(want+": the cloud has ended instance i-0: "+fault.Error()) || cooled != (cause == cloud.ErrCapacity) {
				t.Errorf("%s: cooled %v, said %v, %v", cause, b.cooled, b.events, seen.all)
			}
		}, seen)
	}
}
