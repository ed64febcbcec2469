package cellapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/elotl/kip/internal/watches"
)

// What a cell's kubelet makes Kip hold is at most 256 KiB: four versions each of its
// node, lease and CSINode (see the histories), and the names of its events.
const (
	maxNode    = 40 << 10
	maxLease   = 4 << 10
	maxCSINode = 8 << 10
	// perElement is what an element of a list or a map costs beside its bytes.
	perElement = 128
)

// nodeShape is what a kubelet may say of its node, and the directives of its
// patches. The spec is the virtual node's.
var nodeShape = fieldsOf(map[string]shape{
	"kind": nameText, "apiVersion": nameText,
	"metadata": fieldsOf(map[string]shape{
		"name": nameText, "uid": nameText, "resourceVersion": nameText,
		"labels": table(128, text(63)), "annotations": table(128, text(8<<10)),
	}),
	"status": fieldsOf(map[string]shape{
		"capacity": quantities, "allocatable": quantities, "phase": nameText,
		"$setElementOrder/conditions": list(64, fieldsOf(map[string]shape{"type": nameText})),
		"conditions": list(64, fieldsOf(map[string]shape{
			"type": nameText, "status": oneOf("True", "False", "Unknown"), "reason": reasonText, "message": message(1 << 10),
			"lastHeartbeatTime": moment, "lastTransitionTime": moment, "$patch": oneOf("delete"),
		})),
		"$setElementOrder/addresses": list(32, fieldsOf(map[string]shape{"type": nameText})),
		"addresses": list(32, fieldsOf(map[string]shape{
			"type": nameText, "address": nameText, "$patch": oneOf("delete", "replace"),
		})),
		"daemonEndpoints": fieldsOf(map[string]shape{"kubeletEndpoint": fieldsOf(map[string]shape{"Port": whole})}),
		"nodeInfo": fieldsOf(map[string]shape{
			"machineID": nameText, "systemUUID": nameText, "bootID": nameText, "kernelVersion": nameText, "osImage": nameText,
			"containerRuntimeVersion": nameText, "kubeletVersion": nameText, "kubeProxyVersion": nameText, "operatingSystem": nameText,
			"architecture": nameText, "swap": fieldsOf(map[string]shape{"capacity": whole}),
		}),
		// A kubelet has 50 of 5 names; see bodyLimit.
		"images": list(64, fieldsOf(map[string]shape{"names": list(8, text(maxImage)), "sizeBytes": whole})),

		// No machine of a cloud has more than 128 disks.
		"volumesInUse":                     list(128, text(512)),
		"$setElementOrder/volumesAttached": list(128, fieldsOf(map[string]shape{"name": text(512)})),
		"volumesAttached": list(128, fieldsOf(map[string]shape{
			"name": text(512), "devicePath": text(512), "$patch": oneOf("delete"),
		})),
		"runtimeHandlers": list(32, fieldsOf(map[string]shape{
			"name": nameText, "features": table(16, boolean),
		})),
		"features":         table(16, boolean),
		"declaredFeatures": list(256, nameText),
	}),
})

// rebuilt returns a JSON object that a cell sent as a shape makes it anew.
func rebuilt(sent []byte, s shape) ([]byte, error) {
	var o map[string]any
	if err := utiljson.Unmarshal(sent, &o); err != nil || o == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is not a JSON object: %v", err))
	}
	made, err := s(nil, o)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(made)
	if err != nil {
		return nil, fmt.Errorf("encode what was sent: %w", err)
	}
	return b, nil
}

// tooMuch refuses what would make Kip hold more of an object than it may.
func tooMuch(what string, size, most int) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusRequestEntityTooLarge,
		Reason:  metav1.StatusReasonRequestEntityTooLarge,
		Message: fmt.Sprintf("%s would hold %d bytes, the limit is %d", what, size, most),
	}}
}

func mapSize(m map[string]string) (size int) {
	for k, v := range m {
		size += len(k) + len(v) + perElement
	}
	return size
}

// bounded refuses more than Kip holds of a cell's node. The images, which are most of
// it and which nobody needs, go first.
func (s *said) bounded() error {
	size := s.size()
	if size > maxNode {
		s.status.Images = nil
		size = s.size()
	}
	if size > maxNode {
		return tooMuch("the node", size, maxNode)
	}
	return nil
}

// size is what Kip holds of what was said. Quantities have their text from here on:
// who writes the node later changes nothing in it.
func (s *said) size() int {
	elements := len(s.status.Capacity) + len(s.status.Allocatable) + len(s.status.Conditions) + len(s.status.Addresses) +
		len(s.status.Images) + len(s.status.VolumesInUse) + len(s.status.VolumesAttached) + len(s.status.RuntimeHandlers) +
		len(s.status.DeclaredFeatures)
	size := mapSize(s.labels) + mapSize(s.annotations) + perElement*elements
	for _, i := range s.status.Images {
		size += perElement * len(i.Names)
	}
	for _, l := range []corev1.ResourceList{s.status.Capacity, s.status.Allocatable} {
		written(l)
	}
	return size + s.status.Size()
}

// written gives each quantity its text.
func written(l corev1.ResourceList) {
	for name, q := range l {
		_ = q.String()
		l[name] = q
	}
}

// boundedOwned refuses more than Kip holds of a cell's lease or CSINode.
func boundedOwned(o watches.APIObject) error {
	size, most := mapSize(o.GetLabels())+mapSize(o.GetAnnotations())+perElement*(len(o.GetOwnerReferences())+len(o.GetFinalizers())), maxLease
	switch o := o.(type) {
	case *coordinationv1.Lease:
		size += o.Size()
	case *storagev1.CSINode:
		most = maxCSINode
		size += o.Size()
		for _, d := range o.Spec.Drivers {
			size += perElement * (1 + len(d.TopologyKeys))
		}
	}
	if size > most {
		return tooMuch(o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetName(), size, most)
	}
	return nil
}
