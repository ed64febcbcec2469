package aws

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// atTheEdge is an account with a subnet of each kind, whose image for x86 has a boot mode.
func atTheEdge(mode string, arm bool) ec2.Config {
	cfg := anAccount(sim.Knobs{})
	cfg.Subnets = []ec2.Subnet{
		{ID: "subnet-zone", VPC: vpc, Zone: "us-east-1a"},
		{ID: "subnet-outpost", VPC: vpc, Zone: "us-east-1a", Outpost: "arn:aws:outposts:us-east-1:123456789012:outpost/op-1"},
		{ID: "subnet-local", VPC: vpc, Zone: "us-east-1-bos-1a", ZoneType: "local-zone"},
		{ID: "subnet-wave", VPC: vpc, Zone: "us-east-1-wl1-bos-wlz-1", ZoneType: "wavelength-zone"},
	}
	var offerings []catalog.PurchaseOption
	for _, s := range cfg.Subnets {
		offerings = append(offerings, catalog.PurchaseOption{Zone: s.Zone, Subnet: s.ID, PricePerHour: 1})
	}
	cfg.Sim.Catalogue = []catalog.InstanceType{
		{Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 * gibi, Arch: "amd64", Offerings: offerings},
	}
	if arm {
		cfg.Sim.Catalogue = append(cfg.Sim.Catalogue,
			catalog.InstanceType{Name: "c7g.large", MilliCPU: 2000, MemoryBytes: 4 * gibi, Arch: "arm64", Offerings: offerings})
	}
	cfg.Images = []ec2.Image{
		{ID: "ami-x86", Name: "kip-cell-1", Owner: "self", RootDevice: "/dev/xvda", GiB: 4, BootMode: mode},
		{ID: "ami-arm", Name: "kip-cell-2", Owner: "self", RootDevice: "/dev/xvda", GiB: 4, BootMode: "uefi", Architecture: "arm64"},
	}
	return cfg
}

func TestNoMachineIsLaunchedWhereItDoesNotBootByUEFI(t *testing.T) {
	everywhere := []string{"subnet-local", "subnet-outpost", "subnet-wave", "subnet-zone"}
	for what, tc := range map[string]struct {
		mode    string
		subnets []string // that are configured; none for those of the VPC
		onlyX86 bool
		want    []string // the subnets of the x86 type
		fails   string
	}{
		"by UEFI alone, in the VPC's subnets": {mode: "uefi", want: []string{"subnet-zone"}},
		"by either, in the VPC's subnets":     {mode: "uefi-preferred", want: everywhere},
		"by a BIOS, in the VPC's subnets":     {mode: "legacy-bios", want: everywhere},
		"by what the type does by itself":     {want: everywhere},
		"in what is named": {mode: "uefi", subnets: everywhere,
			want: []string{"subnet-local", "subnet-outpost", "subnet-zone"}},
		"in what is named, and has no other types": {mode: "uefi", subnets: everywhere, onlyX86: true, fails: "subnet-wave"},
		"by either, there":                         {mode: "uefi-preferred", subnets: everywhere, onlyX86: true, want: everywhere},
	} {
		model, url := serve(t, atTheEdge(tc.mode, !tc.onlyX86))
		s := settings(url)
		s.Image = map[string]string{imageName: "kip-cell-*"}
		if s.Subnets = tc.subnets; tc.subnets != nil {
			s.VPC = ""
		}
		c := open(t, s)
		types, err := c.Catalogue(t.Context())
		if tc.fails != "" {
			if !cloud.Refused(err) || !strings.Contains(err.Error(), "cloud.aws.subnetID: "+tc.fails) {
				t.Errorf("%s: %v, want a refusal of %s", what, err, tc.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for _, kind := range types {
			at := map[string]bool{}
			for _, o := range kind.Offerings {
				at[o.Subnet] = true
			}
			want := map[string][]string{"amd64": tc.want, "arm64": everywhere}[kind.Arch]
			if got := slices.Sorted(maps.Keys(at)); !slices.Equal(got, want) {
				t.Errorf("%s: %s is offered in %v, want %v", what, kind.Name, got, want)
			}
		}
		// A catalogue that was stored before may offer all.
		spec := request("t", 1).LaunchSpec
		spec.SecurityGroups, spec.Arch = nil, "amd64"
		for _, subnet := range model.Networks.Subnets() {
			spec.Zone, spec.Subnet = subnet.Zone, subnet.ID
			_, err := c.Resolve(t.Context(), spec)
			if is := slices.Contains(tc.want, subnet.ID); is != (err == nil) || !is && cloud.ScopeOf(err).Subnet != subnet.ID {
				t.Errorf("%s: a launch in %s: %v", what, subnet.ID, err)
			}
		}
	}
}
