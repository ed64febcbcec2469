package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// packed packs a disk as a release does, into a folder of its own.
func (r *region) packed(i Image) Image {
	r.Helper()
	disk, err := os.ReadFile(i.File)
	if err != nil {
		r.Fatal(err)
	}
	i.File = filepath.Join(r.TempDir(), "kip-cell-amd64.tar.gz")
	f, err := os.Create(i.File)
	if err != nil {
		r.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "disk.raw", Mode: 0o644, Size: int64(len(disk)), Format: tar.FormatGNU}); err != nil {
		r.Fatal(err)
	}
	_, err = w.Write(disk)
	if err := errors.Join(err, w.Close(), z.Close(), f.Close()); err != nil {
		r.Fatal(err)
	}
	return i
}

// files are those in the folder of an image, and in the one for temporary files.
func (r *region) files(i Image) (names []string) {
	r.Helper()
	for _, folder := range []string{filepath.Dir(i.File), os.TempDir()} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			r.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

// What is published already is found by its digest: nobody waits until it is unpacked.
func TestAnImageThatIsPublishedIsNotReadAgain(t *testing.T) {
	r := newRegion(t)
	raw, blocks := r.disk("v1")
	i := r.packed(raw)
	id := r.publish(i)
	r.is(id, raw, blocks)
	if err := os.WriteFile(i.File, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := r.publish(i); again != id {
		t.Errorf("published once more it is %s, not %s", again, id)
	}
}

func TestAPublicationEndsWhileItUnpacks(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := newRegion(t)
	raw, _ := r.disk("v1")
	i := r.packed(raw)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	p := r.publisher(0, r.transport())
	say, now := p.cfg.Say, time.Now()
	p.cfg.Now = func() time.Time { // each look at the clock is three seconds after the one before
		now = now.Add(3 * time.Second)
		return now
	}
	during := []string{}
	p.cfg.Say = func(format string, args ...any) {
		say(format, args...)
		if strings.HasPrefix(fmt.Sprintf(format, args...), "unpacking") {
			during = r.files(i)
			cancel(interrupted)
		}
	}
	if _, err := p.Publish(ctx, i); !errors.Is(err, interrupted) {
		t.Errorf("the error is %v, and it said %q", err, r.said)
	}
	if len(during) > 2 {
		t.Errorf("while it unpacks there are %v", during)
	}
	if left := r.files(i); !slices.Equal(left, []string{"kip-cell-amd64.tar.gz"}) {
		t.Errorf("left: %v", left)
	}
	if n := r.model.Calls()["StartSnapshot"]; n > 0 {
		t.Errorf("%d snapshots were started", n)
	}
}

func TestADiskThatIsNoArchiveIsRefused(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := newRegion(t)
	raw, _ := r.disk("v1")
	i := r.packed(raw)
	whole, err := os.ReadFile(i.File)
	if err != nil {
		t.Fatal(err)
	}
	var more bytes.Buffer
	z := gzip.NewWriter(&more)
	if _, err := z.Write(make([]byte, maxRest+1)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for what, content := range map[string][]byte{
		"nothing": nil, "text": []byte("no archive"), "half": whole[:len(whole)/2],
		"more than a disk":         append(slices.Clone(whole), more.Bytes()...),
		"a disk with a broken end": append(slices.Clone(whole), "no archive"...),
	} {
		if err := os.WriteFile(i.File, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := r.publisher(0, r.transport()).Publish(t.Context(), i); err == nil || !strings.Contains(err.Error(), "unpack "+i.File) {
			t.Errorf("%s is published as %q: %v", what, id, err)
		}
		if left := r.files(i); !slices.Equal(left, []string{"kip-cell-amd64.tar.gz"}) {
			t.Errorf("%s: left: %v", what, left)
		}
	}
	if err := os.Remove(i.File); err != nil {
		t.Fatal(err)
	}
	if _, err := r.publisher(0, r.transport()).Publish(t.Context(), i); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}
