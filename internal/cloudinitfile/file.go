// Package cloudinitfile owns the operator's cloud-init file (cells.cloudInitFile): which content of it counts for the next launch, and
// what is stored of it for cells that were launched with another. It must not carry anything out: the agent does.
//
//	file.go     reads and checks the file
//	current.go  the content that counts, and those that are stored
//	loop.go     follows the file, and forgets contents that no cell needs
package cloudinitfile

import (
	"fmt"
	"io"
	"os"

	"github.com/elotl/kip/internal/cloudconfig"
)

// Source says where the file is.
type Source struct {
	// Path is that of the file; "" for none.
	Path string
	// KipsImage says that machines have Kip's own image, and no other: nobody can log in there.
	KipsImage bool
}

// File is a content of the file, checked; the zero one is none.
type File struct {
	content []byte
	digest  string // "" for none
	login   bool   // it has users, or their keys
}

// Read reads and checks the file.
func (s Source) Read() (File, error) {
	if s.Path == "" {
		return File{}, nil
	}
	f, err := os.Open(s.Path)
	if err != nil {
		return File{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	if size := info.Size(); size > cloudconfig.MaxBytes {
		return File{}, fmt.Errorf("cells.cloudInitFile: %w", cloudconfig.TooLarge(s.Path, size))
	}
	// It may be no regular file, or grow.
	content, err := io.ReadAll(io.LimitReader(f, cloudconfig.MaxBytes+1))
	if err != nil {
		return File{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	return s.parse(content)
}

// parse checks a content of the file.
func (s Source) parse(content []byte) (File, error) {
	d, err := cloudconfig.Parse(s.Path, content)
	if err != nil {
		return File{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	needs := d.NeedsLogin()
	if needs != "" && s.KipsImage {
		return File{}, fmt.Errorf("cells.cloudInitFile: %s: nobody can log in on Kip's own image, which these cells have: want no %s",
			s.Path, needs)
	}
	return File{content: content, digest: cloudconfig.Digest(content), login: needs != ""}, nil
}
