package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// One address sends many tokens, of which the API server answers none: that of another is asked about all the same, and a
// request without a token, as with an API server's certificate, waits for nobody.
func TestTokensOfOneAddressHoldUpNoOther(t *testing.T) {
	var asked atomic.Int64
	came, answer := make(chan struct{}, 1000), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if review.Spec.Token[0] == 'a' {
			asked.Add(1)
			came <- struct{}{}
			<-answer
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := Guard(client, "", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	send := func(from, token string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.RemoteAddr = from
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		guard.ServeHTTP(w, r)
		return w.Code
	}
	var flood sync.WaitGroup
	for n := range 100 {
		flood.Go(func() { send("10.0.0.1:1", fmt.Sprint("a", n)) })
	}
	for range reviewsOfOne {
		<-came
	}
	for what, code := range map[string]int{
		"another address":                  send("10.0.0.2:1", "b"),
		"the same address without a token": send("10.0.0.1:1", ""),
	} {
		if code != http.StatusUnauthorized {
			t.Errorf("a request of %s is answered with %d, want %d", what, code, http.StatusUnauthorized)
		}
	}
	if n := asked.Load(); n != reviewsOfOne {
		t.Errorf("the API server is asked about %d tokens of one address at the same time, want %d", n, reviewsOfOne)
	}
	close(answer)
	flood.Wait()
}
