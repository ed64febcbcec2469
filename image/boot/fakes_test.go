package boot

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/image/debian"
)

// program is a small ELF file: a program with a loader and libraries that it needs, or
// a kernel module with what it tells of itself.
type program struct {
	machine elf.Machine
	loader  string
	needs   []string
	modinfo string
}

func (p program) bytes() []byte {
	const header, programHeader, sectionHeader = 64, 56, 64
	var b, dynamic bytes.Buffer
	strs := []byte{0}
	for _, n := range p.needs {
		_ = binary.Write(&dynamic, binary.LittleEndian, []uint64{uint64(elf.DT_NEEDED), uint64(len(strs))})
		strs = append(append(strs, n...), 0)
	}
	_ = binary.Write(&dynamic, binary.LittleEndian, []uint64{0, 0})
	names := "\x00.dynstr\x00.dynamic\x00.modinfo\x00.shstrtab\x00"
	parts := [][]byte{strs, dynamic.Bytes(), []byte(p.modinfo), []byte(names), []byte(p.loader + "\x00")}
	at := uint64(header + programHeader)
	offsets := make([]uint64, len(parts))
	for i, part := range parts {
		offsets[i] = at
		at += uint64(len(part))
	}
	_ = binary.Write(&b, binary.LittleEndian, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_DYN), Machine: uint16(p.machine), Version: 1,
		Phoff: header, Shoff: at, Ehsize: header, Phentsize: programHeader, Phnum: 1, Shentsize: sectionHeader, Shnum: 5, Shstrndx: 4,
	})
	kind := elf.PT_INTERP
	if p.loader == "" {
		kind = elf.PT_NULL
	}
	_ = binary.Write(&b, binary.LittleEndian, elf.Prog64{Type: uint32(kind), Off: offsets[4], Filesz: uint64(len(parts[4]))})
	for _, part := range parts {
		b.Write(part)
	}
	for i, s := range []elf.Section64{
		{}, {Name: 1, Type: uint32(elf.SHT_STRTAB)}, {Name: 9, Type: uint32(elf.SHT_DYNAMIC), Link: 1},
		{Name: 18, Type: uint32(elf.SHT_PROGBITS)}, {Name: 27, Type: uint32(elf.SHT_STRTAB)},
	} {
		if i > 0 {
			s.Off, s.Size = offsets[i-1], uint64(len(parts[i-1]))
		}
		_ = binary.Write(&b, binary.LittleEndian, s)
	}
	return b.Bytes()
}

// stubFile is a small EFI program of one section.
func stubFile() []byte {
	b := make([]byte, 2048)
	copy(b, "MZ")
	put16 := func(at int, v uint16) { binary.LittleEndian.PutUint16(b[at:], v) }
	put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put32(0x3c, 64)
	copy(b[64:], "PE\x00\x00")
	put16(68, 0x8664)
	put16(70, 1)           // sections
	put16(84, 240)         // the optional header's size
	put16(88, 0x20b)       // 64 bits
	put32(88+32, 4096)     // sections in memory
	put32(88+36, 512)      // and in the file
	put32(88+56, 8192)     // the image's size
	put32(88+60, 1024)     // the headers'
	put32(88+108, 16)      // data directories
	copy(b[328:], ".text") // 88 + 240
	for i, v := range []uint32{100, 4096, 512, 1024} {
		put32(336+4*i, v)
	}
	return b
}

// packageOf makes one of Debian's packages of files and links, and returns its file.
func packageOf(t *testing.T, name string, files map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files["DEBIAN/control"] = "Package: " + name + "\nVersion: 1\nArchitecture: amd64\nMaintainer: x <x@example.org>\nDescription: x\n"
	for p, content := range files {
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(to, p)
		} else {
			err = os.WriteFile(p, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(t.TempDir(), "x.deb")
	if out, err := exec.Command("dpkg-deb", "-Znone", "--root-owner-group", "--build", dir, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	release = "6.12-test"
	libs    = "usr/lib/x86_64-linux-gnu/"
)

// moduleFile is a kernel module's file.
func moduleFile(modinfo string) string {
	return string(program{machine: elf.EM_X86_64, modinfo: modinfo}.bytes())
}

// logins are busybox' applets by which somebody may log in, and that a cell must not have: a list of its own,
// beside that of the image.
var logins = []string{"getty", "login", "passwd", "su", "sulogin", "telnetd"}

// contents are the files of two packages from which an image can be made.
func contents(t *testing.T) (kernel, tools map[string]string) {
	t.Helper()
	kernel = map[string]string{"boot/vmlinuz-" + release: "the kernel " + strings.Repeat("k", 5000)}
	dir := "usr/lib/modules/" + release + "/kernel/"
	for _, u := range uses {
		for _, n := range u.names {
			if strings.HasSuffix(n, "/") {
				kernel[dir+n+"in_"+strings.ReplaceAll(n, "/", "_")+".ko"] = moduleFile("license=GPL")
				continue
			}
			kernel[dir+"drivers/"+n+".ko"] = moduleFile("alias=of-" + n + "*")
		}
	}
	kernel[dir+"drivers/erofs.ko"] = moduleFile("depends=libcrc32c,lz4-x\x00alias=fs-erofs\x00softdep=pre: crc-y built-in post: z")
	kernel[dir+"lib/lz4-x.ko"] = moduleFile("depends=libcrc32c")
	kernel[dir+"lib/crc-y.ko"] = moduleFile("")
	delete(kernel, dir+"drivers/button.ko") // as it is on arm64
	kernel["usr/lib/modules/"+release+"/modules.builtin"] = "kernel/drivers/acpi/x.ko\nkernel/drivers/acpi/button.ko\n"
	kernel[dir+"lib/unwanted.ko"] = moduleFile("")
	packed := exec.Command("xz", "--stdout")
	packed.Stdin = strings.NewReader(moduleFile("depends="))
	out, err := packed.Output()
	if err != nil {
		t.Fatal(err)
	}
	kernel[dir+"lib/libcrc32c.ko.xz"] = string(out)

	tools = map[string]string{
		"usr/lib/systemd/boot/efi/linuxx64.efi.stub": string(stubFile()),
		"usr/share/ca-certificates/mozilla/b.crt":    "B\n",
		"usr/share/ca-certificates/mozilla/a.crt":    "A\n",
		"usr/share/doc/x":                            "not in an image",
		"usr/lib64/ld.so":                            "-> ../lib/x86_64-linux-gnu/ld.so",
		libs + "ld.so":                               string(program{machine: elf.EM_X86_64}.bytes()),
		libs + "liba.so.1":                           "-> liba.so.1.2",
		libs + "liba.so.1.2":                         string(program{machine: elf.EM_X86_64, needs: []string{"libb.so"}}.bytes()),
		libs + "libb.so":                             string(program{machine: elf.EM_X86_64}.bytes()),
		libs + "libunused.so":                        "nobody needs it",
	}
	for _, p := range append(programs, configuration...) {
		if strings.HasSuffix(p, "/") {
			p += "within/file"
		}
		tools[p] = "#!/bin/sh\n# " + p + "\n"
	}
	tools["usr/sbin/nft"] = string(program{machine: elf.EM_X86_64, loader: "/lib64/ld.so", needs: []string{"liba.so.1"}}.bytes())
	applets := slices.Concat([]string{"[", "[[", "ash", "mount", "sh"}, logins)
	tools["usr/bin/busybox"] = "code " + strings.Join(applets, "\x00") + "\x00\x00more"
	return kernel, tools
}

// world is a mirror with these packages, and options of an image of them.
func world(t *testing.T, kernel, tools map[string]string) Options {
	t.Helper()
	debs := map[string][]byte{}
	var lock debian.Lock
	for name, files := range map[string]map[string]string{"linux": kernel, "tools": tools} {
		b := packageOf(t, name, files)
		sum := sha256.Sum256(b)
		archive := map[string]string{"linux": debian.Security, "tools": debian.Release}[name]
		debs["/"+archive+"/pool/"+name] = b
		lock = append(lock, debian.Package{
			Arch: "amd64", Name: name, Version: "1", Bytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:]),
			Archive: archive, Path: "pool/" + name,
		})
	}
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b := debs[r.URL.Path]; b != nil {
			_, _ = w.Write(b)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(mirror.Close)
	o := Options{
		Arch:     "amd64",
		Version:  "v1.2.3",
		Programs: t.TempDir(),
		Lock:     lock,
		Mirrors: debian.Mirrors{
			debian.Release:  mirror.URL + "/" + debian.Release,
			debian.Security: mirror.URL + "/" + debian.Security,
		},
		Cache:    t.TempDir(),
		Out:      t.TempDir(),
		Formats:  Formats(),
		Progress: func(string) {},
		unit:     5 << 20,
	}
	for name := range own {
		content := program{machine: elf.EM_X86_64, modinfo: name}.bytes()
		if err := os.WriteFile(filepath.Join(o.Programs, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(o.Programs, "pause"), []byte("pause"), 0o755); err != nil {
		t.Fatal(err)
	}
	return o
}

// read returns a file of an image.
func read(t *testing.T, o Options, suffix string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(o.Out, fmt.Sprintf("kip-cell-%s%s", o.Arch, suffix)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
