package pods

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

const (
	// agedApart is the least time between two evictions of a controller's pods from old cells: the next goes when its
	// predecessor's replacement has had time to start.
	agedApart = 5 * time.Minute
	// longestLook bounds the wait until a cell is old.
	longestLook = time.Hour
)

// aging evicts pods from cells that are older than cells may be: each pod that replaces one gets a new cell, with a new image.
type aging struct {
	maxAge     time.Duration // 0: cells may be of any age
	disrupting *disrupting
	clock      clock.PassiveClock
}

// replace evicts the pod of a cell that is too old. It returns after how long to look again; 0 means when the pod changes.
func (s *aging) replace(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (time.Duration, error) {
	launched := cell.Launched()
	if s.maxAge <= 0 || launched.IsZero() {
		return 0, nil
	}
	age := s.clock.Since(launched)
	if left := s.maxAge - age; left > 0 {
		return min(left, longestLook), nil
	}
	return s.disrupting.evict(ctx, pod, disruption{
		eviction: eviction{
			cause:   oldCell,
			from:    "a cell that is too old",
			done:    events.NewAgedPodEvicted(age, s.maxAge),
			blocked: func(why error) events.Event { return events.NewAgedPodBlocked(s.maxAge, why) },
		},
		stays: func(why string) events.Event { return events.NewAgedPodStays(s.maxAge, why) },
		apart: agedApart,
	})
}
