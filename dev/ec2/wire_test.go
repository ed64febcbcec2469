package ec2

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// read are the names that the SDK knows in answers of its services in XML: it drops what it does not
// know, so that one that is misspelt here would be missing there, and nobody told.
func read(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	known := regexp.MustCompile(`strings\.EqualFold\("([^"]+)", t\.Name\.Local\)`)
	for _, service := range []string{"ec2", "sts", "iam"} {
		module := "github.com/aws/aws-sdk-go-v2/service/" + service
		dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "deserializers.go"))
		if err != nil {
			t.Fatal(err)
		}
		before := len(names)
		for _, found := range known.FindAllSubmatch(text, -1) {
			names[string(found[1])] = true
		}
		if len(names) == before {
			t.Fatalf("the deserializers of %s name nothing", service)
		}
	}
	return names
}

// enclosing are the elements around answers, which the SDK skips, and those that it reads as text of
// errors or by their place.
var enclosing = map[string]bool{"requestId": true, "RequestID": true, "RequestId": true, "item": true, "member": true,
	"ResponseMetadata": true, "Errors": true, "Error": true, "Type": true, "Code": true, "Message": true}

func TestTheSDKKnowsEachNameInAnAnswer(t *testing.T) {
	names := read(t)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			field, is := n.(*ast.Field)
			if !is || field.Tag == nil {
				return true
			}
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			path, _, _ := strings.Cut(reflect.StructTag(tag).Get("xml"), ",")
			for name := range strings.SplitSeq(path, ">") {
				if name == "" || name == "-" {
					continue
				}
				if seen++; !names[name] && !enclosing[name] && !strings.HasSuffix(name, "Result") && !strings.HasSuffix(name, "Response") {
					t.Errorf("%s: no answer that the SDK reads has %q", set.Position(field.Pos()), name)
				}
			}
			return true
		})
	}
	if seen < 200 {
		t.Errorf("%d names were looked at", seen)
	}
}
