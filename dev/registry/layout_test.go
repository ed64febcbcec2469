package registry

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestTheImagesOfALayoutArePulledByTheirNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	images, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(100, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"registry.k8s.io/e2e-test-images/agnhost:2.63.0", "example.com/other:1"} {
		if err := images.AppendImage(image, layout.WithAnnotations(map[string]string{RefName: n})); err != nil {
			t.Fatal(err)
		}
	}
	index, err := random.Index(100, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.AppendIndex(index, layout.WithAnnotations(map[string]string{RefName: "example.com/index:1"})); err != nil {
		t.Fatal(err)
	}
	subject, err := partial.Descriptor(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.AppendImage(mutate.Subject(image, *subject).(v1.Image)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Start(l, filepath.Join(t.TempDir(), "blobs"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	if err := r.PushLayout(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	want, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"e2e-test-images/agnhost:2.63.0", "other:1"} {
		ref, err := name.ParseReference(r.Address()+"/"+n, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Image(ref, remote.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pulled.Digest(); err != nil || got != want {
			t.Errorf("%s is %s, %v, want %s", n, got, err, want)
		}
	}
	ref, err := name.ParseReference(r.Address()+"/index:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Index(ref, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(pulled); err != nil {
		t.Error(err)
	}
	if err := images.AppendImage(image); err != nil {
		t.Fatal(err)
	}
	if err := r.PushLayout(t.Context(), dir); err == nil || !strings.Contains(err.Error(), RefName) {
		t.Errorf("an image without a name: %v", err)
	}
	if err := r.PushLayout(t.Context(), t.TempDir()); err == nil {
		t.Error("a folder without images is taken")
	}
}
