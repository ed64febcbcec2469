package kip

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/store"
)

// someLease is an API server that has the lease of a node, and takes events.
type someLease struct {
	mu     sync.Mutex
	mark   string
	said   []corev1.Event
	others []string // requests that are neither
}

func (s *someLease) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasSuffix(r.URL.Path, "/kube-node-lease/leases/kip-0") && r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
			ObjectMeta: metav1.ObjectMeta{Name: "kip-0", Annotations: map[string]string{holder.Annotation: s.mark}},
		})
	case strings.HasSuffix(r.URL.Path, "/events"):
		var e corev1.Event
		if json.NewDecoder(r.Body).Decode(&e) == nil {
			s.said = append(s.said, e)
		}
		_ = json.NewEncoder(w).Encode(e)
	default:
		s.others = append(s.others, r.Method+" "+r.URL.Path)
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// processOf returns a process that has an API server.
func processOf(t *testing.T, server *httptest.Server) *process {
	t.Helper()
	k := newProcess(t)
	if err := os.WriteFile(k.Kubeconfig, []byte(strings.ReplaceAll(kubeconfigText, "SERVER", server.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	unmeasured := func(string) func(http.RoundTripper) http.RoundTripper {
		return func(r http.RoundTripper) http.RoundTripper { return r }
	}
	var err error
	if k.api, err = connect(k.Options, unmeasured); err != nil {
		t.Fatal(err)
	}
	return k
}

func TestANodeThatIsLostEndsWhatIsBeingWired(t *testing.T) {
	api := &someLease{}
	server := httptest.NewServer(api)
	defer server.Close()
	k := processOf(t, server)
	clock := clocktesting.NewFakeClock(time.Now())
	k.clock = clock
	hold, err := k.holdNode(t.Context(), store.Memory(nil))
	if err != nil {
		t.Fatal(err)
	}
	held, release := keepNode(t.Context(), newStoppable(hold.Keep))
	defer release()
	if err := lost(held); err != nil || held.Err() != nil {
		t.Fatalf("the node is lost at once: %v, %v", err, held.Err())
	}
	api.mu.Lock()
	api.mark = `{"id":"another","after":"` + hold.ID() + `"}`
	api.mu.Unlock()
	for until := time.Now().Add(patience); held.Err() == nil && time.Now().Before(until); time.Sleep(time.Millisecond) {
		if clock.HasWaiters() {
			clock.Step(holder.RenewEvery)
		}
	}
	if err := lost(held); !errors.Is(err, holder.ErrFollowed) {
		t.Errorf("the node is lost for %v", err)
	}
}

func TestAKipThatWaitsForTheNodeSaysSo(t *testing.T) {
	api := &someLease{mark: `{"id":"another","renewed":7,"who":"host-7 (process 1)"}`}
	server := httptest.NewServer(api)
	defer server.Close()
	k := processOf(t, server)
	st := store.Memory(nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	k.role.elected.Store(true)
	go func() { ended <- k.lead(ctx, st) }()
	told := func() (list []corev1.Event) {
		api.mu.Lock()
		defer api.mu.Unlock()
		for _, e := range api.said {
			if e.Reason == events.NodeHeldByAnother && e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == "kip-0" {
				list = append(list, e)
			}
		}
		return list
	}
	for until := time.Now().Add(patience); len(told()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("no Event says that another Kip has the node")
		}
	}
	if e := told()[0]; !strings.Contains(e.Message, "host-7 (process 1)") || e.Type != corev1.EventTypeWarning {
		t.Errorf("the Event is %+v", e)
	}
	if err := k.role.ready((*leading).notBehind); err == nil || !strings.Contains(err.Error(), "host-7") {
		t.Errorf("it is ready: %v", err)
	}
	if !k.role.reading().Aside {
		t.Error("no metric says so")
	}
	// It does nothing else, in the store as in the cluster.
	if err := st.List(t.Context(), "", func(key string, _ []byte, _ int64) error {
		t.Errorf("it has stored %s", key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	api.mu.Lock()
	if len(api.others) > 0 {
		t.Errorf("it asks the API server for %s", api.others)
	}
	api.mu.Unlock()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
	if k.role.reading().Aside {
		t.Error("it waits no more, and a metric says that it does")
	}
}
