package ec2

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"time"

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

// launches launches instances.
type launches struct {
	*base
	interfaces *interfaceRules
	rights     *launchRights
	checks     *launchChecks
	supply     *supply
	launched   *launched
	instances  *instances
}

// runInstances launches. The order is EC2's as far as it can be seen: what cannot be read
// is refused, then who may not, then what was launched before is told again, and only then
// is looked whether all of it exists.
func (m *launches) runInstances(r *request) (any, error) {
	least, most := r.number("MinCount"), r.number("MaxCount")
	spec := cloud.LaunchSpec{InstanceType: r.text("InstanceType")}
	imageID, token, dry := r.text("ImageId"), r.text("ClientToken"), r.flag("DryRun")
	more := r.tagSpecifications("instance", "volume", "network-interface", "spot-instances-request")
	profile := r.at("IamInstanceProfile")
	l := &launch{token: token, profile: cmp.Or(profile.text("Arn"), profile.text("Name")), key: r.text("KeyName")}
	subnetID, groupIDs := m.interfaces.read(r.form, most, l)
	l.tenancy, l.host = r.tenancy()
	spec.CapacityType = r.capacityType()
	l.reservation, l.block = capacity(r.form, r.text("InstanceMarketOptions.MarketType"))
	spec.CapacityType, spec.Reservation = poolOf(l, spec.CapacityType)
	l.metadata = r.metadataOptions()
	l.credits = optionOf(spec.InstanceType, r.text("CreditSpecification.CpuCredits"))
	l.devices = r.disks()
	if err := r.bounded(l, least, most); err != nil {
		return nil, err
	}
	if err := m.rights.mayLaunch(r, l, imageID, subnetID, groupIDs, more); err != nil {
		return nil, err
	}
	if dry { // which asks for rights. Source: EC2 API reference, "RunInstances", DryRun
		return nil, dryRun
	}
	var err error
	if l.subnet, err = m.checks.subnet(subnetID); err != nil {
		return nil, err
	}
	// Source: EC2 API reference, "ModifySubnetAttribute", MapPublicIpOnLaunch.
	l.public = l.public || l.bySubnet && l.subnet.MapPublic
	l.spotTags, l.volumeTags, l.interfaceTags = more["spot-instances-request"], more["volume"], more["network-interface"]
	spec.Zone, spec.Subnet, spec.Tags = l.subnet.Zone, l.subnet.ID, more["instance"]
	// The whole call is compared with the one that its token was used for.
	spec.Image = map[string]string{"call": sum(r.values.Encode())}
	request := cloud.LaunchRequest{
		Token:      m.launched.simToken(token, spec.Zone),
		LaunchSpec: spec,
		UserData:   l.userData,
		Machines:   make([]cloud.Machine, most),
	}
	if request.UserData == nil {
		request.UserData = []byte{}
	}
	if l.takesRoom() {
		m.supply.reserving.Lock()
		defer m.supply.reserving.Unlock()
	}
	again := m.launched.called(request.Token)
	if !again {
		if err := m.checks.exists(l, imageID, spec.InstanceType, groupIDs); err != nil {
			return nil, err
		}
		if err := m.checks.sells(l, spec, most); err != nil {
			return nil, err
		}
		if err := m.supply.hasRoom(l, spec.InstanceType, most); err != nil {
			return nil, err
		}
		m.launched.remember(request.Token, l)
	}
	return m.start(r, l, request, least, again)
}

// start starts the instances of a launch, or tells again of those that were started with its token.
func (m *launches) start(r *request, l *launch, request cloud.LaunchRequest, least int, again bool) (any, error) {
	results := m.sim.LaunchAtLeast(r.ctx, request, least)
	instances := slices.DeleteFunc(results.Instances(), func(i cloud.Instance) bool { return i.ID == "" })
	if len(instances) == 0 {
		m.launched.unused(request.Token, l)
		return nil, results.Err()
	}
	if again && m.launched.someEnded(request.Token) {
		return nil, bad("IdempotentInstanceTerminated", "The client token '%s' is that of an instance that has been terminated", l.token)
	}
	if !again && !m.rights.encrypts(r, l) {
		if err := m.failUnencrypted(instances); err != nil {
			return nil, err
		}
	}
	answer := reservationXML{ReservationID: reservation(request.Token), OwnerID: m.cfg.Account, RequestID: requestID}
	for _, i := range instances {
		x := m.instances.instance(sim.Instance{Instance: i, Token: request.Token})
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

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// reservation names the launch of a token, in EC2's form.
func reservation(token string) string {
	digest := sha256.Sum256([]byte(token))
	return "r-" + hex.EncodeToString(digest[:])[:17]
}

// wireTime is how EC2 writes times.
func wireTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
