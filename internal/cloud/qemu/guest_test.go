package qemu

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// guestCode is where the code of a test's kernel is in it.
const guestCode = 0x268

// guest is a kernel of some 80 bytes: a real machine boots it, it says what it is on the
// serial console and sleeps. It obeys the power button, or does not.
func guest(obeys bool) []byte {
	const sectors, entry = 4, 0x200
	k := make([]byte, 512*(sectors+2))
	k[0x1f1] = sectors
	copy(k[entry:], []byte{0xeb, guestCode - entry - 2}) // over what follows
	copy(k[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(k[0x206:], 0x0202) // of the boot protocol
	k[0x211] = 1                                     // what comes after is loaded high
	text := saying("here\n")
	if obeys {
		text = append(text,
			0xb0, 0xff, 0xe6, 0xa1, // mov al, 0xff; out 0xa1, al: no interrupt but of the timer
			0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, // mov dx, 0x602; mov ax, 0x100; out dx, ax: listen to the power button
			0xba, 0x00, 0x06, // mov dx, 0x600: whether it was pressed
			0xfb, 0xf4, // sti; hlt: until the next tick
			0xed,             // in ax, dx
			0xf6, 0xc4, 0x01, // test ah, 1
			0x74, 0xf8) // jz back to sti
		text = append(text, saying(".")...)
		text = append(text, 0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef) // mov dx, 0x604; mov ax, 0x2000; out dx, ax: off
	}
	copy(k[guestCode:], append(text, 0xfa, 0xf4, 0xeb, 0xfc)) // cli; hlt, for ever
	return k
}

// saying is the code that writes a text to the serial console.
func saying(text string) (code []byte) {
	for _, b := range []byte(text) {
		code = append(code, 0xba, 0xf8, 0x03, 0xb0, b, 0xee) // mov dx, 0x3f8; mov al, b; out dx, al
	}
	return code
}

// resets is a kernel that says something and resets its machine.
func resets(says string) []byte {
	k := guest(true)
	copy(k[guestCode:], append(saying(says), 0xba, 0xf9, 0x0c, 0xb0, 0x06, 0xee, 0xfa, 0xf4)) // mov dx, 0xcf9; mov al, 6; out dx, al; cli; hlt
	return k
}

// efi is a program of UEFI's form with these sections.
func efi(sections map[string][]byte) []byte {
	const pe, header = 0x40, 24
	names := []string{".linux", ".initrd", ".cmdline"}
	b := make([]byte, 0x200)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], pe)
	copy(b[pe:], "PE\x00\x00")
	binary.LittleEndian.PutUint16(b[pe+4:], 0x8664)
	n := 0
	for _, name := range names {
		content, ok := sections[name]
		if !ok {
			continue
		}
		h := b[pe+header+40*n:]
		copy(h, name)
		full := append(bytes.Clone(content), make([]byte, 512-len(content)%512)...)
		for i, v := range []int{len(content), 0x1000 * (n + 1), len(full), len(b)} {
			binary.LittleEndian.PutUint32(h[8+4*i:], uint32(v))
		}
		b = append(b, full...)
		n++
	}
	binary.LittleEndian.PutUint16(b[pe+6:], uint16(n))
	return b
}

const testRoot = "0a1b2c3d-0000-4000-8000-000000000000"

// writeImage makes an image as kip-image lays it down, of a guest, and returns its disk.
func writeImage(t testing.TB, dir string, kernel []byte) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	disk := make([]byte, 1<<20)
	sum := sha256.Sum256(kernel)
	copy(disk[4096:], sum[:])
	digest := sha256.Sum256(disk)
	program := efi(map[string][]byte{
		".linux": kernel, ".initrd": make([]byte, 1024), ".cmdline": []byte("quiet " + rootArgument + testRoot + "\x00"),
	})
	manifest, err := json.Marshal(map[string]any{
		"version": "v1.2.3", "arch": "amd64", "root": testRoot,
		"outputs": []map[string]any{{"name": "cell.raw", "sha256": fmt.Sprintf("%x", digest), "bytes": len(disk)}},
		"efi":     map[string]any{"name": "cell.efi", "sha256": fmt.Sprintf("%x", sha256.Sum256(program))},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"cell.raw":           disk,
		"cell.manifest.json": manifest,
		"cell.efi":           program,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cell.raw")
}
