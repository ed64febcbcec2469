package cells

import (
	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
	"k8s.io/apimachinery/pkg/types"
)

// orphanTerminations has the instances terminated that have our tags and no cell.
type orphanTerminations struct {
	inventory    *inventory
	terminations *terminations
}

// terminate has an instance without a cell terminated, which has our tags.
func (s *orphanTerminations) terminate(i cloud.Instance) {
	s.terminations.terminate(guard.End{
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

// forget forgets the terminations of those that a snapshot does not show any more.
func (s *orphanTerminations) forget(seen snapshot) { s.terminations.forgetOrphans(seen) }
