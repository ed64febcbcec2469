package release

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// entry is a file of an archive: that of this machine named from, or else its content.
type entry struct {
	name    string
	mode    fs.FileMode
	from    string
	content []byte
}

// open returns what the file has, and its size.
func (e entry) open() (io.ReadCloser, int64, error) {
	if e.from == "" {
		return io.NopCloser(strings.NewReader(string(e.content))), int64(len(e.content)), nil
	}
	f, err := os.Open(e.from)
	if err != nil {
		return nil, 0, fmt.Errorf("make release builds it first: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// pack writes an archive of the form that its name ends in: zip, tgz or tar.gz. Equal entries and times make equal bytes.
func pack(file string, at time.Time, entries []entry) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	write := packTar
	if strings.HasSuffix(file, ".zip") {
		write = packZip
	}
	return errors.Join(write(f, at, entries), f.Close())
}

func packTar(to io.Writer, at time.Time, entries []entry) error {
	z := gzip.NewWriter(to)
	w := tar.NewWriter(z)
	for _, e := range entries {
		content, size, err := e.open()
		if err != nil {
			return err
		}
		err = w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg,
			Name:     e.name,
			Mode:     int64(e.mode),
			Size:     size,
			ModTime:  at,
			Format:   tar.FormatUSTAR,
		})
		if err == nil {
			_, err = io.Copy(w, content)
		}
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), z.Close())
}

func packZip(to io.Writer, at time.Time, entries []entry) error {
	w := zip.NewWriter(to)
	for _, e := range entries {
		content, _, err := e.open()
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at.UTC()}
		h.SetMode(e.mode)
		one, err := w.CreateHeader(h)
		if err == nil {
			_, err = io.Copy(one, content)
		}
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return w.Close()
}
