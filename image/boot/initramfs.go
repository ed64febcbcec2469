package boot

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// initramfs makes the first file system that a kernel sees: a cpio archive in the
// "newc" form (Documentation/driver-api/early-userspace/buffer-format.rst), compressed.
func initramfs(t tree) ([]byte, error) {
	t.folders()
	var b bytes.Buffer
	for n, name := range slices.Sorted(maps.Keys(t)) {
		f := t[name]
		content, mode := f.content, uint32(f.mode.Perm())
		switch f.mode.Type() {
		case fs.ModeDir:
			mode |= 0o040000
		case fs.ModeSymlink:
			mode |= 0o120000
			content = []byte(f.link)
		case 0:
			mode |= 0o100000
		default:
			return nil, fmt.Errorf("the first file system cannot have %s, which is a %v", name, f.mode)
		}
		entry(&b, n+1, mode, name, content)
	}
	entry(&b, 0, 0, "TRAILER!!!", nil)
	// One goroutine: how the work is shared must not show in the bytes.
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.EncodeAll(b.Bytes(), nil), nil
}

// entry writes one of an archive: a header of 13 numbers in hex, the name, the content,
// the last two filled up to four bytes.
func entry(b *bytes.Buffer, inode int, mode uint32, name string, content []byte) {
	// Inode, mode, owner, group, links, time, size, four numbers of devices, the name's
	// length, no checksum.
	fmt.Fprintf(b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	b.WriteString(name)
	b.WriteByte(0)
	fill(b)
	b.Write(content)
	fill(b)
}

func fill(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
