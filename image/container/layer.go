package container

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file is one of an image, by its path without a leading slash.
type file struct {
	path    string
	mode    fs.FileMode
	content []byte
}

// layerOf returns a layer with files and the folders that they are in. All are root's and have the epoch's time, so that a layer
// of equal files is the same in every release.
func layerOf(files []file) (v1.Layer, error) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for _, f := range withFolders(files) {
		h := &tar.Header{
			Typeflag: tar.TypeReg,
			Name:     f.path,
			Mode:     int64(f.mode.Perm()),
			Size:     int64(len(f.content)),
			ModTime:  time.Unix(0, 0),
			Format:   tar.FormatUSTAR,
		}
		if f.mode.IsDir() {
			h.Typeflag, h.Name = tar.TypeDir, f.path+"/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// withFolders adds the folders of files, each before what is in it, and sorts all by their paths.
func withFolders(files []file) []file {
	all := map[string]file{}
	for _, f := range files {
		all[f.path] = f
		for dir := path.Dir(f.path); dir != "."; dir = path.Dir(dir) {
			all[dir] = file{path: dir, mode: fs.ModeDir | 0o755}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b file) int { return strings.Compare(a.path, b.path) })
}
