// Package gpt owns the partition table of a cell's disk: the image is written with
// one, and the machine's first boot adds the partition for what it writes. It touches
// nothing but the table.
package gpt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"unicode/utf16"
)

const (
	// Sector is a disk's unit, in bytes. Disks whose unit is larger are not known.
	Sector = 512
	// Align is where partitions begin, in sectors: 1 MiB.
	Align = 2048
	// leastState is the smallest state of a cell, in sectors: with less its file system, containerd and
	// the kubelet do not begin.
	leastState = 64 * Align

	entries      = 128
	entryBytes   = 128
	tableSectors = entries * entryBytes / Sector
	headerBytes  = 92
	// firstUsable is behind the boot sector, the header and the entries, and as many
	// as these two are reserved at the disk's end.
	firstUsable = 2 + tableSectors
	reserved    = 1 + tableSectors
	nameUnits   = 36
)

// A GUID in the order of bytes that the table has.
type GUID [16]byte

// Types of partitions. The roots are those of the Discoverable Partitions
// Specification, by Go's word for the architecture.
var (
	ESP   = guid(0xC12A7328, 0xF81F, 0x11D2, 0xBA4B00A0C93EC93B)
	Roots = map[string]GUID{
		"amd64": guid(0x4F68BCE3, 0xE8CD, 0x4DB1, 0x96E7FBCAF984B709),
		"arm64": guid(0xB921B045, 0x1DF0, 0x41C3, 0xAF444C6F280D3FAE),
	}
	// State is Linux' own type for data.
	State = guid(0x0FC63DAF, 0x8483, 0x4772, 0x8E793D69D8477DE4)
)

func guid(a uint32, b, c uint16, d uint64) GUID {
	var g GUID
	binary.LittleEndian.PutUint32(g[0:], a)
	binary.LittleEndian.PutUint16(g[4:], b)
	binary.LittleEndian.PutUint16(g[6:], c)
	binary.BigEndian.PutUint64(g[8:], d)
	return g
}

// String is the form that Linux shows, in lower case.
func (g GUID) String() string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(g[0:]), binary.LittleEndian.Uint16(g[4:]),
		binary.LittleEndian.Uint16(g[6:]), g[8:10], g[10:])
}

// Random makes a GUID of 16 random bytes.
func Random(b [16]byte) GUID {
	g := GUID(b)
	g[7] = g[7]&0x0f | 0x40 // version 4
	g[8] = g[8]&0x3f | 0x80
	return g
}

// Partition is one of a table. First and Last are sectors, both part of it.
type Partition struct {
	Type, ID    GUID
	First, Last uint64
	Name        string
}

// Sectors is the partition's size.
func (p Partition) Sectors() uint64 { return p.Last - p.First + 1 }

// Table is a disk's. Partitions are numbered from 1 in their order.
type Table struct {
	ID GUID
	// Sectors is the disk's size.
	Sectors    uint64
	Partitions []Partition
}

// LastUsable is the last sector that a partition may have.
func (t Table) LastUsable() uint64 { return t.Sectors - reserved - 1 }

// check says what is wrong with a table that is to be written, or was read.
func (t Table) check() error {
	if t.Sectors < firstUsable+reserved+Align {
		return fmt.Errorf("the disk has %d sectors, too few for partitions", t.Sectors)
	}
	if len(t.Partitions) > entries {
		return fmt.Errorf("%d partitions, and a table has room for %d", len(t.Partitions), entries)
	}
	sorted := slices.SortedFunc(slices.Values(t.Partitions), func(a, b Partition) int {
		return bytes.Compare(binary.BigEndian.AppendUint64(nil, a.First), binary.BigEndian.AppendUint64(nil, b.First))
	})
	end := uint64(firstUsable)
	for _, p := range sorted {
		if p.First < end || p.Last < p.First || p.Last > t.LastUsable() {
			return fmt.Errorf("partition %q has the sectors %d to %d: not on the disk, or another's", p.Name, p.First, p.Last)
		}
		if len(utf16.Encode([]rune(p.Name))) > nameUnits {
			return fmt.Errorf("the name %q of a partition is too long", p.Name)
		}
		end = p.Last + 1
	}
	return nil
}

// Write writes the table, its copy at the disk's end first, so that one of both is
// whole at any time.
func (t Table) Write(w io.WriterAt) error {
	if err := t.check(); err != nil {
		return err
	}
	list := make([]byte, entries*entryBytes)
	for n, p := range t.Partitions {
		e := list[n*entryBytes:]
		copy(e[0:], p.Type[:])
		copy(e[16:], p.ID[:])
		binary.LittleEndian.PutUint64(e[32:], p.First)
		binary.LittleEndian.PutUint64(e[40:], p.Last)
		for i, unit := range utf16.Encode([]rune(p.Name)) {
			binary.LittleEndian.PutUint16(e[56+2*i:], unit)
		}
	}
	last := t.Sectors - 1
	for _, part := range []struct {
		sector uint64
		b      []byte
	}{
		{last - tableSectors, list},
		{last, t.header(list, last, 1, last-tableSectors)},
		{0, t.protective()},
		{2, list},
		{1, t.header(list, 1, last, 2)},
	} {
		if _, err := w.WriteAt(part.b, int64(part.sector)*Sector); err != nil {
			return fmt.Errorf("write the partition table: %w", err)
		}
	}
	return nil
}

func (t Table) header(list []byte, at, other, listAt uint64) []byte {
	h := make([]byte, Sector)
	copy(h, "EFI PART")
	binary.LittleEndian.PutUint32(h[8:], 0x00010000)
	binary.LittleEndian.PutUint32(h[12:], headerBytes)
	binary.LittleEndian.PutUint64(h[24:], at)
	binary.LittleEndian.PutUint64(h[32:], other)
	binary.LittleEndian.PutUint64(h[40:], firstUsable)
	binary.LittleEndian.PutUint64(h[48:], t.LastUsable())
	copy(h[56:], t.ID[:])
	binary.LittleEndian.PutUint64(h[72:], listAt)
	binary.LittleEndian.PutUint32(h[80:], entries)
	binary.LittleEndian.PutUint32(h[84:], entryBytes)
	binary.LittleEndian.PutUint32(h[88:], crc32.ChecksumIEEE(list))
	binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:headerBytes]))
	return h
}

// protective is the boot sector that shows the whole disk as taken to who knows no GPT.
func (t Table) protective() []byte {
	b := make([]byte, Sector)
	e := b[446:]
	e[2], e[4], e[5], e[6], e[7] = 2, 0xee, 0xff, 0xff, 0xff
	binary.LittleEndian.PutUint32(e[8:], 1)
	binary.LittleEndian.PutUint32(e[12:], uint32(min(t.Sectors-1, 0xffffffff)))
	b[510], b[511] = 0x55, 0xaa
	return b
}

// Read reads the table of a disk with this many sectors, which may have grown since
// the table was written. Its copy is not looked for: an image has both.
func Read(r io.ReaderAt, sectors uint64) (Table, error) {
	h := make([]byte, Sector)
	if _, err := r.ReadAt(h, Sector); err != nil {
		return Table{}, fmt.Errorf("read the partition table: %w", err)
	}
	if string(h[:8]) != "EFI PART" {
		return Table{}, errors.New("the disk has no GPT partition table")
	}
	sum := binary.LittleEndian.Uint32(h[16:])
	binary.LittleEndian.PutUint32(h[16:], 0)
	switch {
	case crc32.ChecksumIEEE(h[:headerBytes]) != sum:
		return Table{}, errors.New("the header of the partition table is corrupt: its checksum is wrong")
	case binary.LittleEndian.Uint32(h[80:]) != entries || binary.LittleEndian.Uint32(h[84:]) != entryBytes:
		return Table{}, errors.New("the partition table has another shape than an image's")
	}
	list := make([]byte, entries*entryBytes)
	if _, err := r.ReadAt(list, int64(binary.LittleEndian.Uint64(h[72:]))*Sector); err != nil {
		return Table{}, fmt.Errorf("read the list of partitions: %w", err)
	}
	if crc32.ChecksumIEEE(list) != binary.LittleEndian.Uint32(h[88:]) {
		return Table{}, errors.New("the list of partitions is corrupt: its checksum is wrong")
	}
	t := Table{ID: GUID(h[56:72]), Sectors: sectors}
	for n := range entries {
		e := list[n*entryBytes:][:entryBytes]
		if GUID(e[:16]) == (GUID{}) {
			continue
		}
		units := make([]uint16, 0, nameUnits)
		for i := 56; i < entryBytes; i += 2 {
			unit := binary.LittleEndian.Uint16(e[i:])
			if unit == 0 {
				break
			}
			units = append(units, unit)
		}
		t.Partitions = append(t.Partitions, Partition{
			Type:  GUID(e[:16]),
			ID:    GUID(e[16:32]),
			First: binary.LittleEndian.Uint64(e[32:]),
			Last:  binary.LittleEndian.Uint64(e[40:]),
			Name:  string(utf16.Decode(units)),
		})
	}
	return t, t.check()
}

// Claim gives what is behind the last partition, to the disk's end, to the partition
// of this name: a new one, or that one if it is the last. It reports whether the
// table has changed, and whether the partition is new.
func (t *Table) Claim(name string, id GUID) (changed, added bool, err error) {
	last := slices.MaxFunc(append(slices.Clone(t.Partitions), Partition{}), func(a, b Partition) int {
		return bytes.Compare(binary.BigEndian.AppendUint64(nil, a.Last), binary.BigEndian.AppendUint64(nil, b.Last))
	})
	// A whole number of MiB, so that it is the same whoever looks at it.
	end := (t.LastUsable()+1)/Align*Align - 1
	n := slices.IndexFunc(t.Partitions, func(p Partition) bool { return p.Name == name })
	if n >= 0 {
		p := &t.Partitions[n]
		if *p != last {
			return false, false, fmt.Errorf("partition %q is not the last on its disk", name)
		}
		if p.Last >= end {
			return false, false, nil
		}
		p.Last = end
		return true, false, nil
	}
	first := (max(last.Last+1, firstUsable) + Align - 1) / Align * Align
	if first > t.LastUsable() || end+1 < first+leastState {
		return false, false, fmt.Errorf("the disk is too small: it has %d MiB, of which the image has %d, and a cell needs %d more",
			(t.LastUsable()+1)/Align, (last.Last+1)/Align, leastState/Align)
	}
	t.Partitions = append(t.Partitions, Partition{
		Type:  State,
		ID:    id,
		First: first,
		Last:  end,
		Name:  name,
	})
	return true, true, nil
}
