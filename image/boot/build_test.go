package boot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	erofs "github.com/erofs/go-erofs"
	"github.com/klauspost/compress/zstd"

	"github.com/elotl/kip/internal/agent/gpt"
	"github.com/elotl/kip/internal/agent/machine"
)

func TestEqualInputsMakeEqualImages(t *testing.T) {
	kernel, tools := contents(t)
	a := world(t, kernel, tools)
	first, err := Build(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	// From another folder, another cache, over an image that is there, with another time
	// on all files.
	b := a
	b.Cache, b.Out, b.Programs = t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.CopyFS(b.Programs, os.DirFS(a.Programs)); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{".raw", ".vhd"} {
		if err := os.WriteFile(filepath.Join(b.Out, "kip-cell-amd64"+suffix), []byte("an older one"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Build(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(a.Out)
	if err != nil || len(files) != 7 {
		t.Fatalf("%d files (%v), want four forms, the EFI program, the manifest and the list of software", len(files), err)
	}
	for _, f := range files {
		one, err := os.ReadFile(filepath.Join(a.Out, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(filepath.Join(b.Out, f.Name()))
		if err != nil || !bytes.Equal(one, other) {
			t.Errorf("%s is another one (%v)", f.Name(), err)
		}
	}
	// And other inputs another root.
	if err := os.WriteFile(filepath.Join(b.Programs, "runc"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.Formats = []string{"raw"}
	if second, err := Build(context.Background(), b); err != nil || second.Root == first.Root {
		t.Errorf("with another runc the root is the same: %s (%v)", second.Root, err)
	}
}

func TestAnImageHasWhatACellNeeds(t *testing.T) {
	o := wholeWorld(t)
	m, err := Build(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := ReadManifest(o.Out, o.Arch)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := beside.Output("raw"); err != nil || !slices.Contains(m.Outputs, out) || out.SHA256 == "" {
		t.Errorf("its manifest has the raw disk as %+v: %v", out, err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(read(t, o, ".efi")))
	if beside.EFI != m.EFI || m.EFI.SHA256 != sum || m.EFI.Name != "kip-cell-amd64.efi" {
		t.Errorf("its manifest has the EFI program as %+v, want the digest %s", beside.EFI, sum)
	}
	if _, err := ReadManifest(o.Out, "arm64"); err == nil {
		t.Error("it is taken for one for arm64")
	}
	beside.Outputs, beside.EFI = nil, Output{}
	if _, err := beside.Output("raw"); err == nil {
		t.Error("without a raw disk one is found")
	}
	raw := read(t, o, ".raw")
	if len(raw)%(5<<20) != 0 {
		t.Errorf("the disk has %d bytes, no whole number of its unit", len(raw))
	}
	table, err := gpt.Read(bytes.NewReader(raw), uint64(len(raw)/gpt.Sector))
	if err != nil || len(table.Partitions) != 2 {
		t.Fatalf("partitions %+v (%v)", table.Partitions, err)
	}
	esp, root := table.Partitions[0], table.Partitions[1]
	if esp.Type != gpt.ESP || root.Type != gpt.Roots["amd64"] || root.ID.String() != m.Root {
		t.Errorf("partitions %+v, the manifest's root is %s", table.Partitions, m.Root)
	}
	efi := read(t, o, ".efi")
	if got := fatFile(t, raw[esp.First*gpt.Sector:(esp.Last+1)*gpt.Sector], "EFI", "BOOT", "BOOTX64.EFI"); !bytes.Equal(got, efi) {
		t.Errorf("the ESP has another EFI program, of %d bytes", len(got))
	}

	fsys, err := erofs.Open(bytes.NewReader(raw[root.First*gpt.Sector : (root.Last+1)*gpt.Sector]))
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{
		"usr/sbin/nft":                      mustTools(t)["usr/sbin/nft"],
		libs + "liba.so.1":                  mustTools(t)[libs+"liba.so.1.2"], // by way of a link
		"etc/ssl/certs/ca-certificates.crt": "A\nB\n",
		"etc/mke2fs.conf":                   "#!/bin/sh\n# etc/mke2fs.conf\n",
		// Of a folder.
		"etc/apparmor.d/abi/within/file":                      "#!/bin/sh\n# etc/apparmor.d/abi/within/file\n",
		"usr/lib/modules/" + release + "/kernel/lib/lz4-x.ko": moduleFile("depends=libcrc32c"),
	} {
		if got, err := fs.ReadFile(fsys, p); err != nil || string(got) != want {
			t.Errorf("/%s is %.40q (%v), want %.40q", p, got, err, want)
		}
	}
	for p, want := range map[string]fs.FileMode{
		"usr/bin/itzo": 0o755, "usr/sbin/modprobe": 0o755, "opt/cni/bin/portmap": 0o755, "usr/share/kip/pause.tar": 0o644,
		"tmp": fs.ModeDir | 0o1777, "root": fs.ModeDir | 0o700, "dev": fs.ModeDir | 0o755, libs + "libb.so": 0o755,
		"usr/lib64/ld.so": 0o755,
	} {
		// Its modes have the file system's own bits, the sticky one among them.
		info, err := fs.Stat(fsys, p)
		if err != nil || info.Mode()&(fs.ModeDir|0o7777) != want || info.ModTime().Unix() != 0 {
			t.Errorf("/%s: %v of %v (%v), want %v", p, info.Mode(), info.ModTime(), err, want)
		}
	}
	for p, want := range map[string]string{
		"sbin": "usr/sbin", "usr/bin/ash": "busybox", "usr/sbin/init": "../bin/itzo", "lib64": "usr/lib64",
	} {
		if got, err := fs.ReadLink(fsys, p); err != nil || got != want {
			t.Errorf("/%s leads to %q (%v), want %q", p, got, err, want)
		}
	}
	for _, p := range []string{"usr/share/doc/x", libs + "libunused.so", "usr/lib/modules/" + release + "/kernel/lib/unwanted.ko"} {
		if _, err := fs.Stat(fsys, p); err == nil {
			t.Errorf("/%s is in the root", p)
		}
	}
	for _, name := range logins {
		for _, dir := range []string{"usr/bin/", "usr/sbin/"} {
			if _, err := fs.Lstat(fsys, dir+name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("/%s%s, by which somebody may log in, is in the root (%v)", dir, name, err)
			}
		}
	}
	deps, err := fs.ReadFile(fsys, "usr/lib/modules/"+release+"/modules.dep")
	// The kernel's order: what is farther to the right is loaded first.
	want := "kernel/drivers/erofs.ko: kernel/lib/crc-y.ko kernel/lib/lz4-x.ko kernel/lib/libcrc32c.ko\n"
	if err != nil || !strings.Contains(string(deps), want) {
		t.Errorf("what erofs needs (%v): want %q in\n%s", err, want, deps)
	}

	var inside Manifest
	text, err := fs.ReadFile(fsys, "usr/share/kip/manifest.json")
	if err != nil || json.Unmarshal(text, &inside) != nil || inside.Version != "v1.2.3" || inside.Kernel != release ||
		inside.Packages["linux"] != "1" || !slices.Equal(inside.Settings, machine.Settings()) || inside.Programs["/usr/bin/runc"] == "" {
		t.Errorf("the manifest in the root (%v): %s", err, text)
	}
	modules := map[string][]string{}
	whys := map[string]bool{}
	for _, u := range uses {
		if u.why == "" || whys[u.why] {
			t.Errorf("nobody says why the image has the modules %v, or the same is said of others: %q", u.names, u.why)
		}
		whys[u.why] = true
		if u.archs == nil || slices.Contains(u.archs, o.Arch) {
			modules[u.why] = u.names
		}
	}
	for where, m := range map[string]Manifest{"in the root": inside, "beside it": beside} {
		if !maps.EqualFunc(m.Modules, modules, slices.Equal) {
			t.Errorf("the manifest %s has the modules %v, want %v", where, m.Modules, modules)
		}
	}
	var bill struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo string }
	}
	text, err = fs.ReadFile(fsys, "usr/share/kip/sbom.spdx.json")
	if err != nil || json.Unmarshal(text, &bill) != nil || bill.SPDXVersion != "SPDX-2.3" || len(bill.Packages) != 5 {
		t.Errorf("the list of software in the root (%v): %s", err, text)
	}
	if !bytes.Equal(text, read(t, o, ".spdx.json")) {
		t.Error("the list of software beside the image is another")
	}
}

func TestTheEFIProgramHasTheKernelAndItsFirstFileSystem(t *testing.T) {
	o := wholeWorld(t)
	o.Formats = []string{"raw"}
	m, err := Build(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	efi := read(t, o, ".efi")
	f, err := pe.NewFile(bytes.NewReader(efi))
	if err != nil {
		t.Fatal(err)
	}
	end := uint32(0)
	got := map[string][]byte{}
	for _, s := range f.Sections {
		b, err := s.Data()
		if err != nil || s.VirtualAddress < end || s.VirtualAddress%4096 != 0 {
			t.Errorf("section %s at %#x, after %#x (%v)", s.Name, s.VirtualAddress, end, err)
		}
		end = s.VirtualAddress + s.VirtualSize
		got[s.Name] = b[:min(len(b), int(s.VirtualSize))]
	}
	if size := f.OptionalHeader.(*pe.OptionalHeader64).SizeOfImage; size < end || size%4096 != 0 {
		t.Errorf("the program says that it has %#x bytes in memory, it has %#x", size, end)
	}
	for name, want := range map[string]string{
		".text": string(make([]byte, 100)), ".uname": release, ".linux": mustKernel(t)["boot/vmlinuz-"+release],
		".cmdline": m.Arguments + " kip.root=" + m.Root,
	} {
		if string(got[name]) != want {
			t.Errorf("section %s is %.60q, want %.60q", name, got[name], want)
		}
	}
	r, err := zstd.NewReader(bytes.NewReader(got[".initrd"]))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	archive, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	files := cpio(t, archive)
	for _, want := range []string{
		"init", "dev", "new", "lib/modules/" + release + "/modules.dep", "lib/modules/" + release + "/kernel/drivers/erofs.ko",
		"lib/modules/" + release + "/kernel/lib/libcrc32c.ko",
	} {
		if _, ok := files[want]; !ok {
			t.Errorf("the first file system has no %s", want)
		}
	}
	if _, has := files["lib/modules/"+release+"/kernel/drivers/ena.ko"]; has {
		t.Error("the first file system has drivers of networks")
	}
	if want, err := os.ReadFile(filepath.Join(o.Programs, "itzo-boot")); err != nil || files["init"] != string(want) {
		t.Errorf("its init is not itzo-boot (%v)", err)
	}
}

func TestEveryFormHasTheSameDisk(t *testing.T) {
	o := wholeWorld(t)
	m, err := Build(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	raw := read(t, o, ".raw")
	vhd := read(t, o, ".vhd")
	footer := vhd[len(vhd)-512:]
	if !bytes.Equal(vhd[:len(vhd)-512], raw) || string(footer[:8]) != "conectix" ||
		binary.BigEndian.Uint64(footer[48:]) != uint64(len(raw)) {
		t.Error("the VHD is another disk")
	}
	sum := binary.BigEndian.Uint32(footer[64:])
	clear(footer[64:68])
	for _, b := range footer {
		sum += uint32(b)
	}
	if sum != 0xffffffff {
		t.Error("the checksum of the VHD's footer is wrong")
	}
	z, err := gzip.NewReader(bytes.NewReader(read(t, o, ".tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(z)
	h, err := archive.Next()
	if err != nil || h.Name != "disk.raw" || h.Format != tar.FormatGNU {
		t.Fatalf("the archive has %+v (%v)", h, err)
	}
	if got, err := io.ReadAll(archive); err != nil || !bytes.Equal(got, raw) {
		t.Errorf("the archive has another disk (%v)", err)
	}
	if got := fromQcow2(t, read(t, o, ".qcow2")); !bytes.Equal(got, raw) {
		t.Error("the qcow2 is another disk")
	}
	for i, f := range Formats() {
		if out := m.Outputs[i]; out.Name != "kip-cell-amd64"+formats[f].suffix || out.UsedBytes > 64<<20 || out.UsedBytes == 0 {
			t.Errorf("the manifest says of the form %s: %+v", f, out)
		}
	}
}

// What each cloud's machines cannot do without, by their documentation: a list of its own, since all else here is
// made of the one that is tested.
func TestEachCloudsMachinesHaveTheirDrivers(t *testing.T) {
	has := map[string]map[string]bool{} // by architecture: a module, and whether it is early
	for _, arch := range []string{"amd64", "arm64"} {
		has[arch] = map[string]bool{}
		for _, u := range uses {
			for _, name := range u.names {
				if u.archs == nil || slices.Contains(u.archs, arch) {
					has[arch][name] = u.early || has[arch][name]
				}
			}
		}
	}
	for where, needs := range map[string]struct{ disks, others []string }{
		"EC2":          {others: []string{"ena"}}, // NVMe is built in
		"Google Cloud": {disks: []string{"virtio_scsi", "sd_mod"}, others: []string{"virtio_net", "gve"}},
		"Azure": {disks: []string{"hv_vmbus", "hv_storvsc", "pci-hyperv"},
			others: []string{"hv_netvsc", "mlx4_core", "mlx4_en", "mlx5_core", "mana", "hv_utils"}},
		"KVM":   {disks: []string{"virtio_blk", "virtio_scsi"}, others: []string{"virtio_net", "virtio_balloon", "virtio-rng", "qemu_fw_cfg"}},
		"SATA":  {disks: []string{"ahci", "sd_mod"}},
		"all":   {disks: []string{"erofs", "overlay"}, others: []string{"button", "evdev"}},
		"seeds": {others: []string{"isofs", "vfat", "sr_mod"}},
		"pods":  {others: []string{"xfs", "nfs", "nfsv4", "fs/fuse/", "dm-crypt", "veth", "tun", "net/netfilter/", "sch_tbf"}},
	} {
		for arch, modules := range has {
			for _, name := range needs.disks {
				if early, is := modules[name]; !is || !early {
					t.Errorf("%s on %s: the first file system has no %s", where, arch, name)
				}
			}
			for _, name := range needs.others {
				if _, is := modules[name]; !is {
					t.Errorf("%s on %s: the image has no %s", where, arch, name)
				}
			}
		}
	}
	for _, name := range []string{"xen-blkfront", "xen-netfront"} {
		if _, is := has["amd64"][name]; !is {
			t.Errorf("Xen: the image has no %s", name)
		}
	}
}

func TestWhatAnImageLacksIsNamed(t *testing.T) {
	whole := wholeWorld(t)
	for name, tc := range map[string]struct {
		change func(kernel, tools map[string]string)
		after  func(o *Options)
		want   string
	}{
		"a library": {
			change: func(_, tools map[string]string) { delete(tools, libs+"libb.so") },
			want:   "what " + libs + "liba.so.1 needs: no package has /" + libs + "libb.so",
		},
		"a program of Debian's": {
			change: func(_, tools map[string]string) { delete(tools, "usr/sbin/nft") }, want: "no package has /usr/sbin/nft",
		},
		"a module": {
			change: func(kernel, _ map[string]string) {
				delete(kernel, "usr/lib/modules/"+release+"/kernel/drivers/ena.ko")
			},
			want: "network of EC2: the kernel " + release + " has no module ena",
		},
		"the kernel": {
			change: func(kernel, _ map[string]string) { delete(kernel, "boot/vmlinuz-"+release) }, want: "no boot/vmlinuz",
		},
		"authorities": {
			change: func(_, tools map[string]string) {
				delete(tools, "usr/share/ca-certificates/mozilla/a.crt")
				delete(tools, "usr/share/ca-certificates/mozilla/b.crt")
			},
			want: "no package has certificate authorities",
		},
		"a program of Kip's": {
			after: func(o *Options) { o.Programs = filepath.Join(o.Programs, "none") }, want: "make image builds them",
		},
		"packages for the architecture": {after: func(o *Options) { o.Arch = "arm64" }, want: `no packages for "arm64"`},
		"an architecture":               {after: func(o *Options) { o.Arch = "mips" }, want: "images for amd64 and arm64 only"},
		"a form":                        {after: func(o *Options) { o.Formats = []string{"iso"} }, want: `no format "iso"`},
		"a package on the mirror":       {after: func(o *Options) { o.Lock[0].Path = "pool/none" }, want: "does not have it any more"},
		"what the lock pins": {
			after: func(o *Options) { o.Lock[0].SHA256 = strings.Repeat("0", 64) }, want: "is not what the lock pins",
		},
	} {
		o := whole
		o.Lock, o.Out = slices.Clone(whole.Lock), t.TempDir()
		if tc.change != nil {
			kernel, tools := contents(t)
			tc.change(kernel, tools)
			o = world(t, kernel, tools)
		}
		if tc.after != nil {
			tc.after(&o)
		}
		o.Cache = t.TempDir()
		_, err := Build(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("without %s: %v, want %q", name, err, tc.want)
		}
		if left, _ := filepath.Glob(filepath.Join(o.Out, "*")); len(left) != 0 {
			t.Errorf("without %s there is half an image: %v", name, left)
		}
	}
}

func TestAProgramOfAnotherArchitectureIsRefused(t *testing.T) {
	o := wholeWorld(t)
	content := program{machine: 183}.bytes() // EM_AARCH64
	if err := os.WriteFile(filepath.Join(o.Programs, "runc"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(context.Background(), o); err == nil || !strings.Contains(err.Error(), "usr/bin/runc is a program for EM_AARCH64") {
		t.Errorf("a runc for arm64 in an image for amd64: %v", err)
	}
}

func TestTheEFIProgramFitsOrIsRefused(t *testing.T) {
	var none disk
	if err := writeESP(&none, 1000, "BOOTX64.EFI", nil); err == nil {
		t.Error("an ESP with too few clusters for FAT32 is written")
	}
	if err := writeESP(&none, espSectors, "BOOTX64.EFI", make([]byte, 65<<20)); err == nil {
		t.Error("an EFI program larger than the ESP is written")
	}
	if _, err := unify(stubFile(), make([]section, 20)); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("more sections than the headers have room for: %v", err)
	}
	if _, err := unify([]byte("MZ"), nil); err == nil {
		t.Error("what is no EFI program is taken for one")
	}
}

// disk is nobody's.
type disk struct{}

func (disk) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }

func wholeWorld(t *testing.T) Options {
	t.Helper()
	kernel, tools := contents(t)
	return world(t, kernel, tools)
}

func mustTools(t *testing.T) map[string]string  { _, tools := contents(t); return tools }
func mustKernel(t *testing.T) map[string]string { kernel, _ := contents(t); return kernel }

// cpio reads an archive: content by name.
func cpio(t *testing.T, b []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for at := 0; ; {
		var h [13]uint32
		for i := range h {
			var v uint32
			for _, c := range b[at+6+8*i:][:8] {
				v = v<<4 | uint32(strings.IndexByte("0123456789ABCDEF", c))
			}
			h[i] = v
		}
		name := string(b[at+110:][:h[11]-1])
		if name == "TRAILER!!!" {
			return out
		}
		data := (at + 110 + int(h[11]) + 3) / 4 * 4
		out[name] = string(b[data:][:h[6]])
		at = (data + int(h[6]) + 3) / 4 * 4
		if !strings.HasPrefix(string(b[at:]), "070701") {
			t.Fatalf("no entry behind %s", name)
		}
	}
}

// fatFile reads a file of a FAT32 file system, folder by folder, by its chain of clusters.
func fatFile(t *testing.T, b []byte, path ...string) []byte {
	t.Helper()
	le := binary.LittleEndian
	reserved, tables, size := int(le.Uint16(b[14:])), int(b[16]), int(le.Uint32(b[36:]))
	data := (reserved + tables*size) * 512
	read := func(cluster uint32) []byte {
		var out []byte
		for ; cluster < 0x0ffffff8; cluster = le.Uint32(b[reserved*512+4*int(cluster):]) & 0x0fffffff {
			out = append(out, b[data+int(cluster-2)*512:][:512]...)
		}
		return out
	}
	if !bytes.Equal(b[reserved*512:(reserved+size)*512], b[(reserved+size)*512:(reserved+2*size)*512]) {
		t.Error("the two tables differ")
	}
	at, length := le.Uint32(b[44:]), 0
	for _, name := range path {
		base, extension, _ := strings.Cut(name, ".")
		want := base + strings.Repeat(" ", 8-len(base)) + extension + strings.Repeat(" ", 3-len(extension))
		dir := read(at)
		i := slices.IndexFunc(slices.Collect(slices.Chunk(dir, 32)), func(e []byte) bool { return string(e[:11]) == want })
		if i < 0 {
			t.Fatalf("the ESP has no %s", name)
		}
		e := dir[32*i:]
		at, length = uint32(le.Uint16(e[20:]))<<16|uint32(le.Uint16(e[26:])), int(le.Uint32(e[28:]))
	}
	return read(at)[:length]
}

// fromQcow2 reads a whole disk, and that each cluster of the file has one reference.
func fromQcow2(t *testing.T, b []byte) []byte {
	t.Helper()
	be := binary.BigEndian
	cluster := 1 << be.Uint32(b[20:])
	out := make([]byte, be.Uint64(b[24:]))
	first := b[be.Uint64(b[40:]):]
	const offset = 1<<56 - 512
	used := 0
	for n := range int(be.Uint32(b[36:])) {
		second := b[be.Uint64(first[8*n:])&offset:][:cluster]
		for i := range cluster / 8 {
			if at := be.Uint64(second[8*i:]) & offset; at != 0 {
				used++
				copy(out[(n*cluster/8+i)*cluster:], b[at:][:cluster])
			}
		}
	}
	references := b[be.Uint64(b[be.Uint64(b[48:]):]):]
	for n := range len(b) / cluster {
		if be.Uint16(references[2*n:]) != 1 {
			t.Errorf("cluster %d has %d references", n, be.Uint16(references[2*n:]))
		}
	}
	if all := len(b) / cluster; used == 0 || used > all-5 || len(b)%cluster != 0 {
		t.Errorf("%d clusters of data in %d", used, all)
	}
	return out
}
