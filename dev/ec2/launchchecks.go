package ec2

import (
	"cmp"
	"slices"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// launchChecks looks up what a launch names, and whether the account can buy it.
type launchChecks struct {
	*base
	networks *networks
	images   *images
	groups   *groups
	plan     *accountPlan
}

// subnet returns the subnet that a launch names.
func (m *launchChecks) subnet(id string) (Subnet, error) {
	subnets := m.networks.Subnets()
	n := slices.IndexFunc(subnets, func(s Subnet) bool { return s.ID == id })
	if n < 0 {
		return Subnet{}, bad("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
	}
	return subnets[n], nil
}

// exists says whether what a launch names is there.
func (m *launchChecks) exists(l *launch, image, instanceType string, groups []string) error {
	images := m.images.All()
	n := slices.IndexFunc(images, func(i Image) bool { return i.ID == image })
	if n < 0 {
		return bad("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", image)
	}
	l.image = images[n]
	if err := m.images.mayUse(l.image); err != nil {
		return err
	}
	if err := m.boots(l.image, instanceType); err != nil {
		return err
	}
	if err := l.bootsThere(); err != nil {
		return err
	}
	if name := roleOf(l.profile); name != "" && m.cfg.Profiles != nil && !slices.Contains(m.cfg.Profiles, name) {
		return bad("InvalidParameterValue", "Value (%s) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name", l.profile)
	}
	if l.key != "" { // none is ever imported here
		return bad("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", l.key)
	}
	for _, id := range groups {
		g, ok := m.groups.group(id)
		if !ok || g.VPC != l.subnet.VPC {
			return bad("InvalidGroup.NotFound", "The security group '%s' does not exist in VPC '%s'", id, l.subnet.VPC)
		}
		l.groups = append(l.groups, g)
	}
	if l.prefix && l.subnet.Fragmented {
		return bad("InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.")
	}
	for _, d := range l.devices {
		if d.Name == l.image.RootDevice && d.GiB < l.image.GiB {
			return bad("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot, expect size >= %dGB", d.GiB, l.image.GiB)
		}
	}
	return nil
}

// boots says that an image and a type are of one architecture, and that the type boots as the image does; of a type that there
// is not, more is said later. Message of the latter: https://github.com/RhinoSecurityLabs/cloudgoat/issues/247.
func (m *launchChecks) boots(i Image, instanceType string) error {
	n := slices.IndexFunc(m.cfg.Sim.Catalogue, func(t catalog.InstanceType) bool { return t.Name == instanceType })
	if n < 0 {
		return nil
	}
	has, want := cmp.Or(i.Architecture, "x86_64"), architectures[m.cfg.Sim.Catalogue[n].Arch]
	if has != want {
		return bad("InvalidParameterValue", "The architecture '%s' of the specified instance type does not match the architecture '%s' of"+
			" the specified AMI. Specify an instance type and an AMI that have matching architectures, and try again.", want, has)
	}
	// What prefers UEFI boots by a BIOS where there is none.
	if i.BootMode == "uefi" || i.BootMode == "legacy-bios" {
		if !slices.Contains(bootModes(m.cfg.Sim.Catalogue[n]), i.BootMode) {
			return bad("InvalidParameterValue", "The %s instance type does not support an AMI with a boot mode of %s.", instanceType, i.BootMode)
		}
	}
	return nil
}

// bootsThere refuses x86 machines that do not boot in a zone: "UEFI boot is not supported in Wavelength Zones" (EC2 User Guide,
// "Instance launch behavior with Amazon EC2 boot modes"). No source says how EC2 answers.
func (l *launch) bootsThere() error {
	if l.subnet.ZoneType == "wavelength-zone" && l.image.BootMode == "uefi" && cmp.Or(l.image.Architecture, "x86_64") == "x86_64" {
		return bad("Unsupported", "The requested configuration is currently not supported: the boot mode uefi in zone %s", l.subnet.Zone)
	}
	return nil
}

// sells refuses a launch of what the account cannot buy. A dry run tells nothing of that.
func (m *launchChecks) sells(l *launch, spec cloud.LaunchSpec, most int) error {
	p, as := m.plan.currentPlan(), "on-demand"
	if spec.Spot() {
		as = "spot"
	}
	gib := 0
	for _, d := range l.devices {
		gib += d.GiB * most
	}
	switch {
	// Source: https://github.com/LinkedInLearning/learning-terraform-3087701/issues/345.
	case p.Free && !slices.Contains(p.Eligible, spec.InstanceType):
		return bad("InvalidParameterCombination", "The specified instance type is not eligible for Free Tier. For a list of Free Tier"+
			" instance types, run 'describe-instance-types' with the filter 'free-tier-eligible=true'.")
	// Source: https://github.com/terraform-aws-modules/terraform-aws-ec2-instance/pull/404, of a Capacity Block that is
	// used on demand. No source says what EC2 answers of a type without that block.
	case !l.block && !slices.Contains(p.soldAs(spec.InstanceType), as):
		return bad("InvalidParameterValue", "The market type (purchasing) option is not valid. Choose a different market type and try again.")
	}
	return p.storage(m.plan.rootGiB() + m.plan.volumeGiB() + gib)
}
