package debian

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Suite is the release that the packages are from.
const Suite = "trixie"

// The archives that have packages of the release, by the names that a lock has of them.
const (
	// Release has what was released, and its point releases.
	Release = "debian"
	// Security has what was mended since, days to weeks before the next point release.
	Security = "debian-security"
)

// archive is one of Debian's: the suite of it that is read, and the mirror of it that is
// asked by default. What comes from a mirror is compared with the lock, or its list with a
// signature, so any will do.
type archive struct{ name, suite, mirror string }

var archives = []archive{
	{name: Release, suite: Suite, mirror: "http://deb.debian.org/debian"},
	{name: Security, suite: Suite + "-security", mirror: "http://deb.debian.org/debian-security"},
}

// Mirrors are the URLs of mirrors, by their archives.
type Mirrors map[string]string

// DefaultMirrors returns those that are asked where nobody says otherwise.
func DefaultMirrors() Mirrors {
	m := Mirrors{}
	for _, a := range archives {
		m[a.name] = a.mirror
	}
	return m
}

// Package is one that the lock pins.
type Package struct {
	// Arch is the architecture of the image that it is for, in Debian's and Go's word.
	Arch string
	Name string
	// Version is Debian's.
	Version string
	// Bytes is the size of the package's file.
	Bytes int64
	// SHA256 is that of the package's file, in hex.
	SHA256 string
	// Archive is the one that has it: Release or Security.
	Archive string
	// Path is where the package's file is on a mirror of that archive.
	Path string
}

// URL is where the package's file is on the mirror of its archive.
func (p Package) URL(m Mirrors) string { return m[p.Archive] + "/" + p.Path }

// Lock is the packages of all architectures.
type Lock []Package

//go:embed packages.lock
var pinned []byte

// Pinned returns the lock that this program was built with.
func Pinned() (Lock, error) { return ParseLock(pinned) }

//go:embed nvidia.lock
var pinnedNVIDIA []byte

// PinnedNVIDIA returns the lock of the further packages of images with NVIDIA's driver.
func PinnedNVIDIA() (Lock, error) { return ParseLock(pinnedNVIDIA) }

// lockHead explains the file to who reads it.
const lockHead = "# Debian's packages of the boot image, pinned. Written by kip-image lock.\n" +
	"# architecture name version bytes sha256 archive path\n"

// ParseLock reads a lock file.
func ParseLock(text []byte) (Lock, error) {
	var l Lock
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		p, err := parsePackage(strings.Fields(line))
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d of the lock of packages: %w", n, err))
			continue
		}
		if _, err := l.Find(p.Arch, p.Name); err == nil {
			errs = append(errs, fmt.Errorf("line %d of the lock of packages: %s is there twice for %s", n, p.Name, p.Arch))
		}
		l = append(l, p)
	}
	return l, errors.Join(append(errs, lines.Err())...)
}

func parsePackage(fields []string) (Package, error) {
	if len(fields) != 7 {
		return Package{}, fmt.Errorf("it has %d fields, and not 7", len(fields))
	}
	p := Package{
		Arch:    fields[0],
		Name:    fields[1],
		Version: fields[2],
		SHA256:  fields[4],
		Archive: fields[5],
		Path:    fields[6],
	}
	var err error
	if p.Bytes, err = strconv.ParseInt(fields[3], 10, 64); err != nil || p.Bytes <= 0 {
		return Package{}, fmt.Errorf("%q is no size", fields[3])
	}
	if sum, err := hex.DecodeString(p.SHA256); err != nil || len(sum) != 32 {
		return Package{}, fmt.Errorf("%q is no SHA-256", p.SHA256)
	}
	if !slices.ContainsFunc(archives, func(a archive) bool { return a.name == p.Archive }) {
		return Package{}, fmt.Errorf("%q is no archive: want %s or %s", p.Archive, Release, Security)
	}
	if path.Clean("/"+p.Path) != "/"+p.Path {
		return Package{}, fmt.Errorf("%q is no path on a mirror", p.Path)
	}
	return p, nil
}

// String is the lock's file, in the order of architectures and names.
func (l Lock) String() string {
	sorted := slices.SortedFunc(slices.Values(l), func(a, b Package) int {
		return strings.Compare(a.Arch+" "+a.Name, b.Arch+" "+b.Name)
	})
	var b strings.Builder
	b.WriteString(lockHead)
	for _, p := range sorted {
		fmt.Fprintln(&b, p.Arch, p.Name, p.Version, p.Bytes, p.SHA256, p.Archive, p.Path)
	}
	return b.String()
}

// Find returns a package by its name.
func (l Lock) Find(arch, name string) (Package, error) {
	for _, p := range l {
		if p.Arch == arch && p.Name == name {
			return p, nil
		}
	}
	return Package{}, fmt.Errorf("the lock has no package %s for %s", name, arch)
}

// Of returns the packages of one architecture.
func (l Lock) Of(arch string) (Lock, error) {
	out := slices.DeleteFunc(slices.Clone(l), func(p Package) bool { return p.Arch != arch })
	if len(out) == 0 {
		return nil, fmt.Errorf("the lock has no packages for %q", arch)
	}
	return out, nil
}
