package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"slices"
	"testing"
	"testing/fstest"
)

// reasonsFolder is where the reasons of Events are constants.
const reasonsFolder = "internal/events"

// eventReporters are the methods that report an Event, and which of their arguments the reason
// is: those of record.EventRecorder, and ours, which are called like them.
var eventReporters = map[string]int{"Event": 2, "Eventf": 2, "AnnotatedEventf": 3}

// repeats are the files that pass on Events of others, with their reasons.
var repeats = []string{
	"internal/cellapi/events.go", // a kubelet's, of its own pod
	"cmd/kipctl/cluster.go",      // shows them
}

// value is what a variable gets: an expression, or the nth result of the call that it is.
type value struct {
	expr ast.Expr
	nth  int // -1 for the expression itself
}

// argument is which one of a function a variable is.
type argument struct {
	of  types.Object // nil for a literal
	nth int
}

// room is a package with what is known of it without those that it imports.
type room struct {
	files     []source
	info      *types.Info
	functions map[types.Object]*ast.FuncDecl
	arguments map[types.Object]argument
	values    map[types.Object][]value
	calls     []*ast.CallExpr
}

// roomsOf are the packages of files, those of tests left out: there, what stands for a
// kubelet says what a kubelet does.
func roomsOf(all []source) map[string]*room {
	found := map[string]*room{}
	for _, s := range all {
		if s.isTest() || within(s.dir(), "test") {
			continue
		}
		key := path.Join(s.dir(), s.file.Name.Name)
		if found[key] == nil {
			found[key] = &room{
				info: &types.Info{
					Defs:       map[*ast.Ident]types.Object{},
					Uses:       map[*ast.Ident]types.Object{},
					Selections: map[*ast.SelectorExpr]*types.Selection{},
					Types:      map[ast.Expr]types.TypeAndValue{},
				},
				functions: map[types.Object]*ast.FuncDecl{},
				arguments: map[types.Object]argument{},
				values:    map[types.Object][]value{},
			}
		}
		found[key].files = append(found[key].files, s)
	}
	for key, r := range found {
		var files []*ast.File
		for _, s := range r.files {
			files = append(files, s.file)
		}
		// What is imported is not known, which is no error here.
		_, _ = (&types.Config{Error: func(error) {}}).Check(key, r.files[0].set, files, r.info)
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				r.learn(n)
				return true
			})
		}
	}
	return found
}

// learn takes what a node says of where variables come from.
func (r *room) learn(n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		r.functions[r.info.Defs[n.Name]] = n
		r.takes(r.info.Defs[n.Name], n.Type)
	case *ast.FuncLit:
		r.takes(nil, n.Type)
	case *ast.CallExpr:
		r.calls = append(r.calls, n)
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			r.gets(r.variable(to), n.Rhs, i)
		}
	case *ast.ValueSpec:
		for i, to := range n.Names {
			r.gets(r.info.Defs[to], n.Values, i)
		}
	case *ast.RangeStmt:
		for _, to := range []ast.Expr{n.Key, n.Value} {
			r.gets(r.variable(to), []ast.Expr{n.X, n.X}, 0)
		}
	case *ast.CompositeLit:
		r.fills(n)
	}
}

func (r *room) takes(f types.Object, typ *ast.FuncType) {
	n := 0
	for _, field := range typ.Params.List {
		for _, name := range field.Names {
			r.arguments[r.info.Defs[name]] = argument{f, n}
			n++
		}
	}
}

// variable is what an expression names: a variable or a field, nil for what is neither.
func (r *room) variable(e ast.Expr) types.Object {
	switch e := e.(type) {
	case *ast.Ident:
		if d := r.info.Defs[e]; d != nil {
			return d
		}
		return r.info.Uses[e]
	case *ast.SelectorExpr:
		if s := r.info.Selections[e]; s != nil {
			return s.Obj()
		}
	}
	return nil
}

func (r *room) gets(to types.Object, from []ast.Expr, i int) {
	switch {
	case to == nil:
	case len(from) > i && (i > 0 || len(from) > 1):
		r.values[to] = append(r.values[to], value{from[i], -1})
	case len(from) == 1:
		v := value{from[0], -1}
		if call, ok := from[0].(*ast.CallExpr); ok {
			v = value{call, i}
		}
		r.values[to] = append(r.values[to], v)
	}
}

// fills takes the fields of a literal.
func (r *room) fills(l *ast.CompositeLit) {
	typ := r.info.Types[l].Type
	if typ == nil {
		return
	}
	if p, ok := typ.Underlying().(*types.Pointer); ok {
		typ = p.Elem()
	}
	fields, ok := typ.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, e := range l.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			if name, ok := pair.Key.(*ast.Ident); ok {
				r.gets(r.info.Uses[name], []ast.Expr{pair.Value}, 0)
			}
		} else if i < fields.NumFields() {
			r.gets(fields.Field(i), []ast.Expr{e}, 0)
		}
	}
}

// reasons follows the reasons of Events to where they come from.
type reasons struct {
	rooms map[string]*room
	known map[string]bool // the constants
	seen  map[any]bool
	out   []string
}

// strayReasons returns the reasons of Events that are no constants of internal/events,
// also those that come there by functions, variables and fields.
func strayReasons(all []source, excused []string) []string {
	rs := &reasons{rooms: roomsOf(all), known: map[string]bool{}, seen: map[any]bool{}}
	for name := range constantsOf(reasonsFolder, all) {
		rs.known[name] = true
	}
	for _, key := range sortedRooms(rs.rooms) {
		r := rs.rooms[key]
		for _, call := range r.calls {
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				continue
			}
			n, reports := eventReporters[f.Sel.Name]
			if !reports || len(call.Args) < n+2 || slices.Contains(excused, r.at(call).path) {
				continue
			}
			rs.follow(r, call.Args[n], false)
		}
		rs.made(r, excused)
	}
	return rs.out
}

func sortedRooms(rooms map[string]*room) (names []string) {
	for name := range rooms {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// made looks at the Events that are made as objects.
func (rs *reasons) made(r *room, excused []string) {
	for _, s := range r.files {
		if slices.Contains(excused, s.path) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			l, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if typ, ok := l.Type.(*ast.SelectorExpr); !ok || typ.Sel.Name != "Event" {
				return true
			}
			for _, e := range l.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "Reason" {
						rs.follow(r, pair.Value, false)
					}
				}
			}
			return true
		})
	}
}

// at is the file that a node is in.
func (r *room) at(n ast.Node) source {
	for _, s := range r.files {
		if s.file.FileStart <= n.Pos() && n.Pos() <= s.file.FileEnd {
			return s
		}
	}
	return r.files[0]
}

func (rs *reasons) stray(r *room, e ast.Expr, what string) {
	s := r.at(e)
	rs.out = append(rs.out, fmt.Sprintf("%s:%d: the reason of an Event is %s: it is a constant of %s, so that alarms find it and "+
		"nobody renames it", s.path, s.line(e.Pos()), what, reasonsFolder))
}

// follow looks where an expression comes from. One that got somewhere by a variable may be
// empty: then there is nothing to report.
func (rs *reasons) follow(r *room, e ast.Expr, byVariable bool) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		rs.follow(r, e.X, byVariable)
		return
	case *ast.BasicLit:
		if !byVariable || e.Value != `""` {
			rs.stray(r, e, "the literal "+e.Value)
		}
		return
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if p, ok := r.info.Uses[x].(*types.PkgName); ok {
				if dir, ours := own(p.Imported().Path()); !ours || dir != reasonsFolder || !rs.known[e.Sel.Name] {
					rs.stray(r, e, x.Name+"."+e.Sel.Name)
				}
				return
			}
		}
		if obj := r.variable(e); obj != nil {
			rs.variable(r, obj)
			return
		}
	case *ast.Ident:
		if obj := r.info.Uses[e]; obj != nil {
			rs.variable(r, obj)
			return
		}
	case *ast.CallExpr:
		rs.result(r, e, 0)
		return
	case *ast.IndexExpr:
		rs.follow(r, e.X, byVariable) // of a table, whose values are below
		return
	case *ast.CompositeLit:
		for _, element := range e.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				element = pair.Value
			}
			rs.follow(r, element, true)
		}
		return
	}
	rs.stray(r, e, fmt.Sprintf("made by an %T", e))
}

// variable looks at all that a variable, a field or an argument ever is.
func (rs *reasons) variable(r *room, obj types.Object) {
	if rs.seen[obj] {
		return
	}
	rs.seen[obj] = true
	if a, is := r.arguments[obj]; is && a.of != nil {
		rs.callers(r, a)
	}
	for _, v := range r.values[obj] {
		if call, ok := v.expr.(*ast.CallExpr); ok && v.nth >= 0 {
			rs.result(r, call, v.nth)
			continue
		}
		rs.follow(r, v.expr, true)
	}
}

// callers looks at what a function is given, in its own package, and in all others if it
// can be called there.
func (rs *reasons) callers(r *room, a argument) {
	for _, key := range sortedRooms(rs.rooms) {
		other := rs.rooms[key]
		if other != r && !a.of.Exported() {
			continue
		}
		for _, call := range other.calls {
			name := called(call)
			if name == nil || name.Name != a.of.Name() || a.nth >= len(call.Args) {
				continue
			}
			// One of that name whose package is not known may be it.
			if is := other.info.Uses[name]; is == a.of || is == nil || is.Pkg() != a.of.Pkg() {
				if _, another := other.functions[is]; !another || is == a.of {
					rs.follow(other, call.Args[a.nth], false)
				}
			}
		}
	}
}

// called is the name of what a call calls, nil where it has none.
func called(call *ast.CallExpr) *ast.Ident {
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		return f
	case *ast.SelectorExpr:
		return f.Sel
	}
	return nil
}

// result looks at what a call returns.
func (rs *reasons) result(r *room, call *ast.CallExpr, nth int) {
	if isCallOf(call, "Or", len(call.Args)) {
		for _, e := range call.Args {
			rs.follow(r, e, true)
		}
		return
	}
	name := called(call)
	if name != nil && name.Name == "string" && len(call.Args) == 1 {
		rs.follow(r, call.Args[0], true)
		return
	}
	var f *ast.FuncDecl
	if name != nil {
		f = r.functions[r.info.Uses[name]]
	}
	if f == nil || f.Body == nil {
		rs.stray(r, call, "what a function returns that is not in this package")
		return
	}
	if key := [2]any{f, nth}; !rs.seen[key] {
		rs.seen[key] = true
		rs.returns(r, f, nth)
	}
}

// returns looks at all that a function returns in a place.
func (rs *reasons) returns(r *room, f *ast.FuncDecl, nth int) {
	var named []*ast.Ident
	for _, field := range f.Type.Results.List {
		named = append(named, field.Names...)
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			switch call, _ := soleCall(n.Results); {
			case len(n.Results) == 0 && nth < len(named):
				rs.variable(r, r.info.Defs[named[nth]])
			case len(n.Results) > nth && (len(n.Results) > 1 || call == nil):
				rs.follow(r, n.Results[nth], true)
			case call != nil:
				rs.result(r, call, nth)
			}
		}
		return true
	})
}

func soleCall(results []ast.Expr) (*ast.CallExpr, bool) {
	if len(results) != 1 {
		return nil, false
	}
	call, ok := results[0].(*ast.CallExpr)
	return call, ok
}

// spelledAlike are words of others that are spelled like a reason, with the folders that use them.
var spelledAlike = map[string][]string{
	"VolumeInUse": {"dev/ec2", "internal/cloud/aws"}, // a code of EC2's errors
}

// repeated returns the literals that spell a reason of an Event once more. A word that means
// other things too is left out: only names of several words are looked at.
func repeated(all []source) (out []string) {
	named := map[string]string{}
	for name, e := range constantsOf(reasonsFolder, all) {
		if text, ok := literalOf(e); ok && mixedCaps.MatchString(text) {
			named[text] = name
		}
	}
	for _, s := range all {
		if s.isTest() || s.dir() == reasonsFolder {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}
			if text, ok := literalOf(l); ok && named[text] != "" && !slices.Contains(spelledAlike[text], s.dir()) {
				out = append(out, fmt.Sprintf("%s:%d spells %s: it is events.%s", s.path, s.line(l.Pos()), l.Value, named[text]))
			}
			return true
		})
	}
	return out
}

func TestReasonsOfEventsAreConstants(t *testing.T) {
	all := parsed(t, parser.SkipObjectResolution)
	if constantsOf(reasonsFolder, all)["CellLaunched"] == nil {
		t.Fatalf("%s has no constant CellLaunched: if the reasons moved, this test moves with them", reasonsFolder)
	}
	report(t, strayReasons(all, repeats))
	report(t, repeated(all))
}

func TestStrayReasonsAreFound(t *testing.T) {
	code := func(text string) *fstest.MapFile {
		const head = "package x\n\nimport (\n\t\"cmp\"\n\t\"k8s.io/api/v1\"\n\t\"" + module + "/internal/events\"\n)\n\n"
		return &fstest.MapFile{Data: []byte(head + text)}
	}
	all, err := sources(fstest.MapFS{
		"internal/events/events.go": {Data: []byte("package events\n\nconst (\n\tGood = \"Good\"\n\tWellDone = \"WellDone\"\n)\n")},
		"internal/a/direct.go": code(`func (c *C) f(bad string) {
	c.cfg.Event(pod, v1.EventTypeWarning, events.Good, "m")
	c.cfg.Event(pod, v1.EventTypeWarning, "Bad", "m")
	c.r.Eventf(pod, v1.EventTypeWarning, events.Gone, "m %d", 1)
	c.r.AnnotatedEventf(pod, nil, v1.EventTypeWarning, v1.Bad, "m")
	_ = v1.Event{Type: "Normal", Reason: "Made"}
	s.Event("a span", 1)
}
`),
		"internal/b/helper.go": code(`type C struct{ cfg Config }

func (c *C) warn(pod Pod, reason, format string) { c.tell(pod, "Warning", reason, format) }

func (c *C) tell(pod Pod, kind, reason, format string) { c.cfg.Event(pod, kind, reason, format) }

func (c *C) f(other D) {
	c.warn(pod, events.Good, "m")
	c.warn(pod, "ByHelper", "m")
	other.warn(pod, "fine", "it is of another")
}

type D struct{}

func (D) warn(pod Pod, reason, format string) {}
`),
		"internal/c/flows.go": code(`type C struct{ cfg, r Recorder }

type outcome struct{ kind, reason, message string }

type waiting struct{ why string }

const local = "OfThisPackage"

func (c *C) f(o outcome, w *waiting, err error) {
	c.cfg.Event(pod, o.kind, o.reason, o.message)
	c.cfg.Event(pod, "Warning", w.why, "m")
	c.cfg.Event(pod, "Warning", local, "m")
	reason, wait := c.g(err)
	if wait {
		reason = "Changed"
	}
	c.cfg.Event(pod, "Warning", reason, "m")
	c.cfg.Event(pod, "Warning", cmp.Or(h(), events.Good), "m")
	c.cfg.Event(pod, "Warning", err.Error(), "m")
	func(pod Pod, kind, reason, message string) { c.r.Event(pod, kind, reason, message) }(pod, "Warning", events.Good, "m")
}

func (c *C) g(err error) (reason string, wait bool) {
	if err != nil {
		return "Returned", true
	}
	if c == nil {
		reason = "Named"
		return
	}
	return "", false
}

func h() string { return events.WellDone }

func outcomes() []outcome {
	return []outcome{{"Normal", events.Good, "m"}, {"Normal", "Placed", "m"}, {reason: "Keyed"}, {}}
}

func set(w *waiting) { w.why = "As" + "sembled" }

var again = "WellDone"
`),
		"internal/d/report.go": code("func Report(pod Pod, reason string) { r.Event(pod, \"Normal\", reason, \"m\") }\n"),
		"internal/e/caller.go": code("func f() {\n\td.Report(pod, events.Good)\n\td.Report(pod, \"FromAfar\")\n}\n"),
		"internal/f/passes.go": code("func f(e *v1.Event) {\n\tr.Event(pod, \"Normal\", e.Reason, \"m\")\n\t_ = v1.Event{Reason: e.Reason}\n}\n"),
		"test/h/kubelet.go":    code("func f() { r.Event(pod, \"Normal\", \"Killing\", \"m\") }\n"),
		"internal/g/a_test.go": code("func f() { r.Event(pod, \"Normal\", \"Tested\", \"m\") }\n"),
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, strayReasons(all, []string{"internal/f/passes.go"}),
		`a/direct.go:11: the reason of an Event is the literal "Bad"`, "events.Gone", "v1.Bad", `"Made"`, `"ByHelper"`, `"Placed"`, `"Keyed"`,
		"by an *ast.BinaryExpr", `"OfThisPackage"`, `"Returned"`, `"Named"`, `"Changed"`, "not in this package", `"FromAfar"`)
	expect(t, repeated(all), `internal/c/flows.go:50 spells "WellDone": it is events.WellDone`)
}
