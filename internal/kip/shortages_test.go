package kip

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// counted counts who is asked for something.
type counted struct{ n int }

func (c *counted) LookSoon() { c.n++ }
func (c *counted) ReadSoon() { c.n++ }

// An account may turn out to be sold few types. Pods must not try all others one after the other.
func TestTheCatalogueIsReadWhereALaunchShowsThatItHasChanged(t *testing.T) {
	stored, err := loadShortages(t.Context(), store.Memory(nil), clock.RealClock{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var reads counted
	s := seenShortages{stored, &counted{}, &reads}
	no := cloud.No(cloud.ErrQuota, cloud.Scope{InstanceType: "large"}, errors.New("not in the plan"))
	s.Mark(offering.Offering{InstanceType: "large"}, fmt.Errorf("launch: %w", no))
	if reads.n != 0 {
		t.Errorf("it is read for any quota")
	}
	no.Catalogue = true
	s.Mark(offering.Offering{InstanceType: "large"}, fmt.Errorf("launch: %w", no))
	if reads.n != 1 {
		t.Errorf("it is read %d times, want once", reads.n)
	}
}
