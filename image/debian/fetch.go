package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// maxContent bounds a package's files: the kernel's are 40 MB.
	maxContent = 1 << 30
	// fetchTimeout bounds one download: the kernel is 35 MB.
	fetchTimeout = 10 * time.Minute
)

// ErrGone is of what a mirror does not have: mirrors keep only the newest versions.
var ErrGone = errors.New("the mirror does not have it any more")

// Fetch returns the package's file below dir, from the mirror of its archive if it is not there.
func (p Package) Fetch(ctx context.Context, mirrors Mirrors, dir string) (string, error) {
	file := filepath.Join(dir, p.SHA256+".deb")
	have, err := os.ReadFile(file)
	if err == nil && p.is(have) {
		return file, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	b, err := get(ctx, p.URL(mirrors), p.Bytes)
	if err != nil {
		return "", err
	}
	if !p.is(b) {
		return "", fmt.Errorf("%s %s from %s is not what the lock pins (%d bytes, sha256 %s): the mirror, or the way to it, has another file",
			p.Name, p.Version, mirrors[p.Archive], p.Bytes, p.SHA256)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return "", err
	}
	return file, os.Rename(tmp, file)
}

func (p Package) is(b []byte) bool {
	sum := sha256.Sum256(b)
	return int64(len(b)) == p.Bytes && hex.EncodeToString(sum[:]) == p.SHA256
}

// get returns what is at a URL, at most limit bytes.
func get(ctx context.Context, url string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("fetch %s: %w (%s): kip-image lock pins the newest versions, -gone=newest takes them this time",
			url, ErrGone, resp.Status)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch %s: %s", url, resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", url, err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("fetch %s: it has more than %d bytes", url, limit)
	}
	return b, nil
}

// File is one of a package.
type File struct {
	// Mode has the type, too: a regular file's or a symbolic link's.
	Mode    fs.FileMode
	Content []byte
	// Link is where a symbolic link leads.
	Link string
}

// Files are the regular files and the links of packages, by their paths without
// a leading slash. All are below usr, etc or boot, as Debian 13 has them.
type Files map[string]File

// Read adds the files of a fetched package that keep says true of.
func (all Files) Read(ctx context.Context, deb string, keep func(path string) bool) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("unpack %s (dpkg-deb is in Debian's package dpkg): %w", deb, err)
	}
	limited := io.LimitReader(out, maxContent)
	readErr := all.readTar(tar.NewReader(limited), keep)
	// To its end, or dpkg-deb would fail for a reader that went away.
	_, drainErr := io.Copy(io.Discard, limited)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", deb, err, strings.TrimSpace(said.String()))
	}
	if err := errors.Join(readErr, drainErr); err != nil {
		return fmt.Errorf("unpack %s: %w", deb, err)
	}
	return nil
}

func (all Files) readTar(r *tar.Reader, keep func(string) bool) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if !keep(name) {
			continue
		}
		f := File{Mode: h.FileInfo().Mode(), Link: h.Linkname}
		switch h.Typeflag {
		case tar.TypeReg:
			if f.Content, err = io.ReadAll(r); err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
		case tar.TypeLink:
			from, ok := all[strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")]
			if !ok {
				return fmt.Errorf("read %s: it is another name of %s, which is not kept", name, h.Linkname)
			}
			f = from
		case tar.TypeSymlink:
		default:
			continue
		}
		all[name] = f
	}
}

// Authorities returns the certificate authorities of the package ca-certificates in one file, as update-ca-certificates makes it.
func (all Files) Authorities() []byte {
	var b bytes.Buffer
	for _, p := range slices.Sorted(maps.Keys(all)) {
		if path.Dir(p) == "usr/share/ca-certificates/mozilla" {
			b.Write(all[p].Content)
		}
	}
	return b.Bytes()
}

// Below returns the paths of what is in a folder, which ends with a slash, and in those within it, in order.
func (all Files) Below(folder string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(p string) bool { return !strings.HasPrefix(p, folder) })
}

// maxLinks bounds a chain of symbolic links.
const maxLinks = 8

// Open returns a regular file by its path, and the path that links led to.
func (all Files) Open(name string) (File, string, error) {
	at := name
	for range maxLinks {
		f, ok := all[at]
		if !ok {
			return File{}, "", fmt.Errorf("no package has /%s: %w", at, fs.ErrNotExist)
		}
		if f.Mode.Type() != fs.ModeSymlink {
			return f, at, nil
		}
		if path.IsAbs(f.Link) {
			at = strings.TrimPrefix(path.Clean(f.Link), "/")
		} else {
			at = path.Join(path.Dir(at), f.Link)
		}
	}
	return File{}, "", fmt.Errorf("/%s is a chain of more than %d links", name, maxLinks)
}

// Unpack returns what was compressed with xz.
func Unpack(ctx context.Context, packed []byte) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "xz", "--decompress", "--stdout")
	cmd.Stdin = bytes.NewReader(packed)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("decompress (xz is in Debian's package xz-utils): %w: %s", err, strings.TrimSpace(said.String()))
	}
	return out, nil
}
