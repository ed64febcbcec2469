package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// archived is the end of the name of an image that is packed, as a release has it: an archive with the raw disk alone.
const archived = ".tar.gz"

// open opens the raw disk of an image. One that is packed is unpacked into a file that is there until done is called: beside the
// archive, if that is a file.
func (p *Publisher) open(ctx context.Context, i Image) (disk *os.File, done func(), err error) {
	if i.Packed != nil {
		packed, size, err := i.Packed(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("fetch %s: %w", i.File, err)
		}
		defer packed.Close()
		return unpacked(p.reading(ctx, packed, size, "fetching "+i.File), i.File, "")
	}
	packed, err := os.Open(i.File)
	if err != nil || !strings.HasSuffix(i.File, archived) {
		return packed, func() { packed.Close() }, err
	}
	defer packed.Close()
	about, err := packed.Stat()
	if err != nil {
		return nil, nil, err
	}
	return unpacked(p.reading(ctx, packed, about.Size(), "unpacking "+i.File), i.File, filepath.Dir(i.File))
}

// unpacked unpacks a disk into a file of a folder, or of that for temporary files.
func unpacked(packed io.Reader, called, folder string) (disk *os.File, done func(), err error) {
	disk, err = os.CreateTemp(folder, ".kip-cell-")
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) { // a folder that others fill
		disk, err = os.CreateTemp("", ".kip-cell-")
	}
	if err != nil {
		return nil, nil, err
	}
	// So that a killed kipctl leaves no file. Windows removes none that is open.
	removed := os.Remove(disk.Name()) == nil
	done = func() {
		disk.Close()
		if !removed {
			os.Remove(disk.Name())
		}
	}
	if err = unpack(disk, packed); err == nil {
		_, err = disk.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("unpack %s: %w", called, err)
	}
	return disk, done, nil
}

// sayEvery is how often a long read tells how far it is.
const sayEvery = 2 * time.Second

// reading reads until a context ends, and tells how far it is.
type reading struct {
	p    *Publisher
	ctx  context.Context // an io.Reader is given none
	from io.Reader
	what string
	of   int64

	done int64
	said time.Time
}

// reading returns what reads a file of a size, for what.
func (p *Publisher) reading(ctx context.Context, from io.Reader, of int64, what string) *reading {
	return &reading{
		p:    p,
		ctx:  ctx,
		from: from,
		what: what,
		of:   of,
		said: p.cfg.Now(),
	}
}

func (r *reading) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	if now := r.p.cfg.Now(); now.Sub(r.said) >= sayEvery {
		r.p.cfg.Say("%s: %d of %d MB", r.what, r.done/1e6, r.of/1e6)
		r.said = now
	}
	n, err := r.from.Read(b)
	r.done += int64(n)
	return n, err
}

// maxDisk bounds what is unpacked.
const maxDisk = 16 * gib

// unpack writes the disk in an archive to a file. What is all zeros becomes a hole: most of a disk is.
func unpack(disk *os.File, packed io.Reader) error {
	z, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	archive := tar.NewReader(z)
	head, err := archive.Next()
	if err != nil {
		return err
	}
	if head.Name != "disk.raw" || head.Size > maxDisk {
		return fmt.Errorf("it has %q of %d bytes: want disk.raw, of at most %d", head.Name, head.Size, int64(maxDisk))
	}
	if err := disk.Truncate(head.Size); err != nil {
		return err
	}
	block := make([]byte, blockSize)
	for at := int64(0); ; {
		n, err := io.ReadFull(archive, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := disk.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if at != head.Size {
				return fmt.Errorf("it is cut off after %d of %d bytes", at, head.Size)
			}
			return drain(z)
		case err != nil:
			return err
		}
	}
}

// maxRest bounds what follows the disk in an archive: the end of a tar file, which programs fill up to a block of 10 KiB.
const maxRest = 1 << 20

// drain reads what follows the disk in an archive, up to the end of what is packed: a registry's digest is compared there.
func drain(rest io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(rest, maxRest+1))
	if err == nil && n > maxRest {
		err = fmt.Errorf("more than %d bytes follow the disk: want an archive of disk.raw alone", maxRest)
	}
	return err
}
