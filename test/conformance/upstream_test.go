package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/elotl/kip/test/harness"
)

// With another version of a module below it, most of Kubernetes is compiled once more.
func TestUpstreamsTestsAreBuiltOfTheModulesThatKipHas(t *testing.T) {
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	versions := func(folder string) map[string]string {
		file := filepath.Join(root, folder, "go.mod")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		mod, err := modfile.Parse(file, data, nil)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, r := range mod.Require {
			all[r.Mod.Path] = r.Mod.Version
		}
		for _, r := range mod.Replace {
			all[r.Old.Path] = r.New.Version
		}
		return all
	}
	kips, same := versions(""), 0
	for path, version := range versions("test/conformance/upstream") {
		switch want, both := kips[path]; {
		case both && version != want:
			t.Errorf("test/conformance/upstream/go.mod has %s %s, and go.mod %s: go -C test/conformance/upstream get %[1]s@%[3]s", path, version,
				want)
		case both:
			same++
		}
	}
	if same < 50 {
		t.Errorf("they have %d modules in common: too few to be true", same)
	}
}
