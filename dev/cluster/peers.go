package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/manifest"
)

// manifestNode is the node whose rights deploy.RBAC has.
const manifestNode = "kip-0"

// rightsFor is a manifest that gives Kip's service account the rights of another
// node: deploy.RBAC, in which all that is for one node has its name.
func rightsFor(node string) []byte {
	return bytes.ReplaceAll(deploy.RBAC, []byte(manifestNode), []byte(node))
}

// webhookPort is where a Kip answers the API server about pods: its flag's default.
const webhookPort = 9443

// webhooksFor is a manifest by which the API server asks the Kip of a node about pods:
// that of deploy.WebhookDaemonSets, at the Kip's address. The Service of that leads to pods, and
// Kip is none here.
func webhooksFor(node string, address netip.Addr) ([]byte, error) {
	objects, err := manifest.Parse(deploy.WebhookDaemonSets)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() != "MutatingWebhookConfiguration" {
			continue
		}
		o.SetName(node)
		hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		for _, h := range hooks {
			hook, ok := h.(map[string]any)
			path, found, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
			if !ok || !found || err != nil {
				return nil, fmt.Errorf("%s %s: a webhook has no path (%v)", o.GetKind(), o.GetName(), err)
			}
			hook["clientConfig"] = map[string]any{
				"url": "https://" + net.JoinHostPort(address.String(), strconv.Itoa(webhookPort)) + path,
			}
		}
		if err := unstructured.SetNestedSlice(o.Object, hooks, "webhooks"); err != nil {
			return nil, err
		}
		return yaml.Marshal(o.Object)
	}
	return nil, errors.New("deploy.WebhookDaemonSets has no MutatingWebhookConfiguration")
}
