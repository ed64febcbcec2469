package aws

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
)

// upstreamOnly is a repository that the account caches, and has not yet.
const upstreamOnly = "docker-hub/library/busybox"

// caching is an account with a pull through cache, and its API.
func caching(t *testing.T) (model *ec2.Model, url string) {
	t.Helper()
	account := withRepositories(t, anAccount(sim.Knobs{}))
	account.Upstreams = []string{upstreamOnly}
	model, url = serve(t, account)
	filled(t, model, url)
	upstream := httptest.NewServer(model.Registry.Upstream(upstreamOnly))
	t.Cleanup(upstream.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(upstream.URL, "http://")+"/"+upstreamOnly+":1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, empty.Image, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return model, url
}

func TestTheFirstPullThroughTheCacheOfECRNeedsTheKey(t *testing.T) {
	_, url := caching(t)
	asked := func(through bool, method, path, named string) int {
		t.Helper()
		cfg := settings(url)
		cfg.ImageRole, cfg.PullThrough = imageRole, through
		c := open(t, cfg)
		got, err := c.PullCredentials(t.Context(), registryHere, named)
		if err != nil {
			t.Fatal(err)
		}
		return atRegistry(t, c, method, got.Username, got.Reveal(), path)
	}
	for _, one := range []struct {
		what    string
		through bool
		method  string
		path    string
		named   string
		want    int
	}{
		{"without the key", false, http.MethodGet, upstreamOnly + "/manifests/1", upstreamOnly, http.StatusForbidden},
		{"of another pod", true, http.MethodGet, upstreamOnly + "/manifests/1", "team/app", http.StatusForbidden},
		{"with the key", true, http.MethodGet, upstreamOnly + "/manifests/1", upstreamOnly, http.StatusOK},
		{"its layers", true, http.MethodGet, upstreamOnly + "/" + blob(t), upstreamOnly, http.StatusOK},
		{"once it is cached, without the key", false, http.MethodGet, upstreamOnly + "/manifests/1", upstreamOnly, http.StatusOK},
		{"a push", true, http.MethodPut, upstreamOnly + "/manifests/1", upstreamOnly, http.StatusForbidden},
		{"a push elsewhere", true, http.MethodPut, "team/app/manifests/1", "team/app", http.StatusForbidden},
		{"a repository that is no cache", true, http.MethodGet, "team/app/manifests/1", "team/app", http.StatusOK},
	} {
		if got := asked(one.through, one.method, one.path, one.named); got != one.want {
			t.Errorf("%s: %d, want %d", one.what, got, one.want)
		}
	}
}
