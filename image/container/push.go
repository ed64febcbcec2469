package container

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Name returns the name of the image in a registry, such as registry.example/team, which may have a path and has no scheme.
func Name(registry, tag string) (name.Tag, error) {
	// What is before it may be a password.
	if i := strings.LastIndex(registry, "@"); i >= 0 {
		return name.Tag{}, fmt.Errorf("the registry …%s has an @: give it without a user or a digest, and log in with docker login",
			registry[i:])
	}
	if _, rest, has := strings.Cut(registry, "://"); has {
		return name.Tag{}, fmt.Errorf("the registry %q has a scheme: want %s", registry, rest)
	}
	repository := strings.TrimSuffix(registry, "/") + "/" + Programs[0]
	if _, err := name.NewRepository(repository); err != nil {
		return name.Tag{}, fmt.Errorf("the registry %q is no name of one: want HOST[:PORT][/PATH], such as ghcr.io/team: %w", registry, err)
	}
	t, err := name.NewTag(repository + ":" + tag)
	if err == nil && tag == "" {
		err = errors.New("it is empty") // which name takes for latest
	}
	if err != nil {
		return name.Tag{}, fmt.Errorf("the tag %q is no tag of an image: want at most 128 letters, digits, dots, dashes and underscores: %w",
			tag, err)
	}
	return t, nil
}

// progressEvery is how often Push tells how far it is.
const progressEvery = 2 * time.Second

// Push sends the images and their lists of software to a registry, and then gives the index its tag. It sends nothing that the
// registry has. Keys says who pushes.
func (s *Set) Push(ctx context.Context, tag name.Tag, keys authn.Keychain, progress func(string)) error {
	return s.push(tag, progress, optionsOf(ctx, keys)...)
}

func (s *Set) push(tag name.Tag, progress func(string), options ...remote.Option) error {
	return pushed(tag, s.send(tag, progress, options))
}

// PushBootImages sends the boot images of an index to a registry (package bootimages), and gives it its tag.
func PushBootImages(ctx context.Context, index v1.ImageIndex, tag name.Tag, keys authn.Keychain, progress func(string)) error {
	return pushed(tag, sendOne(tag, index, "the boot images", progress, optionsOf(ctx, keys)))
}

func optionsOf(ctx context.Context, keys authn.Keychain) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(keys), remote.WithUserAgent("kip-image")}
}

// pushed is the error of a push, with what to do about it.
func pushed(tag name.Tag, err error) error {
	if err == nil {
		return nil
	}
	if cure := cureOf(err, tag.Repository); cure != "" {
		return fmt.Errorf("push %s: %w: %s", tag, err, cure)
	}
	return fmt.Errorf("push %s: %w", tag, err)
}

func (s *Set) send(tag name.Tag, progress func(string), options []remote.Option) error {
	for _, p := range s.Platforms {
		for _, img := range []v1.Image{p.Image, p.Attached} {
			d, err := img.Digest()
			if err != nil {
				return err
			}
			if err := sendOne(tag.Digest(d.String()), img, "the image for "+p.Arch, progress, options); err != nil {
				return err
			}
		}
	}
	return sendOne(tag, s.Index, "the index", progress, options)
}

// sendOne sends one manifest and all that it names.
func sendOne(to name.Reference, what remote.Taggable, called string, progress func(string), options []remote.Option) error {
	updates := make(chan v1.Update)
	sent := make(chan error, 1)
	go func() { sent <- remote.Push(to, what, append(slices.Clone(options), remote.WithProgress(updates))...) }()
	last := time.Now()
	for u := range updates {
		if time.Since(last) >= progressEvery {
			last = time.Now()
			progress(fmt.Sprintf("%s: %d of %d MB", called, u.Complete/1e6, u.Total/1e6))
		}
	}
	return <-sent
}

// cureOf says what to do about an error of a registry; nothing where nobody knows.
func cureOf(err error, of name.Repository) string {
	login := "docker login " + of.RegistryStr()
	if of.RegistryStr() == name.DefaultRegistry {
		login = "docker login" // of Docker Hub, which has another name there
	}
	var answer *transport.Error
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case errors.As(err, &certificate):
		return "if you trust this registry, write its CA's certificate to a file and name that in SSL_CERT_FILE"
	case !errors.As(err, &answer):
		// No answer: a connection that was refused, or broken off.
	case answer.StatusCode == http.StatusUnauthorized:
		return fmt.Sprintf("log in with `%s`: credentials are read from ~/.docker/config.json or $DOCKER_CONFIG/config.json, "+
			"and from the credential helpers that it names", login)
	case answer.StatusCode == http.StatusForbidden:
		return fmt.Sprintf("let this account push to the repository %s, or log in as another one with `%s`", of.RepositoryStr(), login)
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Sprintf("create the repository %s: some registries, such as ECR, create none by themselves", of.RepositoryStr())
	case answer.StatusCode < http.StatusInternalServerError && answer.StatusCode != http.StatusTooManyRequests:
		return ""
	}
	return fmt.Sprintf("check that %s works and can be reached, and run the same again: what has arrived is not sent again", of.RegistryStr())
}
