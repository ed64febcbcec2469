package watches

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

var namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")

// unasked are watches that have not begun.
func unasked() *Watches {
	return New(fake.NewClientset(), fake.NewClientset(), slog.New(slog.DiscardHandler))
}

// followed are the namespaces that a Follower was told of, with a label of each.
type followed struct {
	mu       sync.Mutex
	is       map[string]string
	replaced int
	told     chan struct{} // has room for one
}

func (f *followed) note(change func()) {
	f.mu.Lock()
	change()
	f.mu.Unlock()
	select {
	case f.told <- struct{}{}:
	default:
	}
}

func (f *followed) Replace(objects []runtime.Object) {
	f.note(func() {
		f.is, f.replaced = map[string]string{}, f.replaced+1
		for _, o := range objects {
			f.is[o.(*corev1.Namespace).Name] = o.(*corev1.Namespace).Labels["team"]
		}
	})
}

func (f *followed) Set(o runtime.Object) {
	f.note(func() { f.is[o.(*corev1.Namespace).Name] = o.(*corev1.Namespace).Labels["team"] })
}

func (f *followed) Delete(o runtime.Object) {
	f.note(func() { delete(f.is, o.(*corev1.Namespace).Name) })
}

// becomes waits until what was told comes to this.
func (f *followed) becomes(t *testing.T, replaced int, want string) {
	t.Helper()
	for {
		f.mu.Lock()
		got, n := fmt.Sprint(f.is), f.replaced
		f.mu.Unlock()
		if got == want && n == replaced {
			return
		}
		select {
		case <-f.told:
		case <-t.Context().Done():
			t.Fatalf("%s, all told %d times: want %s, %d", got, n, want, replaced)
		}
	}
}

func TestAFollowerIsToldAllAndThenEachChange(t *testing.T) {
	w := unasked()
	c := w.Of(namespaces).Collection
	space := func(name, team string, rv int) *corev1.Namespace {
		labels := map[string]string{"team": team}
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: fmt.Sprint(rv), Labels: labels}}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &followed{told: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() { done <- w.Follow(ctx, namespaces, f) }()
	must(c.Replace([]any{space("a", "x", 5)}, "10"))
	f.becomes(t, 1, "map[a:x]")
	must(c.Add(space("b", "y", 11)))
	must(c.Update(space("a", "z", 12)))
	f.becomes(t, 1, "map[a:z b:y]")
	must(c.Delete(space("b", "y", 13)))
	f.becomes(t, 1, "map[a:z]")

	// One that falls behind gets all anew.
	c.mu.Lock()
	c.forget()
	c.signal()
	c.mu.Unlock()
	f.becomes(t, 2, "map[a:z]")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := w.Follow(t.Context(), corev1.SchemeGroupVersion.WithResource("pods"), f); err == nil {
		t.Error("pods are followed, which are not watched for all cells")
	}
}

func TestAClusterIPIsOfAServiceThatIsKnown(t *testing.T) {
	w := unasked()
	if _, known := w.ClusterIP("ns", "web"); known {
		t.Error("Services are known before the first was seen")
	}
	service := func(name, ip string) *corev1.Service {
		meta := metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "1"}
		return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: ip}}
	}
	all := []any{service("web", "10.0.0.1"), service("headless", corev1.ClusterIPNone)}
	if err := w.Of(Services).Collection.Replace(all, "2"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"web": "10.0.0.1", "headless": "invalid IP", "none": "invalid IP"} {
		if got, known := w.ClusterIP("ns", name); !known || got.String() != want {
			t.Errorf("%s: %s, known %t: want %s", name, got, known, want)
		}
	}
}

// refusing is an API server that refuses everything, and the paths that were asked.
type refusing struct {
	mu    sync.Mutex
	paths []string
	asked chan struct{} // has room for one
}

func (s *refusing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.paths = append(s.paths, r.URL.Path+"?"+r.URL.Query().Get("fieldSelector"))
	s.mu.Unlock()
	select {
	case s.asked <- struct{}{}:
	default:
	}
	http.Error(w, "not for you", http.StatusForbidden)
}

func TestWhatIsReferredToIsWatchedOnceAndARefusalIsTold(t *testing.T) {
	api := &refusing{asked: make(chan struct{}, 1)}
	server := httptest.NewServer(api)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	w := New(client, client, slog.New(slog.DiscardHandler))
	ref := Ref{Kind: secretKind, Namespace: "ns", Name: "s"}
	first := w.Acquire(ref, client) // before Run
	if second := w.Acquire(ref, client); second != first {
		t.Error("one object has two watches")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	for first.Refusal() == nil || w.Refusal(namespaces) == nil {
		<-api.asked
	}
	if first.Collection.Ready(ctx, clock.RealClock{}, 0) {
		t.Error("what may not be seen is known")
	}
	w.Release(ref)
	if again := w.Acquire(ref, client); again != first {
		t.Error("a watch that one still has was ended")
	}
	w.Release(ref)
	w.Release(ref)
	if anew := w.Acquire(ref, client); anew == first {
		t.Error("a watch that nobody has was kept")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := w.Run(t.Context()); err == nil {
		t.Error("Run may be called twice")
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	if !slices.Contains(api.paths, "/api/v1/namespaces/ns/secrets?metadata.name=s") {
		t.Errorf("asked for %q", api.paths)
	}
}
