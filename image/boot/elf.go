package boot

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/image/debian"
)

// libraryDirs are where Debian has an architecture's libraries.
var libraryDirs = map[string]string{"amd64": "usr/lib/x86_64-linux-gnu", "arm64": "usr/lib/aarch64-linux-gnu"}

// addLibraries adds to a root the libraries and the loader of a program, and those of
// the libraries.
func (t tree) addLibraries(program string, content []byte, arch string, from debian.Files) error {
	f, err := elf.NewFile(bytes.NewReader(content))
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return nil // a script
	}
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	defer f.Close()
	if f.Machine != image.Machines[arch] {
		return fmt.Errorf("%s is a program for %v, and the image is for %s", program, f.Machine, arch)
	}
	var needed []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(p.Open(), 256))
			if err != nil {
				return fmt.Errorf("%s: %w", program, err)
			}
			// /lib and /lib64 are links to what is below /usr.
			needed = append(needed, "usr/"+strings.Trim(string(b), "/\x00"))
		}
	}
	names, err := f.DynString(elf.DT_NEEDED)
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	for _, n := range names {
		needed = append(needed, path.Join(libraryDirs[arch], n))
	}
	for _, n := range needed {
		if _, has := t[n]; has {
			continue
		}
		lib, _, err := from.Open(n)
		if err != nil {
			return fmt.Errorf("what %s needs: %w", program, err)
		}
		t[n] = node{mode: 0o755, content: lib.Content}
		if err := t.addLibraries(n, lib.Content, arch, from); err != nil {
			return err
		}
	}
	return nil
}

func (t tree) has(name string) bool { _, ok := t[name]; return ok }

// node is a file, a folder or a link of a file system that is made.
type node struct {
	mode    fs.FileMode
	content []byte
	link    string
}

// tree is a file system, by paths without a leading slash.
type tree map[string]node

// folders adds those that lead to each path, where they are not there.
func (t tree) folders() {
	for p := range t {
		for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
			if !t.has(dir) {
				t[dir] = node{mode: fs.ModeDir | 0o755}
			}
		}
	}
}
