package ec2

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// reservationXML is the answer to RunInstances, and an element of that to
// DescribeInstances.
type reservationXML struct {
	RequestID     string        `xml:"requestId,omitempty"`
	ReservationID string        `xml:"reservationId"`
	OwnerID       string        `xml:"ownerId"`
	Instances     []instanceXML `xml:"instancesSet>item"`
}

type stateXML struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type instanceXML struct {
	ID          string         `xml:"instanceId"`
	ImageID     string         `xml:"imageId"`
	State       stateXML       `xml:"instanceState"`
	LaunchIndex int            `xml:"amiLaunchIndex"`
	Type        string         `xml:"instanceType"`
	LaunchTime  string         `xml:"launchTime"`
	Zone        string         `xml:"placement>availabilityZone"`
	Tenancy     string         `xml:"placement>tenancy"`
	Host        string         `xml:"placement>hostId,omitempty"`
	Subnet      string         `xml:"subnetId,omitempty"`
	VPC         string         `xml:"vpcId,omitempty"`
	PrivateIP   string         `xml:"privateIpAddress,omitempty"`
	PublicIP    string         `xml:"ipAddress,omitempty"`
	Groups      []groupXML     `xml:"groupSet>item"`
	RootDevice  string         `xml:"rootDeviceName"`
	Token       string         `xml:"clientToken"`
	Tags        []tagXML       `xml:"tagSet>item"`
	Interfaces  []interfaceXML `xml:"networkInterfaceSet>item"`
	Volumes     []mappingXML   `xml:"blockDeviceMapping>item"`
	Lifecycle   string         `xml:"instanceLifecycle,omitempty"`
	SpotRequest string         `xml:"spotInstanceRequestId,omitempty"`
	Reserved    string         `xml:"capacityReservationId,omitempty"`
	Profile     *profileXML    `xml:"iamInstanceProfile"`
	Reason      *StateReason   `xml:"stateReason"`
	CPU         cpuXML         `xml:"cpuOptions"`
}

// cpuXML are the vCPUs of an instance (EC2 API reference, "CpuOptions").
type cpuXML struct {
	Cores   int64 `xml:"coreCount"`
	Threads int64 `xml:"threadsPerCore"`
}

// profileXML is an instance profile.
type profileXML struct {
	ARN string `xml:"arn"`
}

// StateReason is why an instance has ended.
type StateReason struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type groupXML struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type tagXML struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

type interfaceXML struct {
	ID         string        `xml:"networkInterfaceId"`
	Subnet     string        `xml:"subnetId"`
	VPC        string        `xml:"vpcId"`
	PrivateIP  string        `xml:"privateIpAddress,omitempty"`
	Attachment attachmentXML `xml:"attachment"`
	Addresses  []addressXML  `xml:"privateIpAddressesSet>item"`
	Prefixes   []prefixXML   `xml:"ipv4PrefixSet>item"`
}

type attachmentXML struct {
	DeviceIndex int    `xml:"deviceIndex"`
	Status      string `xml:"status"`
	Delete      bool   `xml:"deleteOnTermination"`
}

type addressXML struct {
	IP      string `xml:"privateIpAddress"`
	Primary bool   `xml:"primary"`
}

type prefixXML struct {
	Prefix string `xml:"ipv4Prefix"`
}

type deviceXML struct {
	Name, Key         string
	GiB               int
	Encrypted, Delete bool
	Snapshot          string `xml:"-"` // that a call names; the image's is not shown
}

var states = map[cloud.State]stateXML{
	cloud.Pending:     {0, "pending"},
	cloud.Running:     {16, "running"},
	cloud.Terminating: {32, "shutting-down"},
	cloud.Gone:        {48, "terminated"},
	cloud.Stopping:    {64, "stopping"},
	cloud.Stopped:     {80, "stopped"},
}

func tagSet(tags map[string]string) (all []tagXML) {
	for _, k := range sortedKeys(tags) {
		all = append(all, tagXML{k, tags[k]})
	}
	return all
}

// instance is one in EC2's words. One that has ended has no place in a network any more.
func (m *instances) instance(i sim.Instance) instanceXML {
	l := m.launched.launchOf(i)
	index, _ := strconv.Atoi(i.Place) // of sim's own making
	out := instanceXML{
		ID:          i.ID,
		ImageID:     l.image.ID,
		State:       states[i.State],
		LaunchIndex: index,
		Type:        i.InstanceType,
		LaunchTime:  wireTime(i.Launched),
		Zone:        i.Zone,
		Tenancy:     cmp.Or(l.tenancy, "default"),
		Host:        l.host,
		RootDevice:  l.image.RootDevice,
		Token:       l.token,
		Tags:        tagSet(i.Tags),
		Reserved:    l.reservation,
		CPU:         cpuXML{max(1, m.vCPUs(i.InstanceType)/2), min(2, m.vCPUs(i.InstanceType))},
	}
	if l.profile != "" {
		arn := l.profile
		if !strings.HasPrefix(arn, "arn:") {
			arn = m.arnOf("iam", "", m.cfg.Account, "instance-profile/"+arn)
		}
		out.Profile = &profileXML{arn}
	}
	if i.Spot {
		out.Lifecycle, out.SpotRequest = "spot", spotRequest(i.ID)
	}
	if i.State == cloud.Gone {
		out.Reason = m.reasonOf(i)
		return out
	}
	out.Subnet, out.VPC = i.Subnet, l.subnet.VPC
	for _, g := range l.groups {
		out.Groups = append(out.Groups, groupXML{g.ID, g.Name})
	}
	n := interfaceXML{
		ID:         interfaceID(i.ID),
		Subnet:     i.Subnet,
		VPC:        l.subnet.VPC,
		Attachment: attachmentXML{Status: "attached", Delete: true},
	}
	if i.ManagementIP.IsValid() {
		out.PrivateIP = i.ManagementIP.String()
		n.PrivateIP, n.Addresses = out.PrivateIP, []addressXML{{out.PrivateIP, true}}
		if l.secondary {
			n.Addresses = append(n.Addresses, addressXML{IP: m.prefixOf(i.PodIP).Addr().String()})
		}
		if l.prefix {
			n.Prefixes = []prefixXML{{m.prefixOf(i.PodIP).String()}}
		}
		if l.public {
			out.PublicIP = publicOf(i.ManagementIP).String()
		}
	}
	out.Interfaces, out.Volumes = []interfaceXML{n}, m.mappings(i, l)
	return out
}

// mappingXML is a volume that an instance has.
type mappingXML struct {
	Device string `xml:"deviceName"`
	Volume string `xml:"ebs>volumeId"`
	Status string `xml:"ebs>status"`
	At     string `xml:"ebs>attachTime"`
	Delete bool   `xml:"ebs>deleteOnTermination"`
}

// rootVolume is the ID of an instance's root disk, which is not among the model's volumes.
func rootVolume(instance string) string { return "vol-" + strings.TrimPrefix(instance, "i-") }

// mappings are the root disk of an instance and the volumes that are attached to it. EC2 shows no root disk while an instance is
// pending. Sources: aws/aws-sdk-php#2804, kubernetes-sigs/cluster-api-provider-aws#1565; hashicorp/packer#9480 asks again.
func (m *instances) mappings(i sim.Instance, l *launch) []mappingXML {
	var all []mappingXML
	if l.image.RootDevice != "" && i.State != cloud.Pending { // without a root device nobody called RunInstances for it
		all = append(all, mappingXML{l.image.RootDevice, rootVolume(i.ID), "attached", wireTime(i.Launched), true})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes.all {
		if v.Instance == i.ID {
			all = append(all, mappingXML{v.Device, v.ID, "attached", wireTime(v.attached), false})
		}
	}
	return all
}

func interfaceID(instance string) string { return "eni-" + strings.TrimPrefix(instance, "i-") }

func spotRequest(instance string) string { return "sir-" + strings.TrimPrefix(instance, "i-")[:8] }

// publicOf is the public address of a machine, in 198.0.0.0/8.
func publicOf(private netip.Addr) netip.Addr {
	b := private.As4()
	b[0] = 198
	return netip.AddrFrom4(b)
}
