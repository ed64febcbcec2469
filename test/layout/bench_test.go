package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// bench is the program whose figures docs/performance.md explains.
const bench = "test/bench"

// program is a package whose strings are worked out, as far as names of figures need.
type program struct {
	functions map[string][]*ast.FuncDecl
	calls     map[string][]call // by the function's name
	constants constants
	tables    map[string]ast.Expr // variables of the package, by name
}

// call is a call, and the function that it is in.
type call struct {
	*ast.CallExpr
	in *ast.FuncDecl
}

func programOf(dir string, all []source) program {
	p := program{
		functions: map[string][]*ast.FuncDecl{},
		calls:     map[string][]call{},
		constants: constantsOf(dir, all),
		tables:    map[string]ast.Expr{},
	}
	for _, s := range all {
		if s.dir() != dir || s.isTest() {
			continue
		}
		for _, d := range s.file.Decls {
			p.addTables(d)
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			p.functions[f.Name.Name] = append(p.functions[f.Name.Name], f)
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					name := nameOf(c.Fun)
					p.calls[name] = append(p.calls[name], call{c, f})
				}
				return true
			})
		}
	}
	return p
}

// addTables takes what a declaration of variables gives them at once.
func (p program) addTables(d ast.Decl) {
	g, ok := d.(*ast.GenDecl)
	if !ok || g.Tok != token.VAR {
		return
	}
	for _, spec := range g.Specs {
		if v, ok := spec.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
			for i, name := range v.Names {
				p.tables[name.Name] = v.Values[i]
			}
		}
	}
}

// nameOf is a function's or a method's, empty for what has none.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// assigned is what a name in a function is once assigned, as x := e.
func assigned(in *ast.FuncDecl, name string) (found ast.Expr) {
	ast.Inspect(in.Body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok || a.Tok != token.DEFINE || len(a.Lhs) != len(a.Rhs) {
			return true
		}
		for i, left := range a.Lhs {
			if nameOf(left) == name {
				found = a.Rhs[i]
			}
		}
		return true
	})
	return found
}

// ranged is what a name in a function takes the elements of.
func ranged(in *ast.FuncDecl, name string) (found ast.Expr) {
	ast.Inspect(in.Body, func(n ast.Node) bool {
		if r, ok := n.(*ast.RangeStmt); ok && r.Value != nil && nameOf(r.Value) == name {
			found = r.X
		}
		return true
	})
	return found
}

// values are all that an expression in a function can be, numbers written as with %d.
func (p program) values(e ast.Expr, in *ast.FuncDecl) ([]string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, ok := literalOf(e); ok {
			return []string{text}, nil
		}
		n, err := strconv.ParseInt(e.Value, 0, 64)
		return []string{strconv.FormatInt(n, 10)}, err
	case *ast.ParenExpr:
		return p.values(e.X, in)
	case *ast.StarExpr: // of a flag
		return p.values(e.X, in)
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return p.joined(in, e.X, e.Y)
		}
	case *ast.Ident:
		return p.named(e.Name, in)
	case *ast.SelectorExpr:
		return p.fields(e, in)
	case *ast.CallExpr:
		switch name := nameOf(e.Fun); {
		case name == "Sprintf":
			return p.formatted(e, in)
		case name == "Int" && len(e.Args) == 3: // a flag's default
			return p.values(e.Args[1], in)
		}
	}
	return nil, fmt.Errorf("%s: this test cannot work out a %T", in.Name.Name, e)
}

func (p program) joined(in *ast.FuncDecl, parts ...ast.Expr) ([]string, error) {
	all := []string{""}
	for _, part := range parts {
		ends, err := p.values(part, in)
		if err != nil {
			return nil, err
		}
		var longer []string
		for _, begin := range all {
			for _, end := range ends {
				longer = append(longer, begin+end)
			}
		}
		all = longer
	}
	return all, nil
}

// named are the values of a constant, of a variable that is assigned once, or of a
// parameter: what all calls give for it.
func (p program) named(name string, in *ast.FuncDecl) (all []string, err error) {
	if e := assigned(in, name); e != nil {
		return p.values(e, in)
	}
	at := 0
	for _, field := range in.Type.Params.List {
		for _, id := range field.Names {
			if id.Name != name {
				at++
				continue
			}
			if len(p.functions[in.Name.Name]) > 1 {
				return nil, fmt.Errorf("there are two functions %s: this test cannot work out whose %s is whose", in.Name.Name, name)
			}
			for _, c := range p.calls[in.Name.Name] {
				some, err := p.values(c.Args[at], c.in)
				if err != nil {
					return nil, err
				}
				all = append(all, some...)
			}
			return all, nil
		}
	}
	if e, ok := p.constants[name]; ok {
		return p.values(e, in)
	}
	return nil, fmt.Errorf("%s: this test cannot work out %s", in.Name.Name, name)
}

// fields are the values of a field of the elements of a list that the function ranges over.
func (p program) fields(e *ast.SelectorExpr, in *ast.FuncDecl) (all []string, err error) {
	list := ranged(in, nameOf(e.X))
	if id, ok := list.(*ast.Ident); ok {
		if list = assigned(in, id.Name); list == nil {
			list = p.tables[id.Name]
		}
	}
	literal, ok := list.(*ast.CompositeLit)
	if !ok {
		return nil, fmt.Errorf("%s: this test cannot work out %s.%s", in.Name.Name, nameOf(e.X), e.Sel.Name)
	}
	for _, element := range literal.Elts {
		of, ok := element.(*ast.CompositeLit)
		for i := 0; ok && i < len(of.Elts); i++ {
			if pair, ok := of.Elts[i].(*ast.KeyValueExpr); ok && nameOf(pair.Key) == e.Sel.Name {
				some, err := p.values(pair.Value, in)
				if err != nil {
					return nil, err
				}
				all = append(all, some...)
			}
		}
	}
	return all, nil
}

// verb is one of a format in the name of a figure.
var verb = regexp.MustCompile(`%[ds]`)

func (p program) formatted(e *ast.CallExpr, in *ast.FuncDecl) ([]string, error) {
	format, ok := literalOf(e.Args[0])
	pieces := verb.Split(format, -1)
	if !ok || len(pieces) != len(e.Args) {
		return nil, fmt.Errorf("%s: this test cannot work out the format %q", in.Name.Name, format)
	}
	var parts []ast.Expr
	for i, piece := range pieces {
		parts = append(parts, &ast.BasicLit{Kind: token.STRING, Value: strconv.Quote(piece)})
		if i+1 < len(pieces) {
			parts = append(parts, e.Args[i+1])
		}
	}
	return p.joined(in, parts...)
}

// printed are the names of all figures that the benchmark can print, in order.
func printed(all []source) ([]string, error) {
	p := programOf(bench, all)
	var names []string
	for _, function := range []string{"print", "printAll"} {
		if p.functions[function] == nil || len(p.calls[function]) == 0 {
			return nil, fmt.Errorf("%s does not print by %s: this test no longer sees how figures are printed", bench, function)
		}
		for _, c := range p.calls[function] {
			some, err := p.values(c.Args[0], c.in)
			if err != nil {
				return nil, err
			}
			names = append(names, some...)
		}
	}
	for name, same := range p.functions {
		for _, f := range same {
			by := false
			ast.Inspect(f.Body, func(n ast.Node) bool {
				l, ok := n.(*ast.BasicLit)
				by = by || ok && strings.HasPrefix(l.Value, `"bench %s %s`)
				return true
			})
			if by && name != "print" && name != "printAll" {
				return nil, fmt.Errorf("%s of %s prints a figure by itself: print and printAll do", name, bench)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// unexplainedFigures compares the figures with the tables of the document: one that says what
// each means, and those with their values.
func unexplainedFigures(figures []string, document string) (out []string) {
	const means = "| name | what | goal |"
	_, table, found := strings.Cut(document, means+"\n")
	if !found {
		return []string{fmt.Sprintf("docs/performance.md has no table %q", means)}
	}
	table, others, _ := strings.Cut(table, "\n\n")
	named := func(table string) (names []string) {
		for line := range strings.Lines(table) {
			if cells := strings.Split(line, "|"); len(cells) > 2 {
				for _, m := range codeInRow.FindAllStringSubmatch(cells[1], -1) {
					names = append(names, m[1])
				}
			}
		}
		return names
	}
	explained := named(table)
	for _, name := range figures {
		if !slices.Contains(explained, name) {
			out = append(out, fmt.Sprintf("docs/performance.md does not say what %s is: a figure without its meaning is a number", name))
		}
	}
	for i, name := range explained {
		if !slices.Contains(figures, name) || slices.Contains(explained[:i], name) {
			out = append(out, fmt.Sprintf("docs/performance.md explains %s, which %s does not print, or twice", name, bench))
		}
	}
	for _, part := range strings.Split(others, "| name | value |\n")[1:] {
		values, _, _ := strings.Cut(part, "\n\n")
		for _, name := range named(values) {
			if !slices.Contains(figures, name) {
				out = append(out, fmt.Sprintf("docs/performance.md has a value of %s, which %s does not print", name, bench))
			}
		}
	}
	return out
}

func TestEachFigureIsExplained(t *testing.T) {
	figures, err := printed(parsed(t, parser.SkipObjectResolution))
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile(top(t) + "/docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	report(t, unexplainedFigures(figures, string(document)))
}

func TestEachFigureThatIsPrintedIsSeen(t *testing.T) {
	const figures = `package main

func print(name string, value float64) { fmt.Println("bench %s %s", name, value) }
func printAll(name string, values []float64) { fmt.Println("bench %s %s", name, values) }
`
	const rest = `package main

const pods, unit = 1_000, "seconds"

func main() {
	cells := flag.Int("cells", 10_000, "how many")
	run(func() { many(*cells) })
	one("small")
	b.one("large")
}

func many(cells int) {
	name := fmt.Sprintf("cells_%d_", cells)
	print(name+"up_"+unit, 1)
	print(fmt.Sprintf("pods_%d", pods), 1)
}

func (b bed) one(size string) {
	printAll("start_"+size, nil)
	figures := []struct{ name string }{{name: "wall"}, {name: "cpu"}}
	for _, f := range figures {
		printAll("kip_"+f.name, nil)
	}
}
`
	look := func(more string) ([]string, error) {
		all, err := sources(fstest.MapFS{
			bench + "/figures.go":   {Data: []byte(figures)},
			bench + "/main.go":      {Data: []byte(rest + more)},
			bench + "/main_test.go": {Data: []byte("package main\n\nfunc f() { print(odd(), 1) }\n")},
			"other/main.go":         {Data: []byte("package main\n\nfunc f() { print(odd(), 1) }\n")},
		}, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		return printed(all)
	}
	want := []string{"cells_10000_up_seconds", "kip_cpu", "kip_wall", "pods_1000", "start_large", "start_small"}
	if got, err := look(""); err != nil || !slices.Equal(got, want) {
		t.Errorf("it prints %q, %v; want %q", got, err, want)
	}
	for more, says := range map[string]string{
		"func f() { print(odd(), 1) }":                          "cannot work out",
		"func f(x string) { y, z := x, odd(); print(z, 1) }":    "cannot work out",
		"func f() { fmt.Printf(\"bench %s %s\\n\", \"x\", 1) }": "prints a figure by itself",
		"func one(size int) {}":                                 "two functions one",
	} {
		if _, err := look(more); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("with %s it says %v, want %q", more, err, says)
		}
	}
}

func TestFiguresWithoutMeaningAreFound(t *testing.T) {
	const document = "x `other`\n\n| name | what | goal |\n| --- | --- | --- |\n| `a_s`, `b_s` | one, and `other` | 1 s |\n| `c_s` | two | |\n" +
		"| `c_s` | three | |\n\nso\n\n| name | value |\n| --- | --- |\n| `a_s` | 1 |\n| `z_s` | 2 |\n\n| 500 pods | Kip |\n| --- | --- |\n| `odd` | 1 |\n"
	expect(t, unexplainedFigures([]string{"a_s", "c_s", "d_s"}, document),
		"does not say what d_s is", "explains b_s", "explains c_s", "has a value of z_s")
	expect(t, unexplainedFigures(nil, "nothing"), "has no table")
}
