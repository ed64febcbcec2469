// Package cloudinit reads what the cloud handed to the machine: the user data,
// a #cloud-config document with Kip's part under the key "kip". It changes
// nothing; the rest of the document belongs to others.
package cloudinit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
)

// SeedFile is where a cloud, or its cloud-init, leaves the user data.
const SeedFile = "/var/lib/cloud/seed/user-data"

// maxBytes bounds the document; EC2's limit is 16 KiB.
const maxBytes = 64 << 10

const header = "#cloud-config"

// where finds the line in a YAML error.
var where = regexp.MustCompile(` (at )?line \d+`)

// Read reads and checks the user data in the file at path.
func Read(path string) (agentapi.UserData, error) {
	info, err := os.Stat(path)
	if err != nil {
		return agentapi.UserData{}, fmt.Errorf("read user data: %w", err)
	}
	if info.Size() > maxBytes {
		return agentapi.UserData{}, fmt.Errorf("read user data %s: %d bytes, at most %d are allowed", path, info.Size(), maxBytes)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return agentapi.UserData{}, fmt.Errorf("read user data: %w", err)
	}
	u, err := Parse(b)
	if err != nil {
		return agentapi.UserData{}, fmt.Errorf("user data %s: %w", path, err)
	}
	return u, nil
}

// Parse reads a user data document. All that is wrong is reported at once. No
// error holds the token.
func Parse(doc []byte) (agentapi.UserData, error) {
	first, _, _ := bytes.Cut(doc, []byte("\n"))
	if strings.TrimRight(string(first), " \r") != header {
		return agentapi.UserData{}, fmt.Errorf("the first line is not %q", header)
	}
	var top map[string]any
	if err := yaml.UnmarshalStrict(doc, &top); err != nil {
		// The parser's own words may quote the token.
		return agentapi.UserData{}, fmt.Errorf("not a valid YAML mapping%s", where.FindString(err.Error()))
	}
	kip, ok := top["kip"]
	if !ok {
		return agentapi.UserData{}, errors.New(`no key "kip": this machine was not launched by Kip`)
	}
	fields, ok := kip.(map[string]any)
	if !ok {
		return agentapi.UserData{}, errors.New(`kip: must be a mapping with cellID, caHash and token`)
	}
	var u agentapi.UserData
	var errs []error
	for key, value := range fields {
		s, isString := value.(string)
		var to *string
		switch key {
		case "cellID":
			to = &u.CellID
		case "caHash":
			to = &u.CAHash
		case "token":
			to = &u.Token
		default:
			// Without the key: it may be a token that came to the wrong place.
			errs = append(errs, fmt.Errorf("kip: an unknown key of %d characters; known are cellID, caHash and token", len(key)))
			continue
		}
		if !isString {
			errs = append(errs, fmt.Errorf("kip.%s: must be a string (quote it)", key))
			*to = "-" // no second error for want of it
			continue
		}
		*to = s
	}
	if len(errs) == 0 {
		errs = check(u)
	}
	if err := errors.Join(errs...); err != nil {
		return agentapi.UserData{}, err
	}
	return u, nil
}

func check(u agentapi.UserData) (errs []error) {
	// Without the values: each may be a token that came to the wrong place.
	if pki.CheckCellID(u.CellID) != nil {
		errs = append(errs,
			fmt.Errorf("kip.cellID (%d characters): it must be 1 to 63 lower-case letters, digits and '-', and begin and end with a letter or digit",
				len(u.CellID)))
	}
	if b, err := hex.DecodeString(u.CAHash); err != nil || len(b) != 32 || strings.ToLower(u.CAHash) != u.CAHash {
		errs = append(errs, fmt.Errorf("kip.caHash (%d characters): it must be a SHA-256 in 64 lower-case hex digits", len(u.CAHash)))
	}
	if _, err := pki.ParseToken(u.Token); err != nil {
		errs = append(errs, fmt.Errorf("kip.token: %w", err))
	}
	return errs
}
