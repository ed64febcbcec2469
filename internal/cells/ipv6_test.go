package cells

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud"
)

func TestBothAddressesOfAnInstanceReachItsAgentAndItsCell(t *testing.T) {
	c := &agentConfigs{}
	four := cloud.Instance{ID: "i-1", ManagementIP: netip.MustParseAddr("10.0.0.2"), PodIP: netip.MustParseAddr("10.0.128.2")}
	both := four
	both.ManagementIPv6, both.PodIPv6 = netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::8002")
	got := c.of(&Cell{Instance: &both}, "kip-0", nil)
	if got.NodeIP != both.ManagementIP || got.PodIP != both.PodIP || got.NodeIPv6 != both.ManagementIPv6 || got.PodIPv6 != both.PodIPv6 {
		t.Errorf("the agent is told %+v", got)
	}
	if got := c.of(&Cell{Instance: &four}, "kip-0", nil); got.NodeIPv6.IsValid() || got.PodIPv6.IsValid() {
		t.Errorf("without IPv6 the agent is told %+v", got)
	}
	mirror := &Mirror{waitsFor: func(string) string { return "" }}
	if s := mirror.Status(Cell{Instance: &both}); s.IP != "10.0.128.2" || s.IPv6 != "fd00::8002" {
		t.Errorf("the Cell says %q and %q", s.IP, s.IPv6)
	}
	if s := mirror.Status(Cell{Instance: &four}); s.IPv6 != "" {
		t.Errorf("without IPv6 the Cell says %q", s.IPv6)
	}
}

// Records of cells outlive the Kip that wrote them, and are written only if they change.
func TestARecordWithoutIPv6IsWhatItWasBeforeThereWasAny(t *testing.T) {
	const old = `{"id":"i-1","instanceType":"nano","state":"running",` +
		`"managementIP":"10.0.0.2","podIP":"10.0.128.2","launched":"2026-01-02T03:04:05Z"}`
	var i cloud.Instance
	if err := json.Unmarshal([]byte(old), &i); err != nil || i.ManagementIPv6.IsValid() || i.PodIPv6.IsValid() {
		t.Fatal(i, err)
	}
	if again, err := json.Marshal(i); err != nil || string(again) != old {
		t.Errorf("written again it is %s, %v", again, err)
	}
	i.ManagementIPv6, i.PodIPv6 = netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::8002")
	with, err := json.Marshal(i)
	if err != nil || !strings.Contains(string(with), `"podIPv6":"fd00::8002"`) {
		t.Errorf("with IPv6 it is %s, %v", with, err)
	}
	var back cloud.Instance
	if err := json.Unmarshal(with, &back); err != nil || back.ManagementIPv6 != i.ManagementIPv6 || back.PodIPv6 != i.PodIPv6 {
		t.Errorf("read again it is %+v, %v", back, err)
	}
}
