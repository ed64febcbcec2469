package main

import (
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/stats"
)

// statsCells are the cells that are asked what their pods use.
func statsCells(c *cells.Controller) func() []stats.Cell {
	return func() []stats.Cell {
		ways := c.Ways()
		list := make([]stats.Cell, len(ways))
		for i, w := range ways {
			list[i] = stats.Cell{ID: w.Cell, Namespace: w.Pod.Namespace, Pod: w.Pod.Name, UID: w.Pod.UID, RoundTripper: w.RoundTripper}
		}
		return list
	}
}
