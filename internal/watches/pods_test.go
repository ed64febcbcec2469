package watches

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
)

func nodePod(name string, uid types.UID, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: version}}
}

// heard notes what a handler is told.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) note(what string, o any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, fmt.Sprint(what, " ", o.(*corev1.Pod).UID))
}

func (h *heard) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { h.note("add", o) },
		UpdateFunc: func(_, o any) { h.note("update", o) },
		DeleteFunc: func(o any) { h.note("delete", o) },
	}
}

func (h *heard) sorted() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(slices.Values(h.all))
}

func TestPodsOfSeveralNodesAreOneSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		sources := map[string]*fcache.FakeControllerSource{}
		defer func() {
			cancel()
			running.Wait()
			for _, s := range sources {
				s.Shutdown()
			}
		}()
		pods := NewNodePods()
		add := func(node string, starts bool) {
			t.Helper()
			sources[node] = fcache.NewFakeControllerSource()
			informer := cache.NewSharedIndexInformer(sources[node], &corev1.Pod{}, 0, nil)
			if err := pods.Add(node, informer); err != nil {
				t.Fatal(err)
			}
			if starts {
				running.Go(func() { informer.RunWithContext(ctx) })
			}
			synctest.Wait()
		}
		add("one", true)
		early, late := &heard{}, &heard{}
		registration, err := pods.AddEventHandler(early.handler())
		if err != nil {
			t.Fatal(err)
		}
		add("two", true)
		if _, err := pods.AddEventHandler(late.handler()); err != nil {
			t.Fatal(err)
		}
		sources["one"].Add(nodePod("a", "a1", "1"))
		sources["two"].Add(nodePod("b", "b1", "2"))
		synctest.Wait()
		for name, h := range map[string]*heard{"before the second node": early, "after": late} {
			if got := h.sorted(); !slices.Equal(got, []string{"add a1", "add b1"}) {
				t.Errorf("who followed %s was told %v", name, got)
			}
		}
		keys := pods.GetStore().ListKeys()
		if len(keys) != 2 || len(pods.GetStore().List()) != 2 || !pods.HasSynced() || !registration.HasSynced() {
			t.Errorf("the pods are %v, known: %t: want both", keys, pods.HasSynced())
		}

		// Deleted and made anew on the other node, of which that node tells first.
		sources["two"].Add(nodePod("a", "a2", "20"))
		synctest.Wait()
		if o, there, err := pods.GetStore().GetByKey("ns/a"); err != nil || !there || o.(*corev1.Pod).UID != "a2" {
			t.Errorf("pod a is %v, %v: want the newer one", o, err)
		}
		sources["one"].Delete(nodePod("a", "a1", ""))
		synctest.Wait()
		if o, there, err := pods.GetStore().Get(nodePod("a", "", "")); err != nil || !there || o.(*corev1.Pod).UID != "a2" {
			t.Errorf("pod a is %v, %v: want the one that is left", o, err)
		}

		// One that is not listed yet holds up who asks for it, and nobody else.
		add("three", false)
		if pods.HasSynced() || pods.Listed("three") || !pods.Listed("two") || pods.Listed("none") || registration.HasSynced() {
			t.Error("a node whose pods are not listed counts as one whose pods are")
		}
		done := func(c <-chan struct{}) bool {
			select {
			case <-c:
				return true
			default:
				return false
			}
		}
		if !done(Told(registration, "two")) || done(Told(registration, "three")) || !done(Told(registration, "none")) {
			t.Error("of which nodes a handler has been told is wrong")
		}
		if done(registration.HasSyncedChecker().Done()) {
			t.Error("a handler counts as told of all nodes, and was not told of one")
		}
		if err := pods.Add("three", nil); err == nil {
			t.Error("a node is added twice")
		}
		pods.Remove("three")
		if !pods.HasSynced() || !done(registration.HasSyncedChecker().Done()) {
			t.Error("a node that was removed is waited for")
		}
		before := early.sorted()
		if err := pods.RemoveEventHandler(registration); err != nil {
			t.Error(err)
		}
		sources["two"].Add(nodePod("c", "c1", "30"))
		synctest.Wait()
		if got := early.sorted(); !slices.Equal(got, before) || !slices.Contains(late.sorted(), "add c1") {
			t.Errorf("who follows no more was told %v", got)
		}
		if pods.GetStore().Add(nodePod("d", "d", "1")) == nil {
			t.Error("a pod is added to what is only read")
		}
		if pods.RemoveEventHandler(nil) == nil {
			t.Error("what is no registration is removed")
		}
	})
}
