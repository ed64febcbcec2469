package cluster

import (
	"bytes"
	"slices"
	"testing"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/manifest"
)

func TestAFurtherNodeHasTheRightsOfTheFirstUnderNamesOfItsOwn(t *testing.T) {
	rights := rightsFor("kip-1")
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
		ofTheNode := o.GetKind() == "ClusterRole" || o.GetKind() == "ClusterRoleBinding"
		if ofTheNode && slices.Contains(names, name) {
			t.Errorf("%s takes the place of the first node's", name)
		}
	}
	if len(objects) != len(first) || bytes.Contains(rights, []byte("kip-0")) || !bytes.Contains(rights, []byte("system:node:kip-1")) {
		t.Errorf("the rights are\n%s", rights)
	}
}
