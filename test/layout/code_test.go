package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"
)

// mostLines is how long a function may be where parts are put together.
const mostLines = 80

// short are the folders whose functions have at most mostLines.
var short = []string{"internal/kip", "internal/nodes", "cmd"}

// tooLong returns the functions that are longer than they may be.
func tooLong(all []source) []string {
	var out []string
	for _, s := range all {
		if s.isTest() || !withinAny(s.dir(), short...) {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := s.line(f.End()) - s.line(f.Pos()) + 1; n > mostLines {
				out = append(out, fmt.Sprintf("%s:%d: %s has %d lines: one that puts parts together has at most %d, and is read at a glance",
					s.path, s.line(f.Pos()), f.Name.Name, n, mostLines))
			}
		}
	}
	return out
}

// named is a declaration: the names that its comment may begin with, and the comment.
type named struct {
	names   []string
	comment *ast.CommentGroup
}

// declared are the declarations of a file, one for each comment.
func declared(s source) []named {
	var out []named
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			out = append(out, named{[]string{d.Name.Name}, d.Doc})
		case *ast.GenDecl:
			var all []string
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					out = append(out, named{[]string{spec.Name.Name}, spec.Doc})
					all = append(all, spec.Name.Name)
				case *ast.ValueSpec:
					var names []string
					for _, id := range spec.Names {
						names = append(names, id.Name)
					}
					out = append(out, named{names, spec.Doc})
					all = append(all, names...)
				}
			}
			out = append(out, named{all, d.Doc})
		}
	}
	return out
}

// mixedCaps is what only a name in code looks like.
var mixedCaps = regexp.MustCompile(`^[A-Za-z]*[a-z][A-Z][A-Za-z0-9]*$`)

// misnamed returns the comments that begin with the name of something else: of what
// was renamed, or moved away.
func misnamed(all []source) []string {
	inPackage := map[string]map[string]bool{} // by folder
	for _, s := range all {
		if inPackage[s.dir()] == nil {
			inPackage[s.dir()] = map[string]bool{}
		}
		for _, d := range declared(s) {
			for _, name := range d.names {
				inPackage[s.dir()][name] = true
			}
		}
	}
	const rule = "a comment begins with the name of what it is about"
	var out []string
	for _, s := range all {
		for _, d := range declared(s) {
			words := strings.Fields(d.comment.Text())
			if len(words) == 0 {
				continue
			}
			first := strings.TrimSuffix(strings.TrimRight(words[0], ",.:;"), "'s")
			if !slices.Contains(d.names, first) && (inPackage[s.dir()][first] || mixedCaps.MatchString(first)) {
				out = append(out, fmt.Sprintf("%s:%d: the comment of %s begins with %s: %s",
					s.path, s.line(d.comment.Pos()), strings.Join(d.names, ", "), first, rule))
			}
		}
	}
	return out
}

// logKeys are the keys of what is in most lines of the log, by others that would
// mean the same.
var logKeys = map[string]string{
	"error": "err", "e": "err", "failure": "err",
	"podName": "pod", "pod_name": "pod", "name/namespace": "pod",
	"cellID": "cell", "cell_id": "cell", "cellId": "cell",
	"instanceID": "instance", "instance_id": "instance", "instanceId": "instance", "machine": "instance",
}

// camel is where a key that is written as names in code are has a capital: keys of several
// words are parted by underscores.
var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// logged are the methods of a slog.Logger that take keys, and how many arguments are
// before the first.
var logged = map[string]int{
	"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0,
	"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2,
}

// oddKeys returns the keys of log lines that are called otherwise elsewhere.
func oddKeys(all []source) []string {
	var out []string
	for _, s := range all {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			before, ok := logged[f.Sel.Name]
			if !ok {
				return true
			}
			for i := before; i+1 < len(call.Args); i += 2 {
				key, ok := literalOf(call.Args[i])
				if !ok {
					break // no key: this is no log line
				}
				want := logKeys[key]
				if isError(call.Args[i+1]) && key != "err" {
					want = "err"
				}
				if want == "" && camel.MatchString(key) && !strings.Contains(key, " ") {
					want = strings.ToLower(camel.ReplaceAllString(key, "${1}_${2}"))
				}
				if want != "" {
					const rule = "a key is one word for one thing, or nobody finds its lines"
					out = append(out, fmt.Sprintf("%s:%d: the log key %q is %q everywhere else: %s", s.path, s.line(call.Args[i].Pos()), key, want, rule))
				}
			}
			return true
		})
	}
	return out
}

// isError says that an expression is an error, as far as its name tells.
func isError(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "err" || strings.HasSuffix(e.Name, "Err")
	case *ast.CallExpr:
		f, ok := e.Fun.(*ast.SelectorExpr)
		return ok && f.Sel.Name == "Error" && len(e.Args) == 0
	}
	return false
}

func literalOf(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// mostColumns is how wide a line may be, a tab counted as one.
const mostColumns = 140

// longText is from how many characters on a string counts for nothing: the tag of a
// field, a document in a test or a message would not be clearer in pieces.
const longText = 80

// columns returns how wide each line is, without its long texts.
func columns(text []byte) []int {
	var widths []int
	for line := range strings.Lines(string(text)) {
		widths = append(widths, utf8.RuneCountInString(strings.TrimRight(line, "\r\n")))
	}
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(text))
	s.Init(file, text, nil, 0)
	for {
		at, kind, literal := s.Scan()
		if kind == token.EOF {
			return widths
		}
		if kind != token.STRING || utf8.RuneCountInString(literal) < longText {
			continue
		}
		for n, part := range strings.Split(literal, "\n") {
			widths[file.Line(at)-1+n] -= utf8.RuneCountInString(part)
		}
	}
}

// tooWide returns the lines of Go files that are wider than they may be.
func tooWide(tree fs.FS) ([]string, error) {
	paths, err := files(tree, ".go")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range paths {
		text, err := fs.ReadFile(tree, p)
		if err != nil {
			return nil, err
		}
		for i, n := range columns(text) {
			if n > mostColumns {
				const rule = "or two files do not fit side by side"
				out = append(out, fmt.Sprintf("%s:%d has %d columns: a line has at most %d, %s", p, i+1, n, mostColumns, rule))
			}
		}
	}
	return out, nil
}

// mostFields is how many fields a literal may have in one line.
const mostFields = 3

// sharesLine says that a literal names more fields than a line may have, and has two of
// them in one. A row of a table, whose type stands at the table's head, may.
func (s source) sharesLine(l *ast.CompositeLit) bool {
	if l.Type == nil || len(l.Elts) <= mostFields {
		return false
	}
	last, shares := 0, false
	for _, e := range l.Elts {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		if _, ok := pair.Key.(*ast.Ident); !ok {
			return false // of a map
		}
		shares = shares || s.line(pair.Pos()) == last
		last = s.line(pair.Pos())
	}
	return shares
}

// tooFull returns the literals with more fields than one line may have, those of tests left
// out.
func tooFull(all []source) (out []string) {
	for _, s := range all {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if l, ok := n.(*ast.CompositeLit); ok && s.sharesLine(l) {
				out = append(out, fmt.Sprintf("%s:%d: a literal of more than %d fields has one field a line, or a change of one is not seen",
					s.path, s.line(l.Pos()), mostFields))
			}
			return true
		})
	}
	return out
}

func TestLiteralsHaveOneFieldALine(t *testing.T) {
	report(t, tooFull(parsed(t, parser.SkipObjectResolution)))
}

func TestFullLinesAreFound(t *testing.T) {
	const full = "package a\n\nvar v = T{A: 1, B: 2, C: 3,\n\tD: 4}\n"
	all, err := sources(fstest.MapFS{
		"a/full.go":      {Data: []byte(full)},
		"a/full_test.go": {Data: []byte(full)},
		"a/three.go":     {Data: []byte("package a\n\nvar v = T{A: 1, B: 2, C: 3}\n")},
		"a/lines.go":     {Data: []byte("package a\n\nvar v = T{\n\tA: 1,\n\tB: 2,\n\tC: 3,\n\tD: U{E: 1, F: 2},\n}\n")},
		"a/rows.go":      {Data: []byte("package a\n\nvar v = []T{\n\t{A: 1, B: 2, C: 3, D: 4},\n}\n")},
		"a/map.go":       {Data: []byte("package a\n\nvar v, w = map[string]int{\"a\": 1, \"b\": 2, \"c\": 3, \"d\": 4}, []int{1, 2, 3, 4}\n")},
		"a/inner.go":     {Data: []byte("package a\n\nvar v = T{A: &U{\n\tB: 1, C: 2, D: 3, E: 4,\n}}\n")},
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, tooFull(all), "a/full.go:3", "a/inner.go:3")
}

func TestFunctionsThatPutPartsTogetherAreShort(t *testing.T) {
	report(t, tooLong(parsed(t, parser.SkipObjectResolution)))
}

func TestCommentsOfFunctionsAreTheirOwn(t *testing.T) {
	report(t, misnamed(parsed(t, parser.SkipObjectResolution|parser.ParseComments)))
}

func TestLogKeysAreTheSameEverywhere(t *testing.T) {
	report(t, oddKeys(parsed(t, parser.SkipObjectResolution)))
}

func TestLinesAreNotTooWide(t *testing.T) {
	found, err := tooWide(os.DirFS(top(t)))
	if err != nil {
		t.Fatal(err)
	}
	report(t, found)
}

func TestLongFunctionsAreFound(t *testing.T) {
	function := func(lines int) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package a\n\nfunc f() {\n" + strings.Repeat("\tg()\n", lines-2) + "}\n")}
	}
	all, err := sources(fstest.MapFS{
		"cmd/kip/long.go":      function(mostLines + 1),
		"cmd/kip/short.go":     function(mostLines),
		"cmd/kip/long_test.go": function(mostLines + 1),
		"internal/kip/long.go": function(mostLines + 1),
		"internal/pods/pod.go": function(mostLines + 1),
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, tooLong(all), "cmd/kip/long.go:3: f has 81 lines", "internal/kip/long.go:3")
}

func TestCommentsOfOthersAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{
		"a/a.go": {Data: []byte(`package a

// g does it.
func f() {}

// g does it.
func g() {}

// What h does.
func h() {}

// wasHere does it.
func i() {}

// f is of T.
func (T) m() {}

// g's type.
type T int

// a and b are letters.
const (
	a = 1
	// a is another letter.
	b = 2
)
`)},
		"b/b.go": {Data: []byte("package b\n\n// g is not here.\nfunc f() {}\n")},
	}, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, misnamed(all), "a/a.go:3: the comment of f begins with g", "a/a.go:12: the comment of i begins with wasHere",
		"a/a.go:15: the comment of m begins with f", "a/a.go:18: the comment of T begins with g", "a/a.go:24: the comment of b begins with a")
}

func TestOddLogKeysAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{"a/a.go": {Data: []byte(`package a

func f() {
	log.Warn("it failed", "cell", id, "error", err)
	log.Warn("it failed", "err", err, "instanceID", i)
	c.cfg.Log.Info("it failed", "why", closeErr)
	log.WarnContext(ctx, "it failed", "cause", err.Error())
	log.With("cellID", id).Info("it runs")
	log.Info("it shrinks", "bytesBefore", n, "bytes_after", m)
	http.Error(w, err.Error(), 500)
	errors.New("error")
	log.Debug("one", args...)
}
`)}}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, oddKeys(all), `a/a.go:4: the log key "error" is "err"`, `"instanceID" is "instance"`,
		`"why" is "err"`, `"cause" is "err"`, `"cellID" is "cell"`, `"bytesBefore" is "bytes_before"`)
}

func TestWideLinesAreFound(t *testing.T) {
	row := func(columns int) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package a\n\n//" + strings.Repeat("é", columns-2) + "\n")}
	}
	found, err := tooWide(fstest.MapFS{
		"a/wide.go": row(mostColumns + 1), "a/narrow.go": row(mostColumns), "a/wide.md": row(mostColumns + 1),
		"b/c/wide.go": row(mostColumns + 1),
		"a/text.go":   {Data: []byte("package a\n\nconst text = \"" + strings.Repeat("é\\\"", 100) + "\"\n")},
		"a/raw.go":    {Data: []byte("package a\n\nconst raw = `a\n" + strings.Repeat("é", 200) + "\nb`\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, found, "a/wide.go:3 has 141 columns", "b/c/wide.go:3")
}
