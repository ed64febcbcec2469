package cells

import (
	"log/slog"
	"slices"

	"github.com/elotl/kip/internal/cloud"
)

// foreign tells the instances that this Kip has launched from those that only have its tags.
type foreign struct {
	log      *slog.Logger
	owner    string
	reported map[string]bool // the others of the last list; of the one that compares
}

// leave takes those out of a list that have Kip's tags, and that somebody else has launched:
// they are told once, and nothing follows from them.
func (s *foreign) leave(list []cloud.Instance, cells []known) []cloud.Instance {
	owned := map[string]bool{}
	for _, k := range cells {
		if i := k.cell.Instance; i != nil {
			owned[i.ID] = true
		}
	}
	others := map[string]bool{}
	list = slices.DeleteFunc(slices.Clone(list), func(i cloud.Instance) bool {
		if owned[i.ID] || s.launched(i) {
			return false
		}
		others[i.ID] = true
		if !s.reported[i.ID] {
			s.log.Error("an instance has the tags of this Kip, and was launched by somebody else: it is left alone; remove its tags",
				"instance", i.ID, "owner", s.owner)
		}
		return true
	})
	s.reported = others
	return list
}

// launched is Controller.Launched.
func (s *foreign) launched(i cloud.Instance) bool {
	// One that ends shows less and less of itself, and is left alone anyway.
	return i.State == cloud.Terminating || launchedBy(s.owner, i)
}
