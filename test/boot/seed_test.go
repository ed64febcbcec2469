//go:build e2e

package boot

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// isoSector is the unit of an ISO 9660 file system, in bytes.
const isoSector = 2048

// seed writes a disk as those who launch machines by NoCloud do: an ISO 9660 file system with the
// label cidata and the one file user-data, and returns its file.
func seed(t *testing.T, dir, userData string) string {
	t.Helper()
	const rootAt, fileAt, sectors = 18, 19, 20
	b := make([]byte, sectors*isoSector)
	d := b[16*isoSector:]
	copy(d, "\x01CD001\x01")
	copy(d[8:], padded("", 32))
	copy(d[40:], padded("cidata", 32))
	both32(d[80:], sectors)
	both16(d[120:], 1) // the volumes, and which this is
	both16(d[124:], 1)
	both16(d[128:], isoSector)
	copy(d[156:], record("\x00", rootAt, isoSector, true))
	d[881] = 1
	copy(b[17*isoSector:], "\xffCD001\x01")
	at := rootAt * isoSector
	for _, r := range [][]byte{
		record("\x00", rootAt, isoSector, true), record("\x01", rootAt, isoSector, true), record("USER-DATA;1", fileAt, len(userData), false),
	} {
		at += copy(b[at:], r)
	}
	copy(b[fileAt*isoSector:], userData)
	file := filepath.Join(dir, "seed.iso")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// noCloud are QEMU's arguments for a disk with user data: a CD-ROM, as most hypervisors have it.
func noCloud(t *testing.T, dir, userData string) []string {
	t.Helper()
	file := seed(t, dir, userData)
	return []string{"-drive", "if=none,id=seed,readonly=on,format=raw,file=" + file, "-device", "ide-cd,bus=ide.1,drive=seed"}
}

// record is a file's or a folder's in a folder.
func record(name string, at, size int, folder bool) []byte {
	b := make([]byte, (33+len(name)+1)/2*2)
	b[0] = byte(len(b))
	both32(b[2:], uint32(at))
	both32(b[10:], uint32(size))
	if folder {
		b[25] = 2
	}
	both16(b[28:], 1)
	b[32] = byte(len(name))
	copy(b[33:], name)
	return b
}

// both32 and both16 write a number in both orders of its bytes, as ISO 9660 has them.
func both32(b []byte, n uint32) {
	binary.LittleEndian.PutUint32(b, n)
	binary.BigEndian.PutUint32(b[4:], n)
}

func both16(b []byte, n uint16) {
	binary.LittleEndian.PutUint16(b, n)
	binary.BigEndian.PutUint16(b[2:], n)
}

func padded(s string, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = ' '
	}
	copy(b, s)
	return b
}
