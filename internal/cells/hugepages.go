package cells

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

// HugePages are huge pages of one size.
type HugePages = agentapi.HugePages

// pagesTimeout is how long a machine is paid for whose kubelet does not count its huge pages.
const pagesTimeout = 2 * time.Minute

// hugePages waits for the huge pages of ready cells. Their agents reserve them by their configuration.
type hugePages struct {
	table       *table
	ends        *cellEnds
	waits       *bindWaits
	configuring *configuring
	reports     *connectionReports
	reserved    int64         // bytes of memory that are the cell's own
	counted     perCell[bool] // the kubelet has counted them all; of their workers
}

var _ preparation = (*hugePages)(nil)

// prepare waits until the kubelet of a ready cell counts the huge pages that its pod asks for: it refuses the pod before, for good. A
// cell whose machine has fewer ends.
func (s *hugePages) prepare(ctx context.Context, e *entry) (progress, error) {
	cell, counted := e.cell(), s.counted.of(e)
	if len(cell.HugePages) == 0 || *counted {
		return done, nil
	}
	s.table.mu.Lock()
	now, said := e.connection(), s.reports.answerLocked(e)
	asked := slices.Equal(*s.configuring.pages.of(e), cell.HugePages)
	s.table.mu.Unlock()
	switch {
	case !now.configured:
		s.waits.restart(e)
		return await(notConnected), nil // the tunnel wakes the cell
	case !asked:
		return anew, nil // a pod has just taken the cell: its agent was configured without the pages
	}
	if end, is := s.missing(cell, said); is {
		s.ends.begin(e, end)
		return leave, nil
	}
	lacks := uncounted(cell.HugePages, now.api.Node())
	if lacks == "" {
		*counted = true
		s.waits.over(ctx, e)
		return done, nil
	}
	late := fmt.Sprintf("its kubelet did not count its %s in %s", lacks, pagesTimeout)
	return s.waits.wait(ctx, e, bindWait{
		by:       s,
		progress: waitFor("its kubelet does not count its huge pages yet", countPoll),
		event:    events.NewHugePagesNotReady(e.id, lacks),
		silence:  countSilence,
		timeout:  pagesTimeout,
		end:      cellEnd{CauseNotReady, late, events.NewCellGivenUp(e.id, late)},
	})
}

// missing returns how a cell ends whose machine cannot have the huge pages of its pod, or has too few by what its agent said.
func (s *hugePages) missing(cell *Cell, said agentapi.Configured) (end cellEnd, is bool) {
	refused := func(why string) (cellEnd, bool) {
		return cellEnd{CauseKernelRefused, why, events.NewHugePagesRefused(cell.ID, why)}, true
	}
	switch {
	case said.NoHugePages != "":
		return refused(said.NoHugePages)
	case len(said.HugePages) == 0:
		return refused("its agent is older than this Kip and reserves no huge pages")
	}
	for _, w := range cell.HugePages {
		has := int64(0)
		if at := slices.IndexFunc(said.HugePages, func(h HugePages) bool { return h.PageBytes == w.PageBytes }); at >= 0 {
			has = said.HugePages[at].Pages
		}
		if has < w.Pages {
			return tooFewPages(cell, s.whyMissing(cell, w, has)), true
		}
	}
	return cellEnd{}, false
}

// whyMissing returns why a machine has too few huge pages of a size. An agent does not ask the kernel for more than there is memory for.
func (s *hugePages) whyMissing(cell *Cell, want HugePages, has int64) string {
	var all int64
	for _, p := range cell.HugePages {
		all += p.PageBytes * p.Pages
	}
	if measured := cell.Measured.MemoryBytes; measured > 0 && all > measured-s.reserved {
		bytes := func(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
		return events.MachineTooSmall(cell.Offering().String(), resourcesText(cell.Measured), bytes(all)+" of huge pages", bytes(s.reserved))
	}
	return events.HugePagesMissing(want.Resource(), has, want.Pages)
}

// tooFewPages returns how a cell ends whose machine has too few huge pages. The pod gets a larger machine, once: another cell then has no
// Needs, and counts against the pod's attempts.
func tooFewPages(cell *Cell, why string) cellEnd {
	if cell.Needs.None() {
		return cellEnd{CauseNotReady, why, events.NewCellGivenUp(cell.ID, why)}
	}
	return cellEnd{CauseTooSmall, why, events.NewCellTooSmall(cell.ID, why)}
}

// uncounted returns the first resource of huge pages of which a kubelet counts fewer than its pod asks for; "" for none.
func uncounted(want []HugePages, node *corev1.Node) string {
	for _, w := range want {
		var has resource.Quantity
		if node != nil {
			has = node.Status.Allocatable[corev1.ResourceName(w.Resource())]
		}
		if has.CmpInt64(w.PageBytes*w.Pages) < 0 {
			return w.Resource()
		}
	}
	return ""
}

// withPages notes in what a cell's kubelet has, until it has said it, the huge pages of its pod.
func withPages(pages []HugePages, capacity, allocatable corev1.ResourceList) {
	for _, p := range pages {
		all := *resource.NewQuantity(p.PageBytes*p.Pages, resource.BinarySI)
		capacity[corev1.ResourceName(p.Resource())], allocatable[corev1.ResourceName(p.Resource())] = all, all
		memory := allocatable[corev1.ResourceMemory]
		memory.Sub(all)
		allocatable[corev1.ResourceMemory] = memory
	}
}
