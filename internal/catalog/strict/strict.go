// Package strict reads files of figures, in JSON or YAML: what is missing, twice there or
// of a wrong type is an error with file, line and field. What the figures mean is its
// caller's business.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// mostErrors is how many problems of a file are named.
const mostErrors = 20

// File is a file that is being read, and all that was found wrong with it.
type File struct {
	name string
	errs []error
	more int
}

// Value is a value in a File, and the path of fields to it.
type Value struct {
	file  *File
	node  *yaml.Node // nil where there is none
	Field string
}

// Open parses a file. The error names its line.
func Open(name string, data []byte) (*File, Value, error) {
	f := &File{name: name}
	// JSON may be indented with tabs, which YAML forbids and strings of JSON do too.
	dec := yaml.NewDecoder(bytes.NewReader(bytes.ReplaceAll(data, []byte("\t"), []byte(" "))))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, Value{}, fmt.Errorf("%s: the file is empty", name)
	case err != nil:
		return nil, Value{}, fmt.Errorf("%s: %w", name, err)
	}
	return f, Value{file: f, node: resolved(doc.Content[0])}, nil
}

func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Err joins what was found wrong, nil for nothing.
func (f *File) Err() error {
	if f.more > 0 {
		return errors.Join(append(slices.Clone(f.errs), fmt.Errorf("%s: and %d more", f.name, f.more))...)
	}
	return errors.Join(f.errs...)
}

// Bad notes that a value is wrong.
func (v Value) Bad(format string, args ...any) {
	v.file.bad(v.node.Line, v.Field, format, args...)
}

func (f *File) bad(line int, field, format string, args ...any) {
	if len(f.errs) == mostErrors {
		f.more++
		return
	}
	if strings.ContainsFunc(field, func(r rune) bool { return !unicode.IsPrint(r) }) {
		field = strconv.Quote(field)
	}
	f.errs = append(f.errs, fmt.Errorf("%s:%d: %s: %s", f.name, line, field, fmt.Sprintf(format, args...)))
}

// There reports whether there is such a value at all.
func (v Value) There() bool { return v.node != nil && v.node.Tag != "!!null" }

// Object calls each with the fields of an object. One that is there twice is noted and
// left out.
func (v Value) Object(each func(name string, v Value)) {
	if v.node.Kind != yaml.MappingNode {
		v.Bad("want an object")
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := v.node.Content[i]
		field := Value{v.file, resolved(v.node.Content[i+1]), v.Field + "." + k.Value}
		if v.Field == "" {
			field.Field = k.Value
		}
		if line := first[k.Value]; line > 0 {
			v.file.bad(k.Line, field.Field, "it is there twice: first on line %d", line)
			continue
		}
		first[k.Value] = k.Line
		each(k.Value, field)
	}
}

// Fields returns the fields of an object. One that is not among the known is noted.
func (v Value) Fields(known ...string) func(name string) Value {
	all := map[string]Value{}
	v.Object(func(name string, field Value) {
		if !slices.Contains(known, name) {
			field.Bad("it is unknown: want one of %s", strings.Join(known, ", "))
			return
		}
		all[name] = field
	})
	return func(name string) Value {
		if field, ok := all[name]; ok {
			return field
		}
		return Value{file: v.file, Field: v.Field + "." + name}
	}
}

// In is the same value, whose absence is noted where the object is.
func (v Value) In(object Value) Value {
	if !v.There() {
		object.file.bad(object.node.Line, v.Field, "it is missing")
	}
	return v
}

// List calls each with the elements of a list.
func (v Value) List(each func(v Value)) {
	if !v.There() {
		return
	}
	if v.node.Kind != yaml.SequenceNode {
		v.Bad("want a list")
		return
	}
	for i, n := range v.node.Content {
		each(Value{v.file, resolved(n), fmt.Sprintf("%s[%d]", v.Field, i)})
	}
}

// Number is a number of least to most; 0 where there is none, or a wrong one, which is noted.
func (v Value) Number(least, most float64) float64 {
	if !v.There() {
		return 0
	}
	n, err := strconv.ParseFloat(v.node.Value, 64)
	switch {
	case v.node.Kind != yaml.ScalarNode || v.node.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 || err != nil || math.IsInf(n, 0):
		v.Bad("want a number")
	case math.IsNaN(n):
		v.Bad("NaN is no number")
	case n < least || n > most:
		v.Bad("%s is not possible: want %g to %g", v.node.Value, least, most)
	default:
		return n
	}
	return 0
}

// Text is a string; "" where there is none, or a wrong one, which is noted.
func (v Value) Text() string {
	if !v.There() {
		return ""
	}
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!str" {
		v.Bad("want a string")
		return ""
	}
	return v.node.Value
}

// Bool is true or false; false where there is none, or a wrong one, which is noted.
func (v Value) Bool() bool {
	if !v.There() {
		return false
	}
	if v.node.ShortTag() != "!!bool" {
		v.Bad("want true or false")
	}
	return v.node.Value == "true"
}

// Texts is a list of strings.
func (v Value) Texts() (all []string) {
	v.List(func(v Value) { all = append(all, v.Text()) })
	return all
}
