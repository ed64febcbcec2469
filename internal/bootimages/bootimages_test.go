package bootimages

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// files writes the files of boot images, by architecture, into a folder.
func files(t *testing.T, of map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for arch, content := range of {
		for file, text := range map[string]string{ManifestFile(arch): `{"arch": "` + arch + `"}`, DiskFile(arch): content} {
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return folder
}

// serve serves a registry whose answers go through a handler, and returns the name of the boot images there.
func serve(t *testing.T, through func(http.Handler) http.Handler) string {
	t.Helper()
	server := httptest.NewServer(through(registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
	t.Cleanup(server.Close)
	return Name(strings.TrimPrefix(server.URL, "http://")+"/some/team", "v1.2.3")
}

// push sends images of a folder.
func push(t *testing.T, to, folder string, archs ...string) v1.ImageIndex {
	t.Helper()
	index, err := Pack(folder, archs)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	return index
}

func plain(h http.Handler) http.Handler { return h }

func TestABootImageIsFoundByItsArchitecture(t *testing.T) {
	disks := map[string]string{"amd64": "a disk", "arm64": "another disk"}
	at := serve(t, plain)
	push(t, at, files(t, disks), "amd64", "arm64")
	for arch, want := range disks {
		found, err := Find(t.Context(), at, arch)
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if string(found.Manifest) != `{"arch": "`+arch+`"}` {
			t.Errorf("of %s is said %s", arch, found.Manifest)
		}
		packed, size, err := found.Disk(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(packed)
		packed.Close()
		if err != nil || string(content) != want || size != int64(len(want)) {
			t.Errorf("the disk for %s is %q of %d bytes (%v), want %q", arch, content, size, err, want)
		}
	}
}

func TestEqualFilesMakeEqualNamesOfContent(t *testing.T) {
	disks := map[string]string{"amd64": "a disk"}
	one, err := Pack(files(t, disks), []string{"amd64"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := Pack(files(t, disks), []string{"amd64"})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := one.Digest()
	if b, err := other.Digest(); err != nil || a != b {
		t.Errorf("%s and %s, %v", a, b, err)
	}
}

func TestOnlyBootImagesOfTheVersionAreToBeSent(t *testing.T) {
	folder := t.TempDir()
	for file, content := range map[string]string{
		ManifestFile("amd64"): `{"version": "v2"}`, DiskFile("amd64"): "a disk", ManifestFile("arm64"): `{"version": "v1"}`,
		ManifestFile("riscv64"): `{"version": "v2"}`,
	} {
		if err := os.WriteFile(filepath.Join(folder, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, left, err := In(folder, []string{"amd64", "arm64", "riscv64", "s390x"}, "v2")
	if err != nil || !slices.Equal(found, []string{"amd64"}) || len(left) != 3 {
		t.Fatalf("found %v, left %v, %v", found, left, err)
	}
	for n, want := range []string{"is of v1, not of v2", "has no kip-cell-riscv64.tar.gz", "has no boot image for s390x"} {
		if !strings.Contains(left[n], want) {
			t.Errorf("left is %q, want %q", left[n], want)
		}
	}
}

func TestWhatIsNoBootImageIsRefused(t *testing.T) {
	at := serve(t, plain)
	push(t, at, files(t, map[string]string{"amd64": "a disk"}), "amd64")
	other := strings.Replace(at, "v1.2.3", "other", 1)
	ref, err := name.ParseReference(other)
	if err != nil {
		t.Fatal(err)
	}
	img, err := random.Image(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct{ from, arch, want string }{
		"another architecture": {at, "arm64", "linux/arm64"},
		"another tag":          {strings.Replace(at, "v1.2.3", "v9", 1), "amd64", "MANIFEST_UNKNOWN"},
		"another image":        {other, "amd64", "has no file kip-cell-amd64.manifest.json: it is no boot image of Kip's"},
		"no name":              {"https://ghcr.io/elotl", "amd64", "must not contain a URL scheme"},
	} {
		if _, err := Find(t.Context(), tc.from, tc.arch); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
	if _, err := Pack(t.TempDir(), []string{"amd64"}); err == nil || !strings.Contains(err.Error(), "pack the boot image for amd64") {
		t.Errorf("an empty folder: %v", err)
	}
}

// A manifest that is longer than it says is not compared with its digest up to its end.
func TestAManifestThatIsLongerThanItSaysIsAnError(t *testing.T) {
	manifest := `{"arch": "amd64"}`
	at := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			recorder := httptest.NewRecorder()
			h.ServeHTTP(recorder, r)
			for key, values := range recorder.Header() {
				w.Header()[key] = values
			}
			body := recorder.Body.Bytes()
			if r.Method == http.MethodGet && string(body) == manifest {
				body = append([]byte(`{"arch": "other"}`), bytes.Repeat([]byte(" "), maxManifest+1)...)
				w.Header().Del("Content-Length")
			}
			w.WriteHeader(recorder.Code)
			_, _ = w.Write(body)
		})
	})
	push(t, at, files(t, map[string]string{"amd64": "a disk"}), "amd64")
	if found, err := Find(t.Context(), at, "amd64"); err == nil || !strings.Contains(err.Error(), "or more of") {
		t.Errorf("%+v, %v", found, err)
	}
}

// What a registry sends that has another digest than the index says is no disk.
func TestADiskThatIsChangedOnTheWayIsAnError(t *testing.T) {
	const disk = "the disk of a cell"
	at := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			recorder := httptest.NewRecorder()
			h.ServeHTTP(recorder, r)
			for key, values := range recorder.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(recorder.Code)
			_, _ = w.Write(bytes.Replace(recorder.Body.Bytes(), []byte(disk), []byte("the disk of a CELL"), 1))
		})
	})
	push(t, at, files(t, map[string]string{"amd64": disk}), "amd64")
	found, err := Find(t.Context(), at, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	packed, _, err := found.Disk(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	if content, err := io.ReadAll(packed); err == nil {
		t.Errorf("it is read as %q", content)
	}
}
