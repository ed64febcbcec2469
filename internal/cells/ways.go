package cells

import (
	"net/http"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Way is the way to the agent of a cell that runs a pod.
type Way struct {
	Cell string
	Pod  apiv1.PodReference
	// RoundTripper is nil when the tunnel is down.
	RoundTripper http.RoundTripper
}

// Ways returns those to all bound cells.
func (c *Controller) Ways() []Way {
	c.mu.Lock()
	defer c.mu.Unlock()
	ways := make([]Way, 0, len(c.byPod))
	for _, e := range c.cells {
		cell := e.cell()
		if cell.Phase != apiv1.Bound {
			continue
		}
		w := Way{Cell: cell.ID, Pod: cell.Pod}
		if e.session != nil && e.session.Connected() {
			w.RoundTripper = e.session.RoundTripper()
		}
		ways = append(ways, w)
	}
	return ways
}
