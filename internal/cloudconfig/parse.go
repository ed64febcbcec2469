package cloudconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/elotl/kip/internal/suggest"
)

// Error is one thing that is wrong with a file.
type Error struct {
	File string
	Line int
	// Key is the path to what is wrong: users[0].name. "" is the file as a whole.
	Key string
	// Problem names the value, unless that may be secret, and what would be right.
	Problem string
}

func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Problem)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Key, e.Problem)
}

// TooLarge is the error of a file of more than MaxBytes.
func TooLarge(name string, size int64) *Error {
	return &Error{File: name, Line: 1, Problem: fmt.Sprintf("it has %d bytes: want at most %d", size, MaxBytes)}
}

// Parse reads an operator's cloud-init file: see Parts for its forms. The name is the file's,
// for errors. All that is wrong is reported at once, and no error quotes what may be secret:
// the contents of files, scripts, keys and passwords.
func Parse(name string, data []byte) (*Document, error) {
	if len(data) > MaxBytes {
		return nil, TooLarge(name, int64(len(data)))
	}
	parts, err := Parts(name, data, MaxContent)
	if err != nil {
		return nil, err
	}
	var (
		d       = &Document{}
		scripts []Script
		r       = &reader{left: MaxContent, seen: map[string]string{}}
	)
	for _, p := range parts {
		r.file = p.Name
		switch p.Kind {
		case KindConfig:
			r.config(p.Content, d)
		case KindScript:
			scripts = append(scripts, Script{Name: p.Name, Content: p.Content})
		}
	}
	if len(r.commands) > 0 {
		d.Scripts = append(d.Scripts, Script{Name: "runcmd", Content: []byte("#!/bin/sh\n" + strings.Join(r.commands, "\n") + "\n")})
	}
	d.Scripts = append(d.Scripts, scripts...)
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return d, nil
}

// reader reads YAML nodes into a Document, and notes all that is wrong on the way.
type reader struct {
	file     string
	errs     []error
	left     int               // of MaxContent
	commands []string          // of runcmd, each a line of a shell
	seen     map[string]string // where what may be there once was: the name, and the file
}

// maxErrors bounds what is told of one file.
const maxErrors = 50

func (r *reader) fail(line int, key, format string, args ...any) {
	if len(r.errs) < maxErrors {
		r.errs = append(r.errs, &Error{
			File:    r.file,
			Line:    line,
			Key:     key,
			Problem: fmt.Sprintf(format, args...),
		})
	}
}

// once notes a second of what there may be one of, such as a user's name.
func (r *reader) once(n *yaml.Node, key, what string) {
	if first, is := r.seen[what]; is {
		r.fail(n.Line, key, "%s is there twice: first in %s", what, first)
		return
	}
	r.seen[what] = fmt.Sprintf("%s, line %d", r.file, n.Line)
}

var syntaxLine = regexp.MustCompile(`^yaml: line (\d+): `)

// config reads a #cloud-config into d, beside what earlier ones have left there.
func (r *reader) config(data []byte, d *Document) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := dec.Decode(&doc)
	if err == nil {
		switch again := dec.Decode(&next); {
		case again == nil:
			r.fail(next.Line, "", "a second document begins here: want one only")
			return
		case !errors.Is(again, io.EOF):
			err = again
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return // comments only
	case err != nil:
		// The parser's own words may quote a secret.
		line := 1
		if m := syntaxLine.FindStringSubmatch(err.Error()); m != nil {
			_, _ = fmt.Sscan(m[1], &line) // without a number it stays 1
		}
		r.fail(line, "", "no valid YAML")
		return
	}
	if aliased(&doc) {
		r.fail(doc.Line, "", "anchors and aliases (& and *) are not taken: want each value where it is used, in quotes if it begins with one")
		return
	}
	root := doc.Content[0]
	if isNull(root) {
		return
	}
	r.mapping("", root, map[string]field{
		"hostname":            func(key string, n *yaml.Node) { r.hostname(key, n, d) },
		"groups":              func(key string, n *yaml.Node) { r.groups(key, n, d) },
		"users":               func(key string, n *yaml.Node) { r.users(key, n, d) },
		"ssh_authorized_keys": func(key string, n *yaml.Node) { d.AuthorizedKeys = append(d.AuthorizedKeys, r.keys(key, n)...) },
		"write_files":         func(key string, n *yaml.Node) { r.files(key, n, d) },
		"runcmd":              r.runcmd,
	}, others)
}

// aliased says that there is an alias: with a few of them a document means as much as one
// likes.
func aliased(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || slices.ContainsFunc(n.Content, aliased)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// field reads the value of one key.
type field func(key string, n *yaml.Node)

// mapping reads keys and values. Refused are cloud-init's keys that Kip does not carry out,
// and what to use instead, "" for nothing.
func (r *reader) mapping(key string, n *yaml.Node, known map[string]field, refused map[string]string) {
	names := slices.Sorted(maps.Keys(known))
	if n.Kind != yaml.MappingNode {
		r.fail(n.Line, key, "%s is not valid: want keys and values: %s", kindName(n), strings.Join(names, ", "))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := strings.ReplaceAll(k.Value, "-", "_") // as cloud-init takes them
		at := join(key, shownKey(k.Value))
		read, is := known[name]
		instead, real := refused[name]
		switch {
		case k.Kind != yaml.ScalarNode:
			r.fail(k.Line, key, "a key is no text")
		case seen[name] > 0:
			r.fail(k.Line, at, "this key is there twice: first on line %d", seen[name])
		case is && isNull(v):
			r.fail(k.Line, at, "there is no value")
		case is:
			read(at, v)
		case real && instead != "":
			r.fail(k.Line, at, "Kip does not carry out this key of cloud-init: want %s", instead)
		case real:
			r.fail(k.Line, at, "Kip does not carry out this key of cloud-init: want none")
		default:
			if near := suggest.Nearest(name, names); near != "" {
				r.fail(k.Line, at, "no such key; did you mean %s?", join(key, near))
			} else {
				r.fail(k.Line, at, "no such key: want one of %s", strings.Join(names, ", "))
			}
		}
		seen[name] = k.Line
	}
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// maxShown bounds how much of a name an error shows, in bytes.
const maxShown = 100

// shownKey is a key for an error: in a file it may be any text.
func shownKey(key string) string {
	if key == "" || len(key) > maxShown || strings.ContainsFunc(key, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fmt.Sprintf("%.100q", key)
	}
	return key
}

// kindName says what a node is, without its value.
func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if isNull(n) {
		return "no value"
	}
	return "a text"
}

// items calls each with the members of a list.
func (r *reader) items(key string, n *yaml.Node, of string, each field) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n.Line, key, "%s is not valid: want a list of %s", kindName(n), of)
		return
	}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", key, i)
		if isNull(item) {
			r.fail(item.Line, at, "there is no value: want one of a list of %s", of)
			continue
		}
		each(at, item)
	}
}

// text reads a value as it is written, a number too.
func (r *reader) text(key string, n *yaml.Node) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode || isNull(n):
		r.fail(n.Line, key, "%s is not valid: want a text", kindName(n))
	case n.ShortTag() == "!!binary":
		r.fail(n.Line, key, "!!binary is not taken: want a text")
	case strings.ContainsRune(n.Value, 0):
		r.fail(n.Line, key, "there is a zero byte in the text")
	default:
		return n.Value, true
	}
	return "", false
}

// line reads a text of one line that is not empty.
func (r *reader) line(key string, n *yaml.Node) (string, bool) {
	s, is := r.text(key, n)
	if is && (strings.TrimSpace(s) == "" || strings.ContainsFunc(s, unicode.IsControl)) {
		r.fail(n.Line, key, "it is empty, or has a line break or another control character: want one line")
		return "", false
	}
	return s, is
}

// boolean reads true or false.
func (r *reader) boolean(key string, n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		r.fail(n.Line, key, "%s is not valid: want true or false", kindName(n))
		return false
	}
	return strings.EqualFold(n.Value, "true")
}

func sorted(list []string) []string { slices.Sort(list); return list }
