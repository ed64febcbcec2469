package pods

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// longestMove bounds the time between two tries to move back pods of a controller, of which the last ones were in vain.
const longestMove = 24 * time.Hour

// errNoBetter says that nothing better can be launched for a pod.
var errNoBetter = errors.New("nothing better can be launched")

// movingBack evicts pods from cells that are not what they asked for first, when that can be launched.
type movingBack struct {
	choosing   *choosing
	nodes      Nodes
	disrupting *disrupting
	events     cells.Recorder
	tried      *notes[time.Time] // when each pod was last to be evicted
	random     backoff.Random
	clock      clock.PassiveClock

	mu      sync.Mutex
	ofOwner map[route]*move
}

// move is the last eviction of a pod of a controller for a better cell. It is not stored: a Kip that begins to lead tries once more.
type move struct {
	at      time.Time
	from    int       // rank of the cell that it left
	vain    int       // evictions in a row that brought nothing better
	counted bool      // the last is one of them
	until   time.Time // no pod of the controller is evicted before
}

// rankOf returns the rank of a pod's cell; false if the pod has no choices, or the cell is none of them.
func (s *movingBack) rankOf(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (r placement.Standing, ranked bool, err error) {
	if len(cell.Offerings) == 0 {
		return placement.Standing{}, false, nil
	}
	ranks, err := s.ranks(ctx, pod, cell.Offering())
	if err != nil || len(ranks.WhyNot) < 2 || ranks.Of[0] == 0 {
		return placement.Standing{}, false, err
	}
	r = placement.Standing{Rank: ranks.Of[0], Of: len(ranks.WhyNot), WhyNot: ranks.WhyNot[:ranks.Of[0]-1]}
	return r, true, nil
}

// ranks returns the ranks of offerings for a pod as it is placed.
func (s *movingBack) ranks(ctx context.Context, pod *corev1.Pod, offerings ...offering.Offering) (placement.Ranks, error) {
	placed, zone, err := s.choosing.placed(ctx, pod)
	if err != nil {
		return placement.Ranks{}, err
	}
	keys := make([]offering.Key, len(offerings))
	for i, o := range offerings {
		keys[i] = o.Key()
	}
	return s.nodes.Rank(ctx, placed, zone, keys)
}

// interval is for how long a pod stays on a cell that is not what it asked for first; false if it stays for ever.
func interval(pod *corev1.Pod) (time.Duration, bool) {
	if pod.Annotations[placement.AnnotationMoveBack] == "" {
		return 0, false
	}
	asked, err := placement.ParseAnnotations(pod.Annotations) // a bad one was reported where the pod was placed
	return asked.MoveBack, err == nil && asked.MoveBack > 0
}

// due is when a pod may be evicted next.
func (s *movingBack) due(pod *corev1.Pod, cell cells.Cell, every time.Duration) time.Time {
	last := cell.StepTime(apiv1.StepBound)
	if last.IsZero() {
		last = cell.Launched()
	}
	if tried := s.tried.get(pod.UID); tried.After(last) {
		last = tried
	}
	return last.Add(every)
}

// moveBack evicts a pod that has been on a cell of a worse rank for as long as it says, if one of a better rank can be launched. It returns
// after how long to look again; 0 means when the pod changes.
func (s *movingBack) moveBack(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (time.Duration, error) {
	every, moves := interval(pod)
	if !moves {
		return 0, nil
	}
	now := s.clock.Now()
	left := s.due(pod, cell, every).Sub(now)
	if left > 0 && !s.unjudged(pod, cell) {
		return min(left, longestLook), nil
	}
	retry := s.random.Jittered(disruptionRetry)
	is, ranked, err := s.rankOf(ctx, pod, cell)
	switch {
	case err != nil: // a claim that is gone, or a node that cannot be read
		return retry, nil
	case !ranked:
		why := "it has no other choice, or its machine is none of its choices"
		s.disrupting.reportStays(pod, betterChoice, events.NewMoveBackStays(why))
		return longestLook, nil
	}
	until := s.noteRank(pod, cell, is, every)
	left = max(left, until.Sub(now))
	switch {
	case is.Rank == 1:
		return longestLook, nil
	case left > 0:
		return min(left, longestLook), nil
	case !slices.Contains(is.WhyNot, nil):
		return retry, nil
	}
	return s.disrupting.evict(ctx, pod, disruption{
		eviction: eviction{
			cause:   betterChoice,
			from:    "a cell that is not what it asked for first",
			done:    events.NewMovedBack(cell.Offering().String(), is.Rank, is.Of, now.Sub(cell.Launched())),
			blocked: func(why error) events.Event { return events.NewMoveBackBlocked(is.Rank, is.Of, every, why) },
			retry:   every,
		},
		stays:  func(why string) events.Event { return events.NewMoveBackStays(why) },
		apart:  agedApart,
		better: func(r *cells.Request) error { return s.better(ctx, pod, r, is.Rank) },
		tried:  func(evicted bool) { s.noteTry(pod, is.Rank, evicted) },
	})
}

// better leaves of a request what is of a better rank than that.
func (s *movingBack) better(ctx context.Context, pod *corev1.Pod, r *cells.Request, than int) error {
	ranks, err := s.ranks(ctx, pod, r.Offerings...)
	if err != nil {
		return err
	}
	var left []offering.Offering
	for i, o := range r.Offerings {
		if of := ranks.Of[i]; of > 0 && of < than {
			left = append(left, o)
		}
	}
	if r.Offerings = left; len(left) == 0 {
		return errNoBetter
	}
	return nil
}

// noteTry notes that a pod was to be evicted from a cell of a rank.
func (s *movingBack) noteTry(pod *corev1.Pod, from int, evicted bool) {
	now := s.clock.Now()
	s.tried.note(apiv1.Ref(pod), func(at *time.Time) { *at = now })
	owner, is := routeOf(pod)
	if !evicted || !is {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.at(owner)
	last.at, last.from, last.counted = now, from, false
}

// at returns what is known of the pods of a controller, to be changed. The caller holds mu.
func (s *movingBack) at(owner route) *move {
	owner.node = ""
	if s.ofOwner[owner] == nil {
		makeRoom(s.ofOwner, owner, func(m *move) time.Time { return m.at })
		s.ofOwner[owner] = &move{}
	}
	return s.ofOwner[owner]
}

// last returns what is known of the last eviction of a pod of a pod's controller.
func (s *movingBack) last(pod *corev1.Pod) (is move) {
	owner, _ := routeOf(pod)
	owner.node = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.ofOwner[owner]; m != nil {
		is = *m
	}
	return is
}

// unjudged reports whether a cell shows what the last eviction of a pod of the same controller has brought.
func (s *movingBack) unjudged(pod *corev1.Pod, cell cells.Cell) bool {
	last := s.last(pod)
	return !last.at.IsZero() && !last.counted && cell.StepTime(apiv1.StepPlaced).After(last.at)
}

// noteRank checks whether the last eviction of a pod of the same controller brought a better cell. If not, it reports that by an Event
// and delays the next eviction. It returns when the next one is allowed.
func (s *movingBack) noteRank(pod *corev1.Pod, cell cells.Cell, is placement.Standing, every time.Duration) (until time.Time) {
	if !s.unjudged(pod, cell) {
		return s.last(pod).until
	}
	owner, _ := routeOf(pod)
	s.mu.Lock()
	last := s.at(owner)
	better := is.Rank < last.from
	if last.counted = true; better || is.Rank == 1 {
		last.vain, last.until = 0, time.Time{}
	} else {
		last.vain++
		last.until = last.at.Add(s.random.After(last.vain+1, every, max(every, longestMove)))
	}
	until = last.until
	s.mu.Unlock()
	if !better && is.Rank > 1 {
		s.events.Event(apiv1.Ref(pod), events.NewMovedBackInVain(is.Rank, is.Of, until))
	}
	return until
}

// rank returns the rank of a pod's cell, for people.
func (s *movingBack) rank(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (placement.Standing, bool) {
	is, ranked, err := s.rankOf(ctx, pod, cell)
	if err != nil || !ranked {
		return placement.Standing{}, false
	}
	if every, moves := interval(pod); moves && is.Rank > 1 && whyUndisrupted(pod) == "" {
		is.MovesBack = s.due(pod, cell, every)
		if until := s.last(pod).until; until.After(is.MovesBack) {
			is.MovesBack = until
		}
	}
	return is, true
}
