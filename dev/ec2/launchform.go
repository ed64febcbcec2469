package ec2

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/elotl/kip/internal/cloud"
)

// tagSpecifications returns the tags of each kind of resource that is tagged.
func (f *form) tagSpecifications(kinds ...string) (each map[string]map[string]string) {
	each = map[string]map[string]string{}
	for _, s := range f.each("TagSpecification") {
		kind := s.text("ResourceType")
		if !slices.Contains(kinds, kind) {
			f.bad("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", kind)
		}
		each[kind] = tags(s)
	}
	return each
}

// maxTags is EC2's, for each resource.
const maxTags = 50

func tags(f *form) map[string]string {
	all := map[string]string{}
	for _, t := range f.each("Tag") {
		key := t.text("Key")
		if key == "" || len(key) > 128 || strings.HasPrefix(key, "aws:") || utf8.RuneCountInString(t.text("Value")) > 256 {
			f.bad("InvalidParameterValue", "Tag keys and values are bounded, and keys starting with 'aws:' are reserved: %s", key)
		}
		all[key] = t.text("Value")
	}
	if len(all) > maxTags {
		f.bad("TagLimitExceeded", "More than %d tags specified", maxTags)
	}
	return all
}

// interfaceRules are those by which a launch names interfaces. Config says what the fields are.
type interfaceRules struct {
	*base

	loneSecondaries        bool
	loneCode, noneTogether string
}

// read reads the interfaces of a call, or what stands for the one that it does not
// name, and refuses what the reference forbids: a public address beside a second interface and, as
// Config.LoneSecondaries and NoneTogether say, more than one instance.
func (m *interfaceRules) read(f *form, most int, l *launch) (subnet string, groups []string) {
	subnet, groups = f.text("SubnetId"), f.texts("SecurityGroupId")
	all := f.each("NetworkInterface")
	l.bySubnet = true
	if len(all) > 0 && (subnet != "" || len(groups) > 0) {
		f.bad("InvalidParameterCombination", "Network interfaces and an instance-level subnet ID or security groups may not be specified on the same request")
	}
	for n, i := range all {
		index, secondary, prefixes := i.number("DeviceIndex"), i.number("SecondaryPrivateIpAddressCount"), i.number("Ipv4PrefixCount")
		id, public := i.text("SubnetId"), i.flag("AssociatePublicIpAddress")
		i.flag("DeleteOnTermination")
		m.together(f, most, secondary)
		switch {
		case index != n:
			f.bad("InvalidParameterValue", "The device indices must be 0, 1 and so on")
		case secondary > 0 && prefixes > 0:
			f.bad("InvalidParameterCombination", "Prefixes and secondary addresses may not be specified on the same request")
		case secondary > 1 || prefixes > 1:
			f.bad("InvalidParameterValue", "The model gives an interface one address or one prefix")
		case public && len(all) > 1:
			f.bad("InvalidParameterCombination", "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.")
		case n > 0:
			f.bad("InvalidParameterValue", "The model gives an instance one interface")
		}
		subnet, groups = id, i.texts("SecurityGroupId")
		l.public, l.secondary, l.prefix = public, secondary == 1, prefixes == 1
		l.bySubnet = !i.has("AssociatePublicIpAddress")
	}
	if subnet == "" {
		f.bad("MissingInput", "No subnets found for the default VPC: the model wants a subnet")
	}
	return subnet, groups
}

// together refuses a call for several instances as the Config says.
func (m *interfaceRules) together(f *form, most, secondary int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case most <= 1:
	case m.noneTogether != "":
		f.bad(m.noneTogether, "The model refuses each launch of more than one instance")
	case secondary == 0 || !m.loneSecondaries:
	case m.loneCode != "":
		f.bad(m.loneCode, "The request is not valid")
	default:
		f.bad("InvalidParameterCombination", "secondaryPrivateIpAddressCount may not be specified when launching more than one instance")
	}
}

func (f *form) capacityType() cloud.CapacityType {
	o := f.at("InstanceMarketOptions")
	kind, s := o.text("MarketType"), o.at("SpotOptions")
	once, behaviour := s.text("SpotInstanceType"), s.text("InstanceInterruptionBehavior")
	switch {
	case (kind == "" || kind == "capacity-block") && once+behaviour == "":
		return cloud.OnDemand
	case kind != "spot":
		f.bad("InvalidParameterValue", "The market type '%s' is invalid", kind)
	case once != "" && once != "one-time" || behaviour != "" && behaviour != "terminate":
		f.bad("InvalidParameterValue", "The model has spot requests that are one-time and terminate")
	}
	return cloud.Spot
}

// tenancy is whose hosts the instances are on, and on which if it is one of the account's own, as which
// the model has no others than those that a call names. Of the burstable types only t3 may be on
// dedicated ones (EC2 User Guide, "Burstable performance instances").
func (f *form) tenancy() (tenancy, host string) {
	p := f.at("Placement")
	tenancy, host = cmp.Or(oneOf(p, "Tenancy", "default", "dedicated", "host"), "default"), p.text("HostId")
	kind := f.text("InstanceType")
	is := func(family string) bool { return strings.HasPrefix(kind, family) }
	switch {
	case tenancy != "default" && slices.ContainsFunc([]string{"t2.", "t3a.", "t4g."}, is):
		f.bad("Unsupported", "The requested configuration is currently not supported: %s with %s tenancy", kind, tenancy)
	case (tenancy == "host") != (host != ""):
		f.bad("InvalidParameterCombination", "The tenancy host and the ID of a host belong together: '%s', '%s'", tenancy, host)
	case host != "" && (f.text("InstanceMarketOptions.MarketType") != "" || f.has("CapacityReservationSpecification")):
		f.bad("InvalidParameterCombination", "On a Dedicated Host are neither spot instances nor reservations of capacity")
	case host != "" && f.text("CreditSpecification.CpuCredits") == "unlimited":
		f.bad("InvalidParameterCombination", "The host tenancy is not supported for T3 instances that are unlimited")
	}
	return tenancy, host
}

// metadataOptions are those of the metadata service, and those of which the model only knows
// whether they can be asked for.
func (f *form) metadataOptions() metadataOptions {
	o := f.at("MetadataOptions")
	hops := o.number("HttpPutResponseHopLimit")
	oneOf(f, "InstanceInitiatedShutdownBehavior", "stop", "terminate")
	own := metadataOptions{
		disabled: oneOf(o, "HttpEndpoint", "enabled", "disabled") == "disabled",
		required: oneOf(o, "HttpTokens", "optional", "required") == "required",
		hops:     cmp.Or(hops, 1),
	}
	oneOf(o, "InstanceMetadataTags", "enabled", "disabled")
	if hops < 0 || hops > 64 {
		f.bad("InvalidParameterValue", "The hop limit %d is not from 1 to 64", hops)
	}
	credits := oneOf(f.at("CreditSpecification"), "CpuCredits", "standard", "unlimited")
	if burst := strings.HasPrefix(f.text("InstanceType"), "t"); credits != "" && !burst {
		f.bad("InvalidParameterCombination", "The %s instance type does not support T2/T3 Unlimited", f.text("InstanceType"))
	}
	return own
}

func oneOf(f *form, name string, allowed ...string) string {
	v := f.text(name)
	if v != "" && !slices.Contains(allowed, v) {
		f.bad("InvalidParameterValue", "Invalid value '%s' for %s", v, name)
	}
	return v
}

// disks reads the disks that a call names, besides what the image has.
func (f *form) disks() (all []deviceXML) {
	for _, d := range f.each("BlockDeviceMapping") {
		e := d.at("Ebs")
		one := deviceXML{
			Name:      d.text("DeviceName"),
			Key:       e.text("KmsKeyId"),
			Snapshot:  e.text("SnapshotId"),
			GiB:       e.number("VolumeSize"),
			Encrypted: e.flag("Encrypted"),
			Delete:    e.flag("DeleteOnTermination"),
		}
		if one.Key != "" && !one.Encrypted {
			f.bad("InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted to be set.")
		}
		kind := cmp.Or(oneOf(e, "VolumeType", "gp3", "gp2"), "gp2")
		// Root disks are made of a snapshot, of which alone the rate is.
		if rate := e.number("VolumeInitializationRate"); e.has("VolumeInitializationRate") && (rate < 100 || rate > 300) {
			f.bad("InvalidParameterValue", "The volume initialization rate %d is not from 100 to 300 MiB/s", rate)
		}
		if most := mostGiB[kind]; one.GiB < 1 || one.GiB > most {
			f.bad("InvalidParameterValue", "A %s volume has 1 to %d GiB, not %d", kind, most, one.GiB)
		}
		all = append(all, one)
	}
	return all
}
