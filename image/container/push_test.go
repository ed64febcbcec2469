package container

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const secret = "a-very-secret-password"

// serve serves a registry behind a handler, and returns the name of an image there.
func serve(t *testing.T, before func(http.Handler) http.Handler, options ...registry.Option) (*httptest.Server, name.Tag) {
	t.Helper()
	h := registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...)
	server := httptest.NewServer(before(h))
	t.Cleanup(server.Close)
	return server, tagAt(t, server)
}

func tagAt(t *testing.T, server *httptest.Server) name.Tag {
	t.Helper()
	_, host, _ := strings.Cut(server.URL, "://")
	tag, err := Name(host+"/some/team", "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func quiet(string) {}

// soon are tries that do not wait.
var soon = remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Factor: 1, Steps: 2})

func TestAPushedImageIsPulledByItsArchitecture(t *testing.T) {
	o := world(t)
	s := build(t, o)
	for registryHas, options := range map[string][]registry.Option{
		"the referrers API": {registry.WithReferrersSupport(true)}, "no referrers API": nil,
	} {
		var writes atomic.Int32
		var tagged atomic.Bool
		_, tag := serve(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet && r.Method != http.MethodHead {
					writes.Add(1)
					if tagged.Load() {
						t.Errorf("%s: after the tag there is %s %s", registryHas, r.Method, r.URL.Path)
					}
					tagged.Store(strings.HasSuffix(r.URL.Path, "/manifests/v1.2.3"))
				}
				h.ServeHTTP(w, r)
			})
		}, options...)
		if err := s.Push(t.Context(), tag, authn.DefaultKeychain, quiet); err != nil {
			t.Fatalf("%s: %v", registryHas, err)
		}
		for _, p := range s.Platforms {
			img, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: p.Arch}))
			if err != nil {
				t.Fatal(err)
			}
			if digestOf(t, img) != digestOf(t, p.Image) || len(entries(t, img)) != len(entries(t, p.Image)) {
				t.Errorf("%s: for %s another image is pulled", registryHas, p.Arch)
			}
			attached, err := remote.Referrers(tag.Digest(digestOf(t, p.Image).String()))
			if err != nil {
				t.Fatal(err)
			}
			m, err := attached.IndexManifest()
			if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Digest != digestOf(t, p.Attached) {
				t.Errorf("%s: to the image for %s are attached %+v (%v)", registryHas, p.Arch, m, err)
			}
		}
		if writes.Swap(0) == 0 {
			t.Fatalf("%s: nothing was seen to be written", registryHas)
		}
		if !tagged.Load() {
			t.Errorf("%s: the tag is not written last", registryHas)
		}
		if err := s.Push(t.Context(), tag, authn.DefaultKeychain, quiet); err != nil || writes.Load() != 0 {
			t.Errorf("%s: the second time %d requests write (%v)", registryHas, writes.Load(), err)
		}
	}
}

func TestCredentialsAreThoseOfDocker(t *testing.T) {
	var asked atomic.Int32
	_, tag := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "somebody" || password != secret {
				asked.Add(1)
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	s := build(t, world(t))
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("DOCKER_CONFIG", home)
	for _, env := range []string{"XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "REGISTRY_AUTH_FILE"} {
		t.Setenv(env, "")
	}
	login := func(password string) {
		auth := base64.StdEncoding.EncodeToString([]byte("somebody:" + password))
		write(t, filepath.Join(home, "config.json"), fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, tag.RegistryStr(), auth))
	}
	const cure = "log in with `docker login "
	err := s.Push(t.Context(), tag, authn.DefaultKeychain, quiet)
	if err == nil || !strings.Contains(err.Error(), cure+tag.RegistryStr()) {
		t.Errorf("without credentials: %v", err)
	}
	login(secret + "-old")
	err = s.Push(t.Context(), tag, authn.DefaultKeychain, quiet)
	if err == nil || !strings.Contains(err.Error(), cure) || strings.Contains(err.Error(), secret) {
		t.Errorf("with other credentials: %v", err)
	}
	login(secret)
	if err := s.Push(t.Context(), tag, authn.DefaultKeychain, quiet); err != nil || asked.Load() == 0 {
		t.Errorf("with credentials, of which the registry asked %d times: %v", asked.Load(), err)
	}
}

func TestARefusedPushNamesTheRegistryTheRepositoryAndACure(t *testing.T) {
	s := build(t, world(t))
	for refused, tc := range map[string]struct {
		status int
		wants  string
	}{
		"no right":      {http.StatusForbidden, "let this account push to the repository some/team/kip, or log in as another one with `docker login "},
		"no repository": {http.StatusNotFound, "create the repository some/team/kip"},
		"broken":        {http.StatusBadGateway, "works and can be reached, and run the same again"},
	} {
		_, tag := serve(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					w.WriteHeader(tc.status)
					return
				}
				h.ServeHTTP(w, r)
			})
		})
		err := s.push(tag, quiet, soon)
		if err == nil || !strings.Contains(err.Error(), "push "+tag.RegistryStr()+"/some/team/kip:v1.2.3: ") ||
			!strings.Contains(err.Error(), tc.wants) {
			t.Errorf("%s: %v, want %q", refused, err, tc.wants)
		}
	}
}

// TestAPushGoesOnWhereItWasBrokenOff lets a registry end in the middle of a blob, and come back with what it has.
func TestAPushGoesOnWhereItWasBrokenOff(t *testing.T) {
	s := build(t, world(t))
	var dead atomic.Bool
	var manifests, blobs atomic.Int32
	_, tag := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && manifests.Add(1) == 2 {
				dead.Store(true) // the first image is there
			}
			if dead.Load() {
				c, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.Close()
				return
			}
			if r.Method == http.MethodPost {
				blobs.Add(1)
			}
			h.ServeHTTP(w, r)
		})
	})
	err := s.push(tag, quiet, soon)
	const cure = "can be reached, and run the same again: what has arrived is not sent again"
	if err == nil || !strings.Contains(err.Error(), cure) || !strings.Contains(err.Error(), "push "+tag.Name()) {
		t.Fatalf("%v, want %q", err, cure)
	}
	if _, err := remote.Index(tag, soon); err == nil {
		t.Error("an index has the tag before all of its images are there")
	}
	dead.Store(false)
	first := blobs.Swap(0)
	if _, err := remote.Index(tag); err == nil {
		t.Error("an index has the tag before all of its images are there")
	}
	if err := s.push(tag, quiet, soon); err != nil {
		t.Fatal(err)
	}
	if all := int32(len(blobsOf(t, s))); first == 0 || first+blobs.Load() > all {
		t.Errorf("%d and then %d blobs are sent, and there are %d", first, blobs.Load(), all)
	}
	if _, err := remote.Index(tag); err != nil {
		t.Error(err)
	}
}

// blobsOf are the digests of all blobs of images.
func blobsOf(t *testing.T, s *Set) map[v1.Hash]bool {
	t.Helper()
	all := map[v1.Hash]bool{}
	for _, p := range s.Platforms {
		for _, img := range []v1.Image{p.Image, p.Attached} {
			m, err := img.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			all[m.Config.Digest] = true
			for _, l := range m.Layers {
				all[l.Digest] = true
			}
		}
	}
	return all
}

func TestARegistryWhoseCertificateNobodyTrustsIsRefused(t *testing.T) {
	server := httptest.NewTLSServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer server.Close()
	tag, s := tagAt(t, server), build(t, world(t))
	err := s.push(tag, quiet, soon)
	if err == nil || !strings.Contains(err.Error(), "SSL_CERT_FILE") || !strings.Contains(err.Error(), tag.RegistryStr()) {
		t.Errorf("%v", err)
	}
	if err := s.push(tag, quiet, soon, remote.WithTransport(server.Client().Transport)); err != nil {
		t.Errorf("by a client that trusts it: %v", err)
	}
}

func TestAPushThatIsInterruptedEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, tag := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				cancel()
			}
			h.ServeHTTP(w, r)
		})
	})
	err := build(t, world(t)).Push(ctx, tag, authn.DefaultKeychain, quiet)
	if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) || strings.Contains(err.Error(), "run the same again") {
		t.Errorf("%v", err)
	}
}

func TestABadNameSaysWhatIsRight(t *testing.T) {
	for name, tc := range map[string]struct{ registry, tag, want string }{
		"a scheme":            {"https://ghcr.io/team", "v1", `the registry "https://ghcr.io/team" has a scheme: want ghcr.io/team`},
		"a user":              {"me:" + secret + "@ghcr.io/team", "v1", "the registry …@ghcr.io/team has an @: give it without a user"},
		"a user and a scheme": {"https://me:" + secret + "@ghcr.io", "v1", "the registry …@ghcr.io has an @"},
		"capitals":            {"ghcr.io/Team", "v1", `the registry "ghcr.io/Team" is no name of one: want HOST[:PORT][/PATH], such as ghcr.io/team`},
		"a tag":               {"ghcr.io/team", "v1+x", `the tag "v1+x" is no tag of an image: want at most 128 letters`},
		"a path as a tag":     {"ghcr.io/team", "v1/x", `the tag "v1/x" is no tag of an image`},
		"no tag":              {"ghcr.io/team", "", `the tag "" is no tag of an image`},
	} {
		_, err := Name(tc.registry, tc.tag)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	for registry, want := range map[string]string{
		"ghcr.io/team": "ghcr.io/team/kip:v1", "localhost:5000/": "localhost:5000/kip:v1", "elotl": "elotl/kip:v1",
	} {
		if tag, err := Name(registry, "v1"); err != nil || tag.String() != want {
			t.Errorf("%s: %s (%v), want %s", registry, tag, err, want)
		}
	}
}
