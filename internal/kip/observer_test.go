package kip

import (
	"slices"
	"testing"

	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/metrics"
)

// Neither package may import the other: the metrics are there before a cell is refused.
func TestMetricsKnowAllReasonsForWhichCellsAreRefused(t *testing.T) {
	var _ cellapi.Observer = (*metrics.Metrics)(nil)
	if got := metrics.CellRefusals(); !slices.Equal(got, cellapi.Refusals) {
		t.Errorf("the metrics know %q, cells are refused for %q", got, cellapi.Refusals)
	}
}
