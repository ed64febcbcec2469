package kip

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
)

func TestStandbyCellsThatNoNodeOffersAreUseless(t *testing.T) {
	file := filepath.Join(t.TempDir(), "provider.yaml")
	text := fmt.Sprintf("cloud: {sim: {socket: /none}}\ncells: {defaultInstanceType: small}\netcd: {internal: {dataDir: %s}}\n"+
		"nodes: [{launchTypes: [spot]}]\n", filepath.Dir(file))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	simulated, err := sim.New(sim.Config{Catalogue: []catalog.InstanceType{{
		Name:        "small",
		Arch:        "amd64",
		MilliCPU:    1000,
		MemoryBytes: 1 << 30,
		Offerings:   []catalog.PurchaseOption{{Zone: "a", PricePerHour: 2}, {Zone: "b", Spot: true, PricePerHour: 1}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer simulated.Close()
	k := newProcess(t)
	k.ProviderConfig, k.cfg = file, cfg
	l := &term{process: k, store: store.Memory(nil)}
	toCloud := cloudSide{machines: pipe.New(pipe.Config{Cloud: simulated, Clock: k.clock})}
	toCloud.instanceTypes, err = instancetypes.Open(t.Context(), instancetypes.Config{
		Cloud:     toCloud.machines,
		Store:     l.store,
		Placement: placement.Config{DefaultInstanceType: "small"},
		Clock:     k.clock,
		Log:       silent,
	})
	if err != nil {
		t.Fatal(err)
	}
	if toCloud.shortages, err = loadShortages(t.Context(), l.store, k.clock, silent); err != nil {
		t.Fatal(err)
	}
	nodes, err := l.openNodes(t.Context(), toCloud)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := l.standbyPool(toCloud, nodes.all, config.StandbyCells{InstanceType: "small", Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	if offerings, err := pool.Offerings(); err == nil || !strings.Contains(err.Error(), "no virtual node offers") {
		t.Errorf("offerings %v, %v", offerings, err)
	}
	if !pool.Useless(offering.Offering{InstanceType: "small", Zone: "a"}) {
		t.Error("a cell that gets no pod is kept")
	}
	if pool.Useless(offering.Offering{InstanceType: "small", Zone: "b", Spot: true}) {
		t.Error("a cell that may get a pod is not kept")
	}
}
