package ec2

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/elotl/kip/dev/cloudmodel"
)

// passwordOf is one of a session of the role, with these limits.
func (a *asker) passwordOf(limits ...string) string {
	a.Helper()
	k, code := a.assume("AKIAKIP", role, limits...)
	if code != "" {
		a.Fatal(code)
	}
	password, code := a.token(k)
	if code != "" {
		a.Fatal(code)
	}
	return password
}

func (a *asker) reference(image string) name.Reference {
	a.Helper()
	ref, err := name.ParseReference(a.at+"/"+image, name.Insecure)
	if err != nil {
		a.Fatal(err)
	}
	return ref
}

func as(password string) remote.Option {
	return remote.WithAuth(&authn.Basic{Username: registryUser, Password: password})
}

// pushed pushes a new image with layers.
func (a *asker) pushed(to string) v1.Image {
	a.Helper()
	image, err := random.Image(1000, 2)
	if err != nil {
		a.Fatal(err)
	}
	if err := a.model.Registry.Push(a.Context(), a.at, to, image); err != nil {
		a.Fatal(err)
	}
	return image
}

func TestAnImageIsPulledAsItWasPushed(t *testing.T) {
	a := newAsker(t)
	image := a.pushed("a/b:2")
	pulled, err := remote.Image(a.reference("a/b:2"), as(a.passwordOf()), remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	want, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pulled.Digest(); err != nil || got != want {
		t.Errorf("it is %v, %v, want %v", got, err, want)
	}
	if err := validate.Image(pulled); err != nil { // which reads its layers
		t.Error(err)
	}
	if status := a.pull(a.passwordOf(), "a/b/manifests/3"); status != http.StatusNotFound {
		t.Errorf("a tag that nobody pushed is answered with %d", status)
	}
}

func TestALayerIsOneOfItsRepositoryAlone(t *testing.T) {
	a := newAsker(t)
	layers, err := a.pushed("a/b:2").Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	whole := a.passwordOf()
	if status := a.pull(whole, "a/b/blobs/"+digest.String()); status != http.StatusOK {
		t.Errorf("in its repository: %d", status)
	}
	if status := a.pull(whole, "c/blobs/"+digest.String()); status != http.StatusNotFound {
		t.Errorf("in another one: %d", status)
	}
}

func TestWhoMayOnlyPullPushesNothing(t *testing.T) {
	a := newAsker(t)
	image, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	err = remote.Write(a.reference("c:2"), image, as(a.passwordOf(limit("*"))), remote.WithContext(t.Context()))
	if refused, is := errors.AsType[*transport.Error](err); !is || refused.StatusCode != http.StatusForbidden {
		t.Errorf("a push: %v, want 403", err)
	}
	if err := remote.Write(a.reference("c:2"), image, as(a.passwordOf()), remote.WithContext(t.Context())); err != nil {
		t.Errorf("a push by who may: %v", err)
	}
}

func TestInPublicOnlyWhatAsksForAProofIsAnswered(t *testing.T) {
	a := newAsker(t)
	server := httptest.NewServer(a.model.Public())
	defer server.Close()
	a.url = server.URL
	form := func(action, version string) string {
		return url.Values{"Action": {action}, "Version": {version}}.Encode()
	}
	for name, one := range map[string]struct {
		path, body, target string
		want               int
		says               string
	}{
		"a web identity":   {"/", form(byWebIdentity, stsVersion), "", http.StatusBadRequest, "ValidationError"},
		"a role by a key":  {"/", form("AssumeRole", stsVersion), "", http.StatusNotFound, ""},
		"EC2":              {"/", encode("DescribeInstances"), "", http.StatusNotFound, ""},
		"EC2 as STS":       {"/", form(byWebIdentity, "2016-11-15"), "", http.StatusNotFound, ""},
		"ECR's tokens":     {"/", form(byWebIdentity, stsVersion), ecrTarget + "GetAuthorizationToken", http.StatusNotFound, ""},
		"snapshots":        {snapshotsPath, form(byWebIdentity, stsVersion), "", http.StatusNotFound, ""},
		"the control":      {cloudmodel.ControlPath, form(byWebIdentity, stsVersion), "", http.StatusNotFound, ""},
		"images of nobody": {cloudmodel.ImagesPath, "", "", http.StatusUnauthorized, "UNAUTHORIZED"},
	} {
		status, text := a.send("AKIAKIP", "", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if one.target != "" {
				r.Header.Set("X-Amz-Target", one.target)
			}
		}, http.MethodPost, one.path, one.body)
		if status != one.want || !strings.Contains(text, one.says) {
			t.Errorf("%s: %d %s, want %d %s", name, status, text, one.want, one.says)
		}
	}
}
