package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const line = "amd64 nftables 1.1.3-1 75864 2ddfa61baaf3a76e2c499db9e521ba6affb226f85af0b6fef739f346ac5f0c39 debian pool/main/n/nftables/nftables.deb\n"

func TestALockIsReadAsItWasWritten(t *testing.T) {
	l, err := ParseLock([]byte("# comment\n\n" + line + strings.Replace(line, "amd64", "arm64", 1)))
	if err != nil || len(l) != 2 {
		t.Fatalf("%v (%v)", l, err)
	}
	again, err := ParseLock([]byte(l.String()))
	if err != nil || len(again) != 2 || again[0] != l[0] || again[1] != l[1] {
		t.Errorf("written and read: %v (%v)", again, err)
	}
	if p, err := l.Find("arm64", "nftables"); err != nil || p.Bytes != 75864 || p.Path != "pool/main/n/nftables/nftables.deb" {
		t.Errorf("found %+v (%v)", p, err)
	}
	if _, err := l.Find("arm64", "nft"); err == nil {
		t.Error("a package that is not there is found")
	}
	if _, err := l.Of("mips"); err == nil {
		t.Error("an architecture without packages has a lock")
	}
}

func TestABadLockNamesItsLine(t *testing.T) {
	for name, tc := range map[string][2]string{
		"twice":          {line + line, "line 2 of the lock of packages: nftables is there twice"},
		"a field fewer":  {"amd64 nftables 1 2\n", "line 1 of the lock of packages: it has 4 fields"},
		"no size":        {strings.Replace(line, "75864", "many", 1), `"many" is no size`},
		"no digest":      {strings.Replace(line, "2ddfa61b", "2ddf", 1), "is no SHA-256"},
		"no archive":     {strings.Replace(line, "debian pool", "other pool", 1), `"other" is no archive: want debian or debian-security`},
		"out of the way": {strings.Replace(line, "pool/", "../", 1), "is no path on a mirror"},
	} {
		if _, err := ParseLock([]byte(tc[0])); err == nil || !strings.Contains(err.Error(), tc[1]) {
			t.Errorf("%s: %v, want %q", name, err, tc[1])
		}
	}
}

func TestThePinnedPackagesAreThoseOfBothArchitectures(t *testing.T) {
	l, err := Pinned()
	if err != nil {
		t.Fatal(err)
	}
	amd64, err := l.Of("amd64")
	if err != nil {
		t.Fatal(err)
	}
	arm64, err := l.Of("arm64")
	if err != nil {
		t.Fatal(err)
	}
	if len(amd64) != len(arm64) || len(amd64) < 30 {
		t.Errorf("%d packages for amd64, %d for arm64", len(amd64), len(arm64))
	}
	for _, p := range arm64 {
		if _, err := l.Find("amd64", strings.ReplaceAll(p.Name, "arm64", "amd64")); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyWhatIsPinnedIsTaken(t *testing.T) {
	content := []byte("a package")
	sum := sha256.Sum256(content)
	asked := 0
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch r.URL.Path {
		case "/pool/a":
			_, _ = w.Write(content)
		case "/pool/longer":
			_, _ = w.Write(append(content, '!'))
		case "/pool/broken":
			w.WriteHeader(http.StatusBadGateway)
		default:
			http.NotFound(w, r)
		}
	}))
	defer mirror.Close()
	p := Package{Name: "a", Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), Archive: Security, Path: "pool/a"}
	// Nobody answers as the mirror of another archive.
	mirrors := Mirrors{Security: mirror.URL}
	dir := filepath.Join(t.TempDir(), "cache")
	for range 2 {
		file, err := p.Fetch(context.Background(), mirrors, dir)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != string(content) {
			t.Errorf("fetched %q (%v)", b, err)
		}
	}
	if asked != 1 {
		t.Errorf("the mirror was asked %d times for what the cache has", asked)
	}
	// What the cache has is not believed either.
	if err := os.WriteFile(filepath.Join(dir, p.SHA256+".deb"), []byte("changed!!"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Fetch(context.Background(), mirrors, dir); err != nil || asked != 2 {
		t.Errorf("a changed file in the cache: asked %d times (%v)", asked, err)
	}
	for path, want := range map[string]string{
		"pool/longer": "more than 9 bytes", "pool/broken": "502", "pool/none": ErrGone.Error(),
	} {
		other := p
		other.Path = path
		if _, err := other.Fetch(context.Background(), mirrors, t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if _, err := other.Fetch(context.Background(), mirrors, t.TempDir()); errors.Is(err, ErrGone) != (path == "pool/none") {
			t.Errorf("%s: %v, and it is gone: %v", path, err, errors.Is(err, ErrGone))
		}
	}
	p.SHA256 = strings.Repeat("0", 64)
	if _, err := p.Fetch(context.Background(), mirrors, dir); err == nil || !strings.Contains(err.Error(), "not what the lock pins") {
		t.Errorf("another digest: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, strings.Repeat("0", 64)+"*")); len(left) != 0 {
		t.Errorf("what was refused is kept: %v", left)
	}
}

// served is testdata: what two mirrors have, a folder an archive, signed by the one key of keyring.gpg.
func served(t *testing.T) (m Mirrors, keyring string) {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir("testdata")))
	t.Cleanup(server.Close)
	keyring, err := filepath.Abs("testdata/keyring.gpg")
	if err != nil {
		t.Fatal(err)
	}
	return Mirrors{Release: server.URL + "/" + Release, Security: server.URL + "/" + Security}, keyring
}

func TestTheNewestOfAllArchivesIsPinned(t *testing.T) {
	mirrors, keyring := served(t)
	names := []string{"kernel-ARCH=depends", "libc6", "same", "tilde"}
	l, err := Resolve(t.Context(), mirrors, keyring, names, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	want := Lock{
		{Name: "kernel-amd64", Version: "6.10-1", Bytes: 11, Archive: Security, Path: "pool/updates/k610"},
		{Name: "libc6", Version: "2.41-12+deb13u4", Bytes: 20, Archive: Release, Path: "pool/c4"},
		{Name: "same", Version: "1.0", Bytes: 30, Archive: Release, Path: "pool/same"},
		{Name: "tilde", Version: "1:2.0", Bytes: 41, Archive: Security, Path: "pool/updates/2.0"},
	}
	for i, digest := range []int{7, 3, 4, 10} {
		want[i].Arch, want[i].SHA256 = "amd64", fmt.Sprintf("%064d", digest)
	}
	if !slices.Equal(l, want) {
		t.Errorf("pinned\n%s\nwant\n%s", l, want)
	}
	if again, err := ParseLock([]byte(l.String())); err != nil || !slices.Equal(again, want) {
		t.Errorf("written and read: %v (%v)", again, err)
	}
	_, err = Resolve(t.Context(), mirrors, keyring, []string{"none"}, "amd64")
	if err == nil || !strings.Contains(err.Error(), "no package none") {
		t.Errorf("of what no archive has: %v", err)
	}
	if _, err := Resolve(t.Context(), mirrors, keyring, names, "arm64"); err == nil || !strings.Contains(err.Error(), "no main/binary-arm64") {
		t.Errorf("of an architecture that the list does not have: %v", err)
	}
}

// A mirror of security updates must be one: the release's own list is signed as well.
func TestTheListOfAnotherSuiteIsRefused(t *testing.T) {
	mirrors, keyring := served(t)
	list, err := http.Get(mirrors[Release] + "/dists/trixie/InRelease")
	if err != nil {
		t.Fatal(err)
	}
	defer list.Body.Close()
	text, err := io.ReadAll(list.Body)
	if err != nil {
		t.Fatal(err)
	}
	wrong := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
	defer wrong.Close()
	mirrors[Security] = wrong.URL
	_, err = Resolve(t.Context(), mirrors, keyring, []string{"libc6"}, "amd64")
	if err == nil || !strings.Contains(err.Error(), "is the list of another suite: want a mirror of debian-security") {
		t.Errorf("%v, want it to be refused", err)
	}
}

func TestAPackageWithoutAFieldIsRefused(t *testing.T) {
	indexes := map[string]string{Security: "Package: bad\nVersion: 1\n\nPackage: b\n"}
	for name, want := range map[string]string{"bad": "trixie-security: it does not say Size of bad", "ba": "no package ba"} {
		if _, err := lookUp(t.Context(), indexes, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	list := "Origin: Debian\nMD5Sum:\n 00 1 main/x\nSHA256:\n aa 1 main/x\n bb 2 main/y\nSigned: z\n cc 3 main/z\n"
	if got, err := digestIn(list, "main/y"); err != nil || got != "bb" {
		t.Errorf("the digest of a file: %s (%v)", got, err)
	}
	for _, name := range []string{"main/z", "main"} {
		if got, err := digestIn(list, name); err == nil {
			t.Errorf("%s has the digest %s", name, got)
		}
	}
}

// An unsigned list, or one of nobody's key, pins nothing.
func TestAListWithoutASignatureIsRefused(t *testing.T) {
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("Origin: Debian\nSHA256:\n"))
	}))
	defer mirror.Close()
	keyring := filepath.Join(t.TempDir(), "none.gpg")
	if err := os.WriteFile(keyring, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Resolve(context.Background(), Mirrors{Release: mirror.URL, Security: mirror.URL}, keyring, []string{"a"}, "amd64")
	if err == nil || !strings.Contains(err.Error(), "verify the signature") || l != nil {
		t.Errorf("%v (%v), want it to be refused", l, err)
	}
}

func TestLinksInPackagesAreFollowed(t *testing.T) {
	all := Files{
		"usr/lib/a.so.1":   {Content: []byte("library")},
		"usr/lib/a.so":     {Mode: fs.ModeSymlink, Link: "a.so.1"},
		"usr/lib64/a.so":   {Mode: fs.ModeSymlink, Link: "/usr/lib/a.so"},
		"usr/lib/circle":   {Mode: fs.ModeSymlink, Link: "../lib/circle"},
		"usr/lib/dangling": {Mode: fs.ModeSymlink, Link: "nowhere"},
	}
	if f, at, err := all.Open("usr/lib64/a.so"); err != nil || string(f.Content) != "library" || at != "usr/lib/a.so.1" {
		t.Errorf("%q at %s (%v)", f.Content, at, err)
	}
	if _, _, err := all.Open("usr/lib/circle"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a circle: %v", err)
	}
	if _, _, err := all.Open("usr/lib/dangling"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to nowhere: %v", err)
	}
}

// Only the main component has to be in both archives: of the security updates some are empty.
func TestAPackageOfAnotherComponentIsFound(t *testing.T) {
	packed := exec.Command("xz", "--stdout")
	packed.Stdin = strings.NewReader("Package: libcuda1\nVersion: 1\nSize: 2\nSHA256: 3\nFilename: pool/non-free/c\n")
	list, err := packed.Output()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/dists/trixie/non-free/binary-amd64/Packages.xz" {
			t.Errorf("asked for %s", r.URL)
		}
		_, _ = w.Write(list)
	}))
	defer server.Close()
	mirrors := Mirrors{Release: server.URL, Security: server.URL}
	releases := map[string]string{Security: "Origin: Debian\nSHA256:\n"}
	releases[Release] = fmt.Sprintf("Origin: Debian\nSHA256:\n %x %d non-free/binary-amd64/Packages.xz\n", sha256.Sum256(list), len(list))
	all, err := indexes(t.Context(), mirrors, releases, "non-free", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := lookUp(t.Context(), all, "libcuda1"); err != nil || p.Path != "pool/non-free/c" || p.Archive != Release {
		t.Errorf("found %+v (%v)", p, err)
	}
	if _, err := indexes(t.Context(), mirrors, releases, "main", "amd64"); err == nil {
		t.Error("without its main component, a release is taken for whole")
	}
}

func TestTheKernelsPackagesAreNamedByItsABI(t *testing.T) {
	list := func(depends string) map[string]string {
		return map[string]string{Release: "Package: linux-image-cloud-amd64\nVersion: 6.12.118-1\nSize: 2\nSHA256: 3\nFilename: p\nDepends: " +
			depends + "\n"}
	}
	abi, err := kernelABI(t.Context(), list("linux-image-6.12.118+deb13-cloud-amd64 (= 6.12.118-1)"), "amd64")
	if err != nil || abi != "6.12.118+deb13" {
		t.Errorf("it is %q (%v)", abi, err)
	}
	if abi, err := kernelABI(t.Context(), list("initramfs-tools"), "amd64"); err == nil {
		t.Errorf("of another dependency it is %q", abi)
	}
}
