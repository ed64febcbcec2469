package cellapi

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/elotl/kip/internal/watches"
)

// The kinds of which a cell has objects of its own, or that its pod names.
var (
	nodeKind = &watches.Kind{
		Resource:    corev1.SchemeGroupVersion.WithResource("nodes"),
		Name:        "Node",
		OfOneReader: true,
		New:         func() watches.APIObject { return &corev1.Node{} },
	}
	leaseKind = &watches.Kind{
		Resource:    coordinationv1.SchemeGroupVersion.WithResource("leases"),
		Name:        "Lease",
		OfOneReader: true,
		New:         func() watches.APIObject { return &coordinationv1.Lease{} },
	}
	csiNodeKind = &watches.Kind{
		Resource:    storagev1.SchemeGroupVersion.WithResource("csinodes"),
		Name:        "CSINode",
		OfOneReader: true,
		New:         func() watches.APIObject { return &storagev1.CSINode{} },
	}
	podKind = &watches.Kind{
		Resource:    corev1.SchemeGroupVersion.WithResource("pods"),
		Name:        "Pod",
		OfOneReader: true,
		New:         func() watches.APIObject { return &corev1.Pod{} },
		Selectable: func(o watches.APIObject) fields.Set {
			return fields.Set{"spec.nodeName": o.(*corev1.Pod).Spec.NodeName}
		},
	}
	secretKind = &watches.Kind{
		Resource: corev1.SchemeGroupVersion.WithResource("secrets"), Name: "Secret",
		New: func() watches.APIObject { return &corev1.Secret{} },
	}
	configMapKind = &watches.Kind{
		Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Name: "ConfigMap",
		New: func() watches.APIObject { return &corev1.ConfigMap{} },
	}
)
