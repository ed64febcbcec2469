package ec2

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// launch is what a call of RunInstances asked for, which all its instances have.
type launch struct {
	token   string // the caller's
	image   Image
	groups  []Group
	profile string // ARN or name
	key     string // the name of a key pair
	// public, secondary and prefix are what the interface has besides its address.
	public, secondary, prefix bool
	devices                   []deviceXML
	tenancy                   string // default, dedicated or host
	host                      string // the ID of the Dedicated Host that it is on
	reservation               string // the ID of that into which it is
	block                     bool   // which is a Capacity Block
	subnet                    Subnet
	credits                   string // of a burstable type: standard or unlimited
	userData                  []byte
	metadata                  metadataOptions
	// spotTags are those of a spot instance's request: they are not the instance's. Nor are those of its root disk and interface.
	spotTags, volumeTags, interfaceTags map[string]string

	// bySubnet says that the call leaves it to the subnet whether there is a public address.
	bySubnet bool
}

// maxUserData is EC2's, in bytes before base64.
const maxUserData = 16 << 10

// runInstances launches. The order is EC2's as far as it can be seen: what cannot be read
// is refused, then who may not, then what was launched before is told again, and only then
// is looked whether all of it exists.
func (m *Model) runInstances(r *request) (any, error) {
	least, most := r.number("MinCount"), r.number("MaxCount")
	spec := cloud.LaunchSpec{InstanceType: r.text("InstanceType")}
	imageID, token, dry := r.text("ImageId"), r.text("ClientToken"), r.flag("DryRun")
	more := m.tagSpecifications(r.form, "instance", "volume", "network-interface", "spot-instances-request")
	profile := r.at("IamInstanceProfile")
	l := &launch{token: token, profile: cmp.Or(profile.text("Arn"), profile.text("Name")), key: r.text("KeyName")}
	subnetID, groupIDs := m.interfaces(r.form, most, l)
	l.tenancy, l.host = m.tenancy(r.form)
	spec.CapacityType = m.capacityType(r.form)
	l.reservation, l.block = capacity(r.form, r.text("InstanceMarketOptions.MarketType"))
	spec.CapacityType, spec.Reservation = poolOf(l, spec.CapacityType)
	l.metadata = m.options(r.form)
	l.credits = optionOf(spec.InstanceType, r.text("CreditSpecification.CpuCredits"))
	m.disks(r.form, l)
	if err := r.bounded(l, least, most); err != nil {
		return nil, err
	}
	if err := m.mayLaunch(r, l, imageID, subnetID, groupIDs, more); err != nil {
		return nil, err
	}
	if dry { // which asks for rights. Source: EC2 API reference, "RunInstances", DryRun
		return nil, dryRun
	}
	subnets := m.Subnets()
	n := slices.IndexFunc(subnets, func(s Subnet) bool { return s.ID == subnetID })
	if n < 0 {
		return nil, bad("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", subnetID)
	}
	l.subnet = subnets[n]
	// Source: EC2 API reference, "ModifySubnetAttribute", MapPublicIpOnLaunch.
	l.public = l.public || l.bySubnet && l.subnet.MapPublic
	l.spotTags, l.volumeTags, l.interfaceTags = more["spot-instances-request"], more["volume"], more["network-interface"]
	spec.Zone, spec.Subnet, spec.Tags = l.subnet.Zone, l.subnet.ID, more["instance"]
	// The whole call is compared with the one that its token was used for.
	spec.Image = map[string]string{"call": sum(r.values.Encode())}
	request := cloud.LaunchRequest{
		Token:      m.simToken(token, spec.Zone),
		LaunchSpec: spec,
		UserData:   l.userData,
		Machines:   make([]cloud.Machine, most),
	}
	if request.UserData == nil {
		request.UserData = []byte{}
	}
	if l.reservation+l.host != "" || l.subnet.Bits > 0 {
		m.reserving.Lock()
		defer m.reserving.Unlock()
	}
	m.mu.Lock()
	before := m.launches[request.Token]
	m.mu.Unlock()
	if before == nil {
		if err := m.exists(l, imageID, spec.InstanceType, groupIDs); err != nil {
			return nil, err
		}
		if err := m.sells(l, spec, most); err != nil {
			return nil, err
		}
		if err := cmp.Or(m.reserve(l, spec.InstanceType, most), m.onto(l, spec.InstanceType, most), m.addresses(l, most)); err != nil {
			return nil, err
		}
		m.mu.Lock()
		if m.launches[request.Token] == nil {
			m.launches[request.Token] = l
		}
		m.mu.Unlock()
	}
	return m.start(r, l, request, least, before != nil)
}

// start starts the instances of a launch, or tells again of those that were started with its token.
func (m *Model) start(r *request, l *launch, request cloud.LaunchRequest, least int, again bool) (any, error) {
	results := m.sim.LaunchAtLeast(r.ctx, request, least)
	instances := slices.DeleteFunc(results.Instances(), func(i cloud.Instance) bool { return i.ID == "" })
	if len(instances) == 0 {
		m.unused(request.Token, l)
		return nil, results.Err()
	}
	if again && m.someEnded(request.Token) {
		return nil, bad("IdempotentInstanceTerminated", "The client token '%s' is that of an instance that has been terminated", l.token)
	}
	if !again && !m.encrypts(r, l) {
		if err := m.failUnencrypted(instances); err != nil {
			return nil, err
		}
	}
	answer := reservationXML{ReservationID: reservation(request.Token), OwnerID: m.cfg.Account, RequestID: requestID}
	for _, i := range instances {
		x := m.instance(sim.Instance{Instance: i, Token: request.Token})
		x.PublicIP = "" // told once it runs. Source: AWS CLI reference, run-instances, the output of its examples
		answer.Instances = append(answer.Instances, x)
	}
	return answer, nil
}

// bounded reads the user data, and refuses a launch that is larger than one may be.
func (r *request) bounded(l *launch, least, most int) error {
	var err error
	l.userData, err = base64.StdEncoding.DecodeString(r.text("UserData"))
	switch {
	case err != nil:
		r.bad("InvalidParameterValue", "Invalid BASE64 encoding of user data.")
	case len(l.userData) > maxUserData:
		r.bad("InvalidParameterValue", "User data is limited to %d bytes", maxUserData)
	case least < 1 || most < least:
		r.bad("InvalidParameterValue", "MinCount is %d and MaxCount %d", least, most)
	case most > cloud.MaxLaunch:
		r.bad("InstanceLimitExceeded", "The model launches at most %d instances in a call", cloud.MaxLaunch)
	case len(l.token) > 64:
		r.bad("InvalidParameterValue", "The client token has more than 64 characters")
	}
	return r.done()
}

// simToken is a token in a zone: EC2 keeps one for each. A call without one is none that
// came before.
func (m *Model) simToken(token, zone string) string {
	if token == "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		token = fmt.Sprintf("none\n%d", len(m.launches))
	}
	return sum(zone + "\n" + token)
}

// unused forgets a call that has launched nothing: its token is as good as new.
func (m *Model) unused(token string, l *launch) {
	if slices.ContainsFunc(m.sim.History(), func(i sim.Instance) bool { return i.Token == token }) {
		return // launched, and the answer is lost
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.launches[token] == l {
		delete(m.launches, token)
	}
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// reservation names the launch of a token, in EC2's form.
func reservation(token string) string {
	digest := sha256.Sum256([]byte(token))
	return "r-" + hex.EncodeToString(digest[:])[:17]
}

func (m *Model) someEnded(token string) bool {
	return slices.ContainsFunc(m.sim.History(), func(i sim.Instance) bool { return i.Token == token && !i.Ended.IsZero() })
}

// tagSpecifications returns the tags of each kind of resource that is tagged.
func (m *Model) tagSpecifications(f *form, kinds ...string) (each map[string]map[string]string) {
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

// interfaces reads the interfaces of a call, or what stands for the one that it does not
// name, and refuses what the reference forbids: a public address beside a second interface and, as
// Config.LoneSecondaries and NoneTogether say, more than one instance.
func (m *Model) interfaces(f *form, most int, l *launch) (subnet string, groups []string) {
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

func (m *Model) capacityType(f *form) cloud.CapacityType {
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
func (m *Model) tenancy(f *form) (tenancy, host string) {
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

// options are those of the metadata service, and those of which the model only knows
// whether they can be asked for.
func (m *Model) options(f *form) metadataOptions {
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

func (m *Model) disks(f *form, l *launch) {
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
		l.devices = append(l.devices, one)
	}
}

// mayLaunch asks the policy about each resource that the launch uses or makes, as IAM does.
func (m *Model) mayLaunch(r *request, l *launch, image, subnet string, groups []string, tags map[string]map[string]string) error {
	type use struct {
		resource string
		tags     map[string]string
	}
	uses := []use{
		{"instance/*", tags["instance"]},
		{"volume/*", tags["volume"]},
		{"network-interface/*", tags["network-interface"]},
		{"subnet/" + subnet, nil},
	}
	if r.text("InstanceMarketOptions.MarketType") == "spot" {
		uses = append(uses, use{"spot-instances-request/*", tags["spot-instances-request"]})
	}
	if l.key != "" {
		uses = append(uses, use{"key-pair/" + l.key, nil})
	}
	if l.reservation != "" {
		uses = append(uses, use{"capacity-reservation/" + l.reservation, nil})
	}
	if l.host != "" { // as policies of others grant it, such as AmazonEMRServicePolicy_v2
		uses = append(uses, use{"dedicated-host/" + l.host, nil})
	}
	if len(groups) == 0 {
		groups = []string{"sg-default"}
	}
	for _, g := range groups {
		uses = append(uses, use{"security-group/" + g, nil})
	}
	for _, u := range uses {
		if err := m.may(r, "ec2:RunInstances", m.arn(u.resource), tagged("RequestTag", u.tags)); err != nil {
			return err
		}
		if len(u.tags) == 0 {
			continue
		}
		about := tagged("RequestTag", u.tags)
		about["ec2:CreateAction"] = []string{"RunInstances"}
		if err := m.may(r, "ec2:CreateTags", m.arn(u.resource), about); err != nil {
			return err
		}
	}
	if err := m.may(r, "ec2:RunInstances", m.publicARN("image/"+image), tagged("ResourceTag", m.imageTags(image))); err != nil {
		return err
	}
	// EC2 asks for no right to the snapshot of the image: its own examples of policies for a launch have none (EC2 User Guide,
	// "Example policies to control access the Amazon EC2 API"). It asks for that to a snapshot that the call names (Service
	// Authorization Reference, "Actions, resources, and condition keys for Amazon EC2", RunInstances).
	for _, d := range l.devices {
		if d.Snapshot == "" {
			continue
		}
		if err := m.may(r, "ec2:RunInstances", m.snapshotARN(d.Snapshot), nil); err != nil {
			return err
		}
	}
	if err := m.spotRole(r); err != nil {
		return err
	}
	if l.profile == "" {
		return nil
	}
	name := roleOf(l.profile)
	_, service := m.partition()
	return m.may(r, "iam:PassRole", m.arnOf("iam", "", m.cfg.Account, "role/"+name), map[string][]string{"iam:PassedToService": {service}})
}

// roleOf is the name of the role in an instance profile, of which an ARN or the name is given: the same.
func roleOf(profile string) string { return profile[strings.LastIndex(profile, "/")+1:] }

// spotRole makes the role that spot instances need, where there is none and the caller may.
func (m *Model) spotRole(r *request) error {
	m.mu.Lock()
	missing := m.noSpotRole && r.text("InstanceMarketOptions.MarketType") == "spot"
	m.mu.Unlock()
	if !missing {
		return nil
	}
	const service = "spot.amazonaws.com"
	role := m.arnOf("iam", "", m.cfg.Account, "role/aws-service-role/"+service+"/AWSServiceRoleForEC2Spot")
	if m.may(r, "iam:CreateServiceLinkedRole", role, map[string][]string{"iam:AWSServiceName": {service}}) != nil {
		return &apiError{http.StatusForbidden, "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
			"The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances."}
	}
	m.mu.Lock()
	m.noSpotRole = false
	m.mu.Unlock()
	return nil
}

// exists says whether what a launch names is there.
func (m *Model) exists(l *launch, image, instanceType string, groups []string) error {
	images := m.Images()
	n := slices.IndexFunc(images, func(i Image) bool { return i.ID == image })
	if n < 0 {
		return bad("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", image)
	}
	l.image = images[n]
	if err := m.mayUse(l.image); err != nil {
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
		g, ok := m.group(id)
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
func (m *Model) boots(i Image, instanceType string) error {
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

// wireTime is how EC2 writes times.
func wireTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
