package cells

import (
	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cellapi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// cellAPIs serve cells the Kubernetes API that they see.
type cellAPIs struct {
	apis      APIs
	nodeNames *nodeNames
	notices   *notices
	reserved  int64 // bytes of memory that are the cell's own
}

// serve adds the API of a cell. It returns what answers the cell's machine.
func (s *cellAPIs) serve(e *entry) API {
	cell, offering := e.cell(), e.cell().Offering()
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(offering.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(offering.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(offering.DiskBytes, resource.BinarySI),
	}
	allocatable := capacity.DeepCopy()
	allocatable[corev1.ResourceMemory] = *resource.NewQuantity(offering.MemoryBytes-s.reserved, resource.BinarySI)
	if cell.Phase == apiv1.Bound || cell.Phase == apiv1.Draining { // before, Kip waits until its kubelet counts them
		withPages(cell.HugePages, capacity, allocatable)
	}
	node := s.nodeNames.of(cell)
	api := s.apis.AddCell(e.id, cellapi.CellInfo{
		Node:        node,
		Capacity:    capacity,
		Allocatable: allocatable,
		NodeIP:      cell.Instance.ManagementIP,
		NodeIPv6:    cell.Instance.ManagementIPv6,
		PodIP:       cell.Instance.PodIP,
		PodIPv6:     cell.Instance.PodIPv6,
	})
	e.serve(api, node)
	return noticeAPI{api, s.notices, e}
}

// remove takes the API of a cell away.
func (s *cellAPIs) remove(e *entry) { s.apis.RemoveCell(e.id) }

// show lets the kubelet of a bound cell see its pod.
func (e *entry) show() error { return e.liveConnection.show(e.cell()) }
