package nodes

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// failures end Kip.
type failures chan error

// errEnded is the failure of what returned although nobody had stopped it.
var errEnded = errors.New("it has ended by itself")

// unless ends Kip for the failure of something that nobody had stopped.
func (f failures) unless(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	select {
	case f <- cmp.Or(err, errEnded):
	default:
	}
}

// following runs what every node has while it is served: the watch on its pods, its
// kubelet port and what answers there.
type following struct {
	nodes    *registry
	access   *access
	keeping  *keeping
	failures failures
	tasks    sync.WaitGroup
	// ctx is that of run; under registry.mu.
	ctx context.Context
}

// run follows the nodes until ctx ends.
func (f *following) run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer f.tasks.Wait()
	defer end()
	f.nodes.mu.Lock()
	f.ctx = ctx
	for _, s := range f.nodes.served {
		f.begin(s)
	}
	f.nodes.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil
	case err := <-f.failures:
		return err
	}
}

// begin follows one more. The caller holds registry.mu.
func (f *following) begin(s *served) {
	ctx, stop := context.WithCancel(f.ctx)
	s.stop = stop
	f.tasks.Go(func() { f.watch(ctx, s) })
	f.tasks.Go(func() { f.failures.unless(ctx, s.kubelet.stats.Run(ctx)) })
	f.tasks.Go(func() { f.failures.unless(ctx, s.kubelet.port.Serve(ctx, s.kubelet.listener)) })
	if local := s.kubelet.local; local != nil {
		f.tasks.Go(func() { f.failures.unless(ctx, s.kubelet.port.Serve(ctx, local)) })
	}
}

// watch follows the node's pods until ctx ends, while Kip may. A node that Kip may not
// be is left out, and holds up no other.
func (f *following) watch(ctx context.Context, s *served) {
	f.access.await(ctx, s)
	if ctx.Err() != nil {
		return
	}
	// Not before: a certificate in the name of a machine is none for Kip to request.
	f.tasks.Go(func() { f.failures.unless(ctx, s.kubelet.certificate.Run(ctx)) })
	f.tasks.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), s.informer.HasSynced) {
			if e, _ := f.nodes.entryOf(s.name); e.Removed {
				s.settle() // it is ours, and need not be registered
			}
		}
		f.nodes.LookSoon()
	})
	f.tasks.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.lost:
				f.keeping.stop(s)
				f.access.await(ctx, s)
				f.nodes.LookSoon()
			}
		}
	})
	s.informer.RunWithContext(ctx)
}
