package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/finding"
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
	if r := run(t, nil, words[1:]...); r.failed == nil || !strings.Contains(r.err, "its manifest says") || len(model.Images()) > 0 {
		t.Errorf("another disk than its manifest says: %v, %s", r.failed, r.err)
	}
	released(t, ".", false)
	r := run(t, nil, words[1:]...)
	if r.failed != nil {
		t.Fatalf("%s: %v: %s", command, r.failed, r.err)
	}
	if !slices.ContainsFunc(model.Images(), func(i ec2.Image) bool { return i.ID == strings.TrimSpace(r.out) && i.Architecture == "x86_64" }) {
		t.Errorf("it prints %q, and there are %+v", r.out, model.Images())
	}
	if after := image(); after.Outcome == finding.Failed || after.Outcome == finding.NotChecked {
		t.Errorf("with the image: %+v", after)
	}
}
