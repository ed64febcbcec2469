package watches

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/elotl/kip/internal/tasks"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Watches are all watches on the API server that many read. They begin with Run.
type Watches struct {
	log    *slog.Logger
	shared map[schema.GroupVersionResource]*Source
	feeds  map[schema.GroupVersionResource]cache.ReflectorStore

	tasks *tasks.Group

	mu   sync.Mutex
	refs map[Ref]*sharedRef
}

// New returns watches that have not begun. node reaches the API server as a
// virtual node, own as Kip, for what a node may not read.
func New(node, own kubernetes.Interface, log *slog.Logger) *Watches {
	w := &Watches{
		log:    log,
		shared: map[schema.GroupVersionResource]*Source{},
		feeds:  map[schema.GroupVersionResource]cache.ReflectorStore{},
		tasks:  tasks.New(),
		refs:   map[Ref]*sharedRef{},
	}
	for _, k := range SharedKinds() {
		client := node
		if k.own {
			client = own
		}
		src := &Source{
			Kind:       k,
			client:     k.Client(client),
			Collection: NewCollection(k, sharedHistory),
			log:        log,
		}
		w.shared[k.Resource], w.feeds[k.Resource] = src, src.Collection
	}
	return w
}

// Of returns the watch on a kind that all cells see, nil for any other.
func (w *Watches) Of(resource schema.GroupVersionResource) *Source { return w.shared[resource] }

// Feed lets a store take what is seen of a kind, instead of its collection. It is
// called before Run.
func (w *Watches) Feed(resource schema.GroupVersionResource, store cache.ReflectorStore) {
	w.feeds[resource] = store
}

// Watch lets a store take what is seen of one object of the core group, which has
// no namespace, until stop is called. as reaches the API server as who may watch it.
func (w *Watches) Watch(as kubernetes.Interface, k *Kind, name string, store cache.ReflectorStore) (src *Source, stop func()) {
	src = &Source{Kind: k, client: as.CoreV1().RESTClient(), log: w.log}
	ctx, stop := context.WithCancel(w.tasks.Lifetime())
	w.tasks.Start(func() { src.run(ctx, "", name, store) })
	return src, stop
}

// Run watches until ctx ends, and returns once nothing of it is left running. It
// runs once.
func (w *Watches) Run(ctx context.Context) error {
	if !w.tasks.Run() {
		return errors.New("watches: Run may be called once only")
	}
	for resource, src := range w.shared {
		w.tasks.Start(func() { src.run(w.tasks.Lifetime(), "", "", w.feeds[resource]) })
	}
	<-ctx.Done()
	w.tasks.Stop()
	return nil
}

// clientOf reaches the group of a kind, the core group if the kind names none.
func clientOf(k *Kind, as kubernetes.Interface) rest.Interface {
	if k.Client != nil {
		return k.Client(as)
	}
	return as.CoreV1().RESTClient()
}

// Ref names one object that pods refer to, such as a Secret or a ConfigMap, or all of a kind for the
// name ""; and the virtual node of those pods, as which it is watched: the node may
// read what its own pods name, and no other.
type Ref struct {
	Node            string
	Kind            *Kind
	Namespace, Name string
}

// sharedRef is the one watch on such an object, for all whose pods name it.
type sharedRef struct {
	Source
	users int
	stop  context.CancelFunc
}

// Acquire returns the watch on a referenced object, which it starts for the first
// user. as reaches the API server as the node that k names.
func (w *Watches) Acquire(k Ref, as kubernetes.Interface) *Source {
	w.mu.Lock()
	defer w.mu.Unlock()
	ref := w.refs[k]
	if ref == nil {
		ctx, stop := context.WithCancel(w.tasks.Lifetime())
		ref = &sharedRef{stop: stop, Source: Source{
			Kind:       k.Kind,
			client:     clientOf(k.Kind, as),
			Collection: NewCollection(k.Kind, refHistory),
			log:        w.log,
		}}
		w.refs[k] = ref
		w.tasks.Start(func() { ref.run(ctx, k.Namespace, k.Name, ref.Collection) })
	}
	ref.users++
	return &ref.Source
}

// Release gives the watch on a referenced object up; the last user's release ends
// it.
func (w *Watches) Release(k Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ref := w.refs[k]
	if ref == nil {
		return
	}
	if ref.users--; ref.users == 0 {
		ref.stop()
		delete(w.refs, k)
	}
}
