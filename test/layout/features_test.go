package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// cloudContract is the folder with the contract of clouds.
const cloudContract = "internal/cloud"

// mayPassBare are the features that a decorator may hand on as they are, by its folder, and
// why: what it is for does not concern them.
var mayPassBare = map[string]map[string]string{
	"internal/gate": {
		"Interrupter": "says what the cloud ends, and ends nothing",
		"DiskChecker": "reads",
		"DiskGrower":  "takes nothing from anybody, and two who ask for a size get it once",
		"Checkup":     "reads",
		"Console":     "reads",
		"Tagger":      "writes what is for people",
		"Resolver":    "looks up, and makes what is for all launches",
		"Registries":  "lends a right to read",
	},
}

// featuresOf are the fields of Features in the contract.
func featuresOf(all []source) (names []string) {
	for _, s := range all {
		if s.dir() != cloudContract || s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "Features" {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				for _, name := range field.Names {
					names = append(names, name.Name)
				}
			}
			return true
		})
	}
	return names
}

// isCallOf says that a call is of a method, or function, of that name with so many arguments.
func isCallOf(n ast.Node, name string, args int) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != args {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == name
}

// decorates says that a method answers with the features of another cloud.
func decorates(f *ast.FuncDecl) bool {
	inner := false
	if f.Recv != nil && f.Name.Name == "Features" && f.Body != nil {
		ast.Inspect(f.Body, func(n ast.Node) bool {
			inner = inner || isCallOf(n, "Features", 0)
			return true
		})
	}
	return inner
}

// dressed are the features that a method puts something else in the place of, where the
// cloud behind has them.
func dressed(f *ast.FuncDecl) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		is, ok := n.(*ast.IfStmt)
		if !ok {
			return true
		}
		asked, ok := is.Cond.(*ast.BinaryExpr)
		if !ok || asked.Op != token.NEQ {
			return true
		}
		there, ok := asked.X.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		for _, statement := range is.Body.List {
			a, ok := statement.(*ast.AssignStmt)
			if !ok || len(a.Lhs) != 1 {
				continue
			}
			to, ok := a.Lhs[0].(*ast.SelectorExpr)
			if _, bare := a.Rhs[0].(*ast.SelectorExpr); ok && !bare && to.Sel.Name == there.Sel.Name {
				all[to.Sel.Name] = true
			}
		}
		return true
	})
	return all
}

// undecorated returns the features that a decorator of clouds leaves as they are, and the
// excuses that nothing needs.
func undecorated(all []source, excused map[string]map[string]string) (out []string, decorators int) {
	features := featuresOf(all)
	for _, s := range all {
		if s.isTest() || within(s.dir(), "test") {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !decorates(f) {
				continue
			}
			decorators++
			done, bare := dressed(f), excused[s.dir()]
			for _, name := range features {
				switch {
				case !done[name] && bare[name] == "":
					out = append(out, fmt.Sprintf("%s:%d hands on the feature %s as it is: whoever decorates a cloud decorates it field by field, "+
						"or calls by that field are not counted, bounded or held", s.path, s.line(f.Pos()), name))
				case done[name] && bare[name] != "":
					out = append(out, fmt.Sprintf("%s decorates %s and is excused from it", s.dir(), name))
				}
			}
			for _, name := range keys(bare) {
				if !slices.Contains(features, name) {
					out = append(out, fmt.Sprintf("%s is excused from the feature %s, which there is not", s.dir(), name))
				}
			}
		}
	}
	return out, decorators
}

func TestEachFeatureOfACloudIsDecorated(t *testing.T) {
	all := parsed(t, parser.SkipObjectResolution)
	if names := featuresOf(all); !slices.Contains(names, "Stopper") {
		t.Fatalf("the features of a cloud are %v: if they moved, this test moves with them", names)
	}
	out, decorators := undecorated(all, mayPassBare)
	report(t, out)
	if decorators < 3 { // what is counted, what waits for its turn, what is fenced
		t.Errorf("%d decorators of clouds were found, want 3 or more: this test does not see how they are made", decorators)
	}
}

func TestFeaturesThatAreNotDecoratedAreFound(t *testing.T) {
	const head = "package x\n\nfunc (c *wrapped) Features() cloud.Features {\n\tf := c.Cloud.Features()\n"
	wraps := func(lines ...string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(head + strings.Join(lines, "\n") + "\n\treturn f\n}\n")}
	}
	const stopper, disks = "if f.Stopper != nil { f.Stopper = stopper{c} }", "if f.Disks != nil { f.Disks = wrap(f.Disks) }"
	all, err := sources(fstest.MapFS{
		"internal/cloud/cloud.go":  {Data: []byte("package cloud\n\ntype Features struct {\n\tStopper Stopper\n\tDisks, More Disks\n}\n")},
		"internal/a/whole.go":      wraps(stopper, disks, "if f.More != nil { f.More = wrap(f.More) }"),
		"internal/b/one.go":        wraps(stopper, disks),
		"internal/c/itself.go":     wraps(stopper, disks, "if f.More != nil { f.More = f.More }"),
		"internal/d/other.go":      wraps(stopper, disks, "if f.Disks != nil { f.More = wrap(f.More) }"),
		"internal/e/excused.go":    wraps(stopper, disks),
		"internal/f/f_test.go":     wraps(stopper),
		"internal/g/itself.go":     {Data: []byte("package g\n\nfunc (c *Cloud) Features() cloud.Features { return cloud.Features{Disks: c} }\n")},
		"internal/h/needless.go":   wraps(stopper, disks, "if f.More != nil { f.More = wrap(f.More) }"),
		"internal/i/everything.go": wraps(),
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	out, decorators := undecorated(all, map[string]map[string]string{
		"internal/e": {"More": "why", "Gone": "why"},
		"internal/h": {"More": "why"},
	})
	expect(t, out, "internal/b/one.go:3 hands on the feature More", "internal/c/itself.go:3 hands on the feature More",
		"internal/d/other.go:3 hands on the feature More", "internal/e is excused from the feature Gone", "internal/h decorates More",
		"internal/i/everything.go:3 hands on the feature Stopper", "feature Disks", "feature More")
	if decorators != 7 {
		t.Errorf("%d decorators, want 7", decorators)
	}
}
