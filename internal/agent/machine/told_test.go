package machine

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agent/dhcp"
)

func TestANetworkThatIsToldIsReadAsALeaseIs(t *testing.T) {
	four := netip.MustParsePrefix("10.110.0.2/16")
	want := plan{
		hardware: []byte{0x0a, 0x58, 10, 110, 0, 2},
		lease: dhcp.Lease{
			Address:  four,
			Routes:   []dhcp.Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.110.0.1")}},
			DNS:      []netip.Addr{netip.MustParseAddr("10.110.0.1")},
			Hostname: "i-1",
		},
		address: netip.MustParsePrefix("fd10::2/64"),
		gateway: netip.MustParseAddr("fd10::1"),
	}
	got, err := readTold([]byte(`{"hardware":"0a:58:0a:6e:00:02","hostname":"i-1","addresses":["10.110.0.2/16","fd10::2/64"],
		"gateways":["10.110.0.1","fd10::1"],"nameservers":["10.110.0.1"]}`))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	got, err = readTold([]byte(`{"hardware":"0a:58:0a:6e:00:02","addresses":["10.110.0.2/16"],"gateways":["10.110.0.1"]}`))
	if err != nil || got.address.IsValid() || got.lease.Address != four {
		t.Errorf("of IPv4 only: %+v, %v", got, err)
	}
}

func TestANetworkThatCannotBeIsRefusedByItsField(t *testing.T) {
	const card = `"hardware":"0a:58:0a:6e:00:02",`
	for document, want := range map[string]string{
		`no`: "invalid character",
		`{"hardware":"x","addresses":["10.0.0.2/8"]}`:                                    `hardware "x"`,
		`{` + card + `"addresses":[]}`:                                                   "want one of IPv4",
		`{` + card + `"addresses":["fd10::2/64"]}`:                                       "want one of IPv4",
		`{` + card + `"addresses":["10.0.0.2/8","10.0.0.3/8"]}`:                          "one of each family",
		`{` + card + `"addresses":["10.0.0.2/8"],"gateways":["11.0.0.1"]}`:               "gateway 11.0.0.1",
		`{` + card + `"addresses":["10.0.0.2/8"],"gateways":["fd10::1"]}`:                "gateway fd10::1",
		`{` + card + `"addresses":["10.0.0.2/8"],"gateways":["10.0.0.1","10.0.0.1"]}`:    "gateway 10.0.0.1",
		`{` + card + `"addresses":["10.0.0.2/8"],"nameservers":["a name"]}`:              "a name",
		`{` + card + `"addresses":["10.0.0.2/8","::ffff:10.0.0.2/96"],"nameservers":[]}`: "one of each family",
		`{` + card + `"addresses":["10.0.0.2/40"]}`:                                      "10.0.0.2/40",
	} {
		if got, err := readTold([]byte(document)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %q", document, got, err, want)
		}
	}
}
