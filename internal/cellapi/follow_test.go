package cellapi

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// followed are the namespaces that a Follower was told of, with a label of each.
type followed struct {
	mu       sync.Mutex
	is       map[string]string
	replaced int
}

func (f *followed) Replace(objects []runtime.Object) {
	f.mu.Lock()
	f.is, f.replaced = map[string]string{}, f.replaced+1
	f.mu.Unlock()
	for _, o := range objects {
		f.Set(o)
	}
}

func (f *followed) Set(o runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.is[o.(*corev1.Namespace).Name] = o.(*corev1.Namespace).Labels["team"]
}

func (f *followed) Delete(o runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.is, o.(*corev1.Namespace).Name)
}

func (f *followed) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.is)
}

func TestKipFollowsWhatCellsAreShownWithoutAnotherWatch(t *testing.T) {
	h := newHouse(t)
	space := func(name, team string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
	}
	h.up.put(space("a", "x"))
	resource := corev1.SchemeGroupVersion.WithResource("namespaces")
	ctx, cancel := context.WithCancel(t.Context())
	f := &followed{}
	done := make(chan error, 1)
	go func() { done <- h.server.Follow(ctx, resource, f) }()
	eventually(t, "the first", func() bool { return f.String() == "map[a:x]" })
	h.up.put(space("b", "y"))
	h.up.put(space("a", "z"))
	eventually(t, "the changes", func() bool { return f.String() == "map[a:z b:y]" })
	h.up.remove(space("b", "y"))
	eventually(t, "the deletion", func() bool { return f.String() == "map[a:z]" })

	// One that falls behind gets all anew.
	c := h.server.shared[resource].collection
	c.mu.Lock()
	c.forget()
	c.signal()
	c.mu.Unlock()
	eventually(t, "all anew", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.replaced == 2
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := h.up.watchesOf("namespaces", ""); n != 1 {
		t.Errorf("%d watches on the API server", n)
	}
	if err := h.server.Follow(t.Context(), corev1.SchemeGroupVersion.WithResource("pods"), f); err == nil {
		t.Error("pods are followed, which are not watched for all cells")
	}
}
