package boot

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
)

// section is one that a unified kernel image has beside those of its stub.
type section struct {
	name    string
	content []byte
}

const (
	// sectionHeader is the size of a section's header in bytes, sectionName that of the
	// name in it.
	sectionHeader, sectionName = 40, 8
	// readOnlyData is IMAGE_SCN_CNT_INITIALIZED_DATA | IMAGE_SCN_MEM_READ.
	readOnlyData = 0x40000040
)

// unify adds sections to an EFI stub, which makes a unified kernel image as
// https://uapi-group.org/specifications/specs/unified_kernel_image describes it.
func unify(stub []byte, sections []section) ([]byte, error) {
	f, err := pe.NewFile(bytes.NewReader(stub))
	if err != nil {
		return nil, fmt.Errorf("the EFI stub: %w", err)
	}
	defer f.Close()
	o, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok || o.FileAlignment == 0 || o.SectionAlignment == 0 || len(f.Sections) == 0 {
		return nil, errors.New("the EFI stub is no 64-bit EFI program")
	}
	signature := binary.LittleEndian.Uint32(stub[0x3c:])
	fileHeader := signature + 4
	optional := fileHeader + 20
	headers := optional + uint32(f.SizeOfOptionalHeader)
	free := headers + uint32(len(f.Sections))*sectionHeader
	if free+uint32(len(sections))*sectionHeader > o.SizeOfHeaders {
		return nil, fmt.Errorf("the EFI stub has no room for %d more sections", len(sections))
	}
	last := f.Sections[len(f.Sections)-1]
	at := up(last.VirtualAddress+last.VirtualSize, o.SectionAlignment)
	out := bytes.NewBuffer(bytes.Clone(stub))
	data := o.SizeOfInitializedData
	for n, s := range sections {
		pad(out, o.FileAlignment)
		h := make([]byte, sectionHeader)
		if copy(h[:sectionName], s.name) != len(s.name) {
			return nil, fmt.Errorf("the name of the section %s is too long", s.name)
		}
		size := up(uint32(len(s.content)), o.FileAlignment)
		for i, v := range []uint32{uint32(len(s.content)), at, size, uint32(out.Len())} {
			binary.LittleEndian.PutUint32(h[8+4*i:], v)
		}
		binary.LittleEndian.PutUint32(h[36:], readOnlyData)
		out.Write(s.content)
		pad(out, o.FileAlignment)
		copy(out.Bytes()[free+uint32(n)*sectionHeader:], h)
		at = up(at+uint32(len(s.content)), o.SectionAlignment)
		data += size
	}
	b := out.Bytes()
	binary.LittleEndian.PutUint16(b[fileHeader+2:], uint16(len(f.Sections)+len(sections)))
	binary.LittleEndian.PutUint32(b[optional+8:], data) // SizeOfInitializedData
	binary.LittleEndian.PutUint32(b[optional+56:], at)  // SizeOfImage
	binary.LittleEndian.PutUint32(b[optional+64:], 0)   // CheckSum, of which firmware asks nothing
	return b, nil
}

// up rounds up.
func up(n, to uint32) uint32 { return (n + to - 1) / to * to }

func pad(b *bytes.Buffer, to uint32) {
	b.Write(make([]byte, up(uint32(b.Len()), to)-uint32(b.Len())))
}
