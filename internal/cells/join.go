package cells

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// joining has machines that were launched join: their agents, and then their kubelets.
type joining struct {
	clock      clock.PassiveClock
	generation *StoreGeneration
	evacuating *evacuating
	failures   *bootFailures
	stages     preparations
}

// Step waits for the machine's agent to prove that it has the token, gives it
// its configuration, and waits for its kubelet.
func (s *joining) Step(ctx context.Context, e *entry) (progress, error) {
	if ended, err := s.failures.endUnwanted(ctx, e); err != nil || ended {
		return done, err
	}
	if s.evacuating.endUnbound(e) {
		return leave, nil
	}
	if s.generation.mayRunMore(e) {
		s.generation.noteAway(s.clock.Now())
		return waitFor(s.generation.Behind(), time.Second), nil
	}
	left, err := s.failures.endIfLate(ctx, e, s.stages)
	if err != nil || left <= 0 {
		return done, err
	}
	got, err := s.stages.prepare(ctx, e)
	return got.atMost(left), err
}

// waitsForLocked returns what a booting cell waits for. The caller holds table.mu.
func (s *joining) waitsForLocked(e *entry) string {
	if s.generation.mayRunMore(e) {
		why, _ := s.generation.whyBehind() // Kip tells a kubelet nothing before
		return why
	}
	return s.stages.waitsForLocked(e)
}
