package cells

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/daemonsets"
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

// beside are the copies on a cell as its resource shows them.
func (m *Mirror) beside(id string) (list []apiv1.BesidePod) {
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
