package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"sigs.k8s.io/yaml"
)

// requested are cells that are to be launched, on a bench.
func (b *bench) requested(ids ...string) (group []*entry) {
	for _, id := range ids {
		group = append(group, b.stored(Cell{
			ID: id, Pod: ref("pod of " + id), Phase: apiv1.Requested, Offerings: []Offering{{InstanceType: "nano", BootTimeout: time.Minute}},
		}))
	}
	return group
}

func TestALaunchIsStoredWithItsCellsBeforeItIsSent(t *testing.T) {
	for _, shared := range []bool{false, true} {
		b := newBench(t)
		b.cloud.capabilities.SharedUserData = shared
		if err := b.generation.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		calls := &callBuilder{owner: "me", recipe: b.recipe, ca: "ca"}
		s := &intents{table: b.table, clock: b.clock, records: b.records, generation: b.generation, calls: b.calls, builder: calls}
		group := b.requested("c", "d")
		l := &launch{group: group, resolved: &cloud.Resolved{PublicAddress: true}}
		if others := s.store(t.Context(), l); len(others) > 0 {
			t.Fatal(others[0].answer.Err)
		}
		var stored storedCall
		if _, err := b.records.store.Get(t.Context(), launchesPrefix+l.id, &stored); err != nil || len(stored.Request.Machines) != 2 {
			t.Fatalf("shared %t: the stored call has %d machines (%v)", shared, len(stored.Request.Machines), err)
		}
		if stored.Until.IsZero() == shared || stored.Request.Tags[cloud.TagGeneration] == "" {
			t.Errorf("shared %t: the secret expires at %s, tags %v", shared, stored.Until, stored.Request.Tags)
		}
		for n, e := range group {
			cell := e.cell()
			if cell.Phase != apiv1.Launching || cell.Launch.Index != n || cell.Launch.Shared != shared || cell.CA != "ca" || e.launchID != l.id {
				t.Errorf("shared %t: cell %d is %s with %+v", shared, n, cell.Phase, cell.Launch)
			}
			var own struct{ Kip agentapi.UserData }
			if err := yaml.Unmarshal(stored.Request.Machines[n].UserData, &own); err != nil || !shared && own.Kip.Token != cell.Token {
				t.Errorf("shared %t: cell %d is told %+v (%v)", shared, n, own, err)
			}
		}
		if group[0].cell().Token == group[1].cell().Token {
			t.Errorf("shared %t: two cells have one token", shared)
		}
	}
}

func TestCellsThatMayHaveAnotherArchitectureGoOn(t *testing.T) {
	b := newBench(t)
	group := b.requested("c", "d")
	both := group[1].cell().clone()
	both.Offerings = append(both.Offerings, Offering{InstanceType: "arm", Arch: "arm64"})
	group[1].current.Store(&both)
	for name, tc := range map[string]struct {
		err    error
		others int
	}{
		"it says nothing of types": {errors.New("no"), 0},
		"it is the type":           {cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: "nano"}, errors.New("no")), 1},
	} {
		if stay, others := byOtherArch(group, tc.err); len(others) != tc.others || len(stay)+len(others) != 2 {
			t.Errorf("%s: %d stay and %d go on", name, len(stay), len(others))
		}
	}
}
