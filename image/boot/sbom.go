package boot

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"

	"github.com/elotl/kip/image/debian"
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

// builtOf is the Go that a program was built by and its modules, the main one first; nothing for one in C.
func builtOf(program []byte) (version string, modules []*debug.Module) {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return "", nil
	}
	return info.GoVersion, append([]*debug.Module{&info.Main}, info.Deps...)
}

// componentsOf reads which of them programs were built of, and in which versions.
func componentsOf(programs map[string][]byte) map[string]string {
	has := map[string]string{}
	for _, b := range programs {
		_, modules := builtOf(b)
		for _, dep := range modules {
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

// The part of SPDX 2.3 that is used here: https://spdx.github.io/spdx-spec/v2.3/
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		License       string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID        string          `json:"SPDXID"`
		Name      string          `json:"name"`
		Version   string          `json:"versionInfo,omitempty"`
		Location  string          `json:"downloadLocation"`
		Analyzed  bool            `json:"filesAnalyzed"`
		Checksums []spdxChecksum  `json:"checksums,omitempty"`
		Refs      []spdxReference `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Of   string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

// kipModule is that of Kip's own programs, which do not know their version.
const kipModule = "github.com/elotl/kip"

// notInID are the characters that an ID of SPDX cannot have.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// linkedIn are libraries in C that programs have in them, of the machine that built them: no program
// says of which version.
var linkedIn = []string{"glibc", "libseccomp"}

// sbom lists Debian's packages and the Go modules of the programs, themselves among them, in SPDX's
// JSON. Its time is the epoch's, so that equal images have equal lists.
func sbom(m Manifest, packages debian.Lock, programs map[string][]byte) ([]byte, error) {
	const image = "SPDXRef-image"
	d := spdxDocument{
		Version:  "SPDX-2.3",
		License:  "CC0-1.0",
		ID:       "SPDXRef-DOCUMENT",
		Name:     Options{Arch: m.Arch, Variant: m.Variant}.name(),
		Creation: spdxCreation{Created: "1970-01-01T00:00:00Z", Creators: []string{"Tool: kip-image"}},
		Packages: []spdxPackage{
			{ID: image, Name: "kip-cell", Version: m.Version, Location: "NOASSERTION"},
		},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", image}},
	}
	add := func(p spdxPackage, purl string) {
		p.ID = "SPDXRef-" + notInID.ReplaceAllString(purl, "-")
		p.Refs = []spdxReference{{"PACKAGE-MANAGER", "purl", purl}}
		if slices.ContainsFunc(d.Packages, func(o spdxPackage) bool { return o.ID == p.ID }) {
			return
		}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, spdxRelationship{image, "CONTAINS", p.ID})
	}
	mirrors := debian.DefaultMirrors() // not those that were asked, so that equal images have equal lists
	for _, p := range packages {
		add(spdxPackage{
			Name:      p.Name,
			Version:   p.Version,
			Location:  p.URL(mirrors),
			Checksums: []spdxChecksum{{"SHA256", p.SHA256}},
		}, fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", p.Name, p.Version, p.Arch, debian.Suite))
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		version, modules := builtOf(programs[name])
		if version == "" {
			continue
		}
		for _, dep := range modules {
			if dep.Path == kipModule {
				dep = &debug.Module{Path: dep.Path, Version: m.Version}
			}
			if dep.Replace != nil {
				dep = dep.Replace
			}
			add(spdxPackage{Name: dep.Path, Version: dep.Version, Location: "NOASSERTION"},
				"pkg:golang/"+dep.Path+"@"+dep.Version)
		}
		add(spdxPackage{Name: "go", Version: version, Location: "NOASSERTION"}, "pkg:golang/std@"+version)
	}
	for _, name := range linkedIn {
		add(spdxPackage{Name: name, Location: "NOASSERTION"}, "pkg:generic/"+name)
	}
	body, err := indent(d)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	d.Namespace = "https://github.com/elotl/kip/spdx/" + hex.EncodeToString(sum[:])
	return indent(d)
}
