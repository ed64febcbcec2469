package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// refName is the annotation with an image's name in an OCI layout.
const refName = "org.opencontainers.image.ref.name"

// Write writes the images below a folder: the OCI layout kip, which has all of them and their lists of software, and for each
// architecture an archive for docker load and a list of software. It returns what it wrote, the layout first. It replaces a layout
// that is there as a whole.
func (s *Set) Write(dir string, tag name.Tag) ([]string, error) {
	written, err := s.write(dir, tag)
	if err != nil {
		return nil, fmt.Errorf("write the images of Kip below %s: %w", dir, err)
	}
	return written, nil
}

func (s *Set) write(dir string, tag name.Tag) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	whole := filepath.Join(dir, "kip")
	if err := s.writeLayout(filepath.Join(tmp, "kip"), tag); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(whole); err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(tmp, "kip"), whole); err != nil {
		return nil, err
	}
	written := []string{whole}
	for _, p := range s.Platforms {
		archive, list := "kip-"+p.Arch+".tar", "kip-"+p.Arch+".spdx.json"
		err := errors.Join(tarball.WriteToFile(filepath.Join(tmp, archive), tag, p.Image),
			os.WriteFile(filepath.Join(tmp, list), p.Software, 0o644))
		if err != nil {
			return nil, err
		}
		for _, file := range []string{archive, list} {
			if err := os.Rename(filepath.Join(tmp, file), filepath.Join(dir, file)); err != nil {
				return nil, err
			}
			written = append(written, filepath.Join(dir, file))
		}
	}
	return written, nil
}

// writeLayout writes an OCI layout with the index, by its name, and the attached lists, which have none.
func (s *Set) writeLayout(dir string, tag name.Tag) error {
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := l.AppendIndex(s.Index, layout.WithAnnotations(map[string]string{refName: tag.String()})); err != nil {
		return err
	}
	for _, p := range s.Platforms {
		if err := l.AppendImage(p.Attached); err != nil {
			return err
		}
	}
	return nil
}
