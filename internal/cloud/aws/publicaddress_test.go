package aws

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// A public address costs money, so it is there only where the subnet or the user says so, or where Kip needs it.
func TestOnlyWhoIsToHasAPublicAddress(t *testing.T) {
	const plain, maps, hidden = "subnet-a1", "subnet-a2", privateSubnet
	for what, tc := range map[string]struct {
		config      Config
		dialPublic  bool
		private     bool // the pod wants none
		hiddenGives bool // the subnet without a route gives some
		want        []string
	}{
		"by default":                  {want: []string{maps}},
		"of a subnet without a route": {hiddenGives: true, want: []string{maps, hidden}},
		"in each public subnet":       {config: Config{PublicAddress: true}, want: []string{plain, maps}},
		"for a Kip that is outside":   {dialPublic: true, want: []string{plain, maps}},
		"never for a private pod":     {config: Config{PublicAddress: true}, private: true, hiddenGives: true},
	} {
		t.Run(what, func(t *testing.T) {
			account := anAccount(sim.Knobs{})
			account.Subnets[0].MapPublic, account.Subnets[2].MapPublic = false, tc.hiddenGives
			_, url := serve(t, account)
			s := settings(url)
			var log bytes.Buffer
			s.PublicAddress, s.Log = tc.config.PublicAddress, slog.New(slog.NewTextHandler(&log, nil))
			c := open(t, s)
			c.dialPublic = tc.dialPublic
			for _, subnet := range []string{plain, maps, hidden} {
				r := request("in "+subnet, 1)
				r.Subnet, r.PrivateIPOnly = subnet, tc.private
				if subnet == hidden {
					r.Zone = "us-east-1b"
				}
				got, err := runLaunch(t.Context(), c, r).All()
				if err != nil {
					if !tc.dialPublic || subnet != hidden || !cloud.Refused(err) {
						t.Errorf("in %s: %v", subnet, err)
					}
					continue
				}
				if got[0].PublicIP.IsValid() {
					t.Errorf("in %s: the answer has the public address %s, which EC2 tells later", subnet, got[0].PublicIP)
				}
				described, err := c.Describe(t.Context(), got[0].ID)
				if err != nil {
					t.Fatal(err)
				}
				if has, want := described[0].PublicIP.IsValid(), slices.Contains(tc.want, subnet); has != want {
					t.Errorf("in %s there is a public address: %t, want %t", subnet, has, want)
				}
			}
			// Nothing that has no address goes through an internet gateway.
			warns := !tc.private && !slices.Contains(tc.want, plain)
			if n := strings.Count(log.String(), "have no public address"); warns != (n == 1) || n > 1 ||
				warns && !strings.Contains(log.String(), "subnet="+plain) {
				t.Errorf("it warns %d times, want it: %t: %s", n, warns, log.String())
			}
		})
	}
}
