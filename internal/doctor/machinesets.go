package doctor

import (
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Kinds of DaemonSets that only the machines of a cluster need.
const (
	ofNetwork = "network of machines"
	ofDevices = "devices of machines"
	ofCSI     = "node plugin of a CSI driver"
	ofNodes   = "service of machines"
)

// machineFolders are the folders of a machine by which such a set is known.
var machineFolders = map[string]string{
	"/etc/cni":                          ofNetwork,
	"/opt/cni":                          ofNetwork,
	"/var/lib/kubelet/device-plugins":   ofDevices,
	"/var/lib/kubelet/plugins_registry": ofCSI,
	"/var/lib/kubelet/plugins":          ofCSI,
}

// machineSets are the names of others.
var machineSets = map[string]string{
	"kube-proxy":             ofNetwork,
	"ip-masq-agent":          ofNetwork,
	"azure-ip-masq-agent":    ofNetwork,
	"azure-npm":              ofNetwork,
	"node-local-dns":         ofNetwork,
	"eks-pod-identity-agent": ofNodes,
	"gke-metadata-server":    ofNodes,
	"cloud-node-manager":     ofNodes,
	"node-problem-detector":  ofNodes,
}

// forMachines says what a DaemonSet does that only machines of a cluster need, by a pod of it; "" for one that may do something beside pods
// on cells. docs/daemonsets.md says of each why a cell does without.
func forMachines(set string, pod *corev1.Pod) string {
	if what := machineSets[set]; what != "" {
		return what
	}
	if pod.Labels["k8s-app"] == "kube-proxy" || pod.Labels["component"] == "kube-proxy" {
		return ofNetwork
	}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath == nil {
			continue
		}
		for at := path.Clean(v.HostPath.Path); at != "/" && at != "."; at = path.Dir(at) {
			if what := machineFolders[at]; what != "" {
				return what
			}
		}
	}
	return ""
}

// managed reports whether a DaemonSet is somebody's who makes it again as it was: a part of the cluster, or an add-on of a cloud.
func managed(set *appsv1.DaemonSet) bool {
	for _, prefix := range []string{"kube-", "gke-", "gmp-", "amazon-", "aws-", "azure-", "openshift-", "calico-", "tigera-"} {
		if strings.HasPrefix(set.Namespace, prefix) {
			return true
		}
	}
	if set.Labels["addonmanager.kubernetes.io/mode"] != "" || set.Labels["kubernetes.azure.com/managedby"] != "" {
		return true
	}
	for _, f := range set.ManagedFields {
		if slices.Contains([]string{"eks", "addon-manager"}, f.Manager) {
			return true
		}
	}
	return false
}
