package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/apimachinery/pkg/types"
)

// copyDelay gathers the changes of what runs beside a cell's pod: the cell alone says of it what it likes.
const copyDelay = 3 * time.Second

// CopyChanged takes a cell to be written, of which a copy has changed. It does not block.
func (m *Mirror) CopyChanged(cell string, _ types.NamespacedName) { m.queue.AddAfter(cell, copyDelay) }

var _ daemonsets.CopyObserver = (*Mirror)(nil)

// wholeStatus is a status that takes back, as a merge patch, what a cell has no more.
type wholeStatus struct {
	apiv1.CellStatus
	Beside []apiv1.BesidePod `json:"beside"`
}

func whole(s apiv1.CellStatus) wholeStatus { return wholeStatus{CellStatus: s, Beside: s.Beside} }

// copiesShown returns the copies on a cell as its resource shows them.
func (m *Mirror) copiesShown(id string) (list []apiv1.BesidePod) {
	if m.copies == nil {
		return nil
	}
	for _, c := range m.copies.CopiesOn(id) {
		list = append(list, apiv1.BesidePod{
			Namespace: c.Set.Namespace,
			Name:      c.Set.Name,
			Ready:     c.Ready,
			Restarts:  c.Restarts,
			Message:   c.Why,
		})
	}
	return list
}

// lingering is an API that ends what runs beside the pod of its cell; *cellapi.Cell says what its methods do.
type lingering interface {
	Lingers() bool
	EndCopies(ctx context.Context)
}

var _ lingering = (*cellapi.Cell)(nil)

// lingers reports whether a cell whose pod has ended goes on until what runs beside it has ended, too.
func (e *entry) lingers() bool {
	now := e.connection()
	api, is := now.api.(lingering)
	return is && patient(e) && now.session.connected() && api.Lingers()
}

// endCopies has what runs beside the pod end, and waits for it.
func (e *entry) endCopies(ctx context.Context) {
	if !e.lingers() {
		return
	}
	defer watchdog.Wait(ctx, watchdog.Cell)()
	e.api().(lingering).EndCopies(ctx)
}
