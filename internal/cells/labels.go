package cells

import (
	"errors"
	"maps"

	"github.com/elotl/kip/internal/cloud"
)

// labelTags returns the labels of a cell's pod that costs are kept by, as tags. A label with the key of one of Kip's own tags
// is none: Kip knows its instances by these.
func labelTags(cell *Cell) map[string]string {
	tags := maps.Clone(cell.Account.Labels)
	maps.DeleteFunc(tags, func(key, _ string) bool { return cloud.IsOwnTag(key) })
	return tags
}

// commonLabels returns the labels on which the pods of all cells of a launch agree. They are tags in its call.
func commonLabels(cells []Cell) map[string]string {
	common := labelTags(&cells[0])
	for n := range cells {
		if cells[n].NoLabels {
			return nil
		}
		own := labelTags(&cells[n])
		maps.DeleteFunc(common, func(key, value string) bool {
			has, there := own[key]
			return !there || has != value
		})
	}
	return common
}

// mayBeLabels reports whether a cloud may have refused a launch because of the labels in its tags. An organization may
// allow some values only, and whoever makes pods writes labels: such a pod must not stop the launches of others. What is
// refused to all of the account, as with credentials that have expired, no label has caused.
func mayBeLabels(err error) bool {
	return cloud.Refused(err) && (denied(err) || errors.Is(err, cloud.ErrRefused) && !cloud.ScopeOf(err).Says())
}

// labelled reports whether a launch has labels of its pods as tags.
func (l *launch) labelled() bool {
	for _, e := range l.open() {
		if intent := e.cell().Launch; intent != nil && intent.Labelled {
			return true
		}
	}
	return false
}

// restoreLabels gives a cell its labels back where the cloud refuses its launch without them as well. Either the
// refusal is of the account, or the cell goes on to its next offering: so no offering is tried more than twice.
func (c *Cell) restoreLabels(err error) {
	if mayBeLabels(err) || errors.Is(err, cloud.ErrUnauthorised) {
		c.NoLabels = false
	}
}
