//go:build e2e

package aws

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// regionOfKip is what the environment of the Kip that runs says of its region.
func (s *space) regionOfKip() (said []string) {
	s.Helper()
	pid, err := world.KipPID()
	if err != nil || pid == 0 {
		s.Fatalf("process %d, %v", pid, err)
	}
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		s.Fatal(err)
	}
	for variable := range strings.SplitSeq(string(environment), "\x00") {
		if name, value, _ := strings.Cut(variable, "="); value != "" && (name == "AWS_REGION" || name == "AWS_DEFAULT_REGION") {
			said = append(said, variable)
		}
	}
	return said
}

// Its keys are those of its environment, where the SDK looks for them.
func TestAnEndpointAloneIsEnoughForKip(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	before := s.state(t.Context())
	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["cloud"] = map[string]any{"aws": map[string]any{"endpointURL": s.model.URL}}
	})
	if said := s.regionOfKip(); len(said) > 0 {
		t.Errorf("Kip's environment tells it the region: %q", said)
	}
	s.Apply(pod("a", "{}"))
	s.WaitReady("a")
	i := s.only(before)
	if !slices.ContainsFunc(machines.Subnets, func(of ec2.Subnet) bool { return of.ID == i.Subnet && of.Zone == i.Zone }) {
		t.Errorf("the instance is %+v, want it in the default VPC", i)
	}
	if log := s.Kubectl("logs", "a"); log != "hello\n" {
		t.Errorf("the log is %q", log)
	}
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.waitOver("a", before)
	restore()
}
