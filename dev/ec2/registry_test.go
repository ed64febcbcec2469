package ec2

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/validate"
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
	if err := a.model.Push(a.Context(), a.at, to, image); err != nil {
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
