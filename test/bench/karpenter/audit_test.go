package main

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// line is an audit event; a user of two names is the first impersonating the
// second.
func line(stage, verb, user, agent, resource, name string, code int) string {
	user, as, _ := strings.Cut(user, " ")
	resource, sub, _ := strings.Cut(resource, "/")
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":%q,"verb":%q,"userAgent":%q,"user":{"username":%q},"impersonatedUser":{"username":%q},"objectRef":{"resource":%q,"subresource":%q,"name":%q},"responseStatus":{"code":%d}}`+"\n",
		stage, verb, agent, user, as, resource, sub, name, code)
}

func mark(name string) string {
	return line("ResponseComplete", "get", "kubernetes-admin", "kip-bench", "configmaps", name, 404)
}

func TestOnlyRequestsInTheWindowAreCounted(t *testing.T) {
	log := line("ResponseComplete", "patch", "kubernetes-admin", "karpenter/v1", "nodes", "early", 200) +
		mark("a") +
		line("RequestReceived", "patch", "kubernetes-admin", "karpenter/v1", "nodeclaims/status", "n", 0) +
		line("ResponseComplete", "patch", "kubernetes-admin", "karpenter/v1", "nodeclaims/status", "n", 200) +
		line("ResponseComplete", "patch", "kubernetes-admin", "karpenter/v1", "nodeclaims/status", "n", 409) +
		line("ResponseStarted", "watch", "kubernetes-admin", "karpenter/v1", "nodes", "", 200) +
		line("ResponseComplete", "watch", "kubernetes-admin", "karpenter/v1", "pods", "", 200) +
		line("ResponseComplete", "get", "kubernetes-admin", "kip-bench", "pods", "p", 200) +
		line("ResponseComplete", "get", "system:serviceaccount:kip-system:kip system:node:kip-0", "kip (linux/amd64)", "pods", "p", 200) +
		mark("b") +
		line("ResponseComplete", "patch", "kubernetes-admin", "karpenter/v1", "nodes", "late", 200)
	r, err := countRequests(strings.NewReader(log), "a", "b", 2)
	if err != nil {
		t.Fatal(err)
	}
	if r.Total != 4 || r.PerPod != 2 || len(r.Clients) != 2 {
		t.Fatalf("got %+v, want 4 requests, 2 a pod, of 2 clients", r)
	}
	k, kip := r.Clients[0], r.Clients[1]
	if k.User != "kubernetes-admin" || k.Agent != "karpenter" || k.Requests != 3 || k.PerPod != 1.5 || k.Conflicts != 1 {
		t.Errorf("first client is %+v", k)
	}
	if want := map[string]int{"patch nodeclaims/status": 2, "watch nodes": 1}; !maps.Equal(k.Kinds, want) {
		t.Errorf("kinds are %v, want %v", k.Kinds, want)
	}
	if kip.User != "system:node:kip-0" || kip.Agent != "kip" || kip.Requests != 1 {
		t.Errorf("second client is %+v", kip)
	}
}

func TestALogWithoutTheWholeWindowIsRefused(t *testing.T) {
	for _, log := range []string{"", mark("a"), mark("b") + mark("a"), mark("b"), mark("a") + strings.TrimSuffix(mark("b"), "\n")} {
		if _, err := countRequests(strings.NewReader(log), "a", "b", 1); !errors.Is(err, errNoMark) {
			t.Errorf("log %q: got %v, want %v", log, err, errNoMark)
		}
	}
	if _, err := countRequests(strings.NewReader("what?\n"), "a", "b", 1); err == nil || errors.Is(err, errNoMark) {
		t.Errorf("no JSON: got %v, want an error that says so", err)
	}
}
