package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// InFolder finds the boot image for an architecture, and of a variant, in a folder of make image's or of a release: its raw disk, which a
// release has packed, with what its manifest says of it.
func InFolder(dir, arch, variant string) (Image, error) {
	name := "kip-cell-" + arch
	if variant != "" {
		name += "-" + variant
	}
	file := filepath.Join(dir, name+".manifest.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return Image{}, fmt.Errorf("read what image there is (make image IMAGE_FORMATS=raw builds one): %w", err)
	}
	var m struct {
		Version, Arch, Variant string
		GPUs                   []string
		Outputs                []struct{ Name, SHA256 string }
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return Image{}, fmt.Errorf("read %s: %w", file, err)
	}
	if m.Arch != arch || m.Variant != variant {
		return Image{}, fmt.Errorf("%s is of an image for %q with the variant %q, not for %s with %q", file, m.Arch, m.Variant, arch, variant)
	}
	for _, o := range m.Outputs {
		if o.Name == name+".raw" {
			i := Image{File: filepath.Join(dir, o.Name), SHA256: o.SHA256, Arch: arch, Version: m.Version, Variant: variant, GPUs: m.GPUs}
			_, err := os.Stat(i.File)
			if errors.Is(err, fs.ErrNotExist) {
				i.File = filepath.Join(dir, name+archived)
				_, err = os.Stat(i.File)
			}
			return i, err
		}
	}
	return Image{}, fmt.Errorf("the image in %s has no form raw: make image IMAGE_FORMATS=raw", dir)
}
