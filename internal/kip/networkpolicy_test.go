package kip

import (
	"net/netip"
	"testing"

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
