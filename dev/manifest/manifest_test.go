package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/examples"
)

func TestParseKeepsOrderAndSkipsComments(t *testing.T) {
	objects,
		err := Parse([]byte("# licence\n---\napiVersion: v1\nkind: A\nmetadata: {name: one}\n---\n# nothing\n---\napiVersion: v1\nkind: B\nmetadata: {name: two}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range objects {
		got = append(got, u.GetKind()+"/"+u.GetName())
	}
	if s := strings.Join(got, " "); s != "A/one B/two" {
		t.Errorf("parsed %q", s)
	}
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	tests := map[string]struct{ doc, want string }{
		"no name":       {"apiVersion: v1\nkind: A\n", `document 1: apiVersion "v1", kind "A", metadata.name ""`},
		"no kind":       {"apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\nmetadata: {name: x}\n", "document 2"},
		"not YAML":      {"a: [", "parse document 1"},
		"a key twice":   {"apiVersion: v1\nkind: A\nkind: B\nmetadata: {name: a}\n", "parse document 1"},
		"not an object": {"- a\n", "parse document 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tt.doc))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that contains %q", err, tt.want)
			}
		})
	}
}

// Kip must get nothing that reads across the cluster: the model of its rights
// rests on the node's impersonation.
func TestKipMayReadNoSecretsOrConfigMapsAsItself(t *testing.T) {
	objects, err := Parse(deploy.RBAC)
	if err != nil {
		t.Fatal(err)
	}
	roles := 0
	for _, u := range objects {
		if u.GetKind() != "ClusterRole" && u.GetKind() != "Role" {
			continue
		}
		roles++
		for _, r := range u.Object["rules"].([]any) {
			rule := r.(map[string]any)
			named := rule["resourceNames"] != nil
			resources, of := rule["resources"].([]any)
			if paths, ok := rule["nonResourceURLs"].([]any); of == ok || ok && fmt.Sprint(paths) != "[/metrics]" {
				t.Errorf("%s %s has a rule of neither resources nor /metrics alone: %v", u.GetKind(), u.GetName(), rule)
			}
			for _, res := range resources {
				switch res {
				case "*", "secrets", "configmaps", "pods/exec", "pods/log", "pods/status", "serviceaccounts/token", "leases":
					t.Errorf("%s %s gives %s: %v", u.GetKind(), u.GetName(), res, rule["verbs"])
				case "pods": // the peers of NetworkPolicies
					if verbs := fmt.Sprint(rule["verbs"]); verbs != "[list watch]" {
						t.Errorf("%s %s gives pods: %s", u.GetKind(), u.GetName(), verbs)
					}
				case "users", "groups", "serviceaccounts":
					if !named {
						t.Errorf("%s %s lets Kip impersonate any of %s", u.GetKind(), u.GetName(), res)
					}
				}
			}
			for _, v := range rule["verbs"].([]any) {
				if v == "*" || v == "escalate" || v == "bind" {
					t.Errorf("%s %s gives the verb %s", u.GetKind(), u.GetName(), v)
				}
			}
		}
	}
	if roles == 0 {
		t.Error("no ClusterRole in deploy/manifests/rights/rbac.yaml")
	}
}

func TestHelloAsksForTheVirtualNode(t *testing.T) {
	objects, err := Parse(examples.Hello)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != 1 || objects[0].GetKind() != "Job" || objects[0].GetName() != "hello" {
		t.Fatalf("examples/hello.yaml holds %d objects, want the Job hello", len(objects))
	}
	spec := objects[0].Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	if got := spec["nodeSelector"].(map[string]any)["type"]; got != "virtual-kubelet" {
		t.Errorf("nodeSelector type is %v", got)
	}
}
