package cells

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
)

// dials are tunnels that note how a cell is dialled.
type dials struct{ target tunnel.Target }

func (d *dials) Keep(_ context.Context, t tunnel.Target, _ http.Handler, _ tunnel.OnSpend) (Session, error) {
	d.target = t
	return &modelLink{}, nil
}

func TestACellIsDialledByWhatItsRecordSays(t *testing.T) {
	b, d := newBench(t), &dials{}
	s := &dialling{loop: b.loop, calls: b.calls, tunnels: d}
	token := pki.NewToken()
	e := newEntry(Cell{
		ID: "c", Phase: apiv1.Booting, Pod: ref("a"), Credentials: Credentials{Token: token.Reveal(), CA: "new"},
		Instance: &cloud.Instance{ManagementIP: netip.MustParseAddr("10.0.0.2"), PublicIP: netip.MustParseAddr("192.0.2.1")},
	}, 0)
	for _, public := range []bool{false, true} {
		b.cloud.set(func() { b.cloud.capabilities.DialPublic = public })
		if _, err := s.dial(t.Context(), e, nil); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "10.0.0.2", true: "192.0.2.1"}[public]
		if got := d.target; got.Addr != netip.AddrPortFrom(netip.MustParseAddr(want), agentapi.Port) || got.CA != "new" || got.CellID != "c" {
			t.Errorf("it is dialled as %+v", got)
		}
	}
	e.change(func(c *connection) { c.configured = true })
	d.target.OnState(true, nil)
	if now := e.connection(); !now.configured || now.breaks != 0 || !slices.Equal(b.woken(), []string{"c"}) {
		t.Error("a connection counts as a break, or does not wake the cell")
	}
	d.target.OnState(false, nil)
	if now := e.connection(); now.configured || now.breaks != 1 || !slices.Equal(b.woken(), []string{"c"}) {
		t.Error("a break is not noted, or does not wake the cell")
	}
	broken := e.cell().clone()
	broken.Token = "none"
	e.current.Store(&broken)
	if _, err := s.dial(t.Context(), e, nil); err == nil {
		t.Error("it is dialled without its token")
	}
}
