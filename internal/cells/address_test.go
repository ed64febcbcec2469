package cells

import (
	"net/netip"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestACellWaitsUntilALookOfAfterItsLaunchShowsAllAddresses(t *testing.T) {
	b := newBench(t)
	s := &addressing{table: b.table, records: b.records, calls: b.calls, inventory: b.inventory}
	launched := b.clock.Now()
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Booting, Instance: &cloud.Instance{ID: "i", Launched: launched}})
	one, both := cloud.Instance{ID: "i", State: cloud.Running}, cloud.Instance{ID: "i", State: cloud.Running}
	one.ManagementIP = netip.MustParseAddr("10.0.0.2")
	both.ManagementIP, both.PodIP = one.ManagementIP, netip.MustParseAddr("10.0.128.2")
	for _, tc := range []struct {
		name  string
		began time.Duration // of the snapshot, since the launch
		shown cloud.Instance
		ready bool
		lacks string
	}{
		{"a snapshot from before", -time.Second, both, false, ""},
		{"a snapshot of another", time.Second, cloud.Instance{ID: "j"}, false, ""},
		{"one address", time.Second, one, false, "it runs, and the cloud has given it 10.0.0.2 alone and no address for its pod"},
		{"both", 2 * time.Second, both, true, "it runs, and the cloud has given it 10.0.0.2 alone and no address for its pod"},
	} {
		b.listed(snapshot{began: launched.Add(tc.began), byID: map[string]cloud.Instance{tc.shown.ID: tc.shown}})
		want := waitFor("", time.Second)
		if tc.ready {
			want = done
		}
		if got, err := bare(s.prepare(t.Context(), e)); err != nil || got != want || *s.lacks.of(e) != tc.lacks || b.asked() == tc.ready {
			t.Errorf("%s: %+v, lacks %q, error %v", tc.name, got, *s.lacks.of(e), err)
		}
	}
	if i := e.cell().Instance; i.PodIP != both.PodIP || !i.Launched.Equal(launched) {
		t.Errorf("stored is %+v", i)
	}
}

func TestAnInstanceWhoseAgentIsDialledInPublicNeedsAPublicAddress(t *testing.T) {
	i := cloud.Instance{ManagementIP: netip.MustParseAddr("10.0.0.2"), PodIP: netip.MustParseAddr("10.0.128.2")}
	if !addressed(&i, false) || addressed(&i, true) {
		t.Errorf("addressed: in private %t, in public %t", addressed(&i, false), addressed(&i, true))
	}
	if i.PublicIP = netip.MustParseAddr("192.0.2.1"); !addressed(&i, true) {
		t.Error("with a public address it is not addressed")
	}
}
