package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// replacement is a key that is not today's.
type replacement struct {
	parent, name string // the key is there, of this name
	to           string // the path of the key that has taken its place; "" for none
	why          string // there is none
}

func (r replacement) key() string { return join(r.parent, r.name) }

// deprecation says what to use instead of a field, or why nothing; "" for one of today's.
func deprecation(tag reflect.StructTag) string {
	if to := tag.Get("renamed"); to != "" {
		return "use " + to
	}
	return tag.Get("deprecated")
}

// Fate is what becomes of a key of an earlier provider.yaml.
type Fate string

// Fates.
const (
	Same    Fate = "same"
	Renamed Fate = "renamed"
	Gone    Fate = "gone"
)

// MigratedKey is a key of an earlier provider.yaml.
type MigratedKey struct {
	Line int
	Key  string
	Fate Fate
	To   string // of one that is renamed
	Why  string // of one that is gone
}

// Migration is an earlier provider.yaml, and what it says today.
type Migration struct {
	// Keys are those of the file that have a value of their own, in its order.
	Keys []MigratedKey
	// YAML is today's file. Without Changed it is the one that was there. Else comments are kept, but for those of keys that are
	// gone; the indentation is not.
	YAML    []byte
	Changed bool
	// Config is what YAML says, and Warnings are about it.
	Config   *Config
	Warnings []Warning
}

// Migrate rewrites a provider.yaml of an earlier release; name is for errors. The error joins an *Error for each thing that is wrong:
// nobody can know what it was to mean.
func Migrate(name string, data []byte) (*Migration, error) {
	d := &decoder{positions: positions{file: name, line: map[string]int{}}, migrates: true}
	before, _, err := d.result(d.parse(data))
	if err != nil {
		return nil, err
	}
	m := &Migration{YAML: data, Keys: d.fates(), Changed: len(d.replaced) > 0}
	if m.Changed {
		if m.YAML, err = rewritten(data, d.replaced); err != nil {
			return nil, fmt.Errorf("%s: rewrite it: %w", name, err)
		}
	}
	if m.Config, m.Warnings, err = Parse(name, m.YAML); err != nil {
		return nil, fmt.Errorf("the rewritten file is not valid: %w", err)
	}
	// Such as by an alias, which stands for what another key has.
	if _, again := parse(name, m.YAML); len(again.replaced) > 0 || !reflect.DeepEqual(meaning(before), meaning(m.Config)) {
		return nil, fmt.Errorf("%s: the rewritten file would not mean the same: want no YAML aliases around the keys that change", name)
	}
	return m, nil
}

// fates are what becomes of all keys that have a value of their own.
func (d *decoder) fates() (all []MigratedKey) {
	replaced := map[string]replacement{}
	for _, r := range d.replaced {
		replaced[r.key()] = r
	}
	for key, line := range d.line {
		if strings.Contains(key, "[") && !strings.HasPrefix(key, cellConfig) || d.hasBelow(key) {
			continue
		}
		k := MigratedKey{Line: line, Key: shownKey(key), Fate: Same}
		if r, is := replaced[key]; is {
			k.Fate, k.To, k.Why = Gone, r.to, r.why
			if r.to != "" {
				k.Fate = Renamed
			}
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b MigratedKey) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key)) })
	return all
}

// hasBelow reports whether there are keys in the value of a key.
func (d *decoder) hasBelow(key string) bool {
	for other := range d.line {
		if strings.HasPrefix(other, key+".") {
			return true
		}
	}
	return false
}

// meaning is a configuration without where its keys were, and without those that are not today's.
func meaning(c *Config) Config {
	today := *c
	today.at = positions{}
	today.Cells.CellConfig = nil
	forget(reflect.ValueOf(&today).Elem())
	return today
}

// forget empties the fields that are not today's.
func forget(v reflect.Value) {
	for i := range v.NumField() {
		f, field := v.Type().Field(i), v.Field(i)
		switch {
		case deprecation(f.Tag) != "":
			field.SetZero()
		case f.Tag.Get("key") == "":
		case f.Type.Kind() == reflect.Pointer && !field.IsNil() && !isScalar(f.Type.Elem()):
			copied := reflect.New(f.Type.Elem())
			copied.Elem().Set(field.Elem())
			forget(copied.Elem())
			field.Set(copied)
		case f.Type.Kind() == reflect.Struct && !isScalar(f.Type):
			forget(field)
		}
	}
}

// rewritten is a document with keys replaced.
func rewritten(data []byte, replaced []replacement) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, err
	}
	root := document.Content[0]
	for _, r := range replaced {
		parent, err := mappingAt(root, r.parent)
		if err != nil {
			return nil, err
		}
		at := indexOf(parent, r.name)
		if at < 0 {
			return nil, fmt.Errorf("there is no %s", r.key())
		}
		key, value := parent.Content[at], parent.Content[at+1]
		parent.Content = slices.Delete(parent.Content, at, at+2)
		if r.to != "" && !isNull(value) {
			if err := put(root, parent, at, r.to, key, value); err != nil {
				return nil, err
			}
		}
	}
	if cells, err := mappingAt(root, parent(cellConfig)); err == nil {
		if at := indexOf(cells, cellConfig[len(parent(cellConfig))+1:]); at >= 0 && len(resolved(cells.Content[at+1]).Content) == 0 {
			cells.Content = slices.Delete(cells.Content, at, at+2)
		}
	}
	var text bytes.Buffer
	out := yaml.NewEncoder(&text)
	out.SetIndent(2)
	if err := errors.Join(out.Encode(&document), out.Close()); err != nil {
		return nil, err
	}
	return spaced(text.Bytes(), data), nil
}

// spaced is a text with the empty lines of an earlier one, before the lines that both have.
func spaced(text, earlier []byte) []byte {
	lines := func(b []byte) []string { return strings.Split(strings.ReplaceAll(string(b), "\r\n", "\n"), "\n") }
	var out []string
	from, old := 0, lines(earlier)
	for n, line := range lines(text) {
		same := func(l string) bool { return strings.TrimSpace(l) == strings.TrimSpace(line) }
		if at := slices.IndexFunc(old[from:], same); at >= 0 && strings.TrimSpace(line) != "" {
			at += from
			from = at + 1
			if at > 0 && n > 0 && strings.TrimSpace(old[at-1]) == "" && out[len(out)-1] != "" {
				out = append(out, "")
			}
		}
		out = append(out, line)
	}
	return []byte(strings.Join(out, "\n"))
}

// put gives a value another key. Mappings on the way are made where old was, in its parent.
func put(root, old *yaml.Node, at int, path string, key, value *yaml.Node) error {
	names := strings.Split(path, ".")
	in := root
	for _, name := range names[:len(names)-1] {
		n := indexOf(in, name)
		switch {
		case n >= 0 && isNull(in.Content[n+1]):
			in.Content[n+1] = &yaml.Node{Kind: yaml.MappingNode}
		case n < 0:
			n = len(in.Content)
			if in == old {
				n = at
			}
			in.Content = slices.Insert(in.Content, n, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, &yaml.Node{Kind: yaml.MappingNode})
		}
		if in = resolved(in.Content[n+1]); in.Kind != yaml.MappingNode {
			return fmt.Errorf("%s: want keys and values", path)
		}
	}
	key.Value = names[len(names)-1]
	in.Content = append(in.Content, key, value)
	return nil
}

// mappingAt is the mapping at a path of keys.
func mappingAt(root *yaml.Node, path string) (*yaml.Node, error) {
	in := resolved(root)
	for name := range strings.SplitSeq(path, ".") {
		n := indexOf(in, name)
		if n < 0 {
			return nil, fmt.Errorf("there is no %s", path)
		}
		in = resolved(in.Content[n+1])
	}
	return in, nil
}

// indexOf is where a key of a mapping is; -1 for nowhere.
func indexOf(mapping *yaml.Node, name string) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if resolved(mapping.Content[i]).Value == name {
			return i
		}
	}
	return -1
}

// resolved is a node, or what it is an alias of.
func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}
