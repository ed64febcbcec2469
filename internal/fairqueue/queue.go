package fairqueue

import "k8s.io/client-go/util/workqueue"

// New returns the storage of a work queue whose items belong to shares, such as namespaces. shareOf is called with the
// queue locked.
func New[T comparable](shareOf func(T) string) workqueue.Queue[T] {
	return &queue[T]{shareOf: shareOf, waiting: map[string]workqueue.Queue[T]{}}
}

// InTurns returns the configuration of a work queue with that storage.
func InTurns[T comparable](
	c workqueue.TypedRateLimitingQueueConfig[T], shareOf func(T) string,
) workqueue.TypedRateLimitingQueueConfig[T] {
	c.DelayingQueue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{
		Name:            c.Name,
		MetricsProvider: c.MetricsProvider,
		Clock:           c.Clock,
		Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{
			Name: c.Name, MetricsProvider: c.MetricsProvider, Clock: c.Clock, Queue: New(shareOf),
		}),
	})
	return c
}

type queue[T comparable] struct {
	shareOf func(T) string
	waiting map[string]workqueue.Queue[T] // by share, where there are any
	turns   []string                      // those shares, the next first
	items   int
}

// Touch implements workqueue.Queue.
func (q *queue[T]) Touch(T) {}

// Len implements workqueue.Queue.
func (q *queue[T]) Len() int { return q.items }

// Push implements workqueue.Queue.
func (q *queue[T]) Push(item T) {
	share := q.shareOf(item)
	if q.waiting[share] == nil {
		q.waiting[share] = workqueue.DefaultQueue[T]()
		q.turns = append(q.turns, share)
	}
	q.waiting[share].Push(item)
	q.items++
}

// Pop implements workqueue.Queue.
func (q *queue[T]) Pop() T {
	share := q.turns[0]
	q.turns = q.turns[1:]
	item := q.waiting[share].Pop()
	q.items--
	if q.waiting[share].Len() > 0 {
		q.turns = append(q.turns, share)
	} else {
		delete(q.waiting, share)
	}
	return item
}
