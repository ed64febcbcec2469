package boot

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Numbers of a FAT32 file system with clusters of one sector; so small a one must have
// them so small, or it would be FAT16 by its count of clusters.
const (
	fatSector   = 512
	fatReserved = 32
	fatTables   = 2
	fatMedia    = 0xf8
	fatEnd      = 0x0fffffff
	// fatLeast is the fewest clusters that a FAT32 file system has.
	fatLeast = 65525
	fatDir   = 0x10
)

// writeESP writes a FAT32 file system of this many sectors with one file,
// EFI/BOOT/name: what firmware starts where nothing else is told to it.
func writeESP(w io.WriterAt, sectors uint32, name string, content []byte) error {
	table := up((sectors-fatReserved)*4, fatSector) / fatSector
	clusters := sectors - fatReserved - fatTables*table
	// The root, EFI and BOOT have a cluster each.
	first := uint32(2)
	length := up(uint32(len(content)), fatSector) / fatSector
	if clusters < fatLeast || length+3 > clusters {
		return fmt.Errorf("%s has %d bytes: too many for an ESP of %d sectors", name, len(content), sectors)
	}
	boot := make([]byte, fatSector)
	copy(boot, "\xeb\x58\x90KIP     ")
	binary.LittleEndian.PutUint16(boot[11:], fatSector)
	boot[13], boot[16], boot[21] = 1, fatTables, fatMedia
	binary.LittleEndian.PutUint16(boot[14:], fatReserved)
	binary.LittleEndian.PutUint16(boot[24:], 63) // sectors of a track, as all say
	binary.LittleEndian.PutUint16(boot[26:], 255)
	binary.LittleEndian.PutUint32(boot[32:], sectors)
	binary.LittleEndian.PutUint32(boot[36:], table)
	binary.LittleEndian.PutUint32(boot[44:], first)
	binary.LittleEndian.PutUint16(boot[48:], 1) // the sector of info
	binary.LittleEndian.PutUint16(boot[50:], 6) // that of the copy
	boot[64], boot[66] = 0x80, 0x29
	copy(boot[67:], "KIP0ESP        FAT32   ")
	boot[510], boot[511] = 0x55, 0xaa
	info := make([]byte, fatSector)
	copy(info, "RRaA")
	copy(info[484:], "rrAa")
	binary.LittleEndian.PutUint32(info[488:], clusters-3-length)
	binary.LittleEndian.PutUint32(info[492:], first+3+length)
	info[510], info[511] = 0x55, 0xaa

	fat := make([]byte, table*fatSector)
	set := func(cluster, next uint32) { binary.LittleEndian.PutUint32(fat[4*cluster:], next) }
	set(0, fatEnd&^0xff|fatMedia)
	set(1, fatEnd)
	for c := range uint32(3) {
		set(first+c, fatEnd)
	}
	for c := first + 3; c < first+3+length; c++ {
		set(c, c+1)
	}
	set(first+2+length, fatEnd)

	data := int64(fatReserved+fatTables*table) * fatSector
	for _, part := range []struct {
		at int64
		b  []byte
	}{
		{0, boot},
		{fatSector, info},
		{6 * fatSector, boot},
		{7 * fatSector, info},
		{fatReserved * fatSector, fat},
		{(fatReserved + int64(table)) * fatSector, fat},
		{data, folder(0, 0, entryOf("EFI", fatDir, first+1, 0))},
		{data + fatSector, folder(first+1, 0, entryOf("BOOT", fatDir, first+2, 0))},
		{data + 2*fatSector, folder(first+2, first+1, entryOf(name, 0, first+3, uint32(len(content))))},
		{data + 3*fatSector, content},
	} {
		if _, err := w.WriteAt(part.b, part.at); err != nil {
			return fmt.Errorf("write the ESP: %w", err)
		}
	}
	return nil
}

// folder is a folder's cluster; all but the root have themselves and what is above.
func folder(self, above uint32, entry []byte) []byte {
	var b []byte
	if self != 0 {
		b = append(entryOf(".", fatDir, self, 0), entryOf("..", fatDir, above, 0)...)
	}
	return append(b, entry...)
}

// entryOf is a file's entry in its folder, on the first day that FAT knows.
func entryOf(name string, attributes byte, cluster, size uint32) []byte {
	e := make([]byte, 32)
	copy(e, strings.Repeat(" ", 11))
	if strings.HasPrefix(name, ".") {
		copy(e, name)
	} else {
		base, extension, _ := strings.Cut(name, ".")
		copy(e, base)
		copy(e[8:], extension)
	}
	e[11] = attributes
	const day = 1<<5 | 1 // 1 January 1980
	for _, at := range []int{16, 18, 24} {
		binary.LittleEndian.PutUint16(e[at:], day)
	}
	binary.LittleEndian.PutUint16(e[20:], uint16(cluster>>16))
	binary.LittleEndian.PutUint16(e[26:], uint16(cluster))
	binary.LittleEndian.PutUint32(e[28:], size)
	return e
}
