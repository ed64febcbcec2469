// Package deploy owns the manifests that install Kip into a cluster. It holds
// them as bytes and talks to nothing. Module render writes them from the Helm chart.
package deploy

import _ "embed"

// RBAC is the namespace, the service accounts and the rights of Kip.
//
//go:embed manifests/rights/rbac.yaml
var RBAC []byte

// CSR lets Kip request the certificate of its kubelet port as itself.
//
//go:embed manifests/rights/csr.yaml
var CSR []byte

// CSRApprove lets Kip approve such requests.
//
//go:embed manifests/rights/csr-approve.yaml
var CSRApprove []byte

// Policies bound what RBAC cannot: which annotations the pods of a namespace may
// have, and what Kip's own service accounts write.
//
//go:embed manifests/rights/policies.yaml
var Policies []byte

// Webhook is by what the API server asks Kip about pods before it makes them.
//
//go:embed manifests/rights/webhook.yaml
var Webhook []byte

// WebhookDaemonSets is Webhook where DaemonSets run beside pods.
//
//go:embed manifests/rights/webhook-daemonsets.yaml
var WebhookDaemonSets []byte

// CloudInit is an example of an operator's cloud-init file, as a Secret.
//
//go:embed manifests/rights/cloud-init.yaml
var CloudInit []byte

// Namespaces refuses pods that are not for Kip's nodes, in namespaces with the label kip.elotl.co/pods=true.
//
//go:embed manifests/rights/namespaces.yaml
var Namespaces []byte

// StorageClass is for claims whose volumes are disks of Kip's cloud.
//
//go:embed manifests/rights/storageclass.yaml
var StorageClass []byte

// EKS is what kipctl eks deploy installs, with EKSNamespace in the place of Kip's namespace.
//
//go:embed manifests/eks/kip.yaml
var EKS []byte

// EKSProfiles replaces the objects of EKS that have the same kind and name, if the configuration has profiles.
//
//go:embed manifests/eks/profiles.yaml
var EKSProfiles []byte

// EKSDaemonSets has the webhook of DaemonSets, which EKS gets if some run beside pods. Here it asks about all DaemonSets.
//
//go:embed manifests/eks/daemonsets.yaml
var EKSDaemonSets []byte

// EKSNamespace stands in these for the namespace of Kip, and for nothing else.
const EKSNamespace = "namespace-of-kip"
