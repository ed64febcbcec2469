package kip

import (
	"errors"
	"fmt"
	"strings"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/daemonsets"
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

// endpoints are the agents of cells, for the nodes of their pods.
type endpoints struct {
	cells *cells.Controller
	loop  *pods.Controller
	logs  *podlogs.Saver
	// copies are those of the pods of DaemonSets.
	copies interface {
		Copies(set types.UID) []daemonsets.Copy
	}
}

var _ nodes.Endpoints = endpoints{}

func (e endpoints) To(pods cache.Store) node.Cells { return nodeCells{pods: pods, endpoints: e} }

func (e endpoints) Running(node string) []stats.Cell { return statsCells(e.cells.Endpoints(), node) }

// namedCopies is how many cells an answer names.
const namedCopies = 5

// whereCopies says which cells run the copies of a DaemonSet's pod; "" for one without.
func (e endpoints) whereCopies(set types.UID) string {
	copies := e.copies.Copies(set)
	if len(copies) == 0 {
		return ""
	}
	var where []string
	for _, c := range copies[:min(namedCopies, len(copies))] {
		where = append(where, fmt.Sprintf("%s (beside pod %s)", c.Cell, c.Pod))
	}
	more := ""
	if n := len(copies) - namedCopies; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf(" Its copies run on the cells %s%s. How one fares: kubectl get cell NAME -o yaml (status.beside). "+
		"Its log: kipctl exec NAME -- tail /var/log/containers/%s_%s_CONTAINER-….log",
		strings.Join(where, ", "), more, copies[0].Set.Name, copies[0].Set.Namespace)
}

// nodeCells finds the cell of a pod for the kubelet port.
type nodeCells struct {
	endpoints
	pods cache.Store
}

var _ node.Cells = nodeCells{}

func (n nodeCells) Conn(namespace, name string, uid types.UID) (agentapi.Conn, error) {
	obj, exists, err := n.pods.GetByKey(namespace + "/" + name)
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
	cell, has := n.cells.ForPod(pod.UID)
	none := apiv1.WithoutMachine(pod)
	switch {
	case has && (cell.Phase == apiv1.Bound || cell.Phase == apiv1.Draining):
		conn, err := n.cells.Conn(pod.UID)
		if err != nil {
			return nil, err
		}
		return n.logs.Track(pod.Namespace, pod.UID, conn), nil
	case watches.Ended(pod):
		return nil, &node.EndedError{UID: pod.UID, Phase: pod.Status.Phase}
	case !has && none != nil:
		return nil, &node.NoMachineError{Why: none.Message + n.whereCopies(pod.UID)}
	case !has:
		why := n.loop.Waiting(pod.UID)
		if why == "" {
			why = "no cell has been requested yet"
		}
		return nil, &node.WaitingError{Why: why}
	}
	return nil, &node.WaitingError{Why: fmt.Sprintf("cell %s (%s) is %s", cell.ID, cell.Offering(), cell.Phase)}
}

func (n nodeCells) Machine(cell string) (agentapi.Conn, error) {
	conn, err := n.cells.Machine(cell)
	if errors.Is(err, cells.ErrNoCell) {
		return nil, node.ErrCellNotFound
	}
	return conn, err
}

// statsCells are the cells that are asked what the pods of a node use, or of all nodes for "".
func statsCells(endpoints []cells.Endpoint, node string) (list []stats.Cell) {
	for _, e := range endpoints {
		if node != "" && e.Node != node {
			continue
		}
		list = append(list, stats.Cell{
			ID:        e.Cell,
			Namespace: e.Pod.Namespace,
			Pod:       e.Pod.Name,
			UID:       e.Pod.UID,
			Conn:      e.Conn,
			Machine:   stats.Machine{MilliCPU: e.Offering.MilliCPU, MemoryBytes: e.Offering.MemoryBytes, Since: e.Since},
			Given:     e.Given,
		})
	}
	return list
}

// useOfCells is what the ledger asks of what the meter notes.
type useOfCells struct{ uses *stats.Uses }

func (u useOfCells) Use(cell string) costs.Use { return costs.Use(u.uses.Use(cell)) }
