//go:build e2e

package aws

import (
	"encoding/xml"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// What the account has paid for comes first: a reservation for a pod on demand, a host for a dedicated one.
// Who comes when they are full is elsewhere. So it is said in provider.yaml and in annotations.
func TestPodsAreOnWhatTheAccountHasPaidForFirst(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	before := s.state(t.Context())
	const zone = "us-east-1a"
	kind := map[string]string{"amd64": "m6i.large", "arm64": "m6g.large"}[runtime.GOARCH] // which may be dedicated
	s.order("paid", ec2.Paid{
		Reservations: []ec2.Reservation{{ID: "cr-e2e", Type: kind, Zone: zone, Total: 1, Tags: map[string]string{"team": "e2e"}}},
		Hosts:        []ec2.Host{{ID: "h-e2e", Type: kind, Zone: zone, VCPUs: 2}},
	})
	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		of := provider["cloud"].(map[string]any)["aws"].(map[string]any)
		of["capacityReservations"] = map[string]any{"tags": map[string]any{"team": "e2e"}}
		of["dedicatedHosts"] = map[string]any{"ids": []string{"h-e2e"}}
		of["volumeInitializationRate"] = 100
	})
	s.Kubectl("annotate", "namespace", s.NS, "allow.kip.elotl.co/launch-type=dedicated")
	type placed struct {
		Reservation string `xml:"reservationSet>item>instancesSet>item>capacityReservationId"`
		Tenancy     string `xml:"reservationSet>item>instancesSet>item>placement>tenancy"`
		Host        string `xml:"reservationSet>item>instancesSet>item>placement>hostId"`
	}
	where := func(p *corev1.Pod) (is placed) {
		t.Helper()
		answer, code := s.account(t.Context(), "DescribeInstances", "InstanceId.1="+s.of(p).ID)
		if err := xml.Unmarshal(answer, &is); err != nil || code != "" {
			t.Fatalf("%s %v: %s", code, err, answer)
		}
		return is
	}
	for _, one := range []struct {
		name, annotations string
		want              placed
	}{
		{"reserved", `{pod.elotl.co/instance-type: ` + kind + `}`, placed{Reservation: "cr-e2e", Tenancy: "default"}},
		{"elsewhere", `{pod.elotl.co/instance-type: ` + kind + `}`, placed{Tenancy: "default"}},
		{"on-host", `{pod.elotl.co/instance-type: ` + kind + `, pod.elotl.co/launch-type: dedicated}`, placed{Tenancy: "host", Host: "h-e2e"}},
		{"dedicated", `{pod.elotl.co/instance-type: ` + kind + `, pod.elotl.co/launch-type: dedicated}`, placed{Tenancy: "dedicated"}},
	} {
		s.Apply(pod(one.name, one.annotations))
		if got := where(s.WaitReady(one.name)); got != one.want {
			t.Errorf("pod %s is on %+v, want %+v", one.name, got, one.want)
		}
	}
	s.Kubectl("delete", "pods", "--all", "--wait=false")
	s.waitOver("reserved", before)
	restore()
	s.order("paid", ec2.Paid{})
}
