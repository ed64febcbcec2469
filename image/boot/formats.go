package boot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// formats are the forms in which clouds and hypervisors take a disk, by their names;
// each is written from the raw disk.
var formats = map[string]struct {
	suffix string
	write  func(to *os.File, from *os.File, size int64) error
}{
	"raw":    {".raw", nil},
	"qcow2":  {".qcow2", writeQcow2},
	"tar.gz": {".tar.gz", writeTarGz},
	"vhd":    {".vhd", writeVHD},
}

// Formats are the names of all forms: raw for EC2 and any hypervisor, qcow2 for QEMU,
// tar.gz has a disk.raw for Google Cloud, vhd is a fixed VHD for Azure.
func Formats() []string { return []string{"raw", "qcow2", "tar.gz", "vhd"} }

// writeTarGz writes a disk as Google Cloud takes one: the one file disk.raw in an
// archive of GNU's old form.
func writeTarGz(to, from *os.File, size int64) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	err = w.WriteHeader(&tar.Header{
		Name:     "disk.raw",
		Mode:     0o644,
		Size:     size,
		ModTime:  time.Unix(0, 0),
		Typeflag: tar.TypeReg,
		Format:   tar.FormatGNU,
	})
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, io.NewSectionReader(from, 0, size)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return z.Close()
}

// writeVHD writes a fixed VHD: the raw disk and a footer ("Virtual Hard Disk Image
// Format Specification", version 1.0). Azure wants a whole number of MiB.
func writeVHD(to, from *os.File, size int64) error {
	if size%(1<<20) != 0 {
		return fmt.Errorf("a disk of %d bytes is no whole number of MiB", size)
	}
	if err := copySparse(to, from, size); err != nil {
		return err
	}
	f := make([]byte, 512)
	copy(f, "conectix")
	binary.BigEndian.PutUint32(f[8:], 2)
	binary.BigEndian.PutUint32(f[12:], 0x00010000)
	copy(f[16:], bytes.Repeat([]byte{0xff}, 8)) // no table: the size is fixed
	copy(f[28:], "kip \x00\x01\x00\x00Wi2k")
	binary.BigEndian.PutUint64(f[40:], uint64(size))
	binary.BigEndian.PutUint64(f[48:], uint64(size))
	binary.BigEndian.PutUint32(f[56:], geometry(uint64(size)/512))
	binary.BigEndian.PutUint32(f[60:], 2) // fixed
	copy(f[68:], "kip's boot image")
	var sum uint32
	for _, b := range f {
		sum += uint32(b)
	}
	binary.BigEndian.PutUint32(f[64:], ^sum)
	_, err := to.WriteAt(f, size)
	return err
}

// geometry is the cylinders, heads and sectors of a disk, as the appendix of the
// specification counts them.
func geometry(sectors uint64) uint32 {
	perTrack, heads := uint64(17), uint64(0)
	sectors = min(sectors, 65535*16*255)
	tracks := sectors / perTrack
	if sectors >= 65535*16*63 {
		perTrack, heads = 255, 16
		tracks = sectors / perTrack
	} else {
		heads = max((tracks+1023)/1024, 4)
		if tracks >= heads*1024 || heads > 16 {
			perTrack, heads = 31, 16
			tracks = sectors / perTrack
		}
		if tracks >= heads*1024 {
			perTrack, heads = 63, 16
			tracks = sectors / perTrack
		}
	}
	return uint32(tracks/heads)<<16 | uint32(heads)<<8 | uint32(perTrack)
}

// chunk is how much of a disk is looked at at once, and qcow2's cluster.
const chunk = 64 << 10

// eachChunk calls do with each part of the disk that is not all zeros.
func eachChunk(from *os.File, size int64, do func(at int64, b []byte) error) error {
	buf, zeros := make([]byte, chunk), make([]byte, chunk)
	for at := int64(0); at < size; at += chunk {
		b := buf[:min(chunk, size-at)]
		if _, err := from.ReadAt(b, at); err != nil {
			return err
		}
		if bytes.Equal(b, zeros[:len(b)]) {
			continue
		}
		if err := do(at, b); err != nil {
			return err
		}
	}
	return nil
}

// copySparse copies a disk, without what is all zeros.
func copySparse(to, from *os.File, size int64) error {
	if err := to.Truncate(size); err != nil {
		return err
	}
	return eachChunk(from, size, func(at int64, b []byte) error {
		_, err := to.WriteAt(b, at)
		return err
	})
}

// writeQcow2 writes a disk in QEMU's form, version 3 (docs/interop/qcow2.rst there):
// header, table and blocks of reference counts, the two levels of tables, and the
// clusters that are not all zeros.
func writeQcow2(to, from *os.File, size int64) error {
	const (
		perTable = chunk / 8 // entries of a table of the second level
		perBlock = chunk / 2 // reference counts in a block
		copied   = 1 << 63   // the mark of what has one reference
	)
	var used []int64
	err := eachChunk(from, size, func(at int64, _ []byte) error { used = append(used, at); return nil })
	if err != nil {
		return err
	}
	all := (size + chunk - 1) / chunk
	tables := (all + perTable - 1) / perTable
	// One cluster for the header, one for each table of the first level.
	fixed := 3 + tables + int64(len(used))
	blocks := int64(1)
	for blocks*perBlock < fixed+blocks {
		blocks++
	}
	const countsAt, blocksAt = 1, 2
	firstAt := blocksAt + blocks
	secondAt := firstAt + 1
	dataAt := secondAt + tables
	end := dataAt + int64(len(used))
	if blocks > perTable || tables > perTable {
		return fmt.Errorf("a disk of %d bytes is too large for this form", size)
	}

	h := make([]byte, chunk)
	copy(h, "QFI\xfb")
	for at, v := range map[int]uint32{
		4: 3, 20: 16, 36: uint32(tables), 56: 1, 96: 4, 100: 104, // version, cluster bits, entries, clusters of counts, 16-bit counts, length
	} {
		binary.BigEndian.PutUint32(h[at:], v)
	}
	binary.BigEndian.PutUint64(h[24:], uint64(size))
	binary.BigEndian.PutUint64(h[40:], uint64(firstAt)*chunk)
	binary.BigEndian.PutUint64(h[48:], countsAt*chunk)
	counts, first := make([]byte, chunk), make([]byte, chunk)
	for n := range blocks {
		binary.BigEndian.PutUint64(counts[8*n:], uint64(blocksAt+n)*chunk)
	}
	for n := range tables {
		binary.BigEndian.PutUint64(first[8*n:], copied|uint64(secondAt+n)*chunk)
	}
	references := make([]byte, blocks*chunk)
	for n := range end {
		binary.BigEndian.PutUint16(references[2*n:], 1)
	}
	second := make([]byte, tables*chunk)
	for n, at := range used {
		binary.BigEndian.PutUint64(second[8*(at/chunk):], copied|uint64(dataAt+int64(n))*chunk)
	}
	for _, part := range []struct {
		cluster int64
		b       []byte
	}{
		{0, h},
		{countsAt, counts},
		{blocksAt, references},
		{firstAt, first},
		{secondAt, second},
	} {
		if _, err := to.WriteAt(part.b, part.cluster*chunk); err != nil {
			return err
		}
	}
	next := dataAt
	err = eachChunk(from, size, func(_ int64, b []byte) error {
		_, err := to.WriteAt(b, next*chunk)
		next++
		return err
	})
	if err != nil {
		return err
	}
	return to.Truncate(end * chunk)
}

// checkFormats says which names are no form.
func checkFormats(names []string) error {
	for _, n := range names {
		if !slices.Contains(Formats(), n) {
			return fmt.Errorf("there is no format %q: there are %s", n, strings.Join(Formats(), ", "))
		}
	}
	return nil
}
