package cloudconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"strings"
)

const (
	// MaxBytes bounds a file as it is read, in bytes: it goes to each cell, and a cell reads
	// no larger user data either.
	MaxBytes = 64 << 10
	// MaxContent bounds what it unpacks to, in bytes: compressed parts, and the contents of
	// write_files.
	MaxContent = 1 << 20
	// MaxHostname is Linux' HOST_NAME_MAX, in bytes.
	MaxHostname = 64
)

// Document is what an operator's cloud-init file says, checked. All is carried out in the
// order of its fields.
type Document struct {
	// Hostname is the machine's name; "" leaves it.
	Hostname string
	Groups   []Group
	Users    []User
	// AuthorizedKeys are the keys that may log in as root.
	AuthorizedKeys []string
	Files          []File
	// Scripts are what runcmd says, as one script, and then the file's own scripts.
	Scripts []Script
}

// Group is a group of users.
type Group struct {
	Name    string
	Members []string
}

// User is somebody who may log in.
type User struct {
	Name         string
	Gecos        string
	Home         string // "" for the usual one
	PrimaryGroup string
	Groups       []string
	Shell        string
	UID          string // decimal; "" for the next free one
	NoCreateHome bool
	NoUserGroup  bool
	NoLogInit    bool
	System       bool
	// Locked says that no password is taken, also where there is one.
	Locked bool
	// PasswordHash is one as crypt(3) makes it; "" for none. It reaches no log and no
	// argument list.
	PasswordHash   string
	AuthorizedKeys []string
	// Sudo are the rules of sudoers for this user, without the user.
	Sudo []string
}

// File is one to be written.
type File struct {
	Path    string // absolute and clean
	Content []byte // decoded; it may be a secret
	// User and Group are names or decimal IDs.
	User, Group string
	Mode        fs.FileMode // permissions, with setuid, setgid and sticky
	Append      bool
}

// Script is a program with an interpreter line.
type Script struct {
	Name    string // for people
	Content []byte
}

// Digest names a file's content: the SHA-256 of its bytes in lower-case hex digits.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// NeedsLogin returns the keys that need an image on which somebody can log in, for people:
// Kip's own has neither users nor SSH. It is "" where there are none.
func (d *Document) NeedsLogin() string {
	var keys []string
	for key, has := range map[string]bool{
		"groups":              len(d.Groups) > 0,
		"users":               len(d.Users) > 0,
		"ssh_authorized_keys": len(d.AuthorizedKeys) > 0,
	} {
		if has {
			keys = append(keys, key)
		}
	}
	return strings.Join(sorted(keys), ", ")
}
