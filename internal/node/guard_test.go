package node

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestOnlyWhomTheAPIServerAllowsItReachesWhatIsGuarded(t *testing.T) {
	api := &reviewer{may: map[string][]string{
		"scraper":  {"get /metrics"},
		"writer":   {"create /metrics"},
		"kubelets": {"get metrics"},
		"nobody":   nil,
	}}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	reached := 0
	guard, err := Guard(client, "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reached++; fmt.Fprint(w, "figures") }))
	if err != nil {
		t.Fatal(err)
	}
	known := newAuthority(t, "cluster").pair(t, "scraper", x509.ExtKeyUsageClientAuth)
	leaf, err := x509.ParseCertificate(known.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		token string
		path  string
		cert  *x509.Certificate
		code  int
	}{
		{"", "/metrics", nil, 401},
		{"stranger", "/metrics", nil, 401},
		{"", "/metrics", leaf, 401},
		{"nobody", "/metrics", nil, 403},
		{"writer", "/metrics", nil, 403},
		{"kubelets", "/metrics", nil, 403},
		{"scraper", "/other", nil, 403},
		{"scraper", "/metrics", nil, 200},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.cert != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		}
		before, w := reached, httptest.NewRecorder()
		guard.ServeHTTP(w, r)
		if w.Code != c.code || (reached > before) != (c.code == 200) {
			t.Errorf("%q at %s is answered %d: %s, want %d", c.token, c.path, w.Code, w.Body, c.code)
		}
	}
	want := authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
	last := api.asked[len(api.asked)-1]
	if last.NonResourceAttributes == nil || *last.NonResourceAttributes != want || last.ResourceAttributes != nil {
		t.Errorf("the API server was asked of %+v, want %+v", last, want)
	}
}

// A token that is for somebody else is nobody's, also where who reviews it does not say
// for whom it is.
func TestATokenForAnotherAudienceIsRefused(t *testing.T) {
	for _, c := range []struct {
		audience string   // that is wanted
		is       []string // what the review says that the token is for
		wanted   []string // in the review
		code     int
	}{
		{"kip-metrics", []string{"kip-metrics"}, []string{"kip-metrics"}, 200},
		{"kip-metrics", []string{"https://kubernetes.default.svc"}, []string{"kip-metrics"}, 401},
		{"kip-metrics", nil, []string{"kip-metrics"}, 401},
		{"", nil, nil, 200},
	} {
		var asked []string
		may := &reviewer{may: map[string][]string{"scraper": {"get /metrics"}}}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" {
				may.ServeHTTP(w, r)
				return
			}
			var review authenticationv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			asked = review.Spec.Audiences
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true,
				User:          authenticationv1.UserInfo{Username: "scraper"},
				Audiences:     c.is,
			}
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(review); err != nil {
				t.Error(err)
			}
		}))
		defer server.Close()
		client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
		if err != nil {
			t.Fatal(err)
		}
		guard, err := Guard(client, c.audience, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer token")
		w := httptest.NewRecorder()
		guard.ServeHTTP(w, r)
		if w.Code != c.code || !slices.Equal(asked, c.wanted) {
			t.Errorf("wanted for %q, and for %q: %d, and the API server was asked about %q; want %d, %q",
				c.audience, c.is, w.Code, asked, c.code, c.wanted)
		}
	}
}
