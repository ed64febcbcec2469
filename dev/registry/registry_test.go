package registry

import (
	"archive/tar"
	"cmp"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// fakeBusybox writes a program that lists applets, and nothing else.
func fakeBusybox(t *testing.T, applets string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "busybox")
	if err := os.WriteFile(p, []byte("#!/bin/sh\n[ \"$1\" = --list ] && echo '"+applets+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestThePushedImageIsPulledAsItIs(t *testing.T) {
	image, err := Busybox(t.Context(), fakeBusybox(t, "sh busybox wget"))
	if err != nil {
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
	if err := r.Push(t.Context(), "library/busybox:1.36", image); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(r.Address()+"/library/busybox:1.36", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(ref, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	want, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pulled.Digest(); err != nil || got != want {
		t.Errorf("pulled %s, %v, want %s", got, err, want)
	}
	content := map[string]*tar.Header{}
	files := tar.NewReader(mutate.Extract(pulled))
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content[h.Name] = h
	}
	for _, applet := range []string{"bin/sh", "bin/wget"} {
		if h := content[applet]; h == nil || h.Linkname != "bin/busybox" {
			t.Errorf("%s is %+v, want a link to busybox", applet, h)
		}
	}
	if h := content["bin/busybox"]; h == nil || h.Typeflag != tar.TypeReg || h.Mode != 0o755 {
		t.Errorf("bin/busybox is %+v, want a program", h)
	}
	if h := cmp.Or(content["tmp"], content["tmp/"]); h == nil || h.Mode != 0o1777 {
		t.Errorf("tmp is %+v, want it open to all", h)
	}

	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	if resp, err := http.Get("http://" + r.Address() + "/v2/"); err == nil {
		resp.Body.Close()
		t.Error("the registry answers after Stop")
	}
	select {
	case err := <-r.Failed():
		t.Errorf("Stop is reported as a failure: %v", err)
	default:
	}
}

func TestEqualProgramsMakeEqualImages(t *testing.T) {
	program := fakeBusybox(t, "wget sh")
	digest := func() string {
		image, err := Busybox(t.Context(), program)
		if err != nil {
			t.Fatal(err)
		}
		d, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	if a, b := digest(), digest(); a != b {
		t.Errorf("digests differ: %s, %s", a, b)
	}
}

func TestBusyboxRefusesAProgramThatIsNone(t *testing.T) {
	if _, err := Busybox(t.Context(), fakeBusybox(t, "wget")); err == nil || !strings.Contains(err.Error(), "busybox-static") {
		t.Errorf("without a shell: %v, want the package's name", err)
	}
	if _, err := Busybox(t.Context(), filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}
}

func TestOnlyThisProcessMayPush(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Start(l, t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := r.Push(t.Context(), "library/busybox:1.36", empty.Image); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(r.Address()+"/library/busybox:1.36", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Image(ref); err != nil {
		t.Fatalf("a cell cannot pull: %v", err)
	}
	other, err := mutate.CreatedAt(empty.Image, v1.Time{Time: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, other); err == nil {
		t.Fatal("a stranger replaced the image")
	}
}
