package node

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

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
	guard, err := Guard(client, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reached++; fmt.Fprint(w, "figures") }))
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
