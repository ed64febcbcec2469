package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// wired are the rooms whose parts internal/kip makes of one another.
var wired = []string{
	"internal/cells", "internal/explain", "internal/isolation", "internal/kip", "internal/nodes", "internal/pods", "internal/provisioner",
}

// configs are the names of the structs by which a room is given what it uses.
var configs = []string{"Config", "Equipment"}

// givenFuncs are the functions that such a room may be given, by the field or by their type,
// and why no object would be better.
var givenFuncs = map[string]string{
	"internal/backoff.Random":                  "randomness is passed in, as a clock is",
	"internal/isolation.Config.AllowsMetadata": "it is pure: what the operator grants does not change while Kip runs",
}

// funcTypes are the names of types that are functions, each with its folder before it.
func funcTypes(all []source) map[string]bool {
	out := map[string]bool{}
	for _, s := range all {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if t, ok := n.(*ast.TypeSpec); ok {
				if _, is := t.Type.(*ast.FuncType); is {
					out[s.dir()+"."+t.Name.Name] = true
				}
			}
			return true
		})
	}
	return out
}

// typeName is that of a type of our own, with its folder before it; "" for any other.
func (s source) typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return s.dir() + "." + e.Name
	case *ast.SelectorExpr:
		name, ok := e.X.(*ast.Ident)
		if !ok {
			return ""
		}
		for _, i := range s.file.Imports {
			dir, ours := own(strings.Trim(i.Path.Value, `"`))
			if is := dir[strings.LastIndex(dir, "/")+1:] == name.Name; ours && (i.Name == nil && is || i.Name != nil && i.Name.Name == name.Name) {
				return dir + "." + e.Sel.Name
			}
		}
	}
	return ""
}

// givenClosures returns the functions that are given to the rooms that internal/kip wires,
// and the reasons in givenFuncs that are of none.
func givenClosures(all []source) []string {
	named := funcTypes(all)
	unused := maps.Clone(givenFuncs)
	var out []string
	look := func(s source, of string, f *ast.Field) {
		name := s.typeName(f.Type)
		if _, is := f.Type.(*ast.FuncType); !is && !named[name] {
			return
		}
		for _, id := range f.Names {
			field := s.dir() + "." + of + "." + id.Name
			_, byField := givenFuncs[field]
			_, byType := givenFuncs[name]
			delete(unused, field)
			delete(unused, name)
			if id.Name == "Now" || byField || byType {
				continue
			}
			out = append(out, fmt.Sprintf("%s:%d: %s.%s is a function: what a room asks or tells is an interface of its own with what it needs, "+
				"so that internal/kip passes objects, and no closures over what is not made yet", s.path, s.line(id.Pos()), of, id.Name))
		}
	}
	for _, s := range all {
		if s.isTest() || !slices.Contains(wired, s.dir()) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			t, ok := n.(*ast.TypeSpec)
			if !ok || !slices.Contains(configs, t.Name.Name) {
				return true
			}
			if is, ok := t.Type.(*ast.StructType); ok {
				for _, f := range is.Fields.List {
					look(s, t.Name.Name, f)
				}
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(unused)) {
		out = append(out, fmt.Sprintf("givenFuncs: %s is no function that a room is given", name))
	}
	return out
}

func TestRoomsAreGivenObjectsNotClosures(t *testing.T) {
	report(t, givenClosures(parsed(t, parser.SkipObjectResolution)))
}

func TestGivenClosuresAreFound(t *testing.T) {
	files := fstest.MapFS{
		"internal/backoff/backoff.go": {Data: []byte("package backoff\n\ntype Random func() float64\n\ntype Other func()\n")},
		"internal/isolation/isolation.go": {Data: []byte("package isolation\n\ntype Config struct {\n" +
			"\tAllowsMetadata func() bool\n\tEvent func()\n}\n")},
		"internal/pods/pods.go": {Data: []byte(`package pods

import (
	"github.com/elotl/kip/internal/backoff"
	jitter "github.com/elotl/kip/internal/backoff"
	"k8s.io/utils/clock"
)

type alias = func()

type Config struct {
	Random backoff.Random
	Now    func() time.Time
	Clock  clock.PassiveClock
	Nodes  Nodes
	One    backoff.Other
	Two    jitter.Other
	Three  alias
	Four, Five func(string) bool
}

type Equipment struct{ Six func() }

type other struct{ Seven func() }
`)},
		"internal/pods/pods_test.go":   {Data: []byte("package pods\n\ntype Config struct{ Event func() }\n")},
		"internal/gate/gate.go":        {Data: []byte("package gate\n\ntype Config struct{ Behind func() string }\n")},
		"internal/pods/below/below.go": {Data: []byte("package below\n\ntype Config struct{ Event func() }\n")},
	}
	all, err := sources(files, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, givenClosures(all), "internal/isolation/isolation.go:5: Config.Event", "internal/pods/pods.go:16: Config.One",
		"internal/pods/pods.go:17: Config.Two", "internal/pods/pods.go:18: Config.Three", "internal/pods/pods.go:19: Config.Four",
		"internal/pods/pods.go:19: Config.Five", "internal/pods/pods.go:22: Equipment.Six")
	delete(files, "internal/isolation/isolation.go")
	if all, err = sources(files, parser.SkipObjectResolution); err != nil {
		t.Fatal(err)
	}
	if found := strings.Join(givenClosures(all), "\n"); !strings.Contains(found, "AllowsMetadata is no function") {
		t.Errorf("a reason without its function is not found: %s", found)
	}
}
