package watches

import (
	"context"
	"errors"
	"log/slog"
	"math"
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

// Refusal returns the failure when it is one that a client should be told: the
// API server's refusal. Of any other there is hope.
func (l *lastError) Refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if apierrors.IsForbidden(l.err) || apierrors.IsNotFound(l.err) {
		return l.err
	}
	return nil
}

// Source is one watch on the API server.
type Source struct {
	Kind *Kind
	// Collection is what has been seen, nil where that goes to a store of
	// somebody else's.
	Collection *Collection
	client     rest.Interface
	log        *slog.Logger
	lastError
}

// run keeps store up to date until ctx ends. name, when not empty, narrows the
// watch to one object.
func (src *Source) run(ctx context.Context, namespace, name string, store cache.ReflectorStore) {
	selector := fields.Everything()
	if name != "" {
		selector = fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	}
	log := src.log.With("resource", src.Kind.Resource.Resource)
	if name != "" {
		log = log.With("object", Key(namespace, name))
	}
	attempt := func(err error) {
		if errors.Is(err, context.Canceled) {
			return
		}
		src.set(err)
		if err != nil {
			log.Warn("watch on the API server failed, retrying", "err", err)
		}
	}
	ask := func(options metav1.ListOptions) *rest.Request {
		options.FieldSelector, options.LabelSelector = selector.String(), src.Kind.labels
		return src.client.Get().
			NamespaceIfScoped(namespace, namespace != "").
			Resource(src.Kind.Resource.Resource).
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
	cache.NewReflectorWithOptions(lw, src.Kind.New(), store, cache.ReflectorOptions{
		Name: "watches " + src.Kind.Resource.Resource,
		// Quick at first: right after a pod is bound, the API server's Node
		// authorizer may not have heard of it, and refuses what it names.
		Backoff: ReflectorBackoff(100 * time.Millisecond),
	}).RunWithContext(ctx)
}

// ReflectorBackoff returns the waits of a reflector between failures: first, and twice as long each time, up to 30 seconds. It is of
// apimachinery, and not of package backoff, since a reflector takes no other.
func ReflectorBackoff(first time.Duration) *wait.Backoff {
	return &wait.Backoff{
		Duration: first,
		Factor:   2,
		Jitter:   0.5,
		Cap:      30 * time.Second,
		Steps:    math.MaxInt32, // the cap ends the doubling
	}
}

func seconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Second
}
