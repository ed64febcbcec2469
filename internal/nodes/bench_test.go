package nodes

import (
	"fmt"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// stock is a catalogue that does not change.
type stock []catalog.InstanceType

func (s stock) Types() []catalog.InstanceType { return s }

func (s stock) OfNode(string, placement.Limit) ([]catalog.InstanceType, *placement.Placer, error) {
	return s, nil, nil
}

// nobody acts as no node.
type nobody struct{}

func (nobody) As(string) (kubernetes.Interface, error) { return nil, nil }

// BenchmarkNodesOfCells tells the nodes of 10,000 cells among 20, as each scrape does: those
// of pods, whose record says it, and standby cells of a pool for each node, of which it
// depends on what the nodes offer.
func BenchmarkNodesOfCells(b *testing.B) {
	const number, types, all = 20, 800, 10000
	var sells stock
	for i := range types {
		sells = append(sells, catalog.InstanceType{Name: fmt.Sprint("type-", i), Arch: "amd64"})
	}
	n, err := newNodes(Config{Name: "kip-0", InstanceTypes: sells, Clients: nobody{}, Clock: clock.RealClock{}, Log: silent})
	if err != nil {
		b.Fatal(err)
	}
	for i := range number {
		e := nodeplan.Entry{Number: i + 1, Node: config.Node{Zones: []string{fmt.Sprint("zone-", i/2)}, LaunchTypes: []string{config.OnDemand}}}
		if i%2 == 1 {
			e.Node.LaunchTypes = []string{config.Spot}
		}
		n.entries = append(n.entries, e)
		n.served[e.Name("kip-0")] = &served{name: e.Name("kip-0"), number: e.Number, entry: e, rights: rightsHeld}
	}
	simulated, err := sim.New(sim.Config{Catalogue: sold})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = simulated.Close() })
	machines := pipe.New(pipe.Config{Cloud: simulated, Clock: clock.RealClock{}})
	of := cells.New(cells.Config{
		NodeName: "kip-0",
		Calls:    machines,
		Store:    store.Memory(nil),
		Guard:    guard.New(guard.Config{Clock: clock.RealClock{}}),
		Nodes:    n,
		Clock:    clock.RealClock{},
		Log:      silent,
	})
	b.Cleanup(of.Close)
	pods, standby := make([]cells.Cell, all), make([]cells.Cell, all)
	for i := range all {
		on := i % number
		pods[i] = cells.Cell{Node: n.entries[on].Name("kip-0"), Pod: apiv1.PodReference{UID: "uid"}}
		standby[i] = cells.Cell{Offerings: []offering.Offering{{
			InstanceType: sells[on*types/number].Name,
			Zone:         n.entries[on].Node.Zones[0],
			Spot:         on%2 == 1,
		}}}
	}
	for _, c := range []struct {
		name  string
		cells []cells.Cell
	}{{"pods", pods}, {"standby", standby}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				found, nodeOf := map[string]int{}, of.NodesOf()
				for i := range c.cells {
					found[nodeOf(c.cells[i])]++
				}
				if len(found) != number {
					b.Fatalf("the cells are of %v", found)
				}
			}
		})
	}
}
