package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

func TestAnImageIsCopiedOnceWithItsKernel(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	file := writeImage(t, dir, guest(true))
	i, err := install(t.Context(), file, state)
	if err != nil {
		t.Fatal(err)
	}
	if want := "quiet " + rootArgument + testRoot; i.args != want || i.format != "raw" || i.version != "v1.2.3" {
		t.Errorf("%+v; want the arguments %q, and v1.2.3", i, want)
	}
	for name, want := range map[string][]byte{vm.LinuxFile: guest(true), vm.InitrdFile: make([]byte, 1024)} {
		if got, err := os.ReadFile(filepath.Join(i.dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
	// What is there is left alone, and what is there in part made again.
	mark := filepath.Join(i.dir, "mark")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := install(t.Context(), file, state); err != nil || again != i {
		t.Errorf("once more: %+v, %v", again, err)
	}
	if err := os.Remove(filepath.Join(i.dir, argsFile)); err != nil {
		t.Fatal(err)
	}
	if again, err := install(t.Context(), file, state); err != nil || again != i {
		t.Errorf("after a crash: %+v, %v", again, err)
	}
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a crash left is there: %v", err)
	}
}

// What a kip-image before wrote goes on.
func TestAnImageWhoseManifestHasNoDigestOfItsKernelIsTaken(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	file := writeImage(t, dir, guest(true))
	path := filepath.Join(dir, "cell.manifest.json")
	var m map[string]any
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	delete(m, "efi")
	if b, more := json.Marshal(m); err == nil {
		err = errors.Join(more, os.WriteFile(path, b, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	i, err := install(t.Context(), file, state)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(i.dir, vm.LinuxFile)); err != nil || !bytes.Equal(got, guest(true)) {
		t.Errorf("its kernel has %d bytes, %v", len(got), err)
	}
}

func TestABadImageIsRefusedBeforeAnyMachineIsMade(t *testing.T) {
	change := func(name string, how func([]byte) []byte) func(string) error {
		return func(dir string) error {
			p := filepath.Join(dir, name)
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			return os.WriteFile(p, how(b), 0o600)
		}
	}
	remove := func(name string) func(string) error {
		return func(dir string) error { return os.Remove(filepath.Join(dir, name)) }
	}
	swap := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(new)) }
	}
	// meant is a change of the EFI program of which its manifest knows.
	meant := func(spoil func(string) error) func(string) error {
		sum := func(dir string) string {
			b, err := os.ReadFile(filepath.Join(dir, "cell.efi"))
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%x", sha256.Sum256(b))
		}
		return func(dir string) error {
			was := sum(dir)
			if err := spoil(dir); err != nil {
				return err
			}
			return change("cell.manifest.json", swap(was, sum(dir)))(dir)
		}
	}
	for name, tc := range map[string]struct {
		spoil func(dir string) error
		want  string
	}{
		"cut off":          {change("cell.raw", func(b []byte) []byte { return b[:len(b)/2] }), "not as its manifest says"},
		"a bit flipped":    {change("cell.raw", func(b []byte) []byte { b[5000] ^= 1; return b }), "not as its manifest says"},
		"no manifest":      {remove("cell.manifest.json"), "with its manifest beside it"},
		"no JSON":          {change("cell.manifest.json", func([]byte) []byte { return []byte("{") }), "unexpected end of JSON"},
		"for another arch": {change("cell.manifest.json", swap("amd64", "arm64")), `is for "arm64": want amd64`},
		"a kernel's bit flipped": {
			change("cell.efi", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), "cell.efi is not as its manifest says",
		},
		"an older build":     {change("cell.manifest.json", swap("cell.efi", "cell.other")), "does not know cell.efi"},
		"another's manifest": {change("cell.manifest.json", swap("cell.raw", "other.raw")), "does not know cell.raw"},
		"no digest":          {change("cell.manifest.json", swap(`"sha256":"`, `"sha256":"../`)), "want 64 hexadecimal digits"},
		"another's kernel":   {meant(change("cell.efi", swap(testRoot[:8], "ffffffff"))), "boots another root"},
		"no kernel":          {meant(change("cell.efi", swap(".linux", ".other"))), "no whole section .linux"},
		"half a kernel":      {meant(change("cell.efi", func(b []byte) []byte { return b[:0x300] })), "EOF"},
		"no EFI program":     {remove("cell.efi"), "which kip-image writes beside the image"},
		"no disk":            {remove("cell.raw"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, state := t.TempDir(), t.TempDir()
			file := writeImage(t, dir, guest(true))
			if err := tc.spoil(dir); err != nil {
				t.Fatal(err)
			}
			if i, err := install(t.Context(), file, state); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v, %v; want an error with %q", i, err, tc.want)
			}
			// A good one takes its place.
			if _, err := install(t.Context(), writeImage(t, dir, guest(true)), state); err != nil {
				t.Errorf("a good one after it: %v", err)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := install(ended, writeImage(t, t.TempDir(), guest(true)), t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestImagesGoWithTheLastMachineThatBootsThem(t *testing.T) {
	state := t.TempDir()
	machines := filepath.Join(state, "machines")
	old, err := install(t.Context(), writeImage(t, t.TempDir(), guest(true)), state)
	if err != nil {
		t.Fatal(err)
	}
	now, err := install(t.Context(), writeImage(t, t.TempDir(), guest(false)), state)
	if err != nil || now.dir == old.dir {
		t.Fatalf("two images are %s and %s, %v", old.dir, now.dir, err)
	}
	link := filepath.Join(machines, "i-0000000000000001", imageLink)
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o700), os.Symlink(old.dir, link)); err != nil {
		t.Fatal(err)
	}
	there := func(i image) bool { _, err := os.Stat(i.dir); return err == nil }
	if err := prune(state, machines, now.dir); err != nil || !there(old) || !there(now) {
		t.Errorf("while a machine boots the old one: old %t, new %t, %v", there(old), there(now), err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := prune(state, machines, now.dir); err != nil || there(old) || !there(now) {
		t.Errorf("when none does: old %t, new %t, %v", there(old), there(now), err)
	}
}

func TestTypesAreThoseOfWhichAMachineCanBe(t *testing.T) {
	all := []catalog.InstanceType{
		{Name: "little", MilliCPU: 250, MemoryBytes: 256 << 20},
		{Name: "half", MilliCPU: 500, MemoryBytes: 512 << 20, BootTimeout: catalog.BootTimeout},
		{Name: "more", MilliCPU: 2001, MemoryBytes: 4 << 30},
		{Name: "all", MilliCPU: 2000, MemoryBytes: 4 << 30, BootTimeout: catalog.BootTimeout},
	}
	for accelerator, limit := range map[string]time.Duration{vm.KVM: catalog.BootTimeout, vm.TCG: bootEmulated} {
		got := possible(all, 2, accelerator)
		if len(got) != 2 || got[0].Name != "half" || got[1].Name != "all" || got[0].BootTimeout != limit || got[1].BootTimeout != limit {
			t.Errorf("with %s: %+v, want half and all, which boot within %v", accelerator, got, limit)
		}
	}
	if all[1].BootTimeout != catalog.BootTimeout || all[1].UsableBytes != 0 {
		t.Error("the caller's types were changed")
	}
}

func TestAnImageOfAnotherVersionIsToldAtTheStart(t *testing.T) {
	for kip, want := range map[string]string{"": "", "v1.2.3": "", "v1.2.4": "image=v1.2.3 kip=v1.2.4"} {
		var said bytes.Buffer
		image{version: "v1.2.3"}.tellVersion(slog.New(slog.NewTextHandler(&said, nil)), kip)
		if !strings.Contains(said.String(), want) || want == "" && said.Len() > 0 {
			t.Errorf("to Kip %q it says %q, want %q", kip, &said, want)
		}
	}
}

// A machine has no less than its type is taken to have, or its first pod is placed twice; and
// little more, or pods pay for what they do not get.
func TestWhatAKernelSeesOfItsMemoryIsKnownBeforeTheFirstMachine(t *testing.T) {
	// MemTotal of the boot image's kernel, in KiB, by MiB of the machine.
	for megabytes, kib := range map[int64]int64{512: 475856, 1024: 991180, 2048: 2021840, 4096: 4016840, 8192: 8139456} {
		typ := catalog.InstanceType{Name: "a", MilliCPU: 1000, MemoryBytes: megabytes << 20}
		got := possible([]catalog.InstanceType{typ}, 1, vm.KVM)[0].SeenBytes()
		if spare := kib<<10 - got; spare < 0 || spare > megabytes<<20/100 {
			t.Errorf("of %d MiB %d bytes are taken to be seen, and it sees %d", megabytes, got, kib<<10)
		}
	}
}

func TestTheTrialOfKVMIsAtTheAddressWhereAProcessorBegins(t *testing.T) {
	rom := probeROM()
	if len(rom) != 64<<10 || !bytes.Equal(rom[0xfff0:0xfff5], []byte{0xb0, probeSays, 0xe6, 0xf4, 0xf4}) {
		t.Errorf("%d bytes, at the reset vector % x", len(rom), rom[0xfff0:])
	}
}
