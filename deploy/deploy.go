// Package deploy owns the manifests that install Kip into a cluster. It holds
// them as bytes and talks to nothing.
package deploy

import _ "embed"

// RBAC is the namespace, the service accounts and the rights of Kip.
//
//go:embed rbac.yaml
var RBAC []byte

// CSR lets Kip request the certificate of its kubelet port as itself.
//
//go:embed csr.yaml
var CSR []byte

// CSRApprove lets Kip approve such requests.
//
//go:embed csr-approve.yaml
var CSRApprove []byte

// Policies bound what RBAC cannot: which annotations the pods of a namespace may
// have, and what Kip's own service accounts write.
//
//go:embed policies.yaml
var Policies []byte

// Webhook is by what the API server asks Kip about pods before it makes them.
//
//go:embed webhook.yaml
var Webhook []byte

// CloudInit is an example of an operator's cloud-init file, as a Secret.
//
//go:embed cloud-init.yaml
var CloudInit []byte

// StorageClass is for claims whose volumes are disks of Kip's cloud.
//
//go:embed storageclass.yaml
var StorageClass []byte
