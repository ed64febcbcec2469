package cluster

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/manifest"
)

// kubeletHosts are the names and addresses of all kubelet ports.
func (c *Cluster) kubeletHosts() []string {
	hosts := []string{c.opts.Address.String(), "127.0.0.1", c.opts.NodeName}
	for node, address := range c.opts.Peers {
		hosts = append(hosts, node, address.String())
	}
	return hosts
}

// manifestNode is the node whose rights deploy.RBAC has.
const manifestNode = "kip-0"

// rightsFor is a manifest that gives Kip's service account the rights of another
// node: the roles of deploy.RBAC that name the first node, under names of their own,
// and their bindings.
func rightsFor(node string) ([]byte, error) {
	objects, err := manifest.Parse(deploy.RBAC)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	copied := map[string]bool{} // roles, by kind and name
	for _, bindings := range []bool{false, true} {
		for _, o := range objects {
			data, err := yaml.Marshal(o.Object)
			if err != nil {
				return nil, err
			}
			role, bound, err := unstructured.NestedStringMap(o.Object, "roleRef")
			switch {
			case err != nil:
				return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
			case bound != bindings, bound && !copied[role["kind"]+" "+role["name"]], !bound && !bytes.Contains(data, []byte(manifestNode)):
				continue // the first node's manifest has it
			case bound:
				if err := unstructured.SetNestedField(o.Object, role["name"]+"-"+node, "roleRef", "name"); err != nil {
					return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
				}
			default:
				copied[o.GetKind()+" "+o.GetName()] = true
			}
			o.SetName(o.GetName() + "-" + node)
			if data, err = yaml.Marshal(o.Object); err != nil {
				return nil, err
			}
			out = append(out, bytes.ReplaceAll(data, []byte(manifestNode), []byte(node)))
		}
	}
	return bytes.Join(out, []byte("---\n")), nil
}
