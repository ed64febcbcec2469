package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// contract is the package that alone writes requests to an agent.
const contract = "internal/agentapi"

// agentPaths are the constants of the contract that name paths, by their names.
func agentPaths(all []source) map[string]string {
	paths := map[string]string{}
	for _, s := range all {
		if s.dir() != contract || s.isTest() {
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
					if !strings.HasPrefix(name.Name, "Path") || i >= len(v.Values) {
						continue
					}
					if text, ok := literal(v.Values[i]); ok {
						paths[name.Name] = text
					}
				}
			}
		}
	}
	return paths
}

func literal(e ast.Node) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// byHand returns where a path of the agent is spelled outside the contract, and
// where what ships uses one without its client.
func byHand(all []source) []string {
	paths := agentPaths(all)
	var quoted []string
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		q := regexp.QuoteMeta(paths[name])
		if name == "PathKubelet" { // the one with others below it
			q += "(?:/.*)?"
		}
		quoted = append(quoted, q)
	}
	// A path alone, in a URL, or after a method.
	spelled := regexp.MustCompile(`^(?:[a-z]+://[^/]*|[A-Z]+ )?(?:` + strings.Join(quoted, "|") + `)(?:[? ].*)?$`)
	var out []string
	for _, s := range all {
		if s.dir() == contract {
			continue
		}
		// The last is the cell's end of the tunnel, which answers what is the tunnel's own.
		serves := s.isTest() || withinAny(s.dir(), "internal/agent", "test/hollow") || s.path == "internal/tunnel/trust.go"
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && !serves {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "agentapi" && paths[sel.Sel.Name] != "" {
					out = append(out, fmt.Sprintf("%s uses agentapi.%s: what asks an agent has a method of agentapi.Client, which bounds the answer",
						s.path, sel.Sel.Name))
				}
			}
			if text, ok := literal(n); ok && spelled.MatchString(firstLine(text)) {
				out = append(out, fmt.Sprintf("%s spells %q: the agent's paths are the constants of agentapi", s.path, firstLine(text)))
			}
			return true
		})
	}
	return out
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSuffix(line, "\r")
}

func TestNobodyElseSpellsAPathOfTheAgent(t *testing.T) {
	all := parsed(t, parser.SkipObjectResolution)
	if paths := agentPaths(all); len(paths) < 6 {
		t.Fatalf("the contract has the paths %v: if they moved, this test moves with them", paths)
	}
	report(t, byHand(all))
}

func TestSpelledPathsAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		file, code string
		want       []string
	}{
		"a path":                   {"internal/cells/a.go", `"/v1/disks"`, []string{`spells "/v1/disks"`}},
		"in a URL":                 {"internal/cells/a.go", `"https://cell/v1/disks"`, []string{"spells"}},
		"with a query":             {"internal/cells/a.go", `"/v1/disks?all=1"`, []string{"spells"}},
		"after a method":           {"internal/cells/a_test.go", `"PUT /v1/disks HTTP/1.1\r\nHost: cell\r\n"`, []string{"spells"}},
		"below the kubelet":        {"internal/cells/a_test.go", "`/kubelet/healthz`", []string{"spells"}},
		"another program's":        {"internal/cloud/remote/a.go", `"/v1/disks/create"`, nil},
		"a folder":                 {"internal/agent/a.go", `"/var/lib/kubelet/config"`, nil},
		"the contract itself":      {"internal/agentapi/b_test.go", `"/v1/disks"`, nil},
		"the constant in Kip":      {"internal/cells/a.go", "agentapi.PathDisks", []string{"a method of agentapi.Client"}},
		"the constant in a test":   {"internal/cells/a_test.go", "agentapi.PathDisks", nil},
		"the constant in an agent": {"internal/agent/a.go", "agentapi.PathDisks", nil},
		"another constant":         {"internal/cells/a.go", "agentapi.Port", nil},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := sources(fstest.MapFS{
				"internal/agentapi/agentapi.go": {Data: []byte("package agentapi\n\nconst (\n" +
					"\tPathDisks = \"/v1/disks\"\n\tPathKubelet = \"/kubelet\"\n\tPort = 1\n)\n")},
				tc.file: {Data: []byte("package x\n\nvar x = " + tc.code + "\n")},
			}, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, byHand(all), tc.want...)
		})
	}
}
