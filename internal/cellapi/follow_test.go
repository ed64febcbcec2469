package cellapi

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// seen closes itself at the first object.
type seen chan struct{}

func (s seen) Replace(objects []runtime.Object) {
	if len(objects) > 0 {
		close(s)
	}
}

func (seen) Set(runtime.Object)    {}
func (seen) Delete(runtime.Object) {}

func TestKipFollowsWhatCellsAreShownWithoutAnotherWatch(t *testing.T) {
	h := newHouse(t)
	resource := corev1.SchemeGroupVersion.WithResource("namespaces")
	h.up.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	eventually(t, "the namespace is there", func() bool { return h.server.Watches().Of(resource).Collection.Get("a") != nil })
	ctx, cancel := context.WithCancel(t.Context())
	f := make(seen)
	done := make(chan error, 1)
	go func() { done <- h.server.Watches().Follow(ctx, resource, f) }()
	closed(t, "it is followed", f)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := h.up.watchesOf("namespaces", ""); n != 1 {
		t.Errorf("%d watches on the API server", n)
	}
}
