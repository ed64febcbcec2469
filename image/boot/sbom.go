package boot

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/image/spdx"
	"github.com/elotl/kip/internal/agent/machine"
)

// Manifest says what an image is made of. It lies beside the image and, without
// Outputs and EFI, in it.
type Manifest struct {
	Version string `json:"version"`
	Arch    string `json:"arch"`
	// Variant is what the image has besides, such as "nvidia", and GPUs the models that it then drives.
	Variant    string   `json:"variant,omitempty"`
	GPUs       []string `json:"gpus,omitempty"`
	Kernel     string   `json:"kernel"`
	Kubernetes string   `json:"kubernetes"`
	// Arguments are the kernel's, but for the root's ID.
	Arguments string `json:"arguments"`
	// Packages are Debian's, with their versions.
	Packages map[string]string `json:"packages"`
	// Components are the versions of what others make, and is built with Kip.
	Components map[string]string `json:"components,omitempty"`
	// Programs are Kip's own and those built with it, with their digests.
	Programs map[string]string `json:"programs"`
	// Modules are the kernel's that can be loaded, by what for.
	Modules map[string][]string `json:"modules"`
	// Settings are the kernel's that the agent writes, each with its reason.
	Settings []machine.Setting `json:"settings"`
	// Root is the ID of the root's partition.
	Root string `json:"root,omitempty"`
	// Outputs are the files of the image, and EFI the program that UEFI starts in each of them.
	Outputs []Output `json:"outputs,omitempty"`
	EFI     Output   `json:"efi,omitzero"`
}

// components are Go's modules of what Manifest.Components names.
var components = map[string]string{
	"github.com/containerd/containerd/v2":    "containerd",
	"github.com/opencontainers/runc":         "runc",
	"github.com/containernetworking/plugins": "cni-plugins",
}

// componentsOf reads which of them programs were built of, and in which versions.
func componentsOf(programs map[string][]byte) map[string]string {
	has := map[string]string{}
	for _, b := range programs {
		info := spdx.BuildInfo(b)
		if info == nil {
			continue
		}
		for _, dep := range append(info.Deps, &info.Main) {
			if name := components[dep.Path]; name != "" && dep.Version != "" {
				has[name] = dep.Version
			}
		}
	}
	return has
}

// Output is a file of an image.
type Output struct {
	Name string `json:"name"`
	// Bytes is the file's size, UsedBytes what of it is not all zeros.
	Bytes     int64  `json:"bytes"`
	UsedBytes int64  `json:"usedBytes"`
	SHA256    string `json:"sha256"`
}

// ReadManifest reads the manifest of the image for an architecture, without a variant, that was built
// into a folder.
func ReadManifest(dir, arch string) (Manifest, error) { return ReadVariant(dir, arch, "") }

// ReadVariant reads that of an image of a variant.
func ReadVariant(dir, arch, variant string) (Manifest, error) {
	var m Manifest
	file := filepath.Join(dir, Options{Arch: arch, Variant: variant}.name()+manifestSuffix)
	b, err := os.ReadFile(file)
	if err != nil {
		return m, fmt.Errorf("read what image there is (make image builds one): %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("read %s: %w", file, err)
	}
	if m.Arch != arch || m.Variant != variant {
		return m, fmt.Errorf("%s is of an image for %q with the variant %q, not for %s with %q", file, m.Arch, m.Variant, arch, variant)
	}
	return m, nil
}

// Output is the image's file of a form.
func (m Manifest) Output(format string) (Output, error) {
	name := Options{Arch: m.Arch, Variant: m.Variant}.name() + formats[format].suffix
	for _, o := range m.Outputs {
		if o.Name == name {
			return o, nil
		}
	}
	return Output{}, fmt.Errorf("the image has no form %s: make image IMAGE_FORMATS=%s", format, format)
}

// What is beside an image: its manifest, and its EFI program.
const manifestSuffix, efiSuffix = ".manifest.json", ".efi"

func indent(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}

// linkedIn are libraries in C that programs have in them, of the machine that built them: no program
// says of which version.
var linkedIn = []string{"glibc", "libseccomp"}

// sbom lists Debian's packages and the Go modules of the programs, themselves among them, in SPDX's
// JSON. Its time is the epoch's, so that equal images have equal lists.
func sbom(m Manifest, packages debian.Lock, programs map[string][]byte) ([]byte, error) {
	c := spdx.Contents{
		Document:  Options{Arch: m.Arch, Variant: m.Variant}.name(),
		Name:      "kip-cell",
		Version:   m.Version,
		Created:   time.Unix(0, 0),
		Packages:  packages,
		Libraries: linkedIn,
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if info := spdx.BuildInfo(programs[name]); info != nil {
			c.Programs = append(c.Programs, info)
		}
	}
	return spdx.List(c)
}
