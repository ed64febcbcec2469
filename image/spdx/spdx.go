package spdx

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"slices"
	"time"

	"github.com/elotl/kip/image/debian"
)

// MediaType is what registries call such a list.
const MediaType = "application/spdx+json"

// Contents are what a list describes.
type Contents struct {
	// Document is the name of the list, and Name and Version those of what it describes.
	Document, Name, Version string
	// Created is the time of the list. Equal contents and times make equal lists.
	Created time.Time
	// Packages are Debian's.
	Packages debian.Lock
	// Programs are written in Go. Their modules are listed, the main ones among them.
	Programs []*debug.BuildInfo
	// Libraries are in C, and linked into programs. No program has their version.
	Libraries []string
}

// BuildInfo returns what Go recorded in a program, and nil for a program that is not written in Go.
func BuildInfo(program []byte) *debug.BuildInfo {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return nil
	}
	return info
}

// The part of SPDX 2.3 that is used here: https://spdx.github.io/spdx-spec/v2.3/
type (
	document struct {
		Version       string         `json:"spdxVersion"`
		License       string         `json:"dataLicense"`
		ID            string         `json:"SPDXID"`
		Name          string         `json:"name"`
		Namespace     string         `json:"documentNamespace"`
		Creation      creation       `json:"creationInfo"`
		Packages      []software     `json:"packages"`
		Relationships []relationship `json:"relationships"`
	}
	creation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	software struct {
		ID        string      `json:"SPDXID"`
		Name      string      `json:"name"`
		Version   string      `json:"versionInfo,omitempty"`
		Location  string      `json:"downloadLocation"`
		Analyzed  bool        `json:"filesAnalyzed"`
		Checksums []checksum  `json:"checksums,omitempty"`
		Refs      []reference `json:"externalRefs,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	reference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		Of   string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const (
	// kipModule is the module of Kip's own programs, which do not record their version.
	kipModule = "github.com/elotl/kip"
	// whole is the ID of what a list describes.
	whole = "SPDXRef-image"
	// unknown is what a list has where nobody says.
	unknown = "NOASSERTION"
)

// notInID are the characters that an ID of SPDX cannot have.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// List returns the list of what is in an image.
func List(c Contents) ([]byte, error) {
	d := document{
		Version:       "SPDX-2.3",
		License:       "CC0-1.0",
		ID:            "SPDXRef-DOCUMENT",
		Name:          c.Document,
		Creation:      creation{Created: c.Created.UTC().Format(time.RFC3339), Creators: []string{"Tool: kip-image"}},
		Packages:      []software{{ID: whole, Name: c.Name, Version: c.Version, Location: unknown}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", whole}},
	}
	mirrors := debian.DefaultMirrors() // not those that were asked, so that equal images have equal lists
	for _, p := range c.Packages {
		d.add(software{
			Name:      p.Name,
			Version:   p.Version,
			Location:  p.URL(mirrors),
			Checksums: []checksum{{"SHA256", p.SHA256}},
		}, fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", p.Name, p.Version, p.Arch, debian.Suite))
	}
	for _, info := range c.Programs {
		d.addProgram(info, c.Version)
	}
	for _, name := range c.Libraries {
		d.add(software{Name: name, Location: unknown}, "pkg:generic/"+name)
	}
	body, err := indent(d)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	d.Namespace = "https://github.com/elotl/kip/spdx/" + hex.EncodeToString(sum[:])
	return indent(d)
}

// addProgram adds the modules of a program and the Go that compiled it.
func (d *document) addProgram(info *debug.BuildInfo, version string) {
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == kipModule {
			m = &debug.Module{Path: m.Path, Version: version}
		}
		if m.Replace != nil {
			m = m.Replace
		}
		d.add(software{Name: m.Path, Version: m.Version, Location: unknown}, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	d.add(software{Name: "go", Version: info.GoVersion, Location: unknown}, "pkg:golang/std@"+info.GoVersion)
}

// add adds software by its package URL, once.
func (d *document) add(s software, purl string) {
	s.ID = "SPDXRef-" + notInID.ReplaceAllString(purl, "-")
	s.Refs = []reference{{"PACKAGE-MANAGER", "purl", purl}}
	if slices.ContainsFunc(d.Packages, func(o software) bool { return o.ID == s.ID }) {
		return
	}
	d.Packages = append(d.Packages, s)
	d.Relationships = append(d.Relationships, relationship{whole, "CONTAINS", s.ID})
}

func indent(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}
