package cells

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// addressing waits for the addresses of booting cells.
type addressing struct {
	table     *table
	records   *records
	calls     *pipe.Pipe
	inventory *inventory
	lacks     perCell[string] // the address that an instance has not got, as a snapshot showed it; under table.mu
}

var _ preparation = (*addressing)(nil)

// prepare waits until the cloud shows all addresses of a cell's instance, and stores them.
func (s *addressing) prepare(ctx context.Context, e *entry) (progress, error) {
	dialPublic := s.calls.Capabilities().DialPublic
	if addressed(e.cell().Instance, dialPublic) {
		return done, nil
	}
	seen, launched := s.inventory.last(), e.cell().launched()
	// What an instance had before it was stopped is of no use.
	found, there := seen.byID[e.cell().Instance.ID]
	if there && seen.began.After(launched) && addressed(&found, dialPublic) {
		found.Launched = launched // by Kip's clock, and when it was started again, which not every cloud tells
		if err := s.records.save(ctx, e, func(cell *Cell) error { cell.Instance = &found; return nil }); err != nil {
			return progress{}, err
		}
		return done, nil
	}
	s.table.mu.Lock()
	lacks := s.lacks.of(e)
	if *lacks = ""; there && seen.began.After(launched) {
		*lacks = addressLacking(&found)
	}
	s.table.mu.Unlock()
	s.inventory.pollSoon()
	return waitFor(noAddress, time.Second), nil
}

// waitsForLocked returns which address a booting cell has not got, until it is dialled. The caller holds table.mu.
func (s *addressing) waitsForLocked(e *entry) string {
	if e.session().opened() {
		return ""
	}
	return cmp.Or(*s.lacks.of(e), noAddress)
}

// addressed reports whether an instance has all the addresses that Kip needs.
func addressed(i *cloud.Instance, dialPublic bool) bool {
	return i.ManagementIP.IsValid() && i.PodIP.IsValid() && i.DialIP(dialPublic).IsValid()
}

// noAddress is the wait of a cell without an address.
const noAddress = "it has no address yet"

// addressLacking returns which address an instance that is not addressed has not got.
func addressLacking(i *cloud.Instance) string {
	switch {
	case !i.ManagementIP.IsValid():
		return noAddress
	case !i.PodIP.IsValid() && i.State == cloud.Running:
		return fmt.Sprintf("it runs, and the cloud has given it %s alone and no address for its pod", i.ManagementIP)
	case !i.PodIP.IsValid():
		return "it has no address for its pod yet"
	}
	return "it has no public address, at which Kip would reach it"
}
