package layout

import (
	"fmt"
	"go/parser"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// floors is how many rooms the longest chain of imports has: internal/kip, which
// wires all others, and what it stands on. More of them means that a room has
// come to know what is above it. The six: kip, pods, cells, cellapi, volumes,
// agentapi.
const floors = 6

// rooms are the folders right under internal/, and which others each imports. A
// package below a room belongs to it; tests know more than what ships.
func rooms(all []source) map[string][]string {
	out := map[string][]string{}
	for _, s := range all {
		room, ok := roomOf(s.dir())
		if !ok || s.isTest() {
			continue
		}
		if out[room] == nil {
			out[room] = []string{}
		}
		for _, i := range s.imports {
			dir, ok := own(i.path)
			if !ok {
				continue
			}
			if other, ok := roomOf(dir); ok && other != room && !slices.Contains(out[room], other) {
				out[room] = append(out[room], other)
			}
		}
	}
	return out
}

func roomOf(dir string) (room string, ok bool) {
	below, ok := strings.CutPrefix(dir, "internal/")
	room, _, _ = strings.Cut(below, "/")
	return room, ok
}

// longest returns the longest chain of imports between rooms, the upper first, or a
// chain that comes back to where it was.
func longest(rooms map[string][]string) (chain []string, cycle bool) {
	below := map[string][]string{} // the longest chain that begins with a room
	var walk func(path []string) []string
	walk = func(path []string) []string { // a cycle, or nil
		room := path[len(path)-1]
		if i := slices.Index(path[:len(path)-1], room); i >= 0 {
			return path[i:]
		}
		if below[room] != nil {
			return nil
		}
		var best []string
		for _, other := range slices.Sorted(slices.Values(rooms[room])) {
			if c := walk(append(slices.Clip(path), other)); c != nil {
				return c
			}
			if len(below[other]) > len(best) {
				best = below[other]
			}
		}
		below[room] = append([]string{room}, best...)
		return nil
	}
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		if c := walk([]string{room}); c != nil {
			return c, true
		}
		if len(below[room]) > len(chain) {
			chain = below[room]
		}
	}
	return chain, false
}

// tooHigh says what is wrong with the floors, "" for nothing.
func tooHigh(all []source, most int) string {
	chain, cycle := longest(rooms(all))
	switch arrows := strings.Join(chain, " → "); {
	case cycle:
		return fmt.Sprintf("rooms of internal/ import each other, by way of their packages: %s", arrows)
	case len(chain) > most:
		return fmt.Sprintf("internal/ has %d floors, want %d at most: %s", len(chain), most, arrows)
	}
	return ""
}

func TestRoomsHaveNoMoreFloors(t *testing.T) {
	all := parsed(t, parser.ImportsOnly)
	if chain, _ := longest(rooms(all)); len(chain) < 3 {
		t.Fatalf("the longest chain is %v: if the rooms moved, this test moves with them", chain)
	}
	if text := tooHigh(all, floors); text != "" {
		t.Error(text)
	}
}

func TestFloorsAreCounted(t *testing.T) {
	file := func(imports ...string) *fstest.MapFile {
		text := "package x\n"
		for _, i := range imports {
			text += fmt.Sprintf("\nimport _ %q\n", module+"/"+i)
		}
		return &fstest.MapFile{Data: []byte(text)}
	}
	for name, tc := range map[string]struct {
		files fstest.MapFS
		want  string // "" for none
	}{
		"as many as may be": {
			files: fstest.MapFS{"internal/a/a.go": file("internal/b"), "internal/b/b.go": file()},
		},
		"one more": {
			files: fstest.MapFS{
				"internal/a/a.go": file("internal/b", "internal/c"),
				"internal/b/b.go": file("internal/c"),
				"internal/c/c.go": file(),
			},
			want: "3 floors, want 2 at most: a → b → c",
		},
		"one more by way of packages below": {
			files: fstest.MapFS{"internal/a/a.go": file("internal/b"), "internal/b/x/x.go": file("internal/c/y"), "internal/c/y/y.go": file()},
			want:  "a → b → c",
		},
		"within a room": {files: fstest.MapFS{
			"internal/a/a.go":   file("internal/a/b"),
			"internal/a/b/b.go": file("internal/a/c"),
			"internal/a/c/c.go": file(),
		}},
		"in a test": {files: fstest.MapFS{
			"internal/a/a.go":      file("internal/b"),
			"internal/b/b_test.go": file("internal/c"),
			"internal/b/b.go":      file(),
		}},
		"from outside": {files: fstest.MapFS{
			"cmd/kip/main.go": file("internal/a"),
			"internal/a/a.go": file("internal/b"),
			"internal/b/b.go": file("api/v1"),
		}},
		"a cycle": {
			files: fstest.MapFS{"internal/a/a.go": file("internal/b/x"), "internal/b/x/x.go": file(), "internal/b/y/y.go": file("internal/a")},
			want:  "import each other, by way of their packages: a → b → a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := sources(tc.files, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			if got := tooHigh(all, 2); got != tc.want && (tc.want == "" || !strings.HasSuffix(got, tc.want)) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
