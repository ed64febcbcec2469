package kip

import (
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
)

func TestWhatPodsUseIsAskedOfTheCellsOfTheirNodeAlone(t *testing.T) {
	var all []cells.Endpoint
	for _, on := range []string{"kip-0-1", "kip-0-2", ""} {
		all = append(all, cells.Endpoint{
			Cell:     "of-" + on,
			Node:     on,
			Pod:      apiv1.PodReference{Namespace: "ns", Name: "web", UID: "uid"},
			Offering: offering.Offering{MilliCPU: 500, MemoryBytes: 1 << 30},
		})
	}
	for _, on := range []string{"kip-0-1", "kip-0-2"} {
		list := statsCells(all, on)
		if len(list) != 1 || list[0].ID != "of-"+on || list[0].Pod != "web" || list[0].Machine.MilliCPU != 500 {
			t.Errorf("node %s asks %+v", on, list)
		}
	}
}
