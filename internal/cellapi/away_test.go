package cellapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/watches"
)

// TestWhileTheAPIServerIsAwayCellsAreHeardAndNoListIsEmpty starts Kip without an API
// server: what a kubelet would take for the end of its pod is never said.
func TestWhileTheAPIServerIsAwayCellsAreHeardAndNoListIsEmpty(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	up := newAPIServer(t)
	var back atomic.Bool
	up.refuse = func(apiRequest) error {
		if back.Load() {
			return nil
		}
		return apierrors.NewInternalError(errors.New("it is away"))
	}
	up.put(virtual())
	pod := up.put(podOn("web"))
	h := &house{t: t, up: up, clock: clk}
	h.start()
	defer h.stop()
	c := h.server.AddCell("c1", info)
	if err := c.Bind("shop", "web", pod.GetUID()); err != nil {
		t.Fatal(err)
	}
	// ask steps the clock until the answer is there.
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body))
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Content-Type", "application/json")
		done := make(chan struct{})
		go func() { defer close(done); c.ServeHTTP(w, r) }()
		for {
			select {
			case <-done:
				return w
			case <-time.After(time.Millisecond):
				clk.Step(time.Second)
			}
		}
	}

	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	lease := `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"kip-0"},"spec":{"holderIdentity":"kip-0"}}`
	if w := ask(http.MethodPost, leases, lease); w.Code != http.StatusCreated || c.LastHeartbeat().IsZero() {
		t.Errorf("the lease of a kubelet: %d, heard at %v: %s", w.Code, c.LastHeartbeat(), w.Body)
	}
	lists := []string{"/api/v1/pods?fieldSelector=spec.nodeName%3Dkip-0", "/api/v1/nodes"}
	for _, k := range watches.SharedKinds() {
		r := k.Resource
		if r.Group == "" {
			lists = append(lists, path.Join("/api", r.Version, r.Resource))
		} else {
			lists = append(lists, path.Join("/apis", r.Group, r.Version, r.Resource))
		}
	}
	asked := map[string]int{}
	for _, list := range lists {
		w := ask(http.MethodGet, list, "")
		asked[list] = w.Code
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" || w.Code < http.StatusBadRequest {
			t.Errorf("%s: %d with Retry-After %q: %s", list, w.Code, w.Header().Get("Retry-After"), w.Body)
		}
	}
	back.Store(true)
	served := 0
	for _, list := range lists {
		if asked[list] != http.StatusTooManyRequests {
			continue // what cells may not list
		}
		served++
		eventually(t, list+" is answered once the API server is back", func() bool { return ask(http.MethodGet, list, "").Code == http.StatusOK })
	}
	if served < 5 {
		t.Errorf("cells are asked to come again for %d of %v", served, asked)
	}
}
