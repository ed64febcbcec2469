package hollow

import (
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// Ask is one kind of request that a real cell makes of the cell API, as upstream's
// kubelet and kube-proxy of the release in go.mod do with the configuration that
// itzo gives them.
type Ask struct {
	// By is "kubelet" or "kube-proxy".
	By string
	// Verb and Resource are as in an audit log, the resource with its group and
	// subresource: "patch" of "pods/status", "update" of "leases.coordination.k8s.io".
	Verb, Resource string
	// When says how often.
	When string
	// Skipped says why a hollow cell does not ask it; "" if it does.
	Skipped string
}

const (
	byKubelet   = "kubelet"
	byKubeProxy = "kube-proxy"

	noVolumes = "no benchmark has volumes of a cloud's or a driver's"
)

// Asks is what a real cell asks for the life of a pod with a service account token,
// in the order of its first request. A test holds a hollow cell to it.
func Asks() []Ask {
	return []Ask{
		{By: byKubelet, Verb: "watch", Resource: "nodes", When: "always"},
		{By: byKubelet, Verb: "watch", Resource: "services", When: "always"},
		{By: byKubelet, Verb: "watch", Resource: "runtimeclasses.node.k8s.io", When: "always"},
		{By: byKubelet, Verb: "watch", Resource: "csidrivers.storage.k8s.io", When: "always"},
		{By: byKubelet, Verb: "watch", Resource: "pods", When: "always"},
		{By: byKubeProxy, Verb: "watch", Resource: "nodes", When: "always"},
		{By: byKubeProxy, Verb: "watch", Resource: "services", When: "always"},
		{By: byKubeProxy, Verb: "watch", Resource: "endpointslices.discovery.k8s.io", When: "always"},
		{By: byKubeProxy, Verb: "watch", Resource: "servicecidrs.networking.k8s.io", When: "always"},
		{By: byKubeProxy, Verb: "create", Resource: "events.events.k8s.io", When: "once: it starts"},
		{By: byKubelet, Verb: "create", Resource: "nodes", When: "once: there is one"},
		{By: byKubelet, Verb: "get", Resource: "nodes", When: "three times at the start"},
		{By: byKubelet, Verb: "patch", Resource: "nodes/status", When: "twice at the start, every 5 minutes, and when it changes"},
		{By: byKubelet, Verb: "get", Resource: "csinodes.storage.k8s.io", When: "once: there is none"},
		{By: byKubelet, Verb: "create", Resource: "csinodes.storage.k8s.io", When: "once"},
		{By: byKubelet, Verb: "deletecollection", Resource: "resourceslices.resource.k8s.io", When: "once: there is no such resource"},
		{By: byKubelet, Verb: "get", Resource: "leases.coordination.k8s.io", When: "once: there is none"},
		{By: byKubelet, Verb: "create", Resource: "leases.coordination.k8s.io", When: "once"},
		{By: byKubelet, Verb: "update", Resource: "leases.coordination.k8s.io", When: "every 10 s"},
		{By: byKubelet, Verb: "create", Resource: "events", When: "six of the node; of each container Pulled, Created, Started and Killing"},
		{By: byKubelet, Verb: "get", Resource: "pods", When: "before each report"},
		{By: byKubelet, Verb: "patch", Resource: "pods/status", When: "when it changes: Pending, Running, ended"},
		{By: byKubelet, Verb: "watch", Resource: "configmaps", When: "as long as the pod is there, each that it names"},
		{By: byKubelet, Verb: "watch", Resource: "secrets", When: "as long as the pod is there, each that it names"},
		{By: byKubelet, Verb: "create", Resource: "serviceaccounts/token", When: "once, and when four fifths of its time are over"},
		{By: byKubelet, Verb: "delete", Resource: "pods", When: "once: its containers have ended"},

		{By: byKubelet, Verb: "patch", Resource: "events", When: "an event recurs", Skipped: "no hollow event does"},
		{By: byKubelet, Verb: "get", Resource: "persistentvolumeclaims", When: "for each that the pod names", Skipped: noVolumes},
		{By: byKubelet, Verb: "get", Resource: "persistentvolumes", When: "for each claim", Skipped: noVolumes},
		{By: byKubelet, Verb: "update", Resource: "csinodes.storage.k8s.io", When: "a CSI driver comes or goes", Skipped: noVolumes},
		{By: byKubelet, Verb: "create", Resource: "pods", When: "there is a plugin of a CSI driver", Skipped: noVolumes},
	}
}

// watch is what is watched: a whole list, or what the selectors leave of it.
type watch struct {
	by, path       string
	labels, fields string
	// protobuf is what kube-proxy is told to speak; the kubelet speaks JSON.
	protobuf bool
}

// nodeInFields stands for the node's name in a watch's fields.
const nodeInFields = "{node}"

// withClusterIP selects the Services that are not headless.
const withClusterIP = "spec.clusterIP!=None"

// podsWatch is what every hollow cell watches.
var podsWatch = watch{by: byKubelet, path: "/api/v1/pods", fields: "spec.nodeName=" + nodeInFields}

// otherWatches are those that a cell has from its start, beside that of its pods.
func otherWatches() []watch {
	return []watch{
		{by: byKubelet, path: "/api/v1/nodes", fields: "metadata.name=" + nodeInFields},
		{by: byKubelet, path: "/api/v1/services", fields: withClusterIP},
		{by: byKubelet, path: "/apis/node.k8s.io/v1/runtimeclasses"},
		{by: byKubelet, path: "/apis/storage.k8s.io/v1/csidrivers"},
		{by: byKubeProxy, path: "/api/v1/nodes", fields: "metadata.name=" + nodeInFields, protobuf: true},
		{by: byKubeProxy, path: "/api/v1/services", labels: "!service.kubernetes.io/service-proxy-name", fields: withClusterIP, protobuf: true},
		{by: byKubeProxy, path: "/apis/discovery.k8s.io/v1/endpointslices", labels: "!service.kubernetes.io/headless", protobuf: true},
		{by: byKubeProxy, path: "/apis/networking.k8s.io/v1/servicecidrs", protobuf: true},
	}
}

func (w watch) query(node string) url.Values {
	q := url.Values{}
	if w.fields != "" {
		q.Set("fieldSelector", strings.ReplaceAll(w.fields, nodeInFields, node))
	}
	if w.labels != "" {
		q.Set("labelSelector", w.labels)
	}
	return q
}

// accept is the header of that name, as client-go makes it.
func (w watch) accept() string {
	if w.protobuf {
		return runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return jsonBody
}
