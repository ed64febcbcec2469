package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/version"
)

// released writes what a release has of a boot image for EC2 into a folder. wrong is another digest than the disk's.
func released(t *testing.T, folder string, wrong bool) {
	t.Helper()
	disk := make([]byte, 3<<20)
	copy(disk[1<<20:], "the disk of a cell")
	sum := sha256.Sum256(disk)
	if wrong {
		sum[0]++
	}
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "disk.raw", Mode: 0o644, Size: int64(len(disk)), Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(disk); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Sprintf(`{"version": "v1.2.3", "arch": "amd64", "outputs": [{"name": "kip-cell-amd64.raw", "bytes": %d, "sha256": %q}]}`,
		len(disk), hex.EncodeToString(sum[:]))
	for name, content := range map[string][]byte{"kip-cell-amd64.tar.gz": archive.Bytes(), "kip-cell-amd64.manifest.json": []byte(manifest)} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// inRegistry serves a registry with the boot image in a folder, and returns its name there.
func inRegistry(t *testing.T, folder string) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	index, err := bootimages.Pack(folder, []string{"amd64"})
	if err != nil {
		t.Fatal(err)
	}
	at := bootimages.Name(strings.TrimPrefix(server.URL, "http://")+"/team", "v1.2.3")
	ref, err := name.ParseReference(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	return at
}

// On a machine with kipctl alone the boot image comes from a registry. It is not fetched again while the account has it, and one that is
// not as its manifest says is not published.
func TestTheBootImageIsPublishedFromARegistry(t *testing.T) {
	model, file := ec2Of(t)
	model.Change(func(cfg *ec2.Config) { cfg.Images = nil })
	t.Setenv("AWS_ENDPOINT_URL", regexp.MustCompile(`endpointURL: '([^']+)'`).FindStringSubmatch(withImage(t, file))[1])
	t.Chdir(t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	released(t, ".", true)
	command := []string{"image", "publish", "--region", "us-east-1", "--from"}
	if r := run(t, nil, append(command, inRegistry(t, "."))...); r.failed == nil || !strings.Contains(r.err, "its manifest says") ||
		len(model.Images.All()) > 0 {
		t.Errorf("another disk than its manifest says: %v, %s", r.failed, r.err)
	}
	released(t, ".", false)
	from := inRegistry(t, ".")
	for _, f := range []string{"kip-cell-amd64.tar.gz", "kip-cell-amd64.manifest.json"} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	first := run(t, nil, append(command, from)...)
	if first.failed != nil || len(model.Images.All()) != 1 || model.Images.All()[0].ID != strings.TrimSpace(first.out) {
		t.Fatalf("%v: it prints %q, and there are %+v: %s", first.failed, first.out, model.Images.All(), first.err)
	}
	again := run(t, nil, append(command, from)...)
	if again.failed != nil || again.out != first.out || !strings.Contains(again.err,
		from+" is the image "+strings.TrimSpace(first.out)+" already") {
		t.Errorf("again: %v: %s%s", again.failed, again.out, again.err)
	}
	for _, folder := range []string{".", os.TempDir()} {
		if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v (%v)", folder, left, err)
		}
	}
	for flag, want := range map[string]string{"--arch=arm64": "linux/arm64", "--image-folder=.": "leave out --image-folder",
		"--variant=nvidia": "no variants"} {
		if r := run(t, nil, append(command, from, flag)...); r.failed == nil || !strings.Contains(r.err, want) {
			t.Errorf("with %s: %v, %s", flag, r.failed, r.err)
		}
	}
}

// The kipctl of a release fetches the image of that release.
func TestTheBootImageOfAReleaseIsFetched(t *testing.T) {
	model, file := ec2Of(t)
	model.Change(func(cfg *ec2.Config) { cfg.Images = nil })
	t.Setenv("AWS_ENDPOINT_URL", regexp.MustCompile(`endpointURL: '([^']+)'`).FindStringSubmatch(withImage(t, file))[1])
	folder := t.TempDir()
	released(t, folder, false)
	releases, _, _ := strings.Cut(inRegistry(t, folder), "/kip-cell:")
	t.Chdir(t.TempDir())
	t.Cleanup(func() { version.Version = "" })
	for _, tc := range []struct{ version, says string }{
		{"", "want kip-cell-amd64.manifest.json and kip-cell-amd64.tar.gz of a release"},
		{"v9.9.9", "find the boot image " + releases + "/kip-cell:v9.9.9 for amd64"},
		{"v1.2.3", ""},
	} {
		version.Version = tc.version
		var out, stderr bytes.Buffer
		root := newRoot(&kipctl{out: &out, err: &stderr, waits: atOnce{}, releases: releases}, "kipctl")
		root.SetArgs([]string{"image", "publish", "--region", "us-east-1"})
		if err := root.ExecuteContext(t.Context()); (err == nil) != (tc.says == "") || !strings.Contains(stderr.String(), tc.says) {
			t.Errorf("version %q: %v: %s", tc.version, err, &stderr)
		}
	}
	if n := len(model.Images.All()); n != 1 {
		t.Errorf("there are %d images", n)
	}
}

// The command that doctor prints for an account without a boot image works as it is printed, on a machine with kipctl and the files of a
// release.
func TestTheCommandThatDoctorPrintsPublishesTheBootImage(t *testing.T) {
	model, file := ec2Of(t)
	model.Change(func(cfg *ec2.Config) { cfg.Images = nil })
	text := strings.Replace(withImage(t, file), "{name: kip}", "{name: 'kip-cell-*'}", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ENDPOINT_URL", regexp.MustCompile(`endpointURL: '([^']+)'`).FindStringSubmatch(text)[1])
	image := func() finding.Finding {
		t.Helper()
		return reported(t, run(t, nil, "doctor", "--account", "-f", file, "-o", "json").out)["account: image"]
	}
	before := image()
	command, _, _ := strings.Cut(before.Cure, "#")
	words := strings.Fields(command)
	if before.Outcome != finding.Failed || len(words) < 3 || words[0] != "kipctl" {
		t.Fatalf("an account without an image: %+v", before)
	}
	t.Chdir(t.TempDir())
	const want = "want kip-cell-amd64.manifest.json and kip-cell-amd64.tar.gz of a release"
	if r := run(t, nil, words[1:]...); r.failed == nil || !strings.Contains(r.err, want) {
		t.Errorf("without the files: %v, %s", r.failed, r.err)
	}
	released(t, ".", true)
	if r := run(t, nil, words[1:]...); r.failed == nil || !strings.Contains(r.err, "its manifest says") || len(model.Images.All()) > 0 {
		t.Errorf("another disk than its manifest says: %v, %s", r.failed, r.err)
	}
	released(t, ".", false)
	r := run(t, nil, words[1:]...)
	if r.failed != nil {
		t.Fatalf("%s: %v: %s", command, r.failed, r.err)
	}
	if !slices.ContainsFunc(model.Images.All(), func(i ec2.Image) bool {
		return i.ID == strings.TrimSpace(r.out) && i.Architecture == "x86_64"
	}) {
		t.Errorf("it prints %q, and there are %+v", r.out, model.Images.All())
	}
	if after := image(); after.Outcome == finding.Failed || after.Outcome == finding.NotChecked {
		t.Errorf("with the image: %+v", after)
	}
}
