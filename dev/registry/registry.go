// Package registry owns an OCI registry within this process, and the example
// image in it. It serves to all what this process has pushed, and asks no other
// registry.
package registry

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Registry is a running registry.
type Registry struct {
	server  *http.Server
	address string
	secret  string // whoever knows it may push: only this process
	failed  chan error
}

// Start serves a registry over HTTP on l, whose blobs are in dir. Manifests are
// in memory: a registry starts empty. It takes over the listener.
func Start(l net.Listener, dir string, logger *slog.Logger) (*Registry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("make the registry's folder: %w", err), l.Close())
	}
	r := &Registry{address: l.Addr().String(), secret: rand.Text(), failed: make(chan error, 1)}
	r.server = &http.Server{Handler: r.readOnly(registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(dir)),
		registry.Logger(slogLogger(logger, slog.LevelDebug)),
	)), ErrorLog: slogLogger(logger, slog.LevelWarn)}
	go func() {
		if err := r.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			r.failed <- fmt.Errorf("the registry ended: %w", err)
		}
	}()
	return r, nil
}

// readOnly lets only this process change what is served: every pod on the bridge
// can reach the registry, and the next pod runs what it serves.
func (r *Registry) readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		read := req.Method == http.MethodGet || req.Method == http.MethodHead
		if !read && subtle.ConstantTimeCompare([]byte(req.Header.Get(secretHeader)), []byte(r.secret)) != 1 {
			http.Error(w, "this registry is read-only", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, req)
	})
}

const secretHeader = "Kip-Dev-Push"

// pusher sends requests with the secret.
type pusher struct{ secret string }

func (p pusher) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set(secretHeader, p.secret)
	return http.DefaultTransport.RoundTrip(req)
}

func slogLogger(l *slog.Logger, level slog.Level) *log.Logger {
	return slog.NewLogLogger(l.Handler(), level)
}

// Address is where it listens, as host:port.
func (r *Registry) Address() string { return r.address }

// Failed yields the reason when it ends that nobody stopped.
func (r *Registry) Failed() <-chan error { return r.failed }

// Push makes an image, or an index of images, available, e.g. as library/busybox:1.36.
func (r *Registry) Push(ctx context.Context, repositoryAndTag string, image remote.Taggable) error {
	ref, err := name.ParseReference(r.address+"/"+repositoryAndTag, name.Insecure)
	if err != nil {
		return fmt.Errorf("push %s: %w", repositoryAndTag, err)
	}
	if err := remote.Push(ref, image, remote.WithContext(ctx), remote.WithTransport(pusher{r.secret})); err != nil {
		return fmt.Errorf("push %s: %w", repositoryAndTag, err)
	}
	return nil
}

// PushLayout makes all images of an OCI layout available, under the names that its
// index gives them in the annotation org.opencontainers.image.ref.name, such as
// registry.k8s.io/pause:3.10: without the host, since cells ask this registry for
// the images of every host. It leaves out what is attached to an image, such as its list of software.
func (r *Registry) PushLayout(ctx context.Context, dir string) error {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("read the images in %s: %w", dir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("read the images in %s: %w", dir, err)
	}
	for _, d := range manifest.Manifests {
		full := d.Annotations[RefName]
		image, attached, err := entry(index, d)
		if err != nil {
			return fmt.Errorf("read image %s in %s: %w", full, dir, err)
		}
		if attached {
			continue
		}
		ref, err := name.NewTag(full)
		if err != nil {
			return fmt.Errorf("images in %s: annotation %s of %s is %q: want a name with a tag, such as registry.k8s.io/pause:3.10: %w", dir,
				RefName, d.Digest, full, err)
		}
		if err := r.Push(ctx, ref.RepositoryStr()+":"+ref.TagStr(), image); err != nil {
			return err
		}
	}
	return nil
}

// entry returns an image or an index that an index names, and whether it is attached to another one.
func entry(of v1.ImageIndex, d v1.Descriptor) (found remote.Taggable, attached bool, err error) {
	if d.MediaType.IsIndex() {
		index, err := of.ImageIndex(d.Digest)
		return index, false, err
	}
	image, err := of.Image(d.Digest)
	if err != nil {
		return nil, false, err
	}
	m, err := image.Manifest()
	return image, err == nil && m.Subject != nil, err
}

// RefName is the annotation with an image's name in an OCI layout.
const RefName = "org.opencontainers.image.ref.name"

// Stop ends the registry. Pulls that run are broken off: their cells are gone.
func (r *Registry) Stop() error { return r.server.Close() }
