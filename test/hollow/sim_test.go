package hollow

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/pki"
)

// The simulated cloud boots hollow machines.
func TestCellsLiveInTheSimulatedCloud(t *testing.T) {
	inBubble(t, Config{KeepDisks: true}, func(t *testing.T, w *world) {
		ctx := context.Background()
		machines, err := sim.New(sim.Config{
			Catalogue: []catalog.InstanceType{{
				Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 << 30, Arch: "amd64",
				Offerings: []catalog.PurchaseOption{{Zone: "z1", PricePerHour: 0.08}},
			}},
			Boot:  w.fleet.Boot,
			Knobs: sim.Knobs{StoppedKeepsAddresses: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { machines.Close() })

		cells := make([]*cell, 3)
		request := cloud.LaunchRequest{Token: "t", LaunchSpec: cloud.LaunchSpec{InstanceType: "c5.large", Zone: "z1"}}
		for i := range cells {
			c := &cell{w: w, token: pki.NewToken(), asked: map[string]int{}, states: make(chan error, 1000)}
			c.user = agentapi.UserData{CellID: fmt.Sprintf("c-%d", i), CAHash: w.authority.Hash(), Token: c.token.Reveal()}
			cells[i] = c
			request.Machines = append(request.Machines, cloud.Machine{
				UserData: userDataOf(t, c.user), Tags: map[string]string{cloud.TagOwner: "me", cloud.TagCell: c.user.CellID},
			})
		}
		if _, err := machines.Launch(ctx, request).All(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // all have booted, and are seen
		listing, err := machines.List(ctx, "me")
		seen := listing.Instances
		if err != nil || len(seen) != len(cells) {
			t.Fatalf("%d instances, %v", len(seen), err)
		}
		for i := range seen {
			for _, c := range cells {
				if c.user.CellID == seen[i].Tags[cloud.TagCell] {
					c.instance = seen[i]
				}
			}
		}
		for _, c := range cells {
			c.dial(w.kip)
			<-c.session.Ready()
			c.configure()
			<-c.api.NodeReady()
			c.await(connected)
		}

		if err := machines.Terminate(ctx, cells[0].instance.ID).Err(); err != nil {
			t.Fatal(err)
		}
		cells[0].await(func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) })
		if err := machines.Stopper.Stop(ctx, cells[1].instance.ID).Err(); err != nil {
			t.Fatal(err)
		}
		cells[1].await(func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) })
		if up, _ := w.fleet.Count(); up != 1 {
			t.Errorf("%d instances are up", up)
		}
		// With the same disk it is the same cell.
		if err := machines.Stopper.Start(ctx, cells[1].instance.ID).Err(); err != nil {
			t.Fatal(err)
		}
		cells[1].await(connected)
		synctest.Wait()
		if !cells[2].session.Connected() {
			t.Error("the third cell was disturbed")
		}
	})
}
