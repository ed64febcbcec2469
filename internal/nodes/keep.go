package nodes

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/elotl/kip/internal/node"
)

// keeping keeps the objects of nodes.
type keeping struct {
	nodes    *registry
	access   *access
	failures failures
	loops    sync.WaitGroup
	ctx      context.Context // of Controller.Keep, whose it is
}

// loop is a goroutine that can be ended.
type loop struct {
	end  context.CancelFunc
	done chan struct{}
}

// start keeps the object of a node until Controller.Keep ends, or stop.
func (k *keeping) start(s *served) {
	ctx, end := context.WithCancel(k.ctx)
	l := &loop{end: end, done: make(chan struct{})}
	k.nodes.mu.Lock()
	s.loop = l
	object := s.node
	k.nodes.mu.Unlock()
	k.loops.Go(func() {
		defer close(l.done)
		running := make(chan struct{})
		k.loops.Go(func() {
			select {
			case <-object.Ready():
				s.settle()
			case <-running:
			}
		})
		err := object.Run(ctx)
		close(running)
		switch {
		case ctx.Err() != nil:
		case s.number > 0 && errors.Is(err, node.ErrForeignNode):
			// Only this one: the others' pods have their cells.
			k.access.leaveOut(s, rightsForeign)
			select {
			case s.lost <- struct{}{}:
			default:
			}
		default:
			k.failures.unless(ctx, cmp.Or(err, errors.New("the virtual node is kept no more")))
		}
	})
}

// stop ends the keeping of a node's object, and waits for that.
func (k *keeping) stop(s *served) {
	k.nodes.mu.Lock()
	l := s.loop
	s.loop = nil
	k.nodes.mu.Unlock()
	if l != nil {
		l.end()
		<-l.done
	}
}
