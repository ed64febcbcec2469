package nodes

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// reads are the objects of virtual nodes as they were read last: a thousand pods that wait
// are placed by the same few. Kip may not watch nodes, but for those that it is.
type reads struct {
	nodes  *registry
	client kubernetes.Interface
	clock  clock.PassiveClock
	asking singleflight.Group
	again  time.Duration // how long an object that was read counts

	mu      sync.Mutex
	objects map[string]reading
}

func newReads(c Config, nodes *registry) *reads {
	return &reads{
		nodes:   nodes,
		client:  c.Client,
		clock:   c.Clock,
		again:   LookEvery,
		objects: map[string]reading{},
	}
}

// readsSoon is how long the object of a node counts that has not the labels for a pod.
const readsSoon = time.Second

// soon is how long an object counts of which something newer may be wanted.
func (r *reads) soon() time.Duration { return min(r.again, readsSoon) }

// reading is an object, and when it was asked for.
type reading struct {
	node *corev1.Node
	at   time.Time
}

func (r *reads) get(name string) reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[name]
}

func (r *reads) put(name string, read reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects[name] = read
}

func (r *reads) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.objects, name)
}

// node returns the object of a virtual node, as it was at most so long ago. It is not to be
// changed. The errors are the API server's.
func (r *reads) node(ctx context.Context, name string, ago time.Duration) (*corev1.Node, error) {
	for {
		if last := r.get(name); last.node != nil && r.clock.Since(last.at) < ago {
			return last.node, nil
		}
		got, err, _ := r.asking.Do(name, func() (any, error) {
			asking, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			at := r.clock.Now()
			there, err := r.client.CoreV1().Nodes().Get(asking, name, metav1.GetOptions{})
			if err == nil && r.nodes.named(name) != nil {
				r.put(name, reading{node: there, at: at})
			}
			return there, err
		})
		switch {
		case err == nil:
			return got.(*corev1.Node), nil
		case errors.Is(err, context.Canceled) && ctx.Err() == nil:
			continue // who asked has gone
		}
		return nil, err
	}
}
