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
// node: the roles of deploy.RBAC under names of their own.
func rightsFor(node string) ([]byte, error) {
	objects, err := manifest.Parse(bytes.ReplaceAll(deploy.RBAC, []byte(manifestNode), []byte(node)))
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, o := range objects {
		switch o.GetKind() {
		case "ClusterRoleBinding", "RoleBinding":
			role, _, err := unstructured.NestedString(o.Object, "roleRef", "name")
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
			}
			if err := unstructured.SetNestedField(o.Object, role+"-"+node, "roleRef", "name"); err != nil {
				return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
			}
		case "ClusterRole", "Role":
		default:
			continue // the first node's manifest has it
		}
		o.SetName(o.GetName() + "-" + node)
		data, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return bytes.Join(out, []byte("---\n")), nil
}
