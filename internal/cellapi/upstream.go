package cellapi

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	// sharedHistory is how many events of a shared kind are kept. A kubelet that
	// was cut off for longer than they took lists anew.
	sharedHistory = 1024
	// refHistory is the same for one referenced object.
	refHistory = 8
)

// lastError is the last failure of a watch, nil after a success.
type lastError struct {
	mu  sync.Mutex
	err error
}

func (l *lastError) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// refusal returns the failure when it is one that a client should be told: the
// API server's refusal. Of any other there is hope.
func (l *lastError) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if apierrors.IsForbidden(l.err) || apierrors.IsNotFound(l.err) {
		return l.err
	}
	return nil
}

// source is one watch on the API server.
type source struct {
	kind       *kind
	client     rest.Interface
	collection *collection
	lastError  *lastError
}

// run keeps store up to date until ctx ends. name, when not empty, narrows the
// watch to one object.
func (src *source) run(ctx context.Context, s *Server, namespace, name string, store cache.ReflectorStore) {
	selector := fields.Everything()
	if name != "" {
		selector = fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	}
	log := s.log.With("resource", src.kind.resource.Resource)
	if name != "" {
		log = log.With("object", key(namespace, name))
	}
	attempt := func(err error) {
		if errors.Is(err, context.Canceled) {
			return
		}
		src.lastError.set(err)
		if err != nil {
			log.Warn("watch on the API server failed, it is tried again", "error", err)
		}
	}
	ask := func(options metav1.ListOptions) *rest.Request {
		options.FieldSelector, options.LabelSelector = selector.String(), src.kind.labels
		return src.client.Get().
			NamespaceIfScoped(namespace, namespace != "").
			Resource(src.kind.resource.Resource).
			VersionedParams(&options, scheme.ParameterCodec)
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
			// The reflector's own context does not end with it.
			list, err := ask(options).Do(ctx).Get()
			attempt(err)
			return list, err
		},
		WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			w, err := ask(options).Timeout(seconds(options.TimeoutSeconds)).Watch(ctx)
			attempt(err)
			return w, err
		},
	}
	cache.NewReflectorWithOptions(lw, src.kind.new(), store, cache.ReflectorOptions{
		Name: "cellapi " + src.kind.resource.Resource,
		// Quick at first: right after a pod is bound, the API server's Node
		// authorizer may not have heard of it, and refuses what it names.
		Backoff: &wait.Backoff{
			Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Cap: 30 * time.Second,
			Steps: 9, // doublings from 100 ms to the cap
		},
	}).RunWithContext(ctx)
}

func seconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Second
}

// refKey names a referenced object: a Secret or a ConfigMap.
type refKey struct {
	kind            *kind
	namespace, name string
}

// sharedRef is the one watch on a referenced object, for all cells whose pods name
// it.
type sharedRef struct {
	source
	users int
	stop  context.CancelFunc
}

// acquire returns the watch on a referenced object, which it starts for the first
// user.
func (s *Server) acquire(k refKey) *sharedRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	ref := s.refs[k]
	if ref == nil {
		ctx, stop := context.WithCancel(s.lifetime)
		ref = &sharedRef{stop: stop, source: source{
			kind: k.kind, client: s.node.CoreV1().RESTClient(),
			collection: newCollection(k.kind, refHistory), lastError: &lastError{},
		}}
		s.refs[k] = ref
		s.startLocked(func() { ref.run(ctx, s, k.namespace, k.name, ref.collection) })
	}
	ref.users++
	return ref
}

// release gives the watch on a referenced object up; the last user's release ends
// it.
func (s *Server) release(k refKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ref := s.refs[k]
	if ref == nil {
		return
	}
	if ref.users--; ref.users == 0 {
		ref.stop()
		delete(s.refs, k)
	}
}
