package kip

import (
	"fmt"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ways lead from nodes to the cells of their pods.
type ways struct {
	cells *cells.Controller
	loop  *pods.Controller
	logs  *podlogs.Saver
}

var _ nodes.Ways = ways{}

func (w ways) To(pods cache.Store) node.Cells { return wayToCells{pods: pods, ways: w} }

func (w ways) Running(node string) []stats.Cell { return statsCells(w.cells.Ways(), node) }

// wayToCells finds the cell of a pod for the kubelet port.
type wayToCells struct {
	ways
	pods cache.Store
}

var _ node.Cells = wayToCells{}

func (w wayToCells) Conn(namespace, name string, uid types.UID) (agentapi.Conn, error) {
	obj, exists, err := w.pods.GetByKey(namespace + "/" + name)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, node.ErrPodNotFound
	}
	pod := obj.(*corev1.Pod)
	if uid != "" && pod.UID != uid {
		return nil, node.ErrPodNotFound
	}
	cell, has := w.cells.ForPod(pod.UID)
	none := apiv1.WithoutMachine(pod)
	switch {
	case has && (cell.Phase == apiv1.Bound || cell.Phase == apiv1.Draining):
		conn, err := w.cells.Conn(pod.UID)
		if err != nil {
			return nil, err
		}
		return w.logs.Track(pod.Namespace, pod.UID, conn), nil
	case watches.Ended(pod):
		return nil, &node.EndedError{UID: pod.UID, Phase: pod.Status.Phase}
	case !has && none != nil:
		return nil, &node.NoMachineError{Why: none.Message}
	case !has:
		why := w.loop.Waiting(pod.UID)
		if why == "" {
			why = "no cell has been requested yet"
		}
		return nil, &node.WaitingError{Why: why}
	}
	return nil, &node.WaitingError{Why: fmt.Sprintf("cell %s (%s) is %s", cell.ID, cell.Offering(), cell.Phase)}
}

// statsCells are the cells that are asked what the pods of a node use, or of all nodes for "".
func statsCells(ways []cells.Way, node string) (list []stats.Cell) {
	for _, w := range ways {
		if node != "" && w.Node != node {
			continue
		}
		list = append(list, stats.Cell{
			ID:        w.Cell,
			Namespace: w.Pod.Namespace,
			Pod:       w.Pod.Name,
			UID:       w.Pod.UID,
			Conn:      w.Conn,
			Machine:   stats.Machine{MilliCPU: w.Offering.MilliCPU, MemoryBytes: w.Offering.MemoryBytes, Since: w.Since},
			Given:     w.Given,
		})
	}
	return list
}

// useOfCells is what the ledger asks of what the meter notes.
type useOfCells struct{ uses *stats.Uses }

func (u useOfCells) Use(cell string) costs.Use { return costs.Use(u.uses.Use(cell)) }
