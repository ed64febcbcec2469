package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// interruptionRetry is the wait after an error before Kip listens for interruptions
// again. Of a notice of two minutes little is lost.
const interruptionRetry = 5 * time.Second

// announcements takes the cloud's notices that it takes instances back.
type announcements struct {
	table         *table
	loop          *loop
	calls         *pipe.Pipe
	interruptions *interruptions
}

// run takes the cloud's notices until ctx ends.
func (s *announcements) run(ctx context.Context) {
	source := s.calls.Optional().Interrupter
	if source == nil {
		return
	}
	for ctx.Err() == nil {
		err := source.Interruptions(ctx, cloud.Listener{
			Notify: func(i cloud.Interruption) {
				s.loop.watchdog.Track(ctx, "interruptions", func(ctx context.Context) { s.interrupt(ctx, i) })
			},
			Mine:    func(instance string) bool { return s.table.havingInstance(instance) != nil },
			Planned: s.planned,
		})
		if ctx.Err() != nil {
			return
		}
		s.loop.log.Warn("listen for interruptions, retrying", "cloud", s.calls.Name(), "err", err)
		s.loop.sleep(ctx, s.loop.random.Jittered(interruptionRetry))
	}
}

// interrupt notes that the cloud takes an instance back. A cell without a pod is
// replaced at once. A bound cell ends with the notice, and its pod moves before.
func (s *announcements) interrupt(ctx context.Context, i cloud.Interruption) {
	found := s.table.havingInstance(i.InstanceID)
	if found != nil && i.CalledOff {
		if cell := found.cell(); cell.Planned && !cell.Interrupted.IsZero() {
			s.interruptions.forget(ctx, found)
			s.loop.queue.Add(found.id)
		}
		return
	}
	if found != nil {
		_ = s.interruptions.recordNotice(ctx, found, i, false) // a write that was refused has ended Kip
	}
}

// planned returns the instances that the cloud is to take for what it has planned.
func (s *announcements) planned() (instances []string) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range s.table.byID {
		if cell := e.cell(); cell.Planned && !cell.Interrupted.IsZero() && cell.Instance != nil {
			instances = append(instances, cell.Instance.ID)
		}
	}
	return instances
}
