// Package cloudinit reads what the cloud handed to the machine: the user data,
// a #cloud-config document with Kip's part under the key "kip", and the machine's
// place in its launch. It changes nothing; the rest of the document belongs to others.
package cloudinit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/cloudconfig"
	"github.com/elotl/kip/internal/pki"
)

// SeedFile is where a cloud, or its cloud-init, leaves the user data.
const SeedFile = "/var/lib/cloud/seed/user-data"

// PlaceFile is, beside the user data, where it leaves the machine's place in the
// launch whose user data all machines share: the launch index, in decimal.
const PlaceFile = "launch-index"

const (
	// maxBytes bounds the document; EC2's limit is 16 KiB.
	maxBytes = 64 << 10
	// maxPlace bounds a place.
	maxPlace = 16
)

const header = "#cloud-config"

var (
	// where finds the line in a YAML error.
	where = regexp.MustCompile(` (at )?line \d+`)
	// hasKip finds Kip's key.
	hasKip = regexp.MustCompile(`(?m)^["']?kip["']?\s*:`)
	// index is a launch index.
	index = regexp.MustCompile(`^(0|[1-9][0-9]{0,4})$`)
)

// Read reads and checks the user data in the file at path, and the place beside it
// where the user data is shared.
func Read(path string) (agentapi.UserData, error) {
	doc, err := readFile(path, maxBytes)
	if err != nil {
		return agentapi.UserData{}, fmt.Errorf("read user data: %w", err)
	}
	place, err := readFile(filepath.Join(filepath.Dir(path), PlaceFile), maxPlace)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return agentapi.UserData{}, fmt.Errorf("read the launch index: %w", err)
	}
	u, err := Parse(doc, strings.TrimSpace(string(place)))
	if err != nil {
		return agentapi.UserData{}, fmt.Errorf("user data %s: %w", path, err)
	}
	return u, nil
}

// Leave writes what Read reads: the document, and the place where there is one. Files of
// an earlier start are replaced.
func Leave(path string, document []byte, place string) error {
	for file, content := range map[string][]byte{path: document, filepath.Join(filepath.Dir(path), PlaceFile): []byte(place)} {
		if len(content) == 0 {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("leave user data: %w", err)
			}
			continue
		}
		if err := Replace(file, content, 0o400); err != nil {
			return fmt.Errorf("leave user data: %w", err)
		}
	}
	return nil
}

// Replace replaces a file as a whole. One that has this content already stays: a machine whose disk is full starts again with
// what its last boot wrote.
func Replace(path string, content []byte, mode fs.FileMode) error {
	if info, err := os.Lstat(path); err == nil && info.Mode() == mode {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
			return nil
		}
	}
	return atomicfile.Write(path, content, mode)
}

func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		return nil, fmt.Errorf("%s has more than the %d bytes that are allowed", path, most)
	}
	return b, err
}

// Parse reads a user data document. Place is the machine's in its launch, "" where
// that is not known: user data that all machines share cannot be read without it.
// All that is wrong is reported at once. No error holds the token or the secret.
func Parse(doc []byte, place string) (agentapi.UserData, error) {
	doc, err := unpack(doc)
	if err != nil {
		return agentapi.UserData{}, err
	}
	fields, err := kipOf(doc)
	if err != nil {
		return agentapi.UserData{}, err
	}
	if version, has := fields["version"]; has {
		delete(fields, "version")
		if version != float64(agentapi.BatchVersion) {
			return agentapi.UserData{}, fmt.Errorf("kip.version: this agent knows %d, and user data without a version", agentapi.BatchVersion)
		}
		return parseBatch(fields, place)
	}
	var u agentapi.UserData
	if err := stringsOf(fields, field{"cellID", &u.CellID}, field{"caHash", &u.CAHash}, field{"token", &u.Token}); err != nil {
		return agentapi.UserData{}, err
	}
	// Without the values: each may be a token that came to the wrong place.
	_, badToken := pki.ParseToken(u.Token)
	err = errors.Join(checkName("cellID", u.CellID), checkHash(u.CAHash), in("token", badToken))
	if err != nil {
		return agentapi.UserData{}, err
	}
	return u, nil
}

// parseBatch reads what all machines of a launch share, and makes of it what the one
// at this place has of its own.
func parseBatch(fields map[string]any, place string) (agentapi.UserData, error) {
	var b agentapi.BatchUserData
	if err := stringsOf(fields, field{"batch", &b.Batch}, field{"caHash", &b.CAHash}, field{"secret", &b.Secret}); err != nil {
		return agentapi.UserData{}, err
	}
	secret, badSecret := pki.ParseBatchSecret(b.Secret)
	err := errors.Join(checkName("batch", b.Batch), checkHash(b.CAHash), in("secret", badSecret))
	if !index.MatchString(place) {
		err = errors.Join(err, fmt.Errorf(
			"the launch index (%d characters in %s): it must be a number, since the machines of a batch share their user data", len(place), PlaceFile))
	}
	if err != nil {
		return agentapi.UserData{}, err
	}
	cell := agentapi.BatchCell(b.Batch, place)
	if err := checkName("batch and launch index", cell); err != nil {
		return agentapi.UserData{}, err
	}
	return agentapi.UserData{CellID: cell, CAHash: b.CAHash, Token: secret.Token(cell).Reveal()}, nil
}

// unpack returns the document that has Kip's part, of user data that is compressed or that
// somebody else has put together with other parts, of whatever kinds.
func unpack(doc []byte) ([]byte, error) {
	if !cloudconfig.IsPacked(doc) {
		return doc, nil
	}
	parts, err := cloudconfig.KnownParts("user data", doc, maxBytes)
	if err != nil {
		// Its words may quote the token.
		return nil, fmt.Errorf("it is neither a document of at most %d bytes that gzip made, nor one of MIME parts that cloud-init takes", maxBytes)
	}
	found := -1
	for n, p := range parts {
		if p.Kind != cloudconfig.KindConfig || !hasKip.Match(p.Content) {
			continue
		}
		if found >= 0 {
			return nil, errors.New(`two parts have the key "kip": it must be in one`)
		}
		found = n
	}
	if found < 0 {
		return nil, errors.New(`no part is a #cloud-config with the key "kip": this machine was not launched by Kip`)
	}
	return parts[found].Content, nil
}

// kipOf returns Kip's part of a document.
func kipOf(doc []byte) (map[string]any, error) {
	first, _, _ := bytes.Cut(doc, []byte("\n"))
	if strings.TrimRight(string(first), " \r") != header {
		return nil, fmt.Errorf("the first line is not %q", header)
	}
	var top map[string]any
	if err := yaml.UnmarshalStrict(doc, &top); err != nil {
		// The parser's own words may quote the token.
		return nil, fmt.Errorf("not a valid YAML mapping%s", where.FindString(err.Error()))
	}
	kip, ok := top["kip"]
	if !ok {
		return nil, errors.New(`no key "kip": this machine was not launched by Kip`)
	}
	fields, ok := kip.(map[string]any)
	if !ok {
		return nil, errors.New(`kip: must be a mapping with cellID, caHash and token`)
	}
	return fields, nil
}

// field is one of a document, and where its value goes.
type field struct {
	name string
	to   *string
}

// stringsOf takes the fields that there may be, all of them strings.
func stringsOf(fields map[string]any, known ...field) error {
	var errs []error
	for key, value := range fields {
		n := slices.IndexFunc(known, func(f field) bool { return f.name == key })
		if n < 0 {
			// Without the key: it may be a token that came to the wrong place.
			errs = append(errs, fmt.Errorf("kip: an unknown key of %d characters; known are %s, %s and %s",
				len(key), known[0].name, known[1].name, known[2].name))
			continue
		}
		s, isString := value.(string)
		if !isString {
			errs = append(errs, fmt.Errorf("kip.%s: must be a string (quote it)", key))
		}
		*known[n].to = s
	}
	return errors.Join(errs...)
}

func checkName(field, id string) error {
	if pki.CheckCellID(id) != nil {
		return fmt.Errorf("kip.%s (%d characters): it must be 1 to 63 lower-case letters, digits and '-', and begin and end with a letter or digit",
			field, len(id))
	}
	return nil
}

func checkHash(hash string) error {
	if b, err := hex.DecodeString(hash); err != nil || len(b) != 32 || strings.ToLower(hash) != hash {
		return fmt.Errorf("kip.caHash (%d characters): it must be a SHA-256 in 64 lower-case hex digits", len(hash))
	}
	return nil
}

func in(field string, err error) error {
	if err != nil {
		return fmt.Errorf("kip.%s: %w", field, err)
	}
	return nil
}
