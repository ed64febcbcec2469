package cloudmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// ImagesPath is where a registry has its images. Source of all here: OCI Distribution Specification.
const ImagesPath = "/v2/"

// MaxLayer bounds what is pushed in one request, in bytes.
const MaxLayer = 256 << 20

// NewRepositories makes empty ones, by name. Each has layers of its own, since a right is one to a
// repository, and not to a layer.
func NewRepositories(names []string) map[string]http.Handler {
	all := map[string]http.Handler{}
	for _, name := range names {
		all[name] = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	}
	return all
}

// RepositoryOf reads the path of a request: which repository, and whether it is about manifests, blobs
// or uploads of blobs; "" for a path of no such form.
func RepositoryOf(path string) (repository, what string) {
	parts := strings.Split(strings.TrimPrefix(path, ImagesPath), "/")
	n := len(parts) - 2
	if n > 1 && parts[n-1] == "blobs" && parts[n] == "uploads" {
		return strings.Join(parts[:n-1], "/"), parts[n]
	}
	if n < 1 {
		return "", ""
	}
	return strings.Join(parts[:n], "/"), parts[n]
}

// RefuseImage answers with an error of a registry.
func RefuseImage(w http.ResponseWriter, status int, code, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	said := map[string]string{"code": code, "message": fmt.Sprintf(format, args...)}
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{said}}) // or the caller is gone
}

// PushImage puts an image into a repository of the registry at a host and port, as a/b:1, by a user's password.
func PushImage(ctx context.Context, at, repositoryAndTag string, image v1.Image, user, password string) error {
	ref, err := name.ParseReference(at+"/"+repositoryAndTag, name.Insecure)
	if err != nil {
		return fmt.Errorf("push %s: %w", repositoryAndTag, err)
	}
	as := remote.WithAuth(&authn.Basic{Username: user, Password: password})
	if err := remote.Write(ref, image, remote.WithContext(ctx), as); err != nil {
		return fmt.Errorf("push %s: %w", repositoryAndTag, err)
	}
	return nil
}
