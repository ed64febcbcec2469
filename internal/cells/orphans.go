package cells

import (
	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
	"k8s.io/apimachinery/pkg/types"
)

// orphanEnds ends the instances that have our tags and no cell.
type orphanEnds struct {
	inventory *inventory
	endings   *endings
}

// end ends an instance without a cell, which has our tags.
func (s *orphanEnds) end(i cloud.Instance) {
	s.endings.want(guard.End{
		Instance: i.ID,
		Pod: apiv1.PodReference{
			Namespace: i.Tags[cloud.TagNamespace],
			Name:      i.Tags[cloud.TagPod],
			UID:       types.UID(i.Tags[cloud.TagPodUID]),
		},
		Why:    "it has Kip's tags and no cell",
		Ground: guard.Unrequested,
	}, nil, s.inventory.last())
}

// forget forgets the ends of instances without a cell that a snapshot does not show any more.
func (s *orphanEnds) forget(seen snapshot) { s.endings.forgetOrphans(seen) }
