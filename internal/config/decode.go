package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elotl/kip/internal/suggest"
)

// Error is one thing that is wrong with a provider.yaml.
type Error struct {
	File string
	Line int
	// Key is the full path: cells.statusInterval. "" is the file as a whole.
	Key string
	// Problem names the value, unless it is secret, and what would be right.
	Problem string
}

func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Problem)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, shownKey(e.Key), e.Problem)
}

// shownKey is a key for an error: in a file it may be any text.
func shownKey(key string) string {
	if len(key) > 200 || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return quote(key)
	}
	return key
}

// Warning is something that is accepted, and does not do what one might expect.
type Warning Error

func (w Warning) String() string { return (*Error)(&w).Error() }

// positions are where the keys of a file are.
type positions struct {
	file string
	line map[string]int
}

// has reports whether the file has the key.
func (p positions) has(key string) bool { return p.line[key] > 0 }

// of is the line of a key, or of the nearest one around it.
func (p positions) of(key string) int {
	for ; key != ""; key = parent(key) {
		if line := p.line[key]; line > 0 {
			return line
		}
	}
	return 1
}

func parent(key string) string {
	return key[:max(0, strings.LastIndexAny(key, ".["))]
}

// decoder reads YAML nodes into a Config and notes all that is wrong on the way.
type decoder struct {
	positions
	errs     []*Error
	warnings []Warning
	// replaced are the keys that are there and are not today's.
	replaced []replacement
	// migrates says that those of which nothing is left to have an effect are no errors.
	migrates bool
}

func (d *decoder) fail(line int, key, format string, args ...any) {
	d.errs = append(d.errs, &Error{
		File:    d.file,
		Line:    line,
		Key:     key,
		Problem: fmt.Sprintf(format, args...),
	})
}

func joined(errs []*Error) error {
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}

func (d *decoder) warn(key, format string, args ...any) {
	d.warnings = append(d.warnings, Warning{
		File:    d.file,
		Line:    d.of(key),
		Key:     key,
		Problem: fmt.Sprintf(format, args...),
	})
}

var (
	syntaxLine = regexp.MustCompile(`^yaml: line (\d+): `)
	// Errors about an alias quote it. It may be a password that begins with "*".
	aliasError = regexp.MustCompile(`unknown anchor '.*' referenced|anchor '.*' value contains itself`)
)

// document parses one YAML document; nil means that it failed, and said so.
func (d *decoder) document(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := dec.Decode(&doc)
	if err == nil {
		if again := dec.Decode(&next); again == nil {
			d.fail(next.Line, "", "a second document begins here: want one only")
		} else if !errors.Is(again, io.EOF) {
			err = again
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		d.fail(1, "", "the file is empty: want at least cloud and cells.defaultInstanceType")
		return nil
	case err != nil:
		line, problem := 1, err.Error()
		if m := syntaxLine.FindStringSubmatch(problem); m != nil {
			_, _ = fmt.Sscan(m[1], &line) // without a number it stays 1
			problem = problem[len(m[0]):]
		}
		problem = aliasError.ReplaceAllLiteralString(problem, "a value that begins with * is a YAML alias: put it in quotes if it is none")
		d.fail(line, "", "no valid YAML: %s", strings.TrimPrefix(problem, "yaml: "))
		return nil
	}
	return doc.Content[0]
}

// value decodes a node into v. Where it cannot, it notes an error and leaves v.
func (d *decoder) value(key string, n *yaml.Node, v reflect.Value) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case v.Kind() == reflect.Pointer && !(isNull(n) && isScalar(v.Type().Elem())):
		// Also when the node is null, if keys follow: "local:" alone chooses that cloud.
		v.Set(reflect.New(v.Type().Elem()))
		setDefaults(v.Elem())
		d.value(key, n, v.Elem())
	case isNull(n):
		// As if the key were not there.
	case isScalar(v.Type()):
		d.scalar(key, n, v)
	case v.Kind() == reflect.Struct:
		d.structure(key, n, v)
	case v.Kind() == reflect.Map:
		d.mapping(key, n, v)
	case v.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.fail(n.Line, key, "%s is not valid: want a list", d.show(n, v.Type()))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", key, i)
			d.line[at] = item.Line
			if isNull(item) {
				d.fail(item.Line, at, "there is no value: want %s", wanted(v.Type().Elem()))
				continue
			}
			setDefaults(v.Index(i))
			d.value(at, item, v.Index(i))
		}
	default:
		panic(fmt.Sprintf("config: no decoder for %s of type %s", key, v.Type()))
	}
}

// pairs calls each with the keys and values of a mapping. Keys that are twice
// there, or no text, are noted and left out.
func (d *decoder) pairs(key string, n *yaml.Node, each func(name string, k, v *yaml.Node)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		for k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		switch {
		case k.Kind != yaml.ScalarNode:
			d.fail(k.Line, key, "a key is no text")
		case seen[k.Value] > 0:
			d.fail(k.Line, join(key, k.Value), "this key is there twice: first on line %d", seen[k.Value])
		default:
			seen[k.Value] = k.Line
			each(k.Value, k, v)
		}
	}
}

func join(key, name string) string {
	if name == "" {
		name = `""`
	}
	if key == "" {
		return name
	}
	return key + "." + name
}

func (d *decoder) structure(key string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n.Line, key, "%s is not valid: want keys and values: %s", d.show(n, v.Type()), strings.Join(keysOf(v.Type()), ", "))
		return
	}
	d.pairs(key, n, func(name string, k, value *yaml.Node) {
		at := join(key, name)
		for i := range v.NumField() {
			if f := v.Type().Field(i); name != "" && f.Tag.Get("key") == name {
				d.line[at] = k.Line
				if f.Type == typeCapacity {
					v.FieldByName("Auto" + f.Name).Set(reflect.ValueOf(d.autoCapacity(at, value, v.Field(i))))
					return
				}
				if words := strings.Fields(f.Tag.Get("auto")); value.Kind == yaml.ScalarNode && slices.Contains(words, value.Value) {
					v.FieldByName("Auto" + f.Name).SetString(value.Value)
					return
				}
				if instead := deprecation(f.Tag); instead != "" {
					d.replaced = append(d.replaced, replacement{parent: key, name: name, to: f.Tag.Get("renamed"), why: f.Tag.Get("deprecated")})
					if !isNull(value) {
						d.warn(at, "is deprecated: %s", instead)
					}
				}
				if f.Tag.Get("list") != "" && value.Kind == yaml.SequenceNode {
					var all []string
					d.value(at, value, reflect.ValueOf(&all).Elem())
					v.Field(i).SetString(strings.Join(all, ","))
					return
				}
				d.value(at, value, v.Field(i))
				return
			}
		}
		// Never with the value: it may be a password whose key is misspelt.
		problem := "no such key"
		if meant := nearestKey(key, name, v.Type()); meant != "" {
			d.fail(k.Line, at, "%s; did you mean %s?", problem, meant)
			return
		}
		d.fail(k.Line, at, "%s: want one of %s", problem, strings.Join(keysOf(v.Type()), ", "))
	})
}

func isAuto(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Value == "auto" }

// autoCapacity decodes a capacity, and returns the resources of which Kip finds it out.
func (d *decoder) autoCapacity(key string, n *yaml.Node, v reflect.Value) (auto []corev1.ResourceName) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if isAuto(n) {
		return slices.Clone(AutoResources)
	}
	rest := *n
	if n.Kind == yaml.MappingNode {
		rest.Content = nil
		first := map[corev1.ResourceName]int{} // lines
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, value := n.Content[i], n.Content[i+1]
			name, at := corev1.ResourceName(k.Value), join(key, k.Value)
			switch {
			case !slices.Contains(AutoResources, name) && !slices.Contains(AutoIfNamed, name):
				rest.Content = append(rest.Content, k, value)
			case first[name] > 0:
				d.fail(k.Line, at, "this key is there twice: first on line %d", first[name])
				continue
			case isAuto(value):
				auto, d.line[at] = append(auto, name), k.Line
			case value.Kind == yaml.ScalarNode && !isNull(value) && !quantityForm.MatchString(value.Value):
				d.fail(value.Line, at, "%s is not valid: want auto, or %s", quote(value.Value), wanted(typeQuantity))
			default:
				rest.Content = append(rest.Content, k, value)
			}
			first[name] = k.Line
		}
	}
	slices.Sort(auto) // their order means nothing
	d.value(key, &rest, v)
	return auto
}

// nearestKey is the full path of the key that was probably meant: a sibling with
// a similar name, or the same name elsewhere in the file.
func nearestKey(key, name string, t reflect.Type) string {
	if near := suggest.Nearest(name, keysOf(t)); near != "" {
		return join(key, near)
	}
	for _, k := range keys {
		if k.path[strings.LastIndexByte(k.path, '.')+1:] == name {
			return k.path
		}
	}
	return ""
}

// keysOf are the keys of a struct that are not deprecated.
func keysOf(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("key") != "" && deprecation(f.Tag) == "" {
			names = append(names, f.Tag.Get("key"))
		}
	}
	return names
}

func (d *decoder) mapping(key string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n.Line, key, "%s is not valid: want %s", d.show(n, v.Type()), wanted(v.Type()))
		return
	}
	// What the default has, and the file has not, stays.
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	d.pairs(key, n, func(name string, k, value *yaml.Node) {
		at := join(key, name)
		d.line[at] = k.Line
		item := reflect.New(v.Type().Elem()).Elem()
		if isNull(value) {
			d.fail(value.Line, at, "there is no value: want %s", wanted(item.Type()))
			return
		}
		d.value(at, value, item)
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), item)
	})
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

var (
	typeSecret   = reflect.TypeFor[Secret]()
	typeDuration = reflect.TypeFor[time.Duration]()
	typeQuantity = reflect.TypeFor[resource.Quantity]()
	typePrefix   = reflect.TypeFor[netip.Prefix]()
	typeAddr     = reflect.TypeFor[netip.Addr]()
	typeCapacity = reflect.TypeFor[corev1.ResourceList]()
)

func isScalar(t reflect.Type) bool {
	switch t {
	case typeQuantity, typePrefix, typeAddr:
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return true
	}
	return false
}

// wanted says what a value of a type looks like.
func wanted(t reflect.Type) string {
	switch t {
	case typeDuration:
		return "a number of seconds"
	case typeQuantity:
		return "a quantity such as 5Gi or 500m"
	case typePrefix:
		return "a CIDR such as 10.20.0.0/16"
	case typeAddr:
		return "an IP address such as 10.20.0.1"
	case typeCapacity:
		return "auto, or names of resources and their quantities"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Map:
		return "names, each with " + wanted(t.Elem())
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		return "keys and values"
	}
	return "a text"
}

// show is a value for an error.
func (d *decoder) show(n *yaml.Node, t reflect.Type) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case t == typeSecret:
		return "the value"
	case t.Kind() == reflect.Struct && !isScalar(t):
		return "a single value" // of unknown secrecy
	}
	return quote(n.Value)
}

// quote is a value for an error, no longer than people want to read.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%q", s)
}

// quantityForm bounds a quantity before it is parsed: ParseQuantity takes hours
// over an exponent such as 1e-999999999.
var quantityForm = regexp.MustCompile(`^[+-]?[0-9.]{1,40}([A-Za-z]{0,2}|[eE][+-]?[0-9]{1,2})$`)

func (d *decoder) scalar(key string, n *yaml.Node, v reflect.Value) {
	t := v.Type()
	bad := func(more string) { d.fail(n.Line, key, "%s is not valid: want %s%s", d.show(n, t), wanted(t), more) }
	if n.Kind != yaml.ScalarNode {
		bad("")
		return
	}
	tag := n.ShortTag()
	number := tag == "!!int" || tag == "!!float"
	switch {
	case t == typeDuration:
		const most = 365 * 24 * 3600 // a year; far larger ones overflow a Duration
		var seconds float64
		if !number || n.Decode(&seconds) != nil || !(math.Abs(seconds) <= most) {
			bad("")
			return
		}
		v.SetInt(int64(seconds * float64(time.Second)))
	case t == typeQuantity:
		if !quantityForm.MatchString(n.Value) {
			bad("")
			return
		}
		q, err := resource.ParseQuantity(n.Value)
		if err != nil || tag != "!!str" && !number {
			bad("")
			return
		}
		v.Set(reflect.ValueOf(q))
	case t == typeAddr:
		a, err := netip.ParseAddr(n.Value)
		if err != nil || a.Zone() != "" {
			bad("")
			return
		}
		v.Set(reflect.ValueOf(a))
	case t == typePrefix:
		p, err := netip.ParsePrefix(n.Value)
		switch {
		case err != nil:
			bad("")
			return
		case p != p.Masked():
			bad(": did you mean " + p.Masked().String() + "?")
			return
		}
		v.Set(reflect.ValueOf(p))
	case t.Kind() == reflect.Bool:
		if tag != "!!bool" {
			bad("")
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case t.Kind() == reflect.Int:
		var i int
		if tag != "!!int" || n.Decode(&i) != nil {
			bad("")
			return
		}
		v.SetInt(int64(i))
	default: // a string
		switch {
		case tag != "!!str":
			bad(": put it in quotes")
			return
		case strings.Contains(n.Value, "FILL_IN"):
			d.fail(n.Line, key, "FILL_IN is a placeholder: replace it, or remove the key")
			return
		}
		v.SetString(n.Value)
	}
}

// setDefaults fills a struct in from its default tags. What is behind a pointer
// stays nil: whether it is there means something.
func setDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct || isScalar(v.Type()) {
		return
	}
	d := decoder{positions: positions{line: map[string]int{}}}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		if text, ok := f.Tag.Lookup("default"); ok {
			d.value(f.Name, d.document([]byte(text)), v.Field(i))
		} else {
			setDefaults(v.Field(i))
		}
	}
	if d.errs != nil {
		panic(joined(d.errs)) // a default tag in this package is wrong
	}
}
