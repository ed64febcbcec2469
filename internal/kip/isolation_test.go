package kip

import (
	"net/netip"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
)

// EC2 tells the public address of an instance after the others, and of one that got it later.
func TestACellHasAPublicAddressByItsLaunchOrByItsInstance(t *testing.T) {
	own, public := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("192.0.2.7")
	for what, tc := range map[string]struct {
		launch *cells.Launch
		public netip.Addr
		want   netip.Addr
	}{
		"neither":               {launch: &cells.Launch{}},
		"no launch":             {},
		"by its launch":         {launch: &cells.Launch{PublicAddress: true}, want: own},
		"by its instance":       {launch: &cells.Launch{}, public: public, want: own},
		"of an adopted machine": {public: public, want: own},
	} {
		cell := cells.Cell{Launch: tc.launch, Instance: &cloud.Instance{ManagementIP: own, PublicIP: tc.public}}
		if got := publicAt(cell); got != tc.want {
			t.Errorf("%s: %v, want %v", what, got, tc.want)
		}
	}
}

func TestNetworksAreBehindAPodUntilItsCellIsGone(t *testing.T) {
	to := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	for phase, want := range map[apiv1.Phase]int{apiv1.Booting: 1, apiv1.Bound: 1, apiv1.Draining: 1, apiv1.Gone: 0} {
		if got := networksBehind(cells.Cell{Phase: phase, Options: cells.Options{CloudRoutes: to}}); len(got) != want {
			t.Errorf("of a cell that is %s: %v", phase, got)
		}
	}
}
