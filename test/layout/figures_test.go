package layout

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// constants are those of a package, by their names, as the sources have them.
type constants map[string]ast.Expr

// constantsOf are those of a folder, of its tests too.
func constantsOf(dir string, all []source) constants {
	found := constants{}
	for _, s := range all {
		if s.dir() != dir {
			continue
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, name := range v.Names {
					if i < len(v.Values) {
						found[name.Name] = v.Values[i]
					}
				}
			}
		}
	}
	return found
}

var units = map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}

// duration works out a constant: of a package's own constants, and of time's.
func (c constants) duration(name string) (time.Duration, error) {
	e, ok := c[name]
	if !ok {
		return 0, fmt.Errorf("there is no constant %s", name)
	}
	d, err := c.value(e)
	if err != nil {
		return 0, fmt.Errorf("constant %s: %w", name, err)
	}
	return d, nil
}

func (c constants) value(e ast.Expr) (time.Duration, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseInt(strings.ReplaceAll(e.Value, "_", ""), 10, 64)
		return time.Duration(n), err
	case *ast.Ident:
		return c.duration(e.Name)
	case *ast.ParenExpr:
		return c.value(e.X)
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "time" && units[e.Sel.Name] != 0 {
			return units[e.Sel.Name], nil
		}
	case *ast.BinaryExpr:
		x, err := c.value(e.X)
		if err != nil {
			return 0, err
		}
		y, err := c.value(e.Y)
		if err != nil {
			return 0, err
		}
		switch e.Op {
		case token.ADD:
			return x + y, nil
		case token.SUB:
			return x - y, nil
		case token.MUL:
			return x * y, nil
		}
	case *ast.CallExpr:
		f, ok := e.Fun.(*ast.Ident)
		if !ok || len(e.Args) != 2 {
			break
		}
		x, err := c.value(e.Args[0])
		if err != nil {
			return 0, err
		}
		y, err := c.value(e.Args[1])
		if err != nil {
			return 0, err
		}
		switch f.Name {
		case "max":
			return max(x, y), nil
		case "min":
			return min(x, y), nil
		}
	}
	return 0, fmt.Errorf("this test cannot work out a %T", e)
}

// longestRetry is the longest wait of the one call in a folder that makes a rate
// limiter whose waits grow: backoff.Items.
func longestRetry(dir string, all []source) (ast.Expr, error) {
	var found []ast.Expr
	for _, s := range all {
		if s.dir() != dir || s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 3 {
				return true
			}
			f := call.Fun
			if of, ok := f.(*ast.IndexExpr); ok {
				f = of.X
			}
			if f, ok := f.(*ast.SelectorExpr); ok && f.Sel.Name == "Items" {
				found = append(found, call.Args[1])
			}
			return true
		})
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%s makes %d rate limiters, want 1", dir, len(found))
	}
	return found[0], nil
}

// figure is a number of a document, which a constant says.
type figure struct {
	// says is how the document says it: an expression whose first group is a number.
	says     string
	unit     time.Duration
	dir      string
	constant string
	roundTo  time.Duration // the document rounds up to a multiple of it; exact when 0
}

// drift returns the figures of a document that are not those of the code.
func drift(name, text string, figures []figure, all []source) []string {
	text = strings.Join(strings.Fields(text), " ") // a line may end anywhere
	var out []string
	for _, f := range figures {
		want, err := constantsOf(f.dir, all).duration(f.constant)
		if err != nil {
			out = append(out, fmt.Sprintf("%s: %v", f.dir, err))
			continue
		}
		if f.roundTo > 0 {
			want = (want + f.roundTo - 1) / f.roundTo * f.roundTo
		}
		found := regexp.MustCompile(f.says).FindStringSubmatch(text)
		if found == nil {
			out = append(out, fmt.Sprintf("%s does not say %q, the figure that is %s in %s", name, f.says, f.constant, f.dir))
			continue
		}
		number, err := strconv.ParseFloat(strings.Replace(found[1], "½", ".5", 1), 64)
		if got := time.Duration(number * float64(f.unit)); err != nil || got != want {
			out = append(out, fmt.Sprintf("%s says %q, and %s in %s is %s", name, found[0], f.constant, f.dir, want))
		}
	}
	return out
}

const number = `([0-9]+½?)`

// figures are those of documents that constants say.
var figures = map[string][]figure{
	"docs/reliability.md": {
		{says: `outlives its pod by more than ` + number + ` minutes`, unit: time.Minute, dir: "test/faults", constant: "outliveBound",
			roundTo: 30 * time.Second},
		{says: `a call to the cloud that hangs \(` + number + ` min\)`, unit: time.Minute, dir: "internal/calls", constant: "Timeout"},
		{says: `the back-off after errors \(` + number + ` min\)`, unit: time.Minute, dir: "test/faults", constant: "podBackoff"},
		{says: `logs of a cell that does not answer \(` + number + ` s\)`, unit: time.Second, dir: "internal/cells", constant: "drainTimeout"},
		{says: `a termination that the cloud accepted and forgot \(` + number + ` min\)`, unit: time.Minute, dir: "internal/cells",
			constant: "terminateAgain"},
		{says: `the lag of its list \(` + number + ` s\)`, unit: time.Second, dir: "test/faults", constant: "listLag"},
		{says: `two looks at it \(` + number + ` s\)`, unit: time.Second / 2, dir: "internal/cells", constant: "idlePoll"},
		{says: `what the instance itself takes to end \(` + number + ` min\)`, unit: time.Minute, dir: "test/faults", constant: "terminationMax"},
		{says: `has a reported reason\*\* within ` + number + ` seconds`, unit: time.Second, dir: "test/faults", constant: "reasonBound"},
		{says: `every time: ` + number + ` deaths or more`, unit: 1, dir: "test/faults", constant: "leastDeaths"},
		{says: "`reachBound` \\(" + number + " min", unit: time.Minute, dir: "test/faults", constant: "reachBound", roundTo: 30 * time.Second},
	},
	"docs/cells.md": {
		{says: `After ` + number + " s the pod is not ready \\(`CellSilent`\\)", unit: time.Second, dir: "internal/cells",
			constant: "silentAfter"},
	},
}

func TestFiguresInDocumentsAreThoseOfTheCode(t *testing.T) {
	all := parsed(t, 0)
	for name, list := range figures {
		text, err := os.ReadFile(top(t) + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		report(t, drift(name, string(text), list, all))
	}
}

func TestAFigureThatDriftedIsFound(t *testing.T) {
	all, err := sources(fstest.MapFS{"a/a.go": {Data: []byte(`package a

import "time"

const (
	long   = time.Minute
	both   = 2*long + max(long, 5*time.Second)
	longer = both + 1*time.Second
)
`)}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	says := []figure{{says: `lasts ` + number + ` min`, unit: time.Minute, dir: "a", constant: "both"}}
	expect(t, drift("d.md", "it lasts\n3 min", says, all))
	expect(t, drift("d.md", "it lasts 3½ min", says, all), "and both in a is 3m0s")
	expect(t, drift("d.md", "it is long", says, all), "does not say")
	says[0].constant, says[0].roundTo = "longer", 30*time.Second
	expect(t, drift("d.md", "it lasts 3½ min", says, all))
	says[0].constant = "gone"
	expect(t, drift("d.md", "it lasts 3½ min", says, all), "there is no constant gone")
}

// The tests of faults have Kip's own constants once more, to reckon with.
func TestTheBoundsOfFaultsAreReckonedFromKipsOwnConstants(t *testing.T) {
	all := parsed(t, 0)
	faults := constantsOf("test/faults", all)
	for own, kips := range map[string]struct{ dir, constant string }{
		"callTimeout":    {"internal/calls", "Timeout"},
		"drainTimeout":   {"internal/cells", "drainTimeout"},
		"terminateAgain": {"internal/cells", "terminateAgain"},
		"pollTime":       {"internal/cells", "idlePoll"},
		"readyTimeout":   {"internal/cells", "readyTimeout"},
		"overdue":        {"internal/pods", "overdue"},
		"attemptBackoff": {"internal/pods", "longestBackoff"},
		"cellBackoff":    {"internal/cells", ""},
		"podBackoff":     {"internal/pods", ""},
	} {
		code := constantsOf(kips.dir, all)
		if kips.constant == "" {
			e, err := longestRetry(kips.dir, all)
			if err != nil {
				t.Error(err)
				continue
			}
			kips.constant, code["the longest retry"] = "the longest retry", e
		}
		got, err := faults.duration(own)
		if err != nil {
			t.Error(err)
		}
		want, err := code.duration(kips.constant)
		if err != nil {
			t.Error(err)
		}
		if got != want {
			t.Errorf("test/faults reckons with %s of %s, and %s in %s is %s", own, got, kips.constant, kips.dir, want)
		}
	}
}
