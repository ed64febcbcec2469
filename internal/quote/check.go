package quote

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elotl/kip/internal/sanitize"
	"github.com/elotl/kip/internal/suggest"
)

// Error is one thing that is wrong with a manifest.
type Error struct {
	File string
	Line int
	// Object is the kind and name of the object that it is in; "" where that is not known.
	Object string
	// Problem names field, value and what would be right.
	Problem string
}

func (e *Error) Error() string {
	if e.Object == "" {
		return sanitize.Printable(fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Problem))
	}
	return sanitize.Printable(fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Object, e.Problem))
}

// mostNodes bounds what a manifest may grow to: aliases of aliases grow without end.
const mostNodes = 2_000_000

// finite reports whether a document ends, and within mostNodes, when its aliases are
// followed.
func finite(n *yaml.Node, within map[*yaml.Node]bool, nodes *int) bool {
	if *nodes++; *nodes > mostNodes || within[n] {
		return false
	}
	within[n] = true
	defer delete(within, n)
	if n.Kind == yaml.AliasNode {
		return finite(n.Alias, within, nodes)
	}
	for _, below := range n.Content {
		if !finite(below, within, nodes) {
			return false
		}
	}
	return true
}

// checker compares a document with the type of its object.
type checker struct {
	file, object string
	line         map[string]int // of each field
	errs         []*Error
}

func (c *checker) bad(line int, format string, args ...any) {
	c.errs = append(c.errs, &Error{c.file, line, c.object, fmt.Sprintf(format, args...)})
}

// at notes what is wrong with the value of a field, or with the nearest one above that is there.
func (c *checker) at(field, format string, args ...any) {
	line := 0
	for f := field; line == 0; f = f[:max(0, strings.LastIndexAny(f, ".["))] {
		if line = c.line[f]; f == "" {
			break
		}
	}
	c.bad(max(1, line), "%s: %s", field, fmt.Sprintf(format, args...))
}

func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// pair is a key and its value.
type pair struct{ key, value *yaml.Node }

// pairs are those of a mapping, with those that are merged into it.
func (c *checker) pairs(n *yaml.Node) (all []pair) {
	var merged []*yaml.Node
	has := func(name string) bool {
		return slices.ContainsFunc(all, func(p pair) bool { return p.key.Value == name })
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := resolved(n.Content[i]), resolved(n.Content[i+1])
		switch {
		case k.ShortTag() == "!!merge" && v.Kind == yaml.SequenceNode:
			for _, from := range v.Content {
				merged = append(merged, resolved(from))
			}
		case k.ShortTag() == "!!merge":
			merged = append(merged, v)
		case has(k.Value):
			c.bad(k.Line, "key %q already set in map", k.Value)
		default:
			all = append(all, pair{k, v})
		}
	}
	for _, from := range merged {
		for _, p := range c.pairs(from) {
			if !has(p.key.Value) {
				all = append(all, p)
			}
		}
	}
	return all
}

var (
	unmarshaler  = reflect.TypeFor[json.Unmarshaler]()
	quantityType = reflect.TypeFor[resource.Quantity]()
	// longExponent is what ParseQuantity takes hours over.
	longExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3,}`)
)

// value checks a value, and all below it, against the type that it is read into.
func (c *checker) value(n *yaml.Node, t reflect.Type, field string) {
	n = resolved(n)
	c.line[field] = n.Line
	wrong := func(want string) { c.bad(n.Line, "%s: %s", field, want) }
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tag := n.ShortTag()
	switch {
	case tag == "!!null" || t.Kind() == reflect.Interface:
	case t == quantityType && longExponent.MatchString(n.Value):
		wrong(resource.ErrFormatWrong.Error())
	case reflect.PointerTo(t).Implements(unmarshaler):
		if err := json.Unmarshal(c.json(n), reflect.New(t).Interface()); err != nil {
			wrong(err.Error())
		}
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		c.fields(n, t, field)
	case t.Kind() == reflect.Map && n.Kind == yaml.MappingNode:
		for _, p := range c.pairs(n) {
			c.value(p.value, t.Elem(), join(field, p.key.Value))
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && n.Kind == yaml.SequenceNode:
		for i, item := range n.Content {
			c.value(item, t.Elem(), fmt.Sprintf("%s[%d]", field, i))
		}
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		wrong("want an object")
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		wrong("want a list")
	case n.Kind != yaml.ScalarNode:
		wrong("want a single value")
	default:
		if err := json.Unmarshal(c.json(n), reflect.New(t).Interface()); err != nil {
			wrong(fmt.Sprintf("Invalid value: %q: want %s", n.Value, words(t)))
		}
	}
}

// words are for a value of one of JSON's simple types.
func words(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string; put it in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "bytes in base64"
	}
	return "a whole number"
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

func (c *checker) fields(n *yaml.Node, t reflect.Type, field string) {
	known := map[string]reflect.Type{}
	fieldsOf(t, known)
	for _, p := range c.pairs(n) {
		of, ok := known[p.key.Value]
		if !ok {
			meant := ""
			if nearest := suggest.Nearest(p.key.Value, names(known)); nearest != "" {
				meant = fmt.Sprintf("; did you mean %s?", nearest)
			}
			c.bad(p.key.Line, "unknown field %q%s", join(field, p.key.Value), meant)
			continue
		}
		c.value(p.value, of, join(field, p.key.Value))
	}
}

// fieldsOf are the JSON fields of a struct, with those of what is embedded in it.
func fieldsOf(t reflect.Type, known map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			fieldsOf(f.Type, known)
		case name != "" && name != "-":
			known[name] = f.Type
		}
	}
}

func names(known map[string]reflect.Type) (all []string) {
	for name := range known {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// json is the same value in JSON.
func (c *checker) json(n *yaml.Node) []byte {
	out, err := json.Marshal(c.plain(resolved(n)))
	if err != nil {
		c.bad(n.Line, "%v", err) // an infinite number
		return []byte("null")
	}
	return out
}

func (c *checker) plain(n *yaml.Node) any {
	n = resolved(n)
	switch n.Kind {
	case yaml.MappingNode:
		all := map[string]any{}
		for _, p := range c.pairs(n) {
			all[p.key.Value] = c.plain(p.value)
		}
		return all
	case yaml.SequenceNode:
		all := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			all = append(all, c.plain(item))
		}
		return all
	}
	switch n.ShortTag() {
	case "!!null", "!!bool", "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err == nil {
			return v
		}
	}
	return n.Value
}
