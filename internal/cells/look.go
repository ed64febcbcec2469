package cells

import (
	"time"

	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

// look is one answer of the cloud's list. It is never modified once it is shown.
type look struct {
	began time.Time
	byID  map[string]cloud.Instance
	byPod map[types.UID][]string // instance IDs
	// byCell has the instance of a cell, by its JoinID: the one that the record names,
	// where there are several.
	byCell map[string]string
	// strangers are cells of a Kip whose store was lost, standby or not tagged yet:
	// which pods they run, if any, nobody knows.
	strangers []string
	// missing are the zones that it does not cover. If looked is not nil, it covers no others than these.
	missing, looked []string
	// wrong says that it lacks the instance of a cell that was heard a short while
	// ago. That it lacks others proves nothing then.
	wrong bool
	// lacks says that it does not show all instances of cells that it should: then it
	// does not show either what no cell names yet.
	lacks bool
	// hides are instances that lists do not show, and that are alive: they are told of once.
	hides []string
	// blind is true as long as there is a zone that no look has covered.
	blind bool
	// ended are instances of cells that are surely gone: the cloud said so of them,
	// or two complete looks did not show them.
	ended map[string]bool
}

// covers says that the look would show an instance of the zone.
func (l look) covers(zone string) bool {
	return cloud.Listing{Missing: l.missing, Looked: l.looked}.Covers(zone)
}

// complete says that the look shows all instances, as far as Kip can tell.
func (l look) complete() bool {
	return !l.began.IsZero() && len(l.missing) == 0 && !l.lacks
}

// known is a cell as it was when the cloud had answered.
type known struct {
	cell       *Cell
	cutOff     bool      // its tunnel is down
	heard      bool      // it was heard a short while ago
	addressed  bool      // its instance has all addresses that it needs
	terminated time.Time // when the cloud accepted the termination; zero before
}

// absent is a cell whose instance a look does not show though it covers its zone.
type absent struct {
	cell  *Cell
	twice bool // an earlier complete look did not show it either
	due   bool // it is alive, and has been missing for as long as it may be
}

func (a absent) instance() string { return a.cell.Instance.ID }

// findings are what follows from a look.
type findings struct {
	// wake are the cells that may have waited for the look.
	wake []string
	// absent are those of whose instances the cloud is to be asked.
	absent []absent
	// lacking are the instances of live cells that are not shown.
	lacking []string
	// stopped are those whose instances were stopped by somebody else.
	stopped []*Cell
	// unnamed are the instances without a cell that do not end yet, found how many of
	// them are seen for the first time, and orphans those that were seen for long enough
	// to be ended.
	unnamed []cloud.Instance
	found   int
	orphans []cloud.Instance
}
