package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// archived is the end of the name of an image that is packed, as a release has it: an archive with the raw disk alone.
const archived = ".tar.gz"

// open opens the raw disk of an image. One that is packed is unpacked into a file that done removes.
func (i Image) open() (disk *os.File, done func(), err error) {
	packed, err := os.Open(i.File)
	if err != nil || !strings.HasSuffix(i.File, archived) {
		return packed, func() { packed.Close() }, err
	}
	defer packed.Close()
	disk, err = os.CreateTemp("", "kip-cell-")
	if err != nil {
		return nil, nil, err
	}
	done = func() {
		disk.Close()
		os.Remove(disk.Name())
	}
	if err = unpack(disk, packed); err == nil {
		_, err = disk.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("unpack %s: %w", i.File, err)
	}
	return disk, done, nil
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
			return nil
		case err != nil:
			return err
		}
	}
}
