package layout

import (
	"fmt"
	"go/doc"
	"go/parser"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// leastWords is how many words the first sentence of a package comment has at
// least: "Package x owns y." says something.
const leastWords = 4

// uncommented returns the packages whose comment does not say what they are, in
// the order of their folders.
func uncommented(all []source) []string {
	type pkg struct {
		name, comment, where string
		hasCode              bool // more than tests
	}
	packages := map[string]*pkg{}
	var dirs []string
	for _, s := range all {
		name := strings.TrimSuffix(s.file.Name.Name, "_test")
		p := packages[s.dir()]
		if p == nil {
			p = &pkg{name: name, where: s.path}
			packages[s.dir()] = p
			dirs = append(dirs, s.dir())
		}
		p.hasCode = p.hasCode || !s.isTest()
	}
	for _, s := range all {
		p := packages[s.dir()]
		// A comment in a test file is not shown by go doc; it counts only where
		// there are no others.
		if s.file.Doc != nil && (!s.isTest() || !p.hasCode) && p.comment == "" {
			p.comment, p.where = s.file.Doc.Text(), s.path
		}
	}
	slices.Sort(dirs)

	const rule = "each package has a comment whose first sentence says what it is, since a newcomer reads that first"
	var out []string
	for _, dir := range dirs {
		p := packages[dir]
		if p.comment == "" {
			out = append(out, fmt.Sprintf("%s: package %s has no package comment: %s", dir, p.name, rule))
			continue
		}
		begins := "Package " + p.name + " "
		if p.name == "main" {
			begins = "Command " + path.Base(dir) + " "
		}
		first := new(doc.Package).Synopsis(p.comment)
		named := strings.HasPrefix(first, begins) || p.name == "main" && strings.HasPrefix(first, capital(path.Base(dir))+" ")
		if !named || !strings.HasSuffix(first, ".") || len(strings.Fields(first)) < leastWords {
			const format = "%s: the package comment begins %q; want a sentence that begins %q, ends with a full stop and has %d words or more: %s"
			out = append(out, fmt.Sprintf(format,
				p.where, first, begins, leastWords, rule))
		}
	}
	return out
}

// capital is the name of a command at the beginning of a sentence, which is as good
// as "Command NAME": "Gofmt formats".
func capital(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

func TestEachPackageSaysWhatItIs(t *testing.T) {
	report(t, uncommented(parsed(t, parser.PackageClauseOnly|parser.ParseComments)))
}

func TestPackagesWithoutARealCommentAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		files fstest.MapFS
		want  []string
	}{
		"a real one": {files: fstest.MapFS{"a/a.go": {Data: []byte("// Package a owns the letters.\n// It touches no digit.\npackage a\n")}}},
		"in a file of its own": {files: fstest.MapFS{
			"a/doc.go": {Data: []byte("// Package a owns the letters.\npackage a\n")}, "a/a.go": {Data: []byte("package a\n")},
		}},
		"a command":             {files: fstest.MapFS{"cmd/b/main.go": {Data: []byte("// Command b prints the letters.\npackage main\n")}}},
		"a command by its name": {files: fstest.MapFS{"cmd/b/main.go": {Data: []byte("// B prints the letters.\npackage main\n")}}},
		"none": {
			files: fstest.MapFS{"a/a.go": {Data: []byte("package a\n")}},
			want:  []string{"package a has no package comment"},
		},
		"detached": {
			files: fstest.MapFS{"a/a.go": {Data: []byte("// Package a owns the letters.\n\npackage a\n")}},
			want:  []string{"no package comment"},
		},
		"only in a test": {files: fstest.MapFS{
			"a/a.go": {Data: []byte("package a\n")}, "a/a_test.go": {Data: []byte("// Package a owns the letters.\npackage a\n")},
		}, want: []string{"no package comment"}},
		"only tests": {
			files: fstest.MapFS{"a/a_test.go": {Data: []byte("//go:build e2e\n\n// Package a proves the letters.\npackage a_test\n")}},
		},
		"another package's": {
			files: fstest.MapFS{"b/b.go": {Data: []byte("// Package a owns the letters.\npackage b\n")}},
			want:  []string{`begins "Package b "`},
		},
		"a command's as a package's": {
			files: fstest.MapFS{"cmd/b/main.go": {Data: []byte("// Package main is the main package.\npackage main\n")}},
			want:  []string{`begins "Command b "`},
		},
		"no sentence": {
			files: fstest.MapFS{"a/a.go": {Data: []byte("// Package a owns the letters\npackage a\n")}},
			want:  []string{"full stop"},
		},
		"a name only": {
			files: fstest.MapFS{"a/a.go": {Data: []byte("// Package a letters.\npackage a\n")}},
			want:  []string{"4 words"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := sources(tc.files, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, uncommented(all), tc.want...)
		})
	}
}
