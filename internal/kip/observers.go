package kip

import (
	"time"

	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/pods"
	"k8s.io/apimachinery/pkg/types"
)

// learning tells the provider of instance types what cells show of the cloud's types.
type learning struct {
	cells.Unobserved
	types *instancetypes.Provider
}

var _ cells.Observer = learning{}

func (l learning) CellMeasured(c cells.Cell) {
	l.types.Learn(c.Offering().InstanceType, imageName(c.Options), c.Measured)
}

func (l learning) CellTakenBack(c cells.Cell) {
	o := c.Offering()
	l.types.TakenBack(o.InstanceType, o.Zone)
}

// podObserver is told what becomes of pods.
type podObserver struct {
	metrics *metrics.Metrics
	logs    savedLogs
	cells   *cells.Controller
}

var _ pods.Observer = podObserver{}

func (o podObserver) PodRunning(cell cells.Cell, at time.Time) {
	o.metrics.PodRunning(cell, at)
	o.cells.PodRunning(cell.Pod.UID)
}

func (o podObserver) PodGone(pod types.UID) { o.logs.forget(pod) }

// nodeObserver is told what becomes of virtual nodes.
type nodeObserver struct {
	*metrics.Metrics
	cellAPI *cellapi.Server
}

var _ nodes.Observer = nodeObserver{}

func (o nodeObserver) NodeGone(node string) { o.cellAPI.ForgetNode(node) }
