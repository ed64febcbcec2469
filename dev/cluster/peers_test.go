package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/manifest"
)

func TestAFurtherNodeHasTheRightsOfTheFirstUnderNamesOfItsOwn(t *testing.T) {
	rights, err := rightsFor("kip-1")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Parse(rights)
	if err != nil {
		t.Fatal(err)
	}
	first, err := manifest.Parse(deploy.RBAC)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range first {
		names = append(names, o.GetKind()+" "+o.GetName())
	}
	for _, o := range objects {
		name := o.GetKind() + " " + o.GetName()
		if slices.Contains(names, name) || !slices.Contains(names, strings.TrimSuffix(name, "-kip-1")) {
			t.Errorf("%s is not one of the first node's (%v) with -kip-1", name, names)
		}
		if ref, ok := o.Object["roleRef"].(map[string]any); ok && !strings.HasSuffix(fmt.Sprint(ref["name"]), "-kip-1") {
			t.Errorf("%s gives %v", name, ref["name"])
		}
	}
	if len(objects) != 2 || bytes.Contains(rights, []byte("kip-0")) || !bytes.Contains(rights, []byte("system:node:kip-1")) {
		t.Errorf("the rights are\n%s", rights)
	}
}
